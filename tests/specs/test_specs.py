"""Which leaves a regex, a class, a function and `where` mean; lists of entries."""

import dataclasses
import functools
import operator
import re

import chex
import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict
from strategies import Block, Layer, Pair

from optax_freeze import (
    Constant,
    SpecError,
    freeze_mask,
    frozen,
    leaf_paths,
    trainable_mask,
    trainable_only,
    tree_mask,
    where,
)
from optax_freeze._specs import is_specs

HOLE = optax.MaskedNode()
X = jnp.ones(2)


class Net(eqx.Module):
    layers: list
    norm: eqx.nn.LayerNorm
    act: object = jax.nn.relu


class NNXNet(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs)])


def net():
    keys = jax.random.split(jax.random.key(0), 2)
    layers = [eqx.nn.Linear(2, 2, key=key) for key in keys]
    return Net([*layers, Layer(X, 0.5)], eqx.nn.LayerNorm(2))


def frozen_paths(tree, spec):
    """The paths of the arrays that train by default, but not with this spec."""
    before, after = trainable_mask(tree), freeze_mask(tree, spec)
    flags = zip(leaf_paths(tree), jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return [path for path, was, trains in flags if was and not trains]


NET = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.2.weight"]
NORM = ["norm.weight", "norm.bias"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (re.compile(r".*bias"), ["layers.0.bias", "layers.1.bias", "norm.bias"]),
        (re.compile(r"layers\.[12]\..*"), NET[2:]),
        (re.compile("NORM.*", re.IGNORECASE), NORM),
        (eqx.nn.LayerNorm, NORM),
        (eqx.nn.Linear, NET[:4]),
        (eqx.Module, NET + NORM),  # subclasses too
        (list, NET),
        (jax.Array, NET + NORM),  # leaves too
        (lambda module: isinstance(module, eqx.nn.LayerNorm), NORM),
        (lambda module: module.in_features == 2, NET[:4]),  # Layer and Net have none: False
        (lambda module: np.True_, NET + NORM),
        (
            where(lambda path, leaf: leaf.ndim == 1),
            ["layers.0.bias", "layers.1.bias", NET[4], *NORM],
        ),
        (where(lambda path, leaf: path.startswith("norm")), NORM),
        (["norm", eqx.nn.Linear], NET[:4] + NORM),
        (("norm.bias", re.compile("norm.weight")), NORM),
        ([], []),
    ],
)
def test_spec(spec, expected):
    assert frozen_paths(net(), spec) == expected


def test_where_sees_values():
    tree = {"zero": jnp.zeros(2), "one": X}
    spec = where(lambda path, leaf: bool((leaf == 0).all()))
    assert freeze_mask(tree, spec) == {"zero": False, "one": True}


def test_a_callable_object_is_a_function():
    assert freeze_mask(Block(X, X), functools.partial(operator.is_not, None)) == Block(False, False)


@pytest.mark.parametrize(
    "make",
    [
        chex.dataclass,
        functools.partial(chex.dataclass, mappable_dataclass=False),
        flax.struct.dataclass,
        lambda cls: jax.tree_util.register_dataclass(dataclasses.dataclass(cls)),
    ],
    ids=["chex", "chex, not a mapping", "flax", "jax"],
)
def test_every_kind_of_dataclass_is_a_module(make):
    class Model:
        w: object
        b: object

    model = make(Model)(w=X, b=X)
    mask = freeze_mask({"model": model, "rest": X}, lambda module: type(module) is type(model))
    assert jax.tree.leaves(mask) == [False, False, True]


def test_a_function_is_called_on_modules_only():
    seen = []
    tree = {
        "module": Layer(X, [Block(X, X)]),
        "mapping": FrozenDict({"a": X}),
        "namedtuple": Pair(X, (X,)),
        "variable": nnx.Param(X),
        "constant": Constant(X),
        "places": [None, HOLE],
        "hidden": tree_mask([3]),
        "activation": eqx.nn.Lambda(jax.nn.relu),
        "leafless": eqx.nn.Identity(),
    }
    freeze_mask(tree, lambda module: seen.append(type(module).__name__) or True)
    assert sorted(seen) == ["Block", "Constant", "Identity", "Lambda", "Layer"]


def test_where_is_called_on_leaves_only():
    seen = []
    tree = {"a": [X, None], "b": HOLE, "c": np.zeros(2, jax.dtypes.float0), "d": tree_mask([3])}
    freeze_mask(tree, where(lambda path, leaf: seen.append(path) or True))
    assert seen == ["a.0"]


LINEAR = ["linear.bias.value", "linear.kernel.value"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("linear", LINEAR),
        ("linear.kernel", LINEAR[1:]),
        ("linear.kernel.value", LINEAR[1:]),
        ("linear.*", LINEAR),
        ("linear.*.value", LINEAR),
        ("blocks[-1].bias", ["blocks.1.bias.value"]),
        ("**.bias", ["blocks.0.bias.value", "blocks.1.bias.value", LINEAR[0], "norm.bias.value"]),
        (re.compile(r"linear\.kernel"), LINEAR[1:]),
        (re.compile(r"linear\.kernel\.value"), LINEAR[1:]),
        (re.compile(r"linear\..*"), LINEAR),
        (nnx.BatchStat, ["norm.mean.value", "norm.var.value"]),
        (where(lambda path, leaf: path == "linear.bias.value"), LINEAR[:1]),
    ],
)
@pytest.mark.parametrize("make", [NNXNet, lambda: nnx.state(NNXNet())], ids=["module", "state"])
def test_nnx(make, spec, expected):
    assert frozen_paths(make(), spec) == expected


