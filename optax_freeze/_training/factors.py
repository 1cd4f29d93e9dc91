"""Factors of updates: numbers, arrays, and what schedules give."""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_freeze._masks import is_differentiable
from optax_freeze._trees import is_array, is_place

_WHAT = "a factor is a number above 0, an array of such, or a schedule"
_WIDE = {np.dtype(np.float64), np.dtype(np.complex128)}


def read_factor(value: Any, where: str) -> Any:
    """Check what was passed as a factor.

    Args:
        value: a number, an array or a schedule.
        where: where it was passed, for error texts.

    Returns:
        A NumPy array, a tracer as it is, or the schedule.

    Raises:
        TypeError: if it is none of these.
        ValueError: if it is, or holds, a number by which nothing can be scaled.
    """
    if callable(value):
        return value
    factor = real(value, where)
    if isinstance(factor, jax.core.Tracer):
        return factor  # whose values nobody knows
    with np.errstate(over="ignore", under="ignore"):
        numbers = factor.astype(np.float32)
    bad = numbers[~(np.isfinite(numbers) & (numbers > 0))]
    if bad.size:
        kept = f"got {value!r}" if np.ndim(value) == 0 else f"got an array with {bad[0]} in it"
        raise ValueError(f"{where}: {kept}: {_why_not(bad[0])}")
    return factor


def real(value: Any, where: str) -> Any:
    """A factor as an array of real numbers.

    Args:
        value: what was passed, or what a schedule gave.
        where: where it was passed, for error texts.

    Returns:
        A NumPy array, or a tracer as it is.

    Raises:
        TypeError: if it is no real number and no array of such.
    """
    if isinstance(value, jax.core.Tracer) and _is_real(value.dtype):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return np.asarray(value, np.float64)
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and _is_real(value.dtype):
        return np.asarray(value)
    kind = type(value).__qualname__
    dtype = getattr(value, "dtype", None)
    raise TypeError(f"{where}: got {kind}{f' of {dtype}' if dtype else ''}: {_hint(value)}")


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def _why_not(number: Any) -> str:
    if number == 0:
        return (
            "0 (in float32) keeps nothing still, because 0 times NaN is NaN; name what must not "
            "move in the freeze= of trainable_only"
        )
    if number < 0 and np.isfinite(number):
        return f"{_WHAT}; a negative one walks uphill"
    return f"{_WHAT}, and finite"


def _hint(value: Any) -> str:
    if value is None:
        return f"{_WHAT}; name what must not move in the freeze= of trainable_only"
    if isinstance(value, (list, tuple)) and hasattr(value, "update"):
        return f"{_WHAT}; an optimizer for each group is param_groups"
    if isinstance(value, (list, tuple)):
        return f"{_WHAT}; make it one by numpy.array(...)"
    return _WHAT


def fits(factor: Any, shape: tuple[int, ...]) -> bool:
    """Whether a factor broadcasts to a shape from the left."""
    sizes = zip(factor.shape, shape, strict=False)
    return len(factor.shape) <= len(shape) and all(mine in {1, its} for mine, its in sizes)


def scale(update: Any, factor: Any) -> Any:
    """An update times a factor that fits it.

    Args:
        update: the update of a leaf, or what stands for one that was left out.
        factor: what `real` gave.

    Returns:
        The product in the dtype of the update, rounded once: it is computed in float32 where the
        update has less. The update itself where the factor is 1, and where there is nothing to
        scale.
    """
    if is_place(update) or not is_differentiable(update):
        return update
    is_number = factor.ndim == 0 and not isinstance(factor, jax.core.Tracer)
    if is_number and float(factor) == 1.0:
        return update
    if is_number and isinstance(update, (float, complex)):  # NumPy's float64 is a float as well
        cls: Any = type(update)
        return cls(update * float(factor))
    update = update if is_array(update) else jnp.asarray(update)
    wide = np.float64 if update.dtype in _WIDE else np.float32
    factor = factor.astype(wide).reshape(factor.shape + (1,) * (update.ndim - factor.ndim))
    if jnp.issubdtype(update.dtype, jnp.complexfloating):
        # By parts: a product of complex numbers would lose a minus sign of 0.0.
        return jax.lax.complex(jnp.real(update) * factor, jnp.imag(update) * factor)
    return (update.astype(wide) * factor).astype(update.dtype)
