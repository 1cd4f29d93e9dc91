"""What the transformations of this library train of a tree, for those who show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import optax

from optax_freeze._trees import Tree

Starts = Callable[[Tree], Sequence[int | None]]

# By the `update` of the transformation, because a named tuple cannot be referred to weakly.
_STARTS: WeakKeyDictionary[Callable[..., Any], Starts] = WeakKeyDictionary()


def declare_starts(
    tx: optax.GradientTransformationExtraArgs, starts: Starts
) -> optax.GradientTransformationExtraArgs:
    """Say what a transformation trains.

    Args:
        tx: the transformation.
        starts: says for each leaf of a tree from which step it trains; None for a frozen one.

    Returns:
        The same transformation.
    """
    _STARTS[tx.update] = starts
    return tx


def declared_starts(tx: optax.GradientTransformation, tree: Tree) -> Sequence[int | None] | None:
    """From which step each leaf of a tree trains.

    Args:
        tx: any transformation.
        tree: params.

    Returns:
        A step for each leaf that trains and None for each that does not; None if `tx` does not
        say so, as all that are not of this library, or have one of it inside.
    """
    starts = _STARTS.get(tx.update)
    return None if starts is None else starts(tree)