@pytest.mark.parametrize("spec", [nnx.BatchNorm, lambda module: isinstance(module, nnx.BatchNorm)])
def test_nnx_modules(spec):
    expected = [f"norm.{name}.value" for name in ("bias", "mean", "scale", "var")]
    assert frozen_paths(NNXNet(), spec) == expected


@pytest.mark.parametrize("spec", [int, re.compile("zz"), lambda module: False])
def test_in_a_tree_with_holes_what_names_no_path_may_match_nothing(spec):
    assert freeze_mask({"m": Block(HOLE, X)}, spec) == {"m": Block(HOLE, True)}
    with pytest.raises(SpecError, match="matches no leaf"):
        freeze_mask({"m": Block(None, X)}, spec)


def test_where_may_match_nothing_in_a_tree_with_holes():
    spec = where(lambda path, leaf: False)
    assert freeze_mask([HOLE, X], spec) == [HOLE, True]
    with pytest.raises(SpecError, match="matches no leaf"):
        freeze_mask([None, X], spec)


@pytest.mark.parametrize("spec", [Block, re.compile("m.kernel"), lambda module: True])
@pytest.mark.parametrize("place", [None, HOLE, np.zeros(2, jax.dtypes.float0), tree_mask(3)])
def test_what_meets_only_places_is_satisfied(spec, place):
    mask = freeze_mask({"m": Block(place, place), "x": X}, spec)
    assert mask["x"] is True


@pytest.mark.parametrize(
    "spec",
    [
        "a.*",
        re.compile("a.*bias"),
        Block,
        lambda module: True,
        where(lambda path, leaf: leaf.ndim > 1),
    ],
    ids=["path", "regex", "class", "function", "where"],
)
def test_inside_jit(spec):
    seen = []
    tree = {"a": Pair(X, Block(X, jnp.ones((2, 2)))), "c": X, "d": jnp.arange(2)}
    jax.jit(lambda tree: seen.append(freeze_mask(tree, spec)))(tree)
    assert seen == [freeze_mask(tree, spec)]
    assert seen != [trainable_mask(tree)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("encoder", True),
        (re.compile("a"), True),
        (eqx.nn.Linear, True),
        (where(lambda path, leaf: True), True),
        (lambda module: True, True),
        (functools.partial(int), True),
        (optax.sgd(1.0), True),  # an error there
        (["a", "b"], True),
        ([], False),  # as `trainable_mask` gives it for a tree without leaves
        ([(), {}, None], False),
        (optax.MaskedNode(), False),
        ([True, "a"], False),
        ((np.True_,), False),
        ([jnp.array(True)], False),
        ([np.array([True, False])], False),
        (True, False),
        ({"a": "encoder"}, False),
        (3, False),
    ],
)
def test_what_stands_for_specs(value, expected):
    assert is_specs(value) is expected


def test_a_callable_module_of_bools_is_a_mask():
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    mask = eqx.tree_at(lambda m: m.bias, trainable_mask(model), False)
    assert callable(mask)
    assert trainable_mask(model, trainable=mask).weight is True
    assert trainable_mask(model, trainable=mask).bias is False


# what is there and has no leaves


class Bare(eqx.Module):
    layers: list
    w: object


BARE = Bare([eqx.nn.Linear(2, 2, key=jax.random.key(0)), eqx.nn.Identity()], X)
EMPTY = {"act": {}, "blocks": [{"w": X}, (), {"skip": {}}], "w": X}


@pytest.mark.parametrize(
    ("tree", "spec"),
    [
        (BARE, "layers.1"),
        (BARE, "layers[1]"),
        (BARE, "layers[-1]"),
        (BARE, "layers.*[-1]"),
        (BARE, "**[1]"),
        (BARE, re.compile(r"layers\.1")),
        (BARE, eqx.nn.Identity),
        (BARE, lambda module: isinstance(module, eqx.nn.Identity)),
        (EMPTY, "act"),
        (EMPTY, "a?t"),
        (EMPTY, "act.**"),
        (EMPTY, "**.skip"),
        (EMPTY, "blocks[1]"),
        (EMPTY, "blocks.*.skip"),
        ({}, "**"),
    ],
)
def test_what_has_no_leaves_is_not_a_miss(tree, spec):
    assert frozen_paths(tree, [spec]) == []
    for make in (frozen, lambda spec: trainable_only(optax.sgd(1.0), spec)):
        tx = make(spec)
        tx.update(tree, tx.init(tree), tree)


@pytest.mark.parametrize(
    "spec", ["act.w", "blocks[1].w", "**.skp", "blocks[3]", "act[0]", eqx.Module]
)
def test_what_is_not_there_is_a_miss_in_a_tree_of_empty_modules_too(spec):
    with pytest.raises(SpecError, match="matches no leaf of a tree of 2 leaves"):
        freeze_mask(EMPTY, spec)


@pytest.mark.parametrize("spec", ["act", "blocks[1]", ["w", "**.skip"]])
def test_what_has_no_leaves_cannot_be_what_trains(spec):
    with pytest.raises(
        SpecError, match=r"^trainable: '.*' matches nothing that can train: no leaf"
    ):
        trainable_mask(EMPTY, trainable=spec)


def test_a_rule_by_ndim_takes_stacked_biases_for_matrices():
    layers = [{"w": jnp.ones((2, 2)), "b": X} for _ in range(3)]
    rule = where(lambda path, leaf: leaf.ndim < 2)
    one_by_one = {"blocks": layers, "norm": X}
    assert frozen_paths(one_by_one, rule) == ["blocks.0.b", "blocks.1.b", "blocks.2.b", "norm"]
    stacked = {"blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers), "norm": X}
    assert frozen_paths(stacked, rule) == ["norm"]
    assert "Mind stacked leaves" in where.__doc__
