"""Zeros that leave a frozen leaf alone when they are added to it."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_freeze._trees import is_array, is_place


def frozen_update(leaf: Any, gradient: Any) -> Any:
    """The update of a frozen leaf: a zero where its gradient is an array, None where it is not."""
    return None if is_place(gradient) else zero_like(leaf)


def zero_like(leaf: Any) -> Any:
    """What can be added to a frozen leaf without a trace.

    Args:
        leaf: the leaf.

    Returns:
        A zero of its shape and dtype; None where there is none (PRNG keys, strings, functions,
        and `float8_e8m0fnu`, which has powers of two only).
    """
    for cls in (bool, int, float, complex):  # True is an int as well, so in this order
        if isinstance(leaf, cls):
            return -0.0 if cls is float else cls(0)
    if not (is_array(leaf) or isinstance(leaf, np.generic)):
        return None
    zero = _zero_of(leaf.dtype)
    if zero is None:
        return None
    return jnp.full_like(leaf, zero) if is_array(leaf) else leaf.dtype.type(zero)


@functools.cache
def _zero_of(dtype: Any) -> float | int | None:
    if dtype == np.bool_:
        return 0
    if not jnp.issubdtype(dtype, jnp.number) or np.zeros((), dtype) != 0:
        return None
    # Minus zero, because -0.0 + 0.0 is 0.0, but x + -0.0 has the bits of x. Not for complex
    # numbers, where XLA drops only the addition of plain zeros.
    return -0.0 if jnp.issubdtype(dtype, jnp.floating) else 0
