"""Nodes that only mark a place in a tree: holes, None, `float0`, hidden leaves."""

from __future__ import annotations

import sys
from typing import Any

import jax
from optax import MaskedNode


class Place:
    """A leafless node that stands where a leaf was; base class of holes and hidden leaves."""

    __slots__ = ()


def is_float0(value: Any) -> bool:
    """Whether a leaf is what JAX gives as the gradient of an integer: an array of `float0`."""
    return getattr(value, "dtype", None) == jax.dtypes.float0


def is_place(value: Any) -> bool:
    """Whether a node or leaf only marks a place: a hole, None, `float0` or a hidden leaf."""
    return value is None or isinstance(value, (MaskedNode, Place)) or is_float0(value)


def is_variable(value: Any) -> bool:
    """Whether a node is a Flax NNX `Variable`, which puts `.value` at the end of a path."""
    return isinstance(value, variable_classes())


def variable_classes() -> tuple[Any, ...]:
    """The classes of NNX Variables; none where there is no Flax."""
    flax = sys.modules.get("flax.nnx")  # not imported here: no Variable, no Flax
    known = vars(flax) if flax else {}
    # Flax before 0.12 has a second class, for the Variables of an `nnx.State`.
    return known.get("Variable", ()), known.get("VariableState", ())
