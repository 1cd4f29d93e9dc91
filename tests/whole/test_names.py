"""Every public name exists, is documented, and stands in the README's table."""

import pathlib
import re
import subprocess
import sys

import pytest

import optax_freeze

ROOT = pathlib.Path(optax_freeze.__file__).parents[1]


def test_all_is_what_is_there():
    public = {name for name in vars(optax_freeze) if not name.startswith("_")}
    assert public == set(optax_freeze.__all__)


@pytest.mark.parametrize("name", optax_freeze.__all__)
def test_a_public_name_is_documented(name):
    assert getattr(optax_freeze, name).__doc__


def test_the_readme_lists_every_public_name():
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("## Public names")[2].partition("\n## ")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert listed == set(optax_freeze.__all__)


HEAVY = {"flax", "equinox", "rich", "haiku", "sklearn", "chex"}
PROBE = """
import sys, optax
before = set(sys.modules)
import optax_freeze
print(*(set(sys.modules) - before))
"""


def test_importing_is_light():
    probe = [sys.executable, "-c", PROBE]
    imported = subprocess.run(probe, capture_output=True, text=True, check=True).stdout.split()
    assert "optax_freeze" in imported
    assert not HEAVY & set(imported)
