"""What trains by default, and by the arguments of `trainable_mask`."""

import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from strategies import Block, Layer

from optax_freeze import (
    Constant,
    MaskError,
    SpecError,
    count_trainable_params,
    default_trainable,
    freeze_mask,
    leaf_paths,
    trainable_mask,
    tree_mask,
)

HOLE = optax.MaskedNode()
FLOAT0 = np.zeros(2, jax.dtypes.float0)
X = jnp.ones(2)


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (X, True),
        (np.ones(2), True),
        (jnp.ones((), jnp.complex64), True),
        (jnp.ones(2, jnp.bfloat16), True),
        (jnp.ones(2, jnp.float8_e4m3fn), True),
        (np.ones(2, ml_dtypes.float8_e5m2), True),
        (jax.ShapeDtypeStruct((2,), jnp.float16), True),
        (jax.ShapeDtypeStruct((2,), jnp.int32), False),
        (jnp.arange(2), False),
        (jnp.array([True]), False),
        (np.array(["text"]), False),
        (np.array([None]), False),
        (jax.random.key(0), False),
        (FLOAT0, False),
        (0.5, False),
        (1j, False),
        (np.float32(0.5), False),
        (3, False),
        (True, False),
        ("text", False),
        (len, False),
        (None, False),
        (HOLE, False),
    ],
    ids=repr,
)
def test_default_trainable(leaf, expected):
    assert default_trainable(leaf) is expected


def test_default_trainable_of_tracers():
    seen = []
    jax.jit(lambda tree: seen.append(trainable_mask(tree)))({"a": X, "b": 0.5, "c": 3, "d": True})
    jax.grad(lambda x: (seen.append(default_trainable(x)), x.sum())[1])(X)
    # Python numbers become arrays on their way into jit.
    assert seen == [{"a": True, "b": True, "c": False, "d": False}, True]


def test_a_mask_has_the_structure_of_the_tree_and_plain_bools():
    tree = {"a": [X, None, HOLE, 3], "b": Layer(X, 0.5), "c": FLOAT0, "d": tree_mask(3)}
    mask = trainable_mask(tree)
    assert jax.tree.structure(mask) == jax.tree.structure(tree)
    assert jax.tree.leaves(mask) == [True, False, True, False, False]
    assert {type(leaf) for leaf in jax.tree.leaves(mask)} == {bool}


def test_an_abstract_tree_has_the_mask_of_the_tree():
    params = {"a": X, "b": jnp.arange(2), "c": Constant(X)}
    mask = freeze_mask(jax.eval_shape(lambda: params), "a")
    assert mask == freeze_mask(params, "a") == {"a": False, "b": False, "c": Constant(False)}


def test_freeze_is_carved_out_of_trainable():
    tree = {"a": {"w": X, "b": X}, "c": X}
    expected = {"a": {"w": True, "b": False}, "c": False}
    assert trainable_mask(tree, trainable="a", freeze="**.b") == expected
    assert trainable_mask(tree, trainable={"a": True, "c": False}, freeze="a.b") == expected


@pytest.mark.parametrize("freeze", [None, [], ()])
def test_nothing_more_is_frozen(freeze):
    assert freeze_mask({"a": X, "b": 3}, freeze) == {"a": True, "b": False}
    assert trainable_mask({"a": X, "b": 3}, freeze=freeze) == {"a": True, "b": False}


@pytest.mark.parametrize("trainable", [[], ()])
def test_an_empty_list_of_what_trains_raises(trainable):
    with pytest.raises(SpecError, match=r"trainable=\[\] would train nothing: .* trainable=False"):
        trainable_mask({"a": X}, trainable=trainable)


@pytest.mark.parametrize(
    ("leaf", "what"),
    [
        (3, "a leaf of class int, which cannot be differentiated"),
        ("name", "a leaf of class str, which cannot be differentiated"),
        (jnp.arange(2), "an array of int32, which cannot be differentiated"),
        (jax.random.key(0), "an array of key<fry>, which cannot be differentiated"),
        (0.5, "a float and no array, which trains only by a mask that has True at that leaf"),
        (Constant(X), "held by a Constant, a frozen_field or the predicate; to release it, pass a"),
    ],
    ids=repr,
)
def test_an_entry_of_trainable_must_match_something_that_can_train(leaf, what):
    with pytest.raises(SpecError) as caught:
        trainable_mask({"a": leaf, "b": X}, trainable=["b", "a"])
    assert "trainable: 'a' matches nothing that can train: 'a" in str(caught.value)
    assert what in str(caught.value)


def test_an_entry_of_trainable_may_match_more_than_can_train():
    tree = {"a": {"w": X, "rate": 0.5, "n": 3, "c": Constant(X)}, "b": X}
    expected = {"a": {"w": True, "rate": False, "n": False, "c": Constant(False)}, "b": False}
    assert trainable_mask(tree, trainable="a") == expected


@pytest.mark.parametrize("place", [None, HOLE, FLOAT0, tree_mask(3)], ids=repr)
def test_an_entry_of_trainable_may_meet_a_place(place):
    assert jax.tree.leaves(trainable_mask({"a": place, "b": X}, trainable=["a", "b"]))[-1] is True


def test_predicate():
    tree = {"w": jnp.ones((2, 2)), "b": X, "rate": 0.5, "n": 3, "f": len}
    mask = trainable_mask(tree, lambda leaf: leaf.ndim == 2)
    assert mask == {"w": True, "b": False, "rate": False, "n": False, "f": False}
    mask = trainable_mask(tree, lambda leaf: np.True_)
    assert mask == {"w": True, "b": True, "rate": True, "n": False, "f": False}
    assert type(mask["w"]) is bool


