"""What is said when an entry is not a spec, matches nothing or misbehaves."""

import re
import typing

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from strategies import Block

from optax_freeze import (
    SpecError,
    freeze_mask,
    frozen,
    trainable_mask,
    trainable_only,
    where,
)

X = jnp.ones(2)
PARAMS = {"encoder": {"w": X, "b": X}, "head": X}
((KEY_PATH, _), *_), _ = jax.tree_util.tree_flatten_with_path(PARAMS)


class Unchecked(typing.Protocol):
    def apply(self): ...


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("", "freeze is an empty string, which names nothing: '**' is all"),
        (["head", ""], "freeze[1] is an empty string, which names nothing: '**' is all"),
        (3, "freeze: got 3, not a path such as"),
        ([0], "freeze[0]: got 0, not a path such as"),
        ([0], "the child of key 0 is '[0]'"),
        (0.5, "freeze: got 0.5, not a path"),
        ([None], "freeze[0]: got NoneType, not a path"),
        (b"head", "freeze: got bytes, not a path"),
        (object(), "freeze: got object, not a path"),
        (
            KEY_PATH,
            "freeze[0]: got a part of a key path (DictKey); pass its text: jax.tree_util.key",
        ),
        ([KEY_PATH], "freeze[0]: got a tuple inside a list of entries: put its entries into the"),
        (optax.sgd(1.0), "freeze: got a gradient transformation, not a path such as"),
        ([optax.sgd(1.0)], "freeze[0]: got a gradient transformation, not a path such as"),
        (True, "freeze: got a boolean tree (bool); a mask is a trainability mask, True trains"),
        (trainable_mask(PARAMS), "freeze: got a boolean tree (dict); a mask is a trainability"),
        (trainable_mask([X, X]), "pass it as trainable="),
        ([jnp.array([True])], "pass it as trainable="),
        ({"head"}, "freeze: got a set: put the entries into a list"),
        ({"head": "encoder"}, "freeze: got a dict: put the entries into a list"),
        (X, "freeze: got ArrayImpl, not a path"),
        (
            re.compile(b"head"),
            "freeze is a regex of bytes, but paths are text: re.compile(b'head')",
        ),
        (list[int], "freeze: got a type annotation (list[int]), not a class"),
        (int | str, "freeze: got a type annotation (int | str), not a class"),
        (Unchecked, "freeze: class Unchecked knows no instances: Instance and class checks can"),
    ],
)
def test_not_a_spec(spec, text):
    with pytest.raises(SpecError) as caught:
        freeze_mask(PARAMS, spec)
    assert text in str(caught.value)


@pytest.mark.parametrize("spec", ["", 3, trainable_mask(PARAMS), {"head"}, object()])
@pytest.mark.parametrize("make", [frozen, lambda spec: trainable_only(optax.sgd(1.0), spec)])
def test_not_a_spec_is_said_before_there_is_a_tree(make, spec):
    with pytest.raises(SpecError, match="freeze"):
        make(spec)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a[", "the brackets in 'a[' do not close, or text follows them"),
        ("a]", "the brackets in 'a]' do not close"),
        ("x.a[0", "the brackets in 'a[0' do not close"),
        ("a[0]b", "the brackets in 'a[0]b' do not close, or text follows them"),
        ("a[[0]]", "the brackets in 'a[[0]]' do not close"),
        ("a[x]", "[x] is neither an index such as [0] nor a slice such as [:-2]"),
        ("a[]", "[] is neither an index"),
        ("a[1.5]", "the brackets in 'a[1' do not close"),
        ("a[1:2:3:4]", "[1:2:3:4] is neither an index"),
        ("a[::0]", "the step of the slice [::0] is zero"),
        ("a..b", "it has an empty segment: a dot too many"),
        (".a", "it has an empty segment"),
        ("a.", "it has an empty segment"),
        ("a.[0]", "write the brackets without a dot before them: '[0]'"),
    ],
)
def test_not_a_path_pattern(pattern, reason):
    with pytest.raises(SpecError) as caught:
        freeze_mask(PARAMS, pattern)
    assert f"{pattern!r} is not a path pattern: {reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("encodr", "'encodr': closest: 'encoder'"),
        ("encoder.v", "'encoder.v': closest: 'encoder.b', 'encoder.w', 'encoder'"),
        ("**.encoder.q", "closest: 'encoder.b', 'encoder.w'"),
        ("e*.wx", "closest: 'encoder.w'"),
        ("zzz", "'zzz': nothing is like it; the first paths are 'encoder.b', 'encoder.w', 'head'"),
        (re.compile("enc"), "a regex must match the whole path; by `search` it would match 2 of"),
        (re.compile("enc"), "such as 'encoder.b': add '.*' where more may stand"),
        (re.compile("heat"), "re.compile('heat'): closest: 'head'"),
        (Block, "class Block: the classes in this tree are ArrayImpl, dict"),
        (
            lambda module: True,
            "function <lambda>: a function is asked about modules, and this tree",
        ),
        (lambda module: True, "to ask about leaves, use where(lambda path, leaf: ...)"),
        (where(lambda path, leaf: False), "where(<lambda>): it was False for every leaf"),
        (
            where(lambda path, leaf: leaf.dtyp == 3),
            "has no attribute 'dtyp', at 'encoder.b')",
        ),
    ],
)
def test_a_miss(spec, text):
    with pytest.raises(SpecError) as caught:
        freeze_mask(PARAMS, spec)
    assert str(caught.value).startswith("freeze: an entry matches no leaf of a tree of 3 leaves:\n")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("w", "'w': a path begins at the root: '**.w' matches 3 of them"),
        ("*w", "'*w': a path begins at the root: '**.*w' matches 3 of them"),
        ("linear_1.w", "'linear_1.w': a path begins at the root: '**.linear_1.w' matches 1 of"),
        ("mlp", "'mlp': closest: 'mlp/~/linear'"),
        ("embed[0]", "'embed[0]': 'embed' is one array, and rows of arrays are no leaves: make"),
    ],
)
def test_a_miss_of_one_who_left_out_the_beginning_or_the_end(spec, text):
    tree = {
        "mlp/~/linear": {"w": X},
        "tower": {"linear_1": {"w": X}},
        "head": {"w": X},
        "embed": X,
    }
    with pytest.raises(SpecError, match=re.escape(text)):
        freeze_mask(tree, spec)


