"""`"!path"`: what an entry takes away of what the entries before it selected."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Block

from optax_freeze import (
    SpecError,
    assert_unchanged,
    check_frozen,
    freeze_mask,
    frozen,
    leaf_paths,
    merge,
    param_groups,
    split,
    trainable_mask,
    trainable_only,
    value_and_grad,
    where,
)

X = jnp.ones(2)
PARAMS = {
    "encoder": {"l0": {"w": X, "norm": X}, "l1": {"w": X, "norm": X}, "norm": {"scale": X}},
    "head": {"w": X, "b": None},
}
HOLE = optax.MaskedNode()


def paths(mask, value):
    """The paths of the leaves at which a mask has this value."""
    flags = jax.tree.leaves(mask)
    return [path for path, flag in zip(leaf_paths(mask), flags, strict=True) if flag is value]


WS = ["encoder.l0.w", "encoder.l1.w"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["encoder", "!encoder.**.norm"], WS),
        (("encoder", "!**.norm"), WS),
        (["encoder", "!encoder.norm", "!encoder.l1"], ["encoder.l0.norm", "encoder.l0.w"]),
        (["encoder", "!encoder.l?.*", "encoder.l0.w"], ["encoder.l0.w", "encoder.norm.scale"]),
        (["**", "!encoder"], ["head.w"]),
        ([dict, "!encoder"], ["head.w"]),
        ([re.compile(".*w"), "!head"], WS),
        ([where(lambda path, leaf: path.endswith("w")), "!head"], WS),
        (["encoder", "head", "!encoder", "!head.b"], ["head.w"]),  # None: satisfied
    ],
)
def test_what_is_left(entries, expected):
    assert paths(freeze_mask(PARAMS, entries), False) == expected
    assert paths(trainable_mask(PARAMS, trainable=entries), True) == expected


def test_indices_and_classes():
    tree = {"blocks": [Block(X, X)] * 4}
    expected = ["blocks.1.kernel", "blocks.1.bias", "blocks.2.kernel", "blocks.2.bias"]
    assert paths(freeze_mask(tree, [Block, "!blocks[-1]", "!blocks[0]"]), False) == expected
    module = lambda module: isinstance(module, Block)  # noqa: E731
    assert paths(freeze_mask(tree, [module, "!blocks[::3]"]), False) == expected


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (
            "!head",
            "'!head' comes first, and '!' takes away what the entries before it selected: put",
        ),
        (["!head"], "put it behind them, as in ['encoder', '!head']"),
        (["!head", "encoder"], "'!head' comes first"),
        ("!", "'!' comes first"),
        (["head", "!"], "'!' names nothing to take away: '!encoder.norm' would"),
        (["head", "!a["], "'!a[' is not a path pattern: the brackets in 'a[' do not close"),
        (["head", "!!encoder"], "'!!encoder': closest: 'encoder'"),
        (
            ["encoder", "!encodr"],
            "entry matches no leaf of a tree of 6 leaves:\n  '!encodr': closest",
        ),
        (["encoder", "!norm"], "'!norm': a path begins at the root: '**.norm' matches 3 of them"),
        (
            ["head", "encoder.l0", "!encoder.l1"],
            "'!encoder.l1' takes nothing away: it matches 'encoder.l1.norm', but the entries "
            "before it ('head'; 'encoder.l0') do not",
        ),
        (["encoder", "!encoder.l0", "!encoder.l0.w"], "'!encoder.l0.w' takes nothing away"),
        (["encoder.l0", "!encoder.l1", "encoder.l1"], "'!encoder.l1' takes nothing away"),
        (
            ["head", "!**"],
            "'!**' takes away all that the entries before it ('head') selected: leave them out",
        ),
        (["head", "!head"], "'!head' takes away all"),
    ],
)
@pytest.mark.parametrize("argument", ["freeze", "trainable"])
def test_what_makes_no_sense(entries, text, argument):
    with pytest.raises(SpecError) as caught:
        trainable_mask(PARAMS, **{argument: entries})
    assert text in str(caught.value)


def test_what_takes_nothing_away_says_in_which_argument():
    with pytest.raises(SpecError, match=r"^trainable: '!encoder' takes nothing away"):
        trainable_mask(PARAMS, trainable=["head", "!encoder"])


def test_a_key_that_begins_with_it_is_named_by_its_exact_text():
    tree = {"!a": {"w": X, "b": X}, "a": {"w": X, "b": X}, "!": X}
    assert paths(freeze_mask(tree, "!a"), False) == ["!a.b", "!a.w"]
    assert paths(freeze_mask(tree, ["a", "!a.w", "!"]), False) == ["!", "!a.w", "a.b", "a.w"]
    assert paths(freeze_mask(tree, ["!a", "!!a.w"]), False) == ["!a.b"]
    part, rest = split(tree, "a")
    assert split(tree, trainable=list(part))[0] == part
    assert merge(part, rest) == tree


@pytest.mark.parametrize("place", [HOLE, None, {"w": HOLE}], ids=repr)
def test_what_meets_a_place_is_satisfied(place):
    tree = {"encoder": {"norm": place, "w": X}, "head": X}
    mask = freeze_mask(tree, ["encoder", "!encoder.norm"])
    assert paths(mask, True) == ["head"]


def test_inside_a_wrapper_that_left_out_what_it_takes_away_from():
    params = {"encoder": {"norm": X, "w": X}, "head": X}
    inner = optax.chain(frozen(["encoder", "!encoder.norm"]), optax.sgd(1.0))
    for freeze in ("encoder.w", "encoder.norm", "encoder"):
        tx = trainable_only(inner, freeze)
        updates, _ = tx.update(params, tx.init(params), params)
        moved = [p for p, u in zip(leaf_paths(params), jax.tree.leaves(updates)) if u.all()]  # noqa: B905
        assert moved == sorted({"encoder.norm", "head"} - {freeze, f"{freeze}.norm"})
    tx = trainable_only(frozen(["encoder", "!encoder.nrm"]), "head")
    with pytest.raises(SpecError, match=r"'!encoder\.nrm': closest"):
        tx.init(params)


def test_groups_keep_their_lists_apart():
    params = {"encoder": {"norm": X, "w": X}, "head": {"norm": X, "w": X}}
    groups = {("encoder", "!**.norm"): optax.sgd(1.0), ("head", "!head.w"): optax.sgd(2.0)}
    tx = param_groups(groups, default=optax.sgd(3.0))
    updates, state = tx.update(params, tx.init(params), params)
    rates = {path: -float(u[0]) for path, u in zip(leaf_paths(params), jax.tree.leaves(updates))}  # noqa: B905
    assert rates == {"encoder.norm": 3.0, "encoder.w": 1.0, "head.norm": 2.0, "head.w": 3.0}
    assert list(state.groups) == ["encoder, !**.norm", "head, !head.w", "default"]
    with pytest.raises(SpecError, match="'!head' comes first"):
        param_groups({"encoder": None, "!head": None}, default=None).init(params)
    with pytest.raises(SpecError, match="'!encoder' takes nothing away"):
        param_groups({"encoder": None, ("head", "!encoder"): None}, default=None).init(params)


def test_the_whole_library_understands_it():
    params = {"encoder": {"norm": X, "w": X}, "head": X}
    entries = ["encoder", "!encoder.norm"]
    loss = lambda p: sum(leaf.sum() for leaf in jax.tree.leaves(p))  # noqa: E731
    grads = value_and_grad(loss, entries)(params)[1]
    assert leaf_paths(grads) == list(split(params, entries)[0]) == ["encoder.norm", "head"]
    check_frozen(trainable_only(optax.adam(0.1), entries), params, entries)
    assert_unchanged(params, {**params, "encoder": {"norm": 2 * X, "w": X}}, entries)


class Net(eqx.Module):
    norm: eqx.nn.LayerNorm
    linear: eqx.nn.Linear


NET = Net(eqx.nn.LayerNorm(2), eqx.nn.Linear(2, 2, key=jax.random.key(0)))


@pytest.mark.parametrize(
    ("tree", "freeze", "trainable", "text"),
    [
        (
            PARAMS,
            "encoder",
            "encoder.norm",
            "trainable: all that 'encoder.norm' matches is frozen by freeze, which goes first: "
            "'encoder.norm.scale' by 'encoder'. To let it train, take it away there: "
            "freeze=['encoder', '!encoder.norm']",
        ),
        (PARAMS, ["head", "encoder"], ["head", "**.norm"], "all that 'head' matches is frozen"),
        (PARAMS, ["head", "**.norm"], ["encoder", "**.norm"], "freeze=['**.norm', '!**.norm']"),
        (PARAMS, ["encoder.l0", "encoder.l1"], re.compile(r".*l\d.*"), "'!encoder.l0.norm'"),
        (NET, "**", eqx.nn.LayerNorm, "all that class LayerNorm matches is frozen by freeze"),
        (NET, "**", eqx.nn.LayerNorm, "freeze=['**', '!norm.weight']"),
    ],
)
def test_a_trainable_entry_that_freeze_eats_up(tree, freeze, trainable, text):
    with pytest.raises(SpecError) as caught:
        trainable_mask(tree, freeze=freeze, trainable=trainable)
    assert text in str(caught.value)


def test_a_trainable_entry_of_which_freeze_leaves_something():
    mask = trainable_mask(PARAMS, freeze="encoder.norm", trainable=["**.norm", "**.w"])
    assert "encoder.norm.scale" not in paths(mask, True)
    assert "encoder.l0.norm" in paths(mask, True)


def test_a_trainable_entry_that_may_have_had_more():
    tree = {"a": {"w": HOLE, "b": X}, "c": X}
    assert paths(trainable_mask(tree, freeze="**.b", trainable=["a", "c"]), True) == ["c"]


TREE = {"a": {"b": X, "c": X}, "b": X, "c": {"a": {"b": X}}}
entries = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["a", "b", "c", "a.b", "**.b", "**", "c.a", "*.?"])),
    min_size=1,
    max_size=5,
)


@given(entries)
def test_the_law_one_entry_after_the_other(entries):
    expected: set[str] = set()
    useless = False
    for away, text in entries:
        named = set(paths(freeze_mask(TREE, text), False))
        useless |= away and (not expected & named or expected <= named)
        expected = expected - named if away else expected | named
    written = [f"!{text}" if away else text for away, text in entries]
    if useless:
        with pytest.raises(SpecError, match=r"takes nothing|takes away all|comes first"):
            freeze_mask(TREE, written)
    else:
        assert set(paths(freeze_mask(TREE, written), False)) == expected
