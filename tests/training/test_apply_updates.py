"""`apply_updates`: what did not train is the very same object."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hostile import all_bits, bits, frozen_leaves
from hypothesis import given
from hypothesis import strategies as st

from optax_freeze import apply_updates, tree_mask

HOLE = optax.MaskedNode()
LEAVES = frozen_leaves() | {
    "Python float": 0.5,
    "Python int": 3,
    "function": len,
    "numpy": np.array([1.0, -0.0], np.float32),
    "text": "name",
    "weak": jnp.asarray(1.0),
}
PLACES = {
    "hole": HOLE,
    "None": None,
    "float0": np.zeros(2, jax.dtypes.float0),
    "hidden": tree_mask(3),
}


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES.keys())
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_place_leaves_the_same_object(place, leaf):
    assert apply_updates([leaf], [place])[0] is leaf


NOT_INEXACT = ["int32", "uint8", "bool", "key", "Python int", "function", "text"]


@pytest.mark.parametrize("name", NOT_INEXACT)
def test_what_cannot_train_stays_whatever_the_update(name):
    leaf = LEAVES[name]
    assert apply_updates([leaf], [jnp.float32(7.0)])[0] is leaf


def test_inside_jit_a_hole_keeps_bits_and_weak_types():
    leaves = {k: v for k, v in LEAVES.items() if isinstance(v, jax.Array)}
    new = jax.jit(apply_updates)(leaves, dict.fromkeys(leaves, HOLE))
    assert all_bits(new) == all_bits(leaves)
    assert new["weak"].weak_type


UPDATED = {
    "float32": (jnp.array([1.0, 2.0]), jnp.array([0.5, -0.5]), jnp.array([1.5, 1.5])),
    "the dtype of the param": (
        jnp.array([1.0], jnp.bfloat16),
        jnp.array([0.5], jnp.bfloat16),
        jnp.array([1.5], jnp.bfloat16),
    ),
    "complex": (jnp.array([1j]), jnp.array([1.0 + 0j]), jnp.array([1.0 + 1j])),
    "numpy": (np.array([1.0], np.float32), jnp.array([1.0]), jnp.array([2.0])),
    "a scalar for all": (jnp.array([1.0, 2.0]), 1.0, jnp.array([2.0, 3.0])),
    "Python float": (0.5, 0.25, 0.75),
    "NumPy float64": (np.float64(0.5), 0.25, np.float64(0.75)),
    "Python float by an array": (0.5, jnp.array(0.25), jnp.array(0.75)),
    "Python complex": (1j, 1.0, 1.0 + 1j),
}


@pytest.mark.parametrize(("param", "update", "new"), UPDATED.values(), ids=UPDATED.keys())
def test_what_trains_is_moved_as_optax_moves_it(param, update, new):
    assert bits(apply_updates([param], [update])[0]) == bits(new)
    theirs = optax.apply_updates([param], [update])[0]
    assert np.asarray(theirs) == pytest.approx(np.asarray(new))


def test_a_wider_update_keeps_the_dtype_of_the_param():
    params, updates = [jnp.ones(2, jnp.bfloat16)], [jnp.full(2, 0.001, jnp.float32)]
    with jax.numpy_dtype_promotion("standard"):  # that is what is tested: two dtypes meet
        assert bits(apply_updates(params, updates)[0]) == bits(
            optax.apply_updates(params, updates)[0]
        )


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=5),
    st.lists(st.floats(width=32), min_size=5, max_size=5),
)
def test_dense_updates_are_those_of_optax_to_the_bit(param, update):
    params = [np.array(param, np.float32)]
    updates = [np.array(update[: len(param)], np.float32)]
    with np.errstate(all="ignore"):
        ours, theirs = apply_updates(params, updates), optax.apply_updates(params, updates)
    assert bits(ours[0]) == bits(theirs[0])


SHAPES = {
    "another": (jnp.ones(2), jnp.ones(3), r"the update of 'x' has shape \(3,\), but the param"),
    "larger": (jnp.ones(2), jnp.ones((3, 2)), r"shape \(3, 2\), but the param has \(2,\)"),
    "of a float": (0.5, jnp.ones(2), r"shape \(2,\), but the param has \(\): an update must"),
}


@pytest.mark.parametrize(("param", "update", "text"), SHAPES.values(), ids=SHAPES.keys())
def test_an_update_may_not_change_a_shape(param, update, text):
    with pytest.raises(ValueError, match=text):
        apply_updates({"x": param}, {"x": update})


STRUCTURES = {
    "missing": ({}, "it lacks 'x'"),
    "besides": ({"x": HOLE, "y": HOLE}, "it has 'y' besides"),
    "deeper": ({"x": [HOLE]}, "it lacks 'x'; it has 'x.0' besides"),
    "a list": ([HOLE], "it lacks 'x'; it has '0' besides"),
}


@pytest.mark.parametrize(("updates", "text"), STRUCTURES.values(), ids=STRUCTURES.keys())
def test_updates_of_another_structure_are_refused_by_path(updates, text):
    with pytest.raises(ValueError, match=f"updates must have the structure of params: {text}$"):
        apply_updates({"x": jnp.ones(2)}, updates)
