"""What trains when nothing is said."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_freeze._trees import is_array


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    is_foreign = dtype in {np.dtype(np.longdouble), np.dtype(np.clongdouble)}  # JAX has none
    return bool(jnp.issubdtype(dtype, jnp.inexact)) and not is_foreign


def default_trainable(leaf: Any) -> bool:
    """Whether a leaf trains when nothing else is said: True only for inexact arrays.

    Args:
        leaf: anything.

    Returns:
        True for a `jax.Array`, a tracer, a `jax.ShapeDtypeStruct` or a `numpy.ndarray` of float or
        complex dtype, bfloat16 and the float8 types included. False for all else: Python and NumPy
        scalars, integers, bools, PRNG keys, strings, functions.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import default_trainable
        >>> [default_trainable(leaf) for leaf in (jnp.ones(2), jnp.arange(2), 0.5, "name")]
        [True, False, False, False]
    """
    return is_array(leaf) and _is_inexact(leaf.dtype)


def is_differentiable(leaf: Any) -> bool:
    """Whether JAX can differentiate by a leaf: a float or complex, scalar or array."""
    return isinstance(leaf, (float, complex, np.inexact)) or default_trainable(leaf)
