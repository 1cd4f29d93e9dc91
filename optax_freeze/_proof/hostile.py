"""Params and gradients made to bring to light what moves a frozen leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_freeze._masks import default_trainable, is_differentiable
from optax_freeze._trees import Tree, is_array, is_array_of_jit

# By how much the gradients of frozen leaves are scaled, in the runs that are compared.
FROZEN_GRADIENTS: Mapping[str, float] = MappingProxyType({
    "zero": 0.0,
    "large": 1.0,
    "larger": -1e4,
    "NaN": np.nan,
})


def params_like(tree: Tree) -> Any:
    """Params with nothing that would hide a move: no zero, on which weight decay has no effect.

    Args:
        tree: params, concrete, sharded or abstract.

    Returns:
        New params of the same structure, shapes, dtypes and shardings; integers are one, what is
        no array stays as it is.
    """
    rng = np.random.default_rng(0)
    return tree.treedef.unflatten([_value_like(leaf, rng) for leaf in tree.leaves])


def _value_like(leaf: Any, rng: np.random.Generator) -> Any:
    if not is_array_of_jit(leaf):
        return leaf
    if not default_trainable(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        make = jnp.zeros if is_key else jnp.ones  # there is no key of ones
        return _placed(make(leaf.shape, leaf.dtype), leaf)
    values = rng.uniform(0.5, 1.5, leaf.shape) * rng.choice([-1.0, 1.0], leaf.shape)
    return _placed(jnp.asarray(values.astype(leaf.dtype)), leaf)


def _placed(value: Any, leaf: Any) -> Any:
    # An array that is bound to no device must not be bound to one here: the others would not fit.
    is_bound = isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "committed", False)
    sharding = leaf.sharding if is_bound else None
    return value if sharding is None else jax.device_put(value, sharding)


def gradients(tree: Tree, flags: Sequence[bool], scale: float, step: int) -> list[Any]:
    """The gradients of one step.

    Args:
        tree: the params.
        flags: which of its leaves train.
        scale: the gradients of the others are multiplied by this.
        step: for gradients that differ from step to step.

    Returns:
        For each leaf an array of its shape and dtype; None where there is no derivative.
    """
    rng = np.random.default_rng([1, step])
    return [
        _gradient(leaf, rng, 1.0 if flag else scale)
        for leaf, flag in zip(tree.leaves, flags, strict=True)
    ]


def _gradient(leaf: Any, rng: np.random.Generator, scale: float) -> Any:
    if not (is_array_of_jit(leaf) or is_differentiable(leaf)):
        return None
    values = rng.normal(size=np.shape(leaf))  # drawn for all, so that all runs draw the same
    if not is_differentiable(leaf):
        return jnp.zeros(leaf.shape, leaf.dtype)
    dtype = leaf.dtype if is_array(leaf) else jnp.result_type(leaf)
    with np.errstate(over="ignore", invalid="ignore"):
        return _placed(jnp.asarray((np.multiply(values, scale)).astype(dtype)), leaf)


def extra_args(gradient: Any) -> dict[str, Any]:
    """What some transformations ask for: a value, and functions of the params.

    Args:
        gradient: the gradient of this step.

    Returns:
        Keyword arguments for `update`.
    """

    # Optax's zoom line search refuses extra arguments that its `value_fn` does not name.
    def value_fn(params: Any, obj_fn: Any = None, grad_fn: Any = None) -> jax.Array:
        del obj_fn, grad_fn
        leaves = filter(default_trainable, jax.tree.leaves(params))
        squares = [jnp.sum(jnp.square(jnp.abs(leaf).astype(jnp.float32))) for leaf in leaves]
        return sum(squares, jnp.zeros((), jnp.float32))

    return {
        "value": jnp.ones((), jnp.float32),
        "grad": gradient,
        "value_fn": value_fn,
        "obj_fn": value_fn,
        "grad_fn": lambda *_: gradient,
    }
