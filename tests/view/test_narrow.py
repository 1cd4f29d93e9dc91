"""A summary in a terminal of any width: no number is broken, and nothing is lost in silence."""

import io
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from optax_freeze import summary
from optax_freeze._view.folding import lines
from optax_freeze._view.table import HEAD, fitting, layout

WIDTHS = range(30, 121)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


DEEP = {
    "embed": f32(32_000, 5_120),
    "decoder": {
        "blocks": [{"attention": {"query": f32(4, 5_120, 5_120)}, "norm": f32(5_120)}] * 24,
        "norm": {"scale": f32(5_120), "count": jax.ShapeDtypeStruct((), jnp.int32)},
    },
    "head_of_a_long_name_indeed": f32(5_120, 32_000),
    "rate": 0.5,
}
FLAT = {"w": f32(3, 4), "b": f32(4)}


def printed(shown, width):
    stream = io.StringIO()
    Console(file=stream, width=width).print(shown)
    return stream.getvalue()


def foot_numbers(shown):
    foot = str(shown).rpartition("\n\n")[2]
    return [part for line in foot.splitlines() for part in line.split(" | ")]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tree", [DEEP, FLAT], ids=["deep", "flat"])
def test_every_cell_stands_on_one_line(tree, width):
    shown = summary(tree, ["**.norm", "**[0]"] if tree is DEEP else "w", tx=optax.adamw(1.0))
    rows = lines(shown.root, None)
    left_out = fitting(rows, width)
    texts = [text.rstrip() for text in printed(shown, width).splitlines()]
    assert max(map(len, texts)) <= width
    # In order, each path and behind it, on its line or the next, all its cells.
    rest = iter(texts[1 + (texts[0] == HEAD[0]) :])
    for row in rows:
        line = next(rest)
        name = "  " * row.indent + row.name
        assert line.startswith(name)
        if line == name:
            line = name + next(rest)
        cells = zip(HEAD[1:], row.cells, strict=True)
        expected = [cell for title, cell in cells if title not in left_out and cell]
        assert re.split(r" {2,}", line.removeprefix(name).strip()) == expected
    assert next(rest) == ""
    below = list(rest)
    for part in foot_numbers(shown):
        text = part if len(part) <= width else part.split()[-1]
        assert any(text in line for line in below)
    note = f"left out in {width} columns: {', '.join(left_out)}"
    assert " ".join(below).endswith(note) == bool(left_out)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_worth_least_is_left_out_first(width):
    rows = lines(summary(DEEP).root, None)
    left_out = fitting(rows, width)
    assert tuple(left_out) in {(), ("bytes",), ("class or array",), ("class or array", "bytes")}
    assert len(fitting(rows, width + 1)) <= len(left_out)
    if left_out:  # with one more it would not have fit
        assert max(len(f"{text}{status}") for text, status, _ in layout(rows, width)) > width


@pytest.mark.parametrize("tree", [DEEP, FLAT], ids=["deep", "flat"])
def test_what_fits_is_as_it_is_in_plain_text(tree):
    shown = summary(tree, tx=optax.adam(1.0))
    table, _ = str(shown).split("\n\n")
    assert max(map(len, table.splitlines())) <= 80
    assert printed(shown, 80).split("\n\n")[0] == table
    assert tree is DEEP or printed(shown, 80) == f"{shown}\n"


def test_a_path_that_is_longer_than_the_terminal_is_broken_and_no_number_is():
    name = "a_name_of_many_letters_" * 4
    texts = printed(summary({name: f32(123_456, 7)}), 40).splitlines()
    assert "".join(texts[1:4]).replace(" ", "").startswith(name)
    assert any("864,192  trains" in text for text in texts)


@given(
    st.lists(st.lists(st.integers(0, 10**4), max_size=3), min_size=1, max_size=6),
    st.integers(38, 120),
)
def test_no_number_is_broken_in_any_tree(shapes, width):
    shown = summary({f"l{i}": f32(*shape) for i, shape in enumerate(shapes)}, tx=optax.adam(1.0))
    texts = printed(shown, width).splitlines()
    for line in lines(shown.root, None):
        _, count, memory, status = line.cells
        assert any(f" {count}  " in text and text.rstrip().endswith(status) for text in texts)
        assert "bytes" in fitting(lines(shown.root, None), width) or any(
            f" {memory}  " in text for text in texts
        )
