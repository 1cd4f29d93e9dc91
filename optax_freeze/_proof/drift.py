"""How far a leaf is from what it was, to the bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_freeze._hiding import seal, show
from optax_freeze._trees import is_array, is_place, passes_jit


def drift(old: Any, new: Any) -> str | None:
    """What has changed between two leaves.

    Args:
        old: a leaf: an array (sharded ones too: this process compares its own shards) or an object.
        new: what is there now. A Python number may have become an array of its value, as it does
            on its way through `jit`.

    Returns:
        None if type, dtype, shape and bits agree; else what differs, and by how much. Weak types
        and shardings do not count.
    """
    if old is new:
        return None
    if is_place(new) and not is_place(old):
        return "was left out"
    if _is_numeric(old) and _is_numeric(new) and (is_array(old) or is_array(new)):
        return _drift_of_arrays(old, new)
    if seal(old) == seal(new):
        return None
    return f"is another {type(new).__qualname__}: {_short(old)} became {_short(new)}"


def _drift_of_arrays(old: Any, new: Any) -> str | None:
    for leaf in (old, new):
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            return "cannot be compared: it was donated or deleted, so copy it before training"
    before, after = (leaf if is_array(leaf) else jnp.asarray(leaf) for leaf in (old, new))
    if before.dtype != after.dtype:
        return f"changed its dtype from {before.dtype} to {after.dtype}"
    if before.shape != after.shape:
        return f"changed its shape from {before.shape} to {after.shape}"
    mine, its = _values(before), _values(after)
    differs = _bits(mine) != _bits(its)
    if not differs.any():
        return None
    return f"in {differs.sum()} of {differs.size} elements, by up to {distance(mine, its):.3g}"


def distance(old: np.ndarray, new: np.ndarray) -> float:
    """The largest distance between two arrays; inf where one is NaN or infinite and not the other.

    Args:
        old: an array of a numeric dtype.
        new: another of the same shape.

    Returns:
        The largest absolute difference; 0.0 where only the bits of equal values differ.
    """
    wide = np.complex128 if np.iscomplexobj(old) else np.float64
    mine, its = old.astype(wide), new.astype(wide)
    equal = (mine == its) | (np.isnan(mine) & np.isnan(its))
    with np.errstate(invalid="ignore"):
        gap = np.where(equal, 0.0, np.abs(mine - its))
    return float(np.where(np.isnan(gap), np.inf, gap).max(initial=0.0))


def _is_numeric(leaf: Any) -> bool:
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return passes_jit(leaf.dtype)
    return isinstance(leaf, (bool, float, complex)) or (
        isinstance(leaf, int) and np.can_cast(np.min_scalar_type(leaf), np.int64)
    )


def _values(array: Any) -> np.ndarray:
    """The elements that this process holds."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    # The next line is covered by test_distributed.py, in processes of its own.
    if isinstance(array, jax.Array) and not array.is_fully_addressable:  # pragma: no cover
        return np.concatenate([np.ravel(shard.data) for shard in array.addressable_shards])
    return np.asarray(array)


def _bits(values: np.ndarray) -> np.ndarray:
    """One row of bytes for each element, as one comparable scalar."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.dtype((np.void, flat.dtype.itemsize)))


def _short(value: Any) -> str:
    text = show(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
