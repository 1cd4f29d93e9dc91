"""Holes: what stands in a tree where a leaf was left out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from optax import MaskedNode

from optax_freeze._trees.places import Place
from optax_freeze._trees.texts import array_text

HOLE = MaskedNode()


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Hole(Place):
    """A leafless node that knows what belongs there; `split` leaves it where a leaf trains.

    Attributes:
        shape: the shape of what was taken out.
        dtype: its dtype; that of a Python number is NumPy's.
    """

    shape: tuple[int, ...]
    dtype: Any

    def __repr__(self) -> str:
        return f"hole {array_text(self.dtype, self.shape)}"


# A dataclass without data fields is taken apart in C++: see `Hidden`.
jax.tree_util.register_dataclass(Hole, data_fields=[], meta_fields=["shape", "dtype"])


def hole_of(leaf: Any) -> Hole:
    """The hole that an array or a Python number leaves."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
    return Hole(tuple(np.shape(leaf)), dtype)


_NONE_IS_A_HOLE = ContextVar("_NONE_IS_A_HOLE", default=False)


@contextlib.contextmanager
def none_is_a_hole(*, yes: bool = True) -> Iterator[None]:
    """While a transformation sees a tree of which we left something out: None is that something.

    Elsewhere None is the model's own, such as the missing bias of a layer, and must not excuse an
    entry that matches nothing.
    """
    token = _NONE_IS_A_HOLE.set(yes)
    try:
        yield
    finally:
        _NONE_IS_A_HOLE.reset(token)


def is_hole(value: Any) -> bool:
    """Whether a node stands where a leaf was left out: Optax's hole or ours, or None as above."""
    return isinstance(value, (MaskedNode, Hole)) or (value is None and _NONE_IS_A_HOLE.get())
