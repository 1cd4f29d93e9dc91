"""Laws of hiding, on any tree."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optax_freeze import is_masked, is_nondiff, tree_mask, tree_unmask

ARRAYS = [
    jnp.arange(3),
    jnp.ones(2),
    jnp.ones((), jnp.bfloat16),
    jnp.zeros((0, 2), jnp.int4),
    jax.random.key(0),
    np.arange(3),
    np.float32(-0.0),
    np.array([np.nan]),
]
LEAVES = st.one_of(
    st.integers(),
    st.booleans(),
    st.floats(),
    st.complex_numbers(allow_subnormal=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from(ARRAYS),
    st.sampled_from([len, jnp.sin, int, object()]),
)


def trees(leaves):
    return st.recursive(
        leaves | st.none(),
        lambda below: (
            st.lists(below, max_size=4)
            | st.tuples(below, below)
            | st.dictionaries(st.sampled_from("abcd"), below, max_size=4)
        ),
        max_leaves=12,
    )


TREES = trees(LEAVES)
CONDS = st.sampled_from([is_nondiff, lambda _: True, lambda _: False, int, lambda x: x is len])


def nodes(tree):
    return jax.tree.leaves(tree, is_leaf=is_masked)


@given(TREES, CONDS)
def test_unmask_undoes_mask(tree, cond):
    back = tree_unmask(tree_mask(tree, cond))
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for leaf, again in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        if isinstance(leaf, np.ndarray):
            assert (again.dtype, again.shape, again.tobytes()) == (
                leaf.dtype,
                leaf.shape,
                leaf.tobytes(),
            )
        else:
            assert again is leaf


@given(TREES, CONDS)
def test_mask_is_idempotent(tree, cond):
    hidden = tree_mask(tree, cond)
    again = tree_mask(hidden, cond)
    kept = [getattr(x, "sealed", x) for x in nodes(hidden)]
    assert all(x is getattr(y, "sealed", y) for x, y in zip(kept, nodes(again), strict=True))
    assert jax.tree.structure(again) == jax.tree.structure(hidden)


@given(TREES, CONDS)
def test_hidden_and_visible_leaves_are_all_leaves(tree, cond):
    hidden = tree_mask(tree, cond)
    leaves = jax.tree.leaves(tree)
    asked = [isinstance(x, cond) if isinstance(cond, type) else cond(x) for x in leaves]
    assert [is_masked(node) for node in nodes(hidden)] == asked
    assert len(jax.tree.leaves(hidden)) == asked.count(False)


@given(TREES)
def test_equal_trees_have_equal_structures(tree):
    leaves, treedef = jax.tree.flatten(tree)
    new = [type(x)(x) if type(x) in {int, float, complex} else x for x in leaves]
    one, two = tree_mask(tree, lambda _: True), tree_mask(treedef.unflatten(new), lambda _: True)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert nodes(one) == nodes(two)
    assert [hash(node) for node in nodes(one)] == [hash(node) for node in nodes(two)]


def bits(leaf):
    """What a leaf is, as text that tells all of the above apart."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return f"{type(leaf)} {leaf.dtype} {leaf.shape} {leaf.tobytes()}"
    if isinstance(leaf, float):
        return leaf.hex() if leaf == leaf else np.float64(leaf).tobytes()
    if isinstance(leaf, complex):
        return f"c{np.complex128(leaf).tobytes()}"
    if isinstance(leaf, (int, str, bytes)):
        return f"{type(leaf)} {leaf!r}"
    return str(id(leaf))


@given(LEAVES, LEAVES)
def test_hidden_values_are_equal_if_their_bits_are(one, two):
    same = bits(one) == bits(two)
    first, second = tree_mask([one], lambda _: True), tree_mask([two], lambda _: True)
    assert (first == second) is same
    assert (jax.tree.structure(first) == jax.tree.structure(second)) is same
