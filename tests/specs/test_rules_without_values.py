"""In a transformation, functions and `where` see arrays without values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_freeze import SpecError, frozen, grad, trainable_only, where
from optax_freeze._specs.without_values import AbstractArray

X = jnp.ones(2)


@pytest.mark.parametrize(
    "read",
    [
        lambda leaf: bool(leaf.sum() > 0),
        lambda leaf: bool((leaf == 0).all()),
        lambda leaf: leaf is not None and leaf != 3,
        lambda leaf: bool(leaf),
        lambda leaf: float(leaf) > 0,
        lambda leaf: int(leaf) > 0,
        lambda leaf: np.asarray(leaf).any(),
        lambda leaf: leaf.mean() > 0,
        lambda leaf: leaf.item() > 0,
    ],
    ids=["sum", "equal", "unequal", "bool", "float", "int", "asarray", "mean", "item"],
)
def test_in_a_transformation_a_rule_that_reads_values_raises(read):
    tx = frozen(where(lambda path, leaf: read(leaf)))
    with pytest.raises(
        SpecError, match="at 'a', reads the value of an array: arrays have no values"
    ):
        tx.init({"a": jnp.ones(())})


@pytest.mark.parametrize(
    "read",
    [lambda leaf: leaf > 0, lambda leaf: leaf[0], lambda leaf: -leaf],
    ids=["greater", "index", "minus"],
)
def test_in_a_transformation_an_operator_on_an_array_raises(read):
    tx = frozen(where(lambda path, leaf: read(leaf)))
    with pytest.raises(SpecError, match=r"TypeError: .* pass it as trainable="):
        tx.init({"a": X})


@pytest.mark.parametrize(
    "rule",
    [
        lambda leaf: leaf.ndim == 1 and leaf.shape == (2,) and leaf.size == 2 and len(leaf) == 2,
        lambda leaf: leaf.dtype == jnp.float32 and leaf.nbytes == 8,
        lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating),
        lambda leaf: np.ndim(leaf) == 1 and np.shape(leaf) == (2,) and np.size(leaf) == 2,
        lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct),
        lambda leaf: not hasattr(leaf, "in_features"),
    ],
    ids=["shape", "dtype", "issubdtype", "numpy", "class", "hasattr"],
)
def test_in_a_transformation_a_rule_may_read_all_else(rule):
    updates, _ = frozen(where(lambda path, leaf: rule(leaf))).update({"a": X}, None, {"a": X})
    assert not updates["a"].any()


def test_an_abstract_array_has_the_attributes_of_an_array_only():
    with pytest.raises(AttributeError, match="an array has no attribute 'in_features'"):
        AbstractArray((2,), jnp.float32).in_features  # noqa: B018


def test_a_rule_that_asks_for_arrays_means_the_same_everywhere():
    rule = where(lambda path, leaf: eqx.is_inexact_array(leaf) and path == "enc")
    params = {"enc": jnp.ones(2), "head": jnp.asarray(1.0)}
    tx = trainable_only(optax.sgd(1.0), rule)
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates["enc"].tolist() == [0.0, 0.0]
    assert float(updates["head"]) == -1.0
    weak = where(lambda path, leaf: leaf.weak_type)
    assert grad(lambda p: p["enc"].sum() + p["head"], weak)(params)["head"] is None


def test_a_class_that_cannot_be_without_values():
    @jax.tree_util.register_pytree_node_class
    class Positive:
        def __init__(self, w):
            self.w = abs(w.sum())

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    with pytest.raises(SpecError, match="reads the values of its arrays when it is put together"):
        trainable_only(optax.sgd(1.0), where(lambda path, leaf: True)).init(Positive(jnp.ones(2)))
