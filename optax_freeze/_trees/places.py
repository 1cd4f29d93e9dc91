"""Nodes that only mark a place in a tree: holes, None, `float0`, hidden leaves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
from optax import MaskedNode

HOLE = MaskedNode()


class Place:
    """A leafless node that stands where a leaf was left out; base class of hidden leaves."""

    __slots__ = ()


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
    """Whether a node stands where a leaf was left out: `optax.MaskedNode()`, or None as above."""
    return isinstance(value, MaskedNode) or (value is None and _NONE_IS_A_HOLE.get())


def is_float0(value: Any) -> bool:
    """Whether a leaf is what JAX gives as the gradient of an integer: an array of `float0`."""
    return getattr(value, "dtype", None) == jax.dtypes.float0


def is_place(value: Any) -> bool:
    """Whether a node or leaf only marks a place: a hole, None, `float0` or a hidden leaf."""
    return value is None or isinstance(value, (MaskedNode, Place)) or is_float0(value)


def is_variable(value: Any) -> bool:
    """Whether a node is a Flax NNX `Variable`, which puts `.value` at the end of a path."""
    flax = sys.modules.get("flax.nnx")  # not imported here: no Variable, no Flax
    known = vars(flax) if flax else {}
    # Flax before 0.12 has a second class, for the Variables of an `nnx.State`.
    return isinstance(value, (known.get("Variable", ()), known.get("VariableState", ())))
