"""Where to cut an array: what may be written as rows, and what it means for so many of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

from optax_freeze._trees import Cut

_KINDS = (
    "rows are an integer or a list of integers (where to cut), or an array of integers (which rows "
    "to pick)"
)
_ELEMENTS = (
    "rows are cut, not single elements. To keep elements still, mask the updates, last in the "
    "chain: jnp.where(mask, update, -0.0)"
)


class Rows(NamedTuple):
    """What was written as rows, checked.

    Attributes:
        numbers: boundaries, or the numbers of the rows that are picked.
        are_picked: which of the two.
    """

    numbers: tuple[int, ...]
    are_picked: bool

    def cut(self, shape: Sequence[int], axis: int) -> Cut:
        """How to cut an array.

        Args:
            shape: its shape.
            axis: along which axis.

        Returns:
            How to cut it.

        Raises:
            ValueError: if it cannot be cut so; the message begins with what it has.
        """
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"has {len(shape)} axes, so that there is no axis {axis} to cut")
        axis = axis - len(shape) if axis >= 0 else axis
        size = shape[axis]
        try:
            return (_by_pick if self.are_picked else _by_boundaries)(self.numbers, size, axis)
        except ValueError as error:
            raise ValueError(f"has {size} rows: {error}") from None


def _by_boundaries(boundaries: Sequence[int], size: int, axis: int) -> Cut:
    inner = _from_start(boundaries, size, "boundary", last=size)
    bounds = (0, *inner, size)
    if list(inner) != sorted(set(inner)):
        raise ValueError(f"boundaries must increase, but {list(boundaries)} means {inner}")
    if len(set(bounds)) < len(bounds):
        raise ValueError(f"a cut at {list(boundaries)} leaves a piece without rows")
    return Cut(axis, bounds)


def _by_pick(picked: Sequence[int], size: int, axis: int) -> Cut:
    rows = _from_start(picked, size, "row", last=size - 1)
    if len(set(rows)) < len(rows):
        twice = next(row for row in rows if rows.count(row) > 1)
        raise ValueError(f"row {twice} is picked twice")
    if len(rows) in {0, size}:
        raise ValueError(f"{len(rows)} of them are picked, which leaves a piece without rows")
    return Cut(axis, (0, size - len(rows), size), np.array(rows, np.int64).tobytes())


def _from_start(numbers: Sequence[int], size: int, word: str, last: int) -> list[int]:
    """The numbers counted from the start, where the negative ones count from the end."""
    for number in numbers:
        if not -size <= number <= last:
            raise ValueError(f"there is no {word} {number}")
    return [number + size if number < 0 else number for number in numbers]


def read_rows(rows: Any) -> Rows:
    """Check what was passed as rows.

    Args:
        rows: an integer, a list or tuple of integers, or an array of integers.

    Returns:
        What it means.

    Raises:
        ValueError: if it is none of these.
    """
    has_values = not isinstance(rows, jax.core.Tracer)
    if not has_values:
        raise ValueError(
            "rows are known only at run time here, but where to cut decides the shapes: pass a "
            "NumPy array, or cut outside jit"
        )
    if isinstance(rows, (np.ndarray, jax.Array)):
        return Rows(_read_picked(np.asarray(rows)), are_picked=True)
    if isinstance(rows, (list, tuple)):
        if not rows:
            raise ValueError("there is no boundary in the list: leave the entry out")
        return Rows(tuple(map(_read_boundary, rows)), are_picked=False)
    return Rows((_read_boundary(rows),), are_picked=False)


def _read_picked(rows: np.ndarray[Any, Any]) -> tuple[int, ...]:
    if rows.dtype == np.bool_:
        hint = "np.flatnonzero(mask) gives the numbers of rows" if rows.ndim == 1 else _ELEMENTS
        raise ValueError(f"got an array of bools: {hint}")
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(
            f"got an array of {rows.dtype} with {rows.ndim} axes, but an array picks rows by their "
            "numbers, integers on one axis"
        )
    return tuple(rows.tolist())


def _read_boundary(boundary: Any) -> int:
    if not isinstance(boundary, (bool, np.bool_, np.ndarray, jax.Array)):
        try:
            return operator.index(boundary)
        except TypeError:
            pass
    shown = repr(boundary) if isinstance(boundary, (bool, float)) else type(boundary).__qualname__
    raise ValueError(f"{_KINDS}, not {shown}")
