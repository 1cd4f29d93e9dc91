"""`is_nondiff`: what JAX cannot differentiate by."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core
import numpy as np

from optax_freeze._hiding.sealing import PLAIN
from optax_freeze._masks import is_differentiable


def is_nondiff(leaf: Any) -> bool:
    """Whether JAX cannot differentiate by a leaf: what `tree_mask` hides by default.

    Args:
        leaf: anything.

    Returns:
        False for a float or complex number, Python's or NumPy's, and for an array, tracer or
        `jax.ShapeDtypeStruct` of such a dtype (bfloat16 and float8 too); True for all else.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import is_nondiff
        >>> [is_nondiff(leaf) for leaf in (1, True, "name", 1.0, jnp.ones(2), jnp.arange(2))]
        [True, True, True, False, False, True]
    """
    cls = type(leaf)
    if cls is float or cls in PLAIN:
        return cls is not float
    verdict = _by_class(cls)
    return _is_nondiff_dtype(leaf.dtype) if verdict is None else verdict


# To ask JAX what is an array, and of what dtype, takes long: once for each class and each dtype.
@functools.lru_cache(maxsize=512)
def _by_class(cls: type) -> bool | None:
    """What the class of a leaf alone says; None if its dtype decides."""
    arrays = (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct, np.ndarray, np.generic)
    return None if issubclass(cls, arrays) else not issubclass(cls, (float, complex))


@functools.lru_cache(maxsize=256)
def _is_nondiff_dtype(dtype: Any) -> bool:
    return not is_differentiable(jax.ShapeDtypeStruct((), dtype))
