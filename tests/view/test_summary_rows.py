"""A summary of arrays in pieces: each piece shows its rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from optax_freeze import cut_rows, split, summary, value_and_grad


def lines(tree, *args, **kwargs):
    return [line.rstrip() for line in str(summary(tree, *args, **kwargs)).splitlines()]


def test_a_piece_shows_its_rows():
    params = {"embed": jnp.ones((32003, 8)), "blocks": {"w": jnp.ones((12, 4, 4))}}
    cut = cut_rows(params, {"embed": 32000, "blocks.w": [4, 8]})
    assert lines(cut, ["embed[0]", "blocks.w[:2]"])[:8] == [
        "path      class or array               parameters    bytes  status",
        "blocks.w  Pieces                              192    768 B  mixed 33.3%",
        "  [0]     f32[4,4,4] rows [0:4]                64    256 B  frozen",
        "  [1]     f32[4,4,4] rows [4:8]                64    256 B  frozen",
        "  [2]     f32[4,4,4] rows [8:12]               64    256 B  trains",
        "embed     Pieces                          256,024  1.0 MiB  mixed 0.1%",
        "  [0]     f32[32000,8] rows [0:32000]     256,000  1.0 MiB  frozen",
        "  [1]     f32[3,8] rows [32000:32003]          24     96 B  trains",
    ]


@pytest.mark.parametrize(
    ("rows", "axis", "texts"),
    [
        (np.array([5, 2]), 0, ["f32[4,6] other rows", "f32[2,6] rows [5, 2]"]),
        (
            np.array([5, 2, 0, 1, 4]),
            -1,
            ["f32[6,1] other rows of axis 1", "f32[6,5] rows [5, 2, 0, 1, ...] of axis 1"],
        ),
        (4, 1, ["f32[6,4] rows [0:4] of axis 1", "f32[6,2] rows [4:6] of axis 1"]),
    ],
)
def test_the_words_for_rows(rows, axis, texts):
    cut = cut_rows({"w": jnp.ones((6, 6))}, {"w": rows}, axis)
    shown = lines(cut)
    assert all(text in line for text, line in zip(texts, shown[2:4], strict=True))


def test_layers_cut_alike_are_still_one_line():
    cut = cut_rows({"blocks": [jnp.ones((6, 2))] * 3}, {"blocks": 4})
    shown = lines(cut, "blocks.*[0]")
    assert shown[1].startswith("blocks[0:3]  x3")
    assert [line.split("  ")[1] for line in shown[2:4]] == ["[0]", "[1]"]


def test_gradients_show_what_is_there():
    cut = cut_rows({"w": jnp.ones((6, 2))}, {"w": 4})
    _, grads = value_and_grad(lambda tree: jnp.sum(tree["w"].pieces[1]), "w[0]")(cut)
    assert any("f32[2,2] rows [4:6]" in line for line in lines(grads))


def test_a_piece_that_was_taken_out_is_a_hole_of_its_shape():
    cut = cut_rows({"embed": jnp.ones((10, 2))}, {"embed": 8})
    _, rest = split(cut, "embed[0]")
    shown = [line.split() for line in lines(rest, "embed")[1:4]]
    assert [(line[0], " ".join(line[1:-3]), line[-1]) for line in shown] == [
        ("embed", "Pieces 16", "frozen"),
        ("[0]", "f32[8,2] rows [0:8] 16", "frozen"),
        ("[1]", "hole f32[2,2] -", "out"),
    ]
