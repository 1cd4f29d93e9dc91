"""Laws of masks and specs over generated trees."""

from collections import Counter

import jax
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import KEYS, trees, trees_without_places

from optax_freeze import (
    MaskError,
    SpecError,
    default_trainable,
    freeze_mask,
    frozen,
    leaf_paths,
    trainable_mask,
    trainable_only,
)
from optax_freeze._trees import Tree


def leaves(tree):
    return jax.tree.leaves(tree)


def lies_under(path, name):
    return path == name or path.startswith(f"{name}.")


def names(tree):
    """The dotted names of all leaves and of whatever they lie in."""
    found = {path[:cut] for path in leaf_paths(tree) for cut in range(len(path) + 1)}
    return sorted(
        name for name in found if name and any(lies_under(path, name) for path in leaf_paths(tree))
    )


@st.composite
def trees_with_names(draw, count=1):
    tree = draw(trees)
    assume(max(Counter(leaf_paths(tree)).values(), default=0) == 1)  # no two leaves of one name
    known = names(tree)
    assume(known)
    return tree, draw(st.lists(st.sampled_from(known), min_size=count, max_size=count))


def bools(tree):
    """Masks of exactly the structure of a tree, without True where it is not allowed."""
    flags = [st.booleans() if trains else st.just(False) for trains in leaves(trainable_mask(tree))]
    return st.tuples(*flags).map(jax.tree.structure(tree).unflatten)


@given(trees)
def test_paths_are_those_of_jax(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    expected = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in flat]
    assert leaf_paths(tree) == expected
    assert [node.name for node in Tree(tree).root.leaves()] == expected


@given(trees)
def test_nodes_hold_the_leaves_below_them(tree):
    seen = Tree(tree)
    for node in seen.root.walk():
        below = leaves(node.value)
        assert len(below) == node.stop - node.start
        assert all(a is b for a, b in zip(below, seen.leaves[node.start : node.stop], strict=True))


@given(trees)
def test_a_mask_has_the_structure_of_the_tree_and_plain_bools(tree):
    mask = trainable_mask(tree)
    assert jax.tree.structure(mask) == jax.tree.structure(tree)
    assert leaves(mask) == [default_trainable(leaf) for leaf in leaves(tree)]
    assert {type(flag) for flag in leaves(mask)} <= {bool}


@given(trees)
def test_a_mask_that_was_returned_is_always_accepted(tree):
    mask = trainable_mask(tree)
    assert leaves(trainable_mask(tree, trainable=mask)) == leaves(mask)
    trainable_only(optax.sgd(1.0), trainable=mask).init(tree)
    frozen(trainable=mask).init(tree)


@given(trees_with_names(), st.data())
def test_freezing_only_ever_lowers(tree_and_name, data):
    tree, spec = tree_and_name
    mask = data.draw(bools(tree))
    lowered = freeze_mask(tree, spec, mask)
    assert jax.tree.structure(lowered) == jax.tree.structure(tree)
    assert all(old or not new for old, new in zip(leaves(mask), leaves(lowered), strict=True))
    assert leaves(freeze_mask(tree, spec, lowered)) == leaves(lowered)


@given(trees_with_names(count=2))
def test_the_union_of_specs_is_the_conjunction_of_their_masks(tree_and_names):
    tree, (one, two) = tree_and_names
    both = leaves(freeze_mask(tree, [one, two]))
    masks = zip(leaves(freeze_mask(tree, one)), leaves(freeze_mask(tree, two)), strict=True)
    assert both == [a and b for a, b in masks]
    assert both == leaves(freeze_mask(tree, one, freeze_mask(tree, two)))


@given(trees_with_names())
def test_a_name_freezes_exactly_what_lies_under_it(tree_and_name):
    tree, (name,) = tree_and_name
    pairs = zip(leaf_paths(tree), leaves(trainable_mask(tree)), strict=True)
    expected = [trains and not lies_under(path, name) for path, trains in pairs]
    assert leaves(freeze_mask(tree, name)) == expected


@given(trees_with_names())
def test_what_may_train_and_what_may_not_are_complements(tree_and_name):
    tree, (name,) = tree_and_name
    frozen = freeze_mask(tree, name)
    default = leaves(trainable_mask(tree))
    expected = [was and not left for was, left in zip(default, leaves(frozen), strict=True)]
    assume(any(expected))
    assert leaves(trainable_mask(tree, trainable=name)) == expected