def raises(_):
    raise KeyError("why")


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (raises, "the predicate, at 'a.b', raised KeyError: 'why'"),
        (
            lambda leaf: leaf > 0,
            "the predicate, at 'a.b', must return a bool, but returned ArrayIm",
        ),
        (
            lambda leaf: None,
            "must return a bool, but returned NoneType: True for what it means",
        ),
        (
            lambda leaf: leaf.dtyp,
            "the predicate lets nothing train (AttributeError: ",
        ),
        ("a", "predicate takes a function of a leaf, not str: specs go to freeze= or trainable="),
        ({"a": True}, "predicate takes a function of a leaf, not dict"),
    ],
)
def test_predicate_that_misbehaves(predicate, text):
    with pytest.raises(SpecError) as caught:
        trainable_mask({"a": {"b": X}}, predicate)
    assert text in str(caught.value)


def test_freeze_mask_lowers_a_mask():
    tree = {"a": {"w": X, "b": X}, "c": X, "rate": 0.5}
    mask = {"a": {"w": True, "b": True}, "c": False, "rate": True}
    expected = {"a": {"w": True, "b": False}, "c": False, "rate": True}
    assert freeze_mask(tree, "**.b", mask) == expected
    assert freeze_mask(tree, "c", mask) == mask


@pytest.mark.parametrize(
    "mask",
    ["c", ["a", "c"], len, lambda path: True],
    ids=lambda mask: getattr(mask, "__name__", repr(mask)),
)
def test_freeze_mask_takes_no_specs_for_a_mask(mask):
    with pytest.raises(
        MaskError, match="a mask has True where a leaf trains and False where it is"
    ):
        freeze_mask({"a": X, "c": X}, "c", mask)


@pytest.mark.parametrize("tree", [[], (), {}, (HOLE, None), HOLE, None], ids=repr)
def test_a_tree_without_leaves_has_a_mask(tree):
    assert freeze_mask(tree, [], trainable_mask(tree)) == tree


def test_optax_means_the_opposite_by_the_same_word():
    params = {"encoder": X, "head": X}
    mask = freeze_mask(params, "encoder")
    inverted = jax.tree.map(operator.not_, mask)
    right, wrong = (
        tx.update(params, tx.init(params))[0] for tx in (optax.freeze(inverted), optax.freeze(mask))
    )
    assert float(right["encoder"].sum()) == 0 != float(right["head"].sum())
    assert float(wrong["head"].sum()) == 0 != float(wrong["encoder"].sum())


def test_count_trainable_params():
    tree = {"a": jnp.ones((3, 4)), "b": jnp.ones((), jnp.complex64), "c": jnp.arange(9), "d": 0.5}
    assert count_trainable_params(tree) == 13
    assert count_trainable_params(jax.eval_shape(lambda: tree)) == 14  # 0.5 is an array there
    assert count_trainable_params(tree, mask=freeze_mask(tree, "a")) == 1
    assert count_trainable_params(tree, mask={"a": False, "b": False, "c": False, "d": True}) == 1
    assert count_trainable_params(tree, mask=False) == 0
    with pytest.raises(MaskError, match="it has no bool for 'c'"):
        count_trainable_params(tree, mask={"a": True, "b": True})


def test_leaf_paths():
    tree = {"a.b": [X, {3: X}], "n": None, "h": HOLE, "m": Block(X, (X,)), "": X}
    assert leaf_paths(tree) == ["", "a.b.0", "a.b.1.3", "m.kernel", "m.bias.0"]
    assert leaf_paths(X) == [""]
    assert leaf_paths(None) == []


def test_deep_trees_are_no_deeper_for_us_than_for_jax():
    tree, mask = X, True
    for _ in range(900):
        tree, mask = {"k": tree, "c": Constant(X)}, {"k": mask, "c": (False,)}
    assert leaf_paths(tree)[-1] == ".".join("k" * 900)
    mask = jax.tree.map(lambda leaf: leaf, mask)
    with pytest.raises(MaskError, match="does not fit"):
        freeze_mask(tree, "k.k.k", mask)
    assert jax.tree.leaves(freeze_mask(tree, "k.k.c"))[:3] == [False, False, False]


def test_none_beside_what_cannot_train_excuses_nothing():
    with pytest.raises(SpecError, match=r"'i' matches nothing that can train: 'i\.n' is an array"):
        trainable_mask({"i": {"n": jnp.arange(2), "none": None}, "w": jnp.ones(2)}, trainable="i")


def test_a_mask_in_the_place_of_the_predicate():
    class Called(eqx.Module):
        w: object

        def __call__(self, x):
            return True

    with pytest.raises(SpecError, match=r"predicate takes a function of a leaf, not .*Called"):
        trainable_mask(Called(jnp.ones(2)), Called(False))


@pytest.mark.parametrize("fixed", [[Constant], "Constant", (1,)])
def test_fixed_is_a_tuple_of_classes(fixed):
    with pytest.raises(TypeError, match=r"fixed takes a tuple of classes, such as \(Constant,\)"):
        trainable_mask({"w": jnp.ones(2)}, fixed=fixed)


def test_numbers_that_jax_does_not_have_do_not_train():
    assert not default_trainable(np.ones(2, np.longdouble))


def test_a_hole_is_no_list_of_specs():
    with pytest.raises(SpecError, match="got a MaskedNode"):
        freeze_mask({"w": jnp.ones(2)}, optax.MaskedNode())