def test_a_class_of_nnx_that_its_optimizer_took_off():
    text = "name paths, or pass trainable=nnx.state(trainable_mask(model, ...), nnx.Param)"
    with pytest.raises(SpecError, match=re.escape(text)):
        freeze_mask(PARAMS, nnx.LoRAParam)


def test_all_misses_stand_in_one_message():
    entries = [
        "encoder",
        "haed",
        re.compile("x"),
        int,
        "encoder.w",
        where(lambda path, leaf: False),
    ]
    with pytest.raises(SpecError) as caught:
        freeze_mask(PARAMS, entries)
    first, *lines = str(caught.value).splitlines()
    assert first == "freeze: 4 entries match no leaf of a tree of 3 leaves:"
    labels = [line.split(":")[0].strip() for line in lines]
    assert labels == ["'haed'", "re.compile('x')", "class int", "where(<lambda>)"]


def test_a_miss_in_trainable_says_trainable():
    with pytest.raises(
        SpecError, match=r"^trainable: an entry matches no leaf of a tree of 1 leaf:"
    ):
        trainable_mask({"a": X}, trainable="b")


def test_a_function_that_is_false_for_every_module():
    with pytest.raises(SpecError, match="it was False for every module"):
        freeze_mask(Block(X, X), lambda module: False)
    with pytest.raises(
        SpecError, match="'Block' object has no attribute 'rate', at the tree itself"
    ):
        freeze_mask(Block(X, X), lambda module: module.rate > 0)


def test_a_tree_without_leaves():
    with pytest.raises(SpecError, match="no leaf of a tree of 0 leaves:\n  'a': there is nothing"):
        freeze_mask({}, "a")


def raises(*_):
    raise KeyError("first\nsecond")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (where(raises), "where(raises), at 'm.kernel', raised KeyError: 'first"),
        (raises, "function raises, at 'm', raised KeyError: 'first"),
        (
            where(lambda path, leaf: leaf),
            "must return a bool, but returned ArrayImpl: True for what",
        ),
        (
            where(lambda path, leaf: leaf.any()),
            "at 'm.kernel', must return a bool, but returned Arr",
        ),
        (where(lambda path, leaf: re.match("m", path)), "must return a bool, but returned Match"),
        (lambda module: None, "at 'm', must return a bool, but returned NoneType"),
        (lambda module: 1, "must return a bool, but returned int: True for what it means"),
    ],
)
def test_a_predicate_that_misbehaves(spec, text):
    with pytest.raises(SpecError) as caught:
        freeze_mask({"m": Block(X, X)}, spec)
    assert text in str(caught.value)


def test_a_predicate_that_raises_is_the_cause():
    with pytest.raises(SpecError) as caught:
        freeze_mask({"m": Block(X, X)}, raises)
    assert isinstance(caught.value.__cause__, KeyError)


def test_where_takes_a_function():
    with pytest.raises(
        SpecError, match="where\\(\\) takes a function of a path and a leaf, not Arr"
    ):
        where(jnp.arange(1000))


def test_a_rule_that_reads_a_tracer():
    def read(tree):
        return freeze_mask(tree, where(lambda path, leaf: bool(leaf.sum() > 0)))

    with pytest.raises(
        SpecError, match="at 'a', raised TracerBoolConversionError: Attempted boolean"
    ):
        jax.jit(read)({"a": X})


TWICE = {"a": {"b": X}, "a.b": X, "c": X}


@pytest.mark.parametrize("spec", ["a", "a.b", "**", "*", "**.b", "a.*", re.compile(".*b")])
def test_one_name_for_two_leaves(spec):
    with pytest.raises(
        SpecError, match=r"meets two different leaves that are both called 'a.b': ren"
    ):
        freeze_mask(TWICE, spec)


def test_a_spec_that_does_not_meet_the_two_is_fine():
    assert freeze_mask(TWICE, "c") == {"a": {"b": True}, "a.b": True, "c": False}
    assert freeze_mask(TWICE, re.compile("c"))["c"] is False
