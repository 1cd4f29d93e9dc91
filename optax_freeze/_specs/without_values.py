"""Trees without values, for rules that must not depend on any."""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import numpy as np

from optax_freeze._trees import is_array

READS_VALUES = (
    "arrays have no values here, so that the answer cannot change between steps. A rule that reads "
    "values belongs before training: build the mask with freeze_mask or trainable_mask and pass "
    "it as trainable="
)


class ReadsValue(Exception):
    """Something asked an abstract array for its values."""


class AbstractArray(jax.ShapeDtypeStruct):
    """A `jax.ShapeDtypeStruct` that refuses what only an array with values can answer.

    A plain one is equal to nothing and true as a bool, which would decide a rule in silence.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """So that a rule that asks for arrays by `isinstance` means the same here as elsewhere."""
        return jax.Array

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize

    def _refuse(self, *_: Any) -> NoReturn:
        raise ReadsValue

    __eq__ = __ne__ = __bool__ = __float__ = __int__ = __array__ = _refuse  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        # What a ShapeDtypeStruct has itself is only missing while it is being made.
        is_abstract = hasattr(jax.ShapeDtypeStruct, name)
        if not is_abstract and (hasattr(jax.Array, name) or hasattr(np.ndarray, name)):
            raise ReadsValue
        raise AttributeError(f"an array has no attribute {name!r}", name=name, obj=self)


def abstract(tree: Any) -> Any:
    """The same tree with an abstract array in the place of every array."""

    def show(leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        return AbstractArray(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))

    return jax.tree.map(show, tree)
