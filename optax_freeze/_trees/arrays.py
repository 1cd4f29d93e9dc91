"""Which leaves are arrays, and which of these are arguments for `jit`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array: of JAX or NumPy, a tracer or a `jax.ShapeDtypeStruct`."""
    # A tracer is an instance of `jax.Array`, but its class is no subclass. Of nothing else JAX is
    # asked, because it takes long to say no.
    cls = type(leaf)
    return _is_array_class(cls) or (_is_tracer_class(cls) and isinstance(leaf, jax.Array))


@functools.cache
def _is_array_class(cls: type) -> bool:
    return issubclass(cls, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))


@functools.cache
def _is_tracer_class(cls: type) -> bool:
    return issubclass(cls, jax.core.Tracer)


@functools.cache
def passes_jit(dtype: Any) -> bool:
    """Whether `jit` takes arrays of a dtype: it does not take text, objects, dates or records."""
    return dtype == np.bool_ or any(
        jnp.issubdtype(dtype, kind) for kind in (jnp.number, jax.dtypes.extended)
    )


def is_array_of_jit(leaf: Any) -> bool:
    """Whether a leaf is an array that can be an argument of a jitted function."""
    return is_array(leaf) and passes_jit(leaf.dtype)
