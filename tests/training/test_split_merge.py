"""`split` and `merge`: what is taken apart comes together again, the very same leaves."""

import collections
import dataclasses
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hostile import all_bits, bits, frozen_leaves
from hypothesis import given
from hypothesis import strategies as st

from optax_freeze import (
    MaskError,
    SpecError,
    is_masked,
    leaf_paths,
    merge,
    split,
    trainable_mask,
    tree_mask,
    where,
)

HOLE = optax.MaskedNode()
Pair = collections.namedtuple("Pair", ["first", "second"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Module:
    weight: Any
    bias: Any


class Thing:
    """A leaf that is equal to nothing else."""


LEAVES = st.one_of(
    st.builds(lambda n: jnp.ones(n), st.integers(0, 2)),
    st.builds(lambda n: np.arange(n), st.integers(0, 2)),
    st.builds(lambda x: np.full(2, x, np.float32), st.floats(width=32)),
    st.sampled_from([
        1,
        1.0,
        True,
        -0.0,
        float("nan"),
        "name",
        len,
        jax.random.key(0),
        np.array("s"),
    ]),
    st.builds(Thing),
)
PLACES = st.one_of(st.none(), st.just(HOLE), st.builds(tree_mask, st.sampled_from([3, "x", True])))
KEYS = st.text(alphabet="ab0/-", min_size=1, max_size=2)
TREES = st.recursive(
    st.one_of(LEAVES, PLACES),
    lambda below: st.one_of(
        st.dictionaries(KEYS, below, max_size=3),
        st.lists(below, max_size=3),
        st.lists(below, max_size=3).map(tuple),
        st.builds(Pair, below, below),
        st.builds(Module, below, below),
    ),
    max_leaves=8,
)
EVERY_SECOND = where(lambda path, leaf: len(path) % 2 == 0)


def same(one, other):
    """Whether two trees have one structure and the very same objects for leaves."""
    (mine, structure), (its, other_structure) = map(jax.tree.flatten, (one, other))
    return structure == other_structure and all(a is b for a, b in zip(mine, its, strict=True))


def differs_by_copies_only(one, other):
    """NumPy arrays that are hidden, as of text, are copied: the others are the very same."""
    mine, its = jax.tree.leaves(one), jax.tree.leaves(other)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        a is b or (isinstance(a, np.ndarray) and a.dtype.kind == "U" and (a == b).all())
        for a, b in zip(mine, its, strict=True)
    )


@pytest.mark.parametrize(
    "kwargs", [{}, {"freeze": "**"}, {"trainable": EVERY_SECOND}, {"trainable": False}]
)
@given(tree=TREES)
def test_merge_of_split_is_the_tree(kwargs, tree):
    try:
        parts = split(tree, **kwargs)
    except SpecError:
        assert kwargs  # nothing for this spec to match in such a tree
        return
    assert differs_by_copies_only(merge(*parts), tree)


@given(tree=TREES)
def test_what_is_taken_is_what_trains_by_its_path(tree):
    trainable, rest = split(tree)
    flags = jax.tree.leaves(trainable_mask(tree))
    named = zip(leaf_paths(tree), jax.tree.leaves(tree), flags, strict=True)
    expected = {path: leaf for path, leaf, flag in named if flag}
    assert trainable.keys() == expected.keys()
    assert all(trainable[path] is expected[path] for path in expected)
    assert all(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(rest))


def test_the_rest_has_holes_and_hides_what_is_no_array():
    tree = {"a": jnp.ones(2), "b": {"f": len, "n": 3, "w": jnp.zeros(2)}, "t": np.array(["x"])}
    trainable, rest = split(tree, "b")
    assert list(trainable) == ["a"]
    assert repr(rest["a"]) == "hole f32[2]"
    assert rest["b"]["w"] is tree["b"]["w"]
    assert all(map(is_masked, [rest["b"]["f"], rest["b"]["n"], rest["t"]]))


UNFIT = {
    "text": np.array(["x"]),
    "bytes": np.array([b"x"]),
    "objects": np.array([object()]),
    "dates": np.array(["2020-01-01"], "datetime64[D]"),
    "records": np.zeros(1, [("n", "i4")]),
    "float0": np.zeros(1, jax.dtypes.float0),
}


@pytest.mark.parametrize("array", UNFIT.values(), ids=UNFIT.keys())
def test_arrays_that_jit_refuses_are_hidden(array):
    _, rest = split({"x": array, "w": jnp.ones(2)})
    assert is_masked(rest["x"])
    jax.jit(lambda rest: rest)(rest)


@pytest.mark.parametrize("leaf", frozen_leaves().values(), ids=frozen_leaves().keys())
def test_arrays_that_jit_takes_are_not(leaf):
    _, rest = split({"x": leaf, "w": jnp.ones(2)}, "x")
    assert rest["x"] is leaf


@pytest.mark.parametrize("place", [None, HOLE, tree_mask(3), tree_mask(jnp.arange(2))], ids=repr)
def test_places_that_were_there_before_stay(place):
    tree = {"place": place, "w": jnp.ones(2)}
    trainable, rest = split(tree)
    assert list(trainable) == ["w"]
    assert merge(trainable, rest) == {"place": place, "w": tree["w"]}
    assert merge(trainable, jax.jit(lambda rest: rest)(rest))["place"] == place


def test_the_rest_does_not_retrace():
    traces = []

    @jax.jit
    def step(trainable, rest):
        traces.append(None)
        return jnp.sum(merge(trainable, rest)["w"])

    for _ in range(3):
        step(*split({"w": jnp.ones(2), "n": 3, "hole": HOLE, "hidden": tree_mask("x"), "f": len}))
    assert len(traces) == 1


def test_an_equinox_module_through_jit_grad_and_plain_optax():
    model = eqx.nn.MLP(2, 1, 8, 2, activation=jax.nn.relu, key=jax.random.key(0))
    trainable, rest = split(model, freeze="layers[0]")
    tx = optax.sgd(0.1, momentum=0.9)
    x = jnp.ones(2)

    @jax.jit
    def step(trainable, state, rest):
        def loss(trainable):
            return jnp.sum(merge(trainable, rest)(x) ** 2)

        value, gradient = jax.value_and_grad(loss)(trainable)
        updates, state = tx.update(gradient, state, trainable)
        return optax.apply_updates(trainable, updates), state, value

    state = tx.init(trainable)
    values = []
    for _ in range(3):
        trainable, state, value = step(trainable, state, rest)
        values.append(float(value))
    new = merge(trainable, rest)
    assert values[-1] < values[0]
    assert isinstance(new, eqx.nn.MLP)
    assert new.activation is model.activation
    assert same(new.layers[0], model.layers[0])
    assert set(trainable) == {f"layers.{i}.{name}" for i in (1, 2) for name in ("weight", "bias")}


def test_what_trains_is_a_plain_dict_for_any_checkpointer(tmp_path):
    tree = {"a": {"w": jnp.arange(2.0)}, "n": 3}
    trainable, rest = split(tree)
    assert type(trainable) is dict
    np.savez(tmp_path / "checkpoint.npz", **trainable)
    with np.load(tmp_path / "checkpoint.npz") as loaded:
        again = merge(dict(loaded), rest)
    assert all_bits(again["a"]) == all_bits(tree["a"])
    assert bits(pickle.loads(pickle.dumps(trainable))["a.w"]) == bits(tree["a"]["w"])


def test_keys_with_dots_are_paths_as_they_are():
    tree = {"encoder.layer.0.weight": jnp.ones(2), "encoder": {"bias": jnp.zeros(2)}}
    trainable, rest = split(tree)
    assert list(trainable) == ["encoder.bias", "encoder.layer.0.weight"]
    assert same(merge(trainable, rest), tree)


def test_a_bare_array():
    leaf = jnp.ones(2)
    trainable, rest = split(leaf)
    assert (list(trainable), repr(rest)) == ([""], "hole f32[2]")
    assert merge(trainable, rest) is leaf


def test_specs_see_values_here():
    tree = {"zero": jnp.zeros(2), "one": jnp.ones(2)}
    assert list(split(tree, where(lambda path, leaf: bool((leaf == 0).all())))[0]) == ["one"]


OTHER = (
    r"\. A part that was saved under another freeze= goes into "
    r"split\(params, trainable=list\(part\)\)\[1\]$"
)
TRAINABLE, REST = {"a.w": 1.0, "b": 2.0}, {"a": {"w": HOLE, "v": 3.0}, "b": HOLE}
MERGES = {
    "missing": ({"b": 2.0}, REST, "merge: nothing fills 'a.w'" + OTHER),
    "all missing": ({}, REST, "merge: nothing fills 'a.w'; nothing fills 'b'$"),
    "extra": ({**TRAINABLE, "c": 1.0}, REST, "merge: there is no 'c'$"),
    "a subtree": ({**TRAINABLE, "a": 1.0}, REST, "merge: there is no 'a'$"),
    "doubly filled": ({**TRAINABLE, "a.v": 1.0}, REST, "merge: 'a.v' is filled already" + OTHER),
    "misspelt": ({"a.w": 1.0, "B": 1.0}, REST, "merge: nothing fills 'b'; there is no 'B'$"),
    "a hole": ({"a.w": HOLE, "b": 2.0}, REST, "merge: nothing fills 'a.w'$"),
    "None": ({"a.w": None, "b": 2.0}, REST, "merge: nothing fills 'a.w'$"),
    "hidden": ({"a.w": tree_mask(1), "b": 2.0}, REST, "merge: nothing fills 'a.w'$"),
    "two of one name": (
        {"a.w": 1.0},
        {"a": {"w": HOLE}, "a.w": HOLE},
        "merge: two holes are both called 'a.w'$",
    ),
    "bare": ({}, HOLE, "merge: nothing fills the tree itself$"),
}


@pytest.mark.parametrize(("trainable", "rest", "text"), MERGES.values(), ids=MERGES.keys())
def test_what_does_not_fit_is_refused_by_path(trainable, rest, text):
    with pytest.raises(ValueError, match=text):
        merge(trainable, rest)


def test_merge_takes_the_dictionary_first():
    with pytest.raises(
        TypeError, match="takes the dictionary of split first, then the rest, not a l"
    ):
        merge([1.0], {"a": HOLE})


@pytest.mark.parametrize("freeze", [None, "**"])
def test_two_leaves_of_one_path_cannot_be_split(freeze):
    tree = {"a": {"w": jnp.ones(2)}, "b": jnp.ones(2), "a.w": jnp.zeros(2)}
    freeze = None if freeze is None else where(lambda path, leaf: path == "b")
    with pytest.raises(ValueError, match=r"two different leaves are both called 'a.w'.*rename one"):
        split(tree, freeze)


def test_a_misspelt_name_and_a_wrong_mask():
    with pytest.raises(SpecError, match="'ecoder': closest: 'encoder'"):
        split({"encoder": jnp.ones(2)}, "ecoder")
    with pytest.raises(MaskError, match="it has 'x', which the tree does not"):
        split({"encoder": jnp.ones(2)}, trainable={"encoder": True, "x": False})


def test_a_subtree_does_not_fill_a_hole():
    trainable, rest = split({"a": jnp.ones(2)})
    with pytest.raises(ValueError, match="'a' is filled with a dict, which is no leaf"):
        merge({"a": dict(trainable)}, rest)