@given(trees_without_places, st.text("abz.*?[]0:-", min_size=1, max_size=8))
def test_a_pattern_means_something_or_raises(tree, pattern):
    assume(max(Counter(leaf_paths(tree)).values(), default=0) == 1)
    everything = jax.tree.map(lambda _: np.ones(1), tree)
    try:
        mask = freeze_mask(everything, pattern)
    except SpecError:
        return
    assert not all(leaves(mask)) or Tree(everything).has_leafless_nodes


@given(trees_with_names(), st.data())
def test_a_mask_is_met_by_path(tree_and_name, data):
    tree, _ = tree_and_name
    mask = data.draw(bools(tree))
    assert leaves(freeze_mask(tree, None, mask)) == leaves(mask)
    flat = dict(zip(leaf_paths(tree), leaves(mask), strict=True))
    assert leaves(freeze_mask(tree, None, FrozenDict(flat))) == leaves(mask)
    flat_tree = dict(zip(leaf_paths(tree), leaves(tree), strict=True))
    assert freeze_mask(flat_tree, None, mask) == flat


@given(trees_with_names(), st.booleans())
def test_a_mask_equals_its_prefix_form(tree_and_name, value):
    tree, _ = tree_and_name
    prefix = {path.partition(".")[0]: value for path in leaf_paths(tree) if "." in path}
    assume(prefix and not any(path in prefix for path in leaf_paths(tree)))
    flags = dict(zip(leaf_paths(tree), leaves(trainable_mask(tree)), strict=True))
    prefix |= {path: flag for path, flag in flags.items() if "." not in path}
    expected = [flag and (value or "." not in path) for path, flag in flags.items()]
    assert leaves(freeze_mask(tree, None, FrozenDict(prefix))) == expected


@given(trees_with_names(), st.data())
def test_a_mask_with_a_path_too_many_or_too_few_raises(tree_and_name, data):
    tree, _ = tree_and_name
    flat = dict(zip(leaf_paths(tree), leaves(trainable_mask(tree)), strict=True))
    with pytest.raises(MaskError, match=r"which the tree does not|says two things"):
        freeze_mask(tree, None, FrozenDict({**flat, "added.key": True}))
    victim = data.draw(st.sampled_from(sorted(flat)))
    fewer = {path: flag for path, flag in flat.items() if path != victim}
    assume(not any(lies_under(victim, path) for path in fewer))  # a prefix of it stays
    with pytest.raises(MaskError, match="it has no bool for"):
        freeze_mask(tree, None, FrozenDict(fewer))


@given(trees_with_names())
def test_holes_are_places_for_whatever_names_what_was_there(tree_and_name):
    tree, (name,) = tree_and_name
    paths = leaf_paths(tree)
    holed = [
        optax.MaskedNode() if lies_under(path, name) else leaf
        for path, leaf in zip(paths, leaves(tree), strict=True)
    ]
    holed = jax.tree.structure(tree).unflatten(holed)
    full = dict(zip(paths, leaves(freeze_mask(tree, name)), strict=True))
    expected = [full[path] for path in paths if not lies_under(path, name)]
    assert leaves(freeze_mask(holed, name)) == expected
    assert leaves(freeze_mask(holed, None, trainable_mask(tree))) == expected


@given(
    st.dictionaries(st.sampled_from(KEYS), trees_without_places, min_size=1, max_size=4),
    st.lists(
        st.sampled_from(["**", "*", "a", "?", "a*", "w", "b", "head"]), min_size=1, max_size=4
    ),
)
def test_a_pattern_means_the_same_by_names_and_by_the_walk_that_places_ask_for(tree, segments):
    tree = jax.tree.map(lambda _: np.ones(1), tree)
    assume(max(Counter(leaf_paths(tree)).values(), default=0) == 1)
    with_place = {**tree, "a place": None}
    try:
        walked = freeze_mask(with_place, ".".join(segments))
    except SpecError:
        with pytest.raises(SpecError, match="an entry matches no leaf"):
            freeze_mask(tree, ".".join(segments))
        return
    del walked["a place"]
    assume(not all(leaves(walked)))  # it may be satisfied by the place
    assert freeze_mask(tree, ".".join(segments)) == walked
