"""How a mask meets a tree: by path; prefixes, deeper masks, places, misfits."""

import collections
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict
from strategies import Block, Layer

from optax_freeze import Constant, MaskError, freeze_mask, tree_mask

HOLE = optax.MaskedNode()
FLOAT0 = np.zeros(2, jax.dtypes.float0)
X = jnp.ones(2)


class Params(typing.NamedTuple):
    a: object
    b: object


def meet(tree, mask):
    return freeze_mask(tree, None, mask)


@pytest.mark.parametrize(
    ("tree", "mask"),
    [
        ({"a": {"w": X}, "b": X}, FrozenDict({"a": {"w": True}, "b": False})),
        (FrozenDict({"a": {"w": X}, "b": X}), {"a": {"w": True}, "b": False}),
        ({"a": {"w": X}, "b": X}, collections.OrderedDict(b=False, a={"w": True})),
        ({"a": {"w": X}, "b": X}, {"a.w": True, "b": False}),
        ({"a.w": X, "b": X}, {"a": {"w": True}, "b": False}),
        ([X, X], (True, False)),
        ((X, X), [True, False]),
        ([X, X], {"0": True, "1": False}),
        ({0: X, 1: X}, [True, False]),
        (Params(X, X), {"a": True, "b": False}),
        ({"a": X, "b": X}, Params(True, False)),
        (Block(X, X), {"kernel": True, "bias": False}),
        ({"a": X, "b": X}, {"a": np.True_, "b": np.False_}),
        ({"a": X, "b": X}, {"a": np.array(True), "b": jnp.array(False)}),
        # keys such as "a" and "a.b" side by side
        ({"a": X, "a.b": X}, FrozenDict({"a": True, "a.b": False})),
        ({"a": X, "a.b": X}, [("a", True), ("a.b", False)]),
    ],
)
def test_by_path_and_not_by_container(tree, mask):
    if isinstance(mask, list) and isinstance(mask[0], tuple):
        mask = collections.OrderedDict(mask)
    met = meet(tree, mask)
    assert jax.tree.structure(met) == jax.tree.structure(tree)
    assert jax.tree.leaves(met) == [True, False]
    assert {type(leaf) for leaf in jax.tree.leaves(met)} == {bool}


PREFIXED = {"a": Layer(X, 0.5), "b": [X, 3, Constant(X)], "c": 0.5}


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (True, [True, False, True, False, False, False]),
        (False, [False] * 6),
        ({"a": True, "b": False, "c": False}, [True, False, False, False, False, False]),
        ({"a": False, "b": True, "c": False}, [False, False, True, False, False, False]),
        ({"a": True, "b": True, "c": True}, [True, False, True, False, False, True]),
        (
            {
                "a": {"weight": False, "rate": True},
                "b": [False, False, {"value": True}],
                "c": False,
            },
            [False, True, False, False, True, False],
        ),
    ],
)
def test_a_prefix_is_the_default_below_and_a_leaf_is_itself(mask, expected):
    assert jax.tree.leaves(meet(PREFIXED, mask)) == expected


def test_a_bool_is_at_the_leaf_with_and_without_the_value_of_a_variable():
    tree = {"rate": nnx.Param(0.5), "w": nnx.Param(X)}
    expected = [True, False]
    assert jax.tree.leaves(meet(tree, {"rate": True, "w": False})) == expected
    assert jax.tree.leaves(meet(tree, {"rate": {"value": True}, "w": False})) == expected
    pure = {"rate": 0.5, "w": X}
    deeper = {"rate": nnx.Param(True), "w": nnx.Param(False)}
    assert jax.tree.leaves(meet(pure, deeper)) == expected
    with pytest.raises(MaskError, match=r"the mask has True at 'n.value', a leaf of class int"):
        meet({"n": nnx.Param(3)}, {"n": True})


def test_a_mask_may_go_deeper_if_it_agrees():
    assert meet({"a": X, "b": X}, {"a": {"x": [True, True]}, "b": {"y": False}}) == {
        "a": True,
        "b": False,
    }
    with pytest.raises(MaskError) as caught:
        meet({"a": {"w": X}}, {"a": {"w": {"x": True, "y": False}}})
    assert "'a.w' is one leaf, but it has True at 'a.w.x' and False at 'a.w.y'" in str(caught.value)


@pytest.mark.parametrize("place", [None, HOLE, FLOAT0, tree_mask(3)], ids=repr)
@pytest.mark.parametrize("mask", [{"p": True}, {"p": False}, {"p": {"x": True, "y": [False]}}, {}])
def test_a_bool_that_meets_a_place_is_ignored(place, mask):
    met = meet({"p": place, "z": X}, {**mask, "z": True})
    assert met["z"] is True
    assert jax.tree.leaves(met["p"]) == ([False] if place is FLOAT0 else [])


def test_a_place_beside_a_dotted_key_hides_nothing():
    tree = {"a": None, "a.b": X, "a.c": X}
    assert meet(tree, FrozenDict({"a.b": True, "a.c": False})) == {
        "a": None,
        "a.b": True,
        "a.c": False,
    }
    assert meet(tree, FrozenDict({"a": True, "a.b": False, "a.c": True}))["a.c"] is True
    assert meet(tree, FrozenDict({"a": False})) == {"a": None, "a.b": False, "a.c": False}


def test_a_place_below_the_name_of_a_leaf_is_nothing():
    tree, mask = {"a": X, "a.b": None}, {"a": False, "a.b": HOLE}
    assert meet({"a": X}, mask) == {"a": False}
    assert meet(tree, FrozenDict({"a": False})) == {"a": False, "a.b": None}
    assert meet({"a": X, "a.b": HOLE}, FrozenDict({"a": False, "a.b": True})) == mask
    assert meet({"a": None}, mask) == {"a": None}


def test_two_leaves_of_one_name_meet_one_bool_or_bools_that_agree():
    tree = {"a": {"b": X}, "a.b": X}
    assert jax.tree.leaves(meet(tree, {"a": {"b": True}})) == [True, True]
    assert jax.tree.leaves(meet(tree, FrozenDict({"a": {"b": False}, "a.b": False}))) == [False] * 2
    assert meet(tree, {"a": {"b": True}, "a.b": False}) == {"a": {"b": True}, "a.b": False}
    with pytest.raises(MaskError, match=r"it says two things about 'a.b'"):
        meet(tree, FrozenDict({"a": {"b": True}, "a.b": False}))


def test_empty_containers_need_no_bool():
    assert meet({"a": {}, "b": X}, {"b": True}) == {"a": {}, "b": True}
    assert meet({"a": (), "b": X}, {"a": True, "b": True}) == {"a": (), "b": True}
    assert meet({"b": X}, {"a": [], "b": True}) == {"b": True}


def test_a_static_field_that_cannot_be_compared():
    class Model(eqx.Module):
        w: object
        table: object = eqx.field(static=True)

    model, mask = (Model(w, Table()) for w in (X, True))
    assert meet(model, mask).w is True


class Table:
    """Something static that refuses to be compared, as an array does."""

    def __eq__(self, other):
        raise ValueError("The truth value of an array is ambiguous")

    __hash__ = None
