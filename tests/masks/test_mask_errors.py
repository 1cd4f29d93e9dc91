"""What is said of a mask that does not fit its tree, or holds something else than bools."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_freeze import MaskError, freeze_mask, trainable_mask

HOLE = optax.MaskedNode()
X = jnp.ones(2)


def meet(tree, mask):
    return freeze_mask(tree, None, mask)


@pytest.mark.parametrize(
    ("leaf", "found"),
    [
        ("False", "'False' (str) at 'a.w': a mask has True where a leaf trains and False where it"),
        (0.5, "0.5 (float) at 'a.w'"),
        (3, "3 (int) at 'a.w'"),
        (1, "1 (int) at 'a.w'"),
        (len, "an object of class builtin_function_or_method at 'a.w'"),
        ("x" * 1000, "xxx...xxx"),
        (np.float32(1), "an object of class float32 at 'a.w'"),
        (jnp.ones(3), "an array of shape (3,) and dtype float32 at 'a.w': a mask has True where"),
        (
            np.array([True]),
            "an array of shape (1,) and dtype bool at 'a.w': a leaf trains as a whole",
        ),
        (jnp.array(1), "an array of shape () and dtype int32 at 'a.w': a mask has True"),
        (jax.ShapeDtypeStruct((), bool), "an object of class ShapeDtypeStruct at 'a.w'"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value),
)
def test_a_leaf_of_a_mask_that_is_not_a_bool(leaf, found):
    with pytest.raises(MaskError) as caught:
        meet({"a": {"w": X}}, {"a": {"w": leaf}})
    assert str(caught.value).startswith("the mask has ")
    assert found in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_tracer_in_a_mask():
    with pytest.raises(
        MaskError, match="a tracer at 'w': a mask must be known before tracing: build"
    ):
        jax.jit(lambda flag: meet({"w": X}, {"w": flag}))(True)


@pytest.mark.parametrize(
    ("leaf", "what"),
    [
        (3, "a leaf of class int"),
        (True, "a leaf of class bool"),
        ("x", "a leaf of class str"),
        (len, "a leaf of class builtin_function_or_method"),
        (jnp.arange(2), "an array of int32"),
        (jax.random.key(0), "an array of key<fry>"),
    ],
    ids=repr,
)
def test_true_at_what_cannot_be_differentiated(leaf, what):
    with pytest.raises(MaskError) as caught:
        meet({"a": [leaf]}, {"a": [True]})
    expected = (
        f"the mask has True at 'a.0', {what}, which cannot be differentiated: set it to False"
    )
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("tree", "mask", "text"),
    [
        (
            {"a": X, "b": X},
            {"a": True},
            "it has no bool for 'b'. Every leaf needs one bool, at its",
        ),
        (
            {"a1": X},
            {"a1": True, "a2": True},
            "it has 'a2', which the tree does not (the closest is 'a1')",
        ),
        (
            {"encoder": {"w": X}, "z": X},
            {"encodr": {"w": True}, "z": True},
            "fit the tree: it has no bool for 'encoder' (is 'encodr' misspelt?). Every",
        ),
        (
            {"a": {"w": X}},
            {"a": {"w": True, "v": {"x": True}}},
            "it has 'a.v', which the tree does",
        ),
        ({"a": {"w": X}}, {"a": {}}, "it has no bool for 'a.w'"),
        ({"a": {"w": X}}, {"a": HOLE}, "it has no bool for 'a.w'"),
        ({"a": {"w": X}}, {"a": {"w": None}}, "it has no bool for 'a.w'"),
        ({"a": X}, {}, "it has no bool for 'a'"),
        (X, {}, "it has no bool for the tree itself"),
        ([X, X, X], [True, True], "it has no bool for '2'"),
        ([X], [True, True], "it has '1', which the tree does not"),
        ({"a": {"w": X}}, {"a": True, "a.w": False}, "it says two things about 'a'"),
        ({"a": X}, {"a": True, "a.w": False}, "it says two things about 'a'"),
        ({"a": {}, "b": X}, {"a": {"w": True}, "b": True}, "it has 'a.w', which the tree does not"),
        ({"a": X, "a.b": X}, {"a.b": True}, "it has no bool for 'a' itself"),
        ({str(i): X for i in range(9)}, {"0": True}, "'6'; and 2 more. Every leaf needs"),
    ],
)
def test_a_misfit(tree, mask, text):
    with pytest.raises(MaskError) as caught:
        meet(tree, mask)
    assert str(caught.value).startswith("the mask does not fit the tree: ")
    assert text in str(caught.value)


def test_a_mask_goes_with_trainable_only_and_says_so_elsewhere():
    tree = {"a": X, "b": X}
    assert trainable_mask(tree, trainable={"a": True, "b": False}) == {"a": True, "b": False}
    with pytest.raises(ValueError, match="True trains: pass it as trainable="):
        trainable_mask(tree, freeze={"a": True, "b": False})
