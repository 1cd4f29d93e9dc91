"""What `summary` says of parameters that stand, or seem to stand, in two places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.core
import numpy as np

from optax_freeze._trees import Tree, listing, quote, shared, ties


def remarks(tree: Tree, starts: Sequence[int | None]) -> Iterator[str]:
    """Remarks on a tree.

    Args:
        tree: the tree.
        starts: from which step each leaf trains; None for a frozen one.

    Yields:
        A sentence about what is counted once, and one about arrays that will part.
    """
    tied = [(tree.name_of(i), tree.name_of(same[0])) for same in ties(tree) for i in same[1:]]
    tied += [(quote(place.name), quote(values[0].name)) for place, values in shared(tree)]
    if tied:
        yield f"counted once: {listing([f'{name} is {first}' for name, first in tied])}"
    parting = [f"{tree.name_of(i)} and {tree.name_of(j)}" for i, j in _parting(tree, starts)]
    if parting:
        yield (f"the same array now, but only one of them trains, so they part: {listing(parting)}")


def _parting(tree: Tree, starts: Sequence[int | None]) -> Iterator[tuple[int, int]]:
    """Leaves that are the same array and do not train alike."""
    places: dict[int, list[int]] = {}
    for position, leaf in enumerate(tree.leaves):
        if isinstance(leaf, (jax.Array, np.ndarray)) and not isinstance(leaf, jax.core.Tracer):
            places.setdefault(id(leaf), []).append(position)
    for same in places.values():
        if len(same) > 1:
            first = same[0]
            other = next((i for i in same if (starts[i] is None) != (starts[first] is None)), None)
            if other is not None:
                yield first, other
