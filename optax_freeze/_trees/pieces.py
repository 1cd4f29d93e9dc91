"""A node that stands for one array in pieces, and how the array was cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import SequenceKey, register_pytree_with_keys_class

from optax_freeze._trees.arrays import is_array

_SHOWN = 4  # numbers of picked rows


class Cut(NamedTuple):
    """How an array was cut: what `jit` compares to tell whether it knows a tree.

    Attributes:
        axis: the axis, counted from the end, so that it stays the same one under a `vmap`.
        bounds: where the pieces begin when they lie one behind the other; at last, their end.
        picked: the numbers of the rows in piece 1, as the bytes of an array of int64; `b""` if the
            pieces do lie one behind the other. As bytes, whose hash is computed only once.
    """

    axis: int
    bounds: tuple[int, ...]
    picked: bytes = b""

    @property
    def size(self) -> int:
        """The number of all rows."""
        return self.bounds[-1]

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each piece."""
        return [stop - start for start, stop in pairwise(self.bounds)]

    @property
    def picked_rows(self) -> np.ndarray[Any, Any]:
        """The numbers of the rows in piece 1, if rows were picked."""
        return np.frombuffer(self.picked, np.int64)

    @property
    def other_rows(self) -> np.ndarray[Any, Any]:
        """The numbers of the rows in piece 0, if rows were picked."""
        return np.delete(np.arange(self.size), self.picked_rows)

    def describe(self, piece: int, ndim: int) -> str:
        """Which rows a piece has, of an array of so many axes, in words."""
        of_axis = "" if self.axis + ndim == 0 else f" of axis {self.axis + ndim}"
        if not self.picked:
            return f"rows [{self.bounds[piece]}:{self.bounds[piece + 1]}]{of_axis}"
        if piece == 0:
            return f"other rows{of_axis}"
        rows = self.picked_rows.tolist()
        shown = [*map(str, rows[:_SHOWN]), *(["..."] if len(rows) > _SHOWN else [])]
        return f"rows [{', '.join(shown)}]{of_axis}"


@register_pytree_with_keys_class
class Pieces:
    """What stands in a tree for an array that was cut: a node whose children are its pieces.

    Attributes:
        pieces: the pieces, or whatever a map over the tree made of them.
        cut: how the array was cut.
    """

    __slots__ = ("cut", "pieces")

    def __init__(self, pieces: Sequence[Any], cut: Cut):
        self.pieces = tuple(pieces)
        self.cut = cut

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Cut]:
        """The pieces with their keys, for JAX."""
        return [(SequenceKey(i), piece) for i, piece in enumerate(self.pieces)], self.cut

    def tree_flatten(self) -> tuple[tuple[Any, ...], Cut]:
        """The pieces, for JAX."""
        return self.pieces, self.cut

    @classmethod
    def tree_unflatten(cls, cut: Cut, pieces: Sequence[Any]) -> Pieces:
        """The node again, for JAX."""
        return cls(pieces, cut)

    def __repr__(self) -> str:
        return f"Pieces({', '.join(map(_show, self.pieces))})"


def _show(piece: Any) -> str:
    return f"{piece.dtype}{list(piece.shape)}" if is_array(piece) else repr(piece)
