"""What may fill a hole."""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_freeze._trees import Hole, array_text, hole_of, is_array

_KINDS = (np.floating, np.complexfloating)


def misfit(value: Any, hole: Any) -> str:
    """What is wrong with a value for a hole.

    Args:
        value: what is to fill it.
        hole: what is known of what was there; nothing, if it is none of `split`'s.

    Returns:
        The end of a sentence, empty if the value fits: it has the shape, and a dtype of the kind,
        float or complex. Of another shape may be what a trace sees of an array: see `_is_seen_as`.
    """
    if (
        isinstance(hole, Hole)
        and is_array(value)
        and (value.shape == hole.shape and value.dtype == hole.dtype)
    ):
        return ""  # the usual case, at once
    if not jax.tree_util.all_leaves([value]):
        return f"a {type(value).__qualname__}, which is no leaf"
    if not isinstance(hole, Hole):
        return ""
    is_number = isinstance(value, (float, complex)) or isinstance(
        getattr(value, "dtype", None), np.dtype
    )
    if not is_number:
        return f"a {type(value).__qualname__}, where {_text(hole)} belongs"
    found = hole_of(value)
    wrong = f"{_text(found)}, where {_text(hole)} belongs"
    if _is_raw(found.dtype) and found.shape == hole.shape:
        if _fits_raw(found.dtype, hole.dtype):
            return ""
        return f"{wrong}: NumPy did not know the dtype it was saved from; say value.view(dtype)"
    if not any(_is_a(found.dtype, kind) and _is_a(hole.dtype, kind) for kind in _KINDS):
        return wrong
    if found.shape == hole.shape:
        return ""
    if _is_in_a_trace(value):
        return "" if _is_seen_as(found.shape, hole.shape) else wrong
    if found.shape[1:] == hole.shape:
        return f"{wrong}: a stack of them is merged inside jax.vmap"
    if hole.shape[1:] == found.shape:
        return f"{wrong}: of a stack, take one after the merge"
    return wrong


def filling(value: Any, hole: Any) -> Any:
    """A value that fits, as it goes into a hole: the very same, unless NumPy lost its dtype."""
    is_lost = isinstance(value, (np.ndarray, np.void)) and _is_raw(value.dtype)
    return value.view(hole.dtype) if is_lost and isinstance(hole, Hole) else value


def _text(hole: Hole) -> str:
    return array_text(hole.dtype, hole.shape)


def _is_a(dtype: Any, kind: type) -> bool:
    return bool(jnp.issubdtype(dtype, kind))


def _is_raw(dtype: np.dtype) -> bool:
    """Whether this is a number of bytes and no more, as NumPy loads bfloat16."""
    return dtype.type is np.void and dtype.names is None and dtype.subdtype is None


def _fits_raw(raw: np.dtype, dtype: np.dtype) -> bool:
    # NumPy's own dtypes come back by name: such bytes were another dtype before they were saved.
    return dtype.isbuiltin == 2 and dtype.itemsize == raw.itemsize


def _is_in_a_trace(value: Any) -> bool:
    # Without `jit`, `scan` is a loop over arrays.
    return isinstance(value, jax.core.Tracer) or jax.config.jax_disable_jit  # pyright: ignore


def _is_seen_as(shape: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    """Whether a trace may see an array of the shape `whole` as one of another shape."""
    # `vmap`, `scan` and `pmap` take axes away, `shard_map` cuts them into equal pieces.
    is_cut = bool(jax.sharding.get_abstract_mesh().manual_axes)

    def fits(size: Any, of: Any) -> bool:
        return size == of or (is_cut and size and of % size == 0)

    axes = iter(whole)
    return all(any(fits(size, axis) for axis in axes) for size in shape)
