"""A miss in a large tree has its suggestions, and soon."""

import re
import sys

import jax.numpy as jnp
import pytest

from optax_freeze import SpecError, freeze_mask, leaf_paths

X = jnp.ones(2)


def flat(count):
    return {f"model.encoder.layers.{i}.attention.weight": X for i in range(count)}


def deep(count):
    chains = {}
    for chain in range(count // 50):
        node = {"w": X}
        for _ in range(49):
            node = {"w": X, "next": node}
        chains[f"chain{chain}"] = node
    return chains


def nested(count):
    return {f"layer{i}": {"w": X, "b": X, "mlp": [X] * 8} for i in range(count // 10)}


@pytest.mark.parametrize(
    ("make", "miss", "near"),
    [
        (
            flat,
            "model.encoder.layer.77.attention.weight",
            "model.encoder.layers.77.attention.weight",
        ),
        (deep, "chain5.next.next.v", "chain5.next.next.w"),
        (nested, "layer77.mpl", "layer77.mlp"),
        (nested, "**.mpl", "layer0.mlp"),
    ],
)
def test_a_miss_in_a_large_tree_has_its_suggestions(make, miss, near):
    tree = make(5_000)
    assert len(leaf_paths(tree)) == 5_000
    with pytest.raises(SpecError, match=f"closest: .*'{re.escape(near)}'"):
        freeze_mask(tree, miss)


@pytest.mark.parametrize(
    ("make", "miss"),
    [
        (flat, "model.encoder.layer.77.attention.weight"),
        (flat, "**.wieght"),
        (deep, "chain5.next.next.v"),
        (nested, "layer77.mpl"),
        (nested, "**.mpl"),
    ],
)
def test_a_miss_costs_a_few_calls_for_each_leaf(make, miss):
    """difflib over every path, which takes minutes, makes more than a thousand."""
    tree = make(20_000)
    calls = 0

    def count(_, event, __):
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        with pytest.raises(SpecError, match="closest: "):
            freeze_mask(tree, miss)
    finally:
        sys.setprofile(None)
    assert calls / 20_000 < 50
