"""The architecture: rooms that import one way only, and no file that hides a concept."""

import ast
import pathlib

import pytest

import optax_freeze

PACKAGE = pathlib.Path(optax_freeze.__file__).parent
# Each room may import from the rooms above it in this list, and from nothing else of the package.
ROOMS = ["_trees", "_specs", "_masks", "_hiding", "_training", "_proof", "_view"]
# These are users of the library: they import its public names. The command line runs the others.
USERS = {"_demo": [], "_checkpoints": [], "__main__": ["_demo", "_checkpoints"]}
FILES = sorted(PACKAGE.rglob("*.py"), key=str)


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """The modules of the package that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names = [node.module]
        yield from (name for name in names if name.split(".")[0] == "optax_freeze")


def may_import(path):
    """The rooms, from the ground up, that a file may import from."""
    if room(path) == "__init__":
        return ROOMS
    return ROOMS[: ROOMS.index(room(path))]


def test_every_file_is_in_a_room():
    assert {room(path) for path in FILES} == {*ROOMS, *USERS, "__init__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way_and_through_the_door(path):
    own = f"optax_freeze.{room(path)}"
    others = [name for name in imported(path) if not f"{name}.".startswith(f"{own}.")]
    if room(path) in USERS:
        assert set(others) <= {
            "optax_freeze",
            *(f"optax_freeze.{name}" for name in USERS[room(path)]),
        }
    else:
        # A room as such, never a file inside it.
        assert set(others) <= {f"optax_freeze.{name}" for name in may_import(path)}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_says_what_it_is_for_and_what_others_may_use(name):
    tree = ast.parse((PACKAGE / name / "__init__.py").read_text())
    _, *imports, names = tree.body
    assert len(ast.get_docstring(tree).splitlines()) == 1
    assert all(isinstance(node, ast.ImportFrom) for node in imports)
    offered = [alias.name for node in imports for alias in node.names]
    assert sorted(ast.literal_eval(names.value)) == sorted(offered)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_offers_only_what_others_use(name):
    offered = ast.literal_eval(
        ast.parse((PACKAGE / name / "__init__.py").read_text()).body[-1].value
    )
    taken = {
        alias.name
        for path in FILES
        if room(path) != name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == f"optax_freeze.{name}"
        for alias in node.names
    }
    assert set(offered) == taken


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_long(path):
    assert len(path.read_text().splitlines()) <= 250


def test_the_tests_lie_in_the_same_rooms():
    folders = {path.parent.name for path in (PACKAGE.parent / "tests").glob("*/test_*.py")}
    assert folders <= {*(name.strip("_") for name in [*ROOMS, *USERS]), "whole"}
