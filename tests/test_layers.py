"""Imports point down only, and no file hides a concept without a name."""

import ast
import pathlib

import pytest

import optax_freeze

PACKAGE = pathlib.Path(optax_freeze.__file__).parent
LAYERS = [
    {"_levels", "_suggest", "_abstract", "_bits", "_table"},
    {"_paths"},
    {"_names", "_sealing"},
    {"_numbered", "_drift"},
    {"_patterns"},
    {"_entries"},
    {"_questions"},
    {"_specs"},
    {"_fixed", "_meeting"},
    {"_choice"},
    {"_masks", "_hostile", "_hidden"},
    {"_hiding", "_outline"},
    {"_align", "_folding"},
    {"_holes", "_routing", "_updates"},
    {"_transforms", "_groups", "_gradients", "_summary", "_checks"},
    {"__init__"},
    {"_demo"},
    {"__main__"},
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports(module):
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_module_has_a_layer():
    assert set(MODULES) == set(HEIGHT)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    own = [name.partition(".") for name in imports(module) if name.split(".")[0] == "optax_freeze"]
    below = [name or "__init__" for _, _, name in own]
    assert [name for name in below if HEIGHT[name] >= HEIGHT[module]] == []


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_long(module):
    assert len((PACKAGE / f"{module}.py").read_text().splitlines()) <= 250
