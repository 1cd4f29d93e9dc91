"""Some leaves of a tree, and the tree cut to them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from optax_freeze._trees.places import HOLE
from optax_freeze._trees.tree import Tree


class Part:
    """Some leaves of a tree; in trees cut to this part, holes stand for all others.

    Attributes:
        tree: the whole tree.
        positions: the positions of the leaves of the part, in leaf order.
    """

    def __init__(self, tree: Tree, positions: Iterable[int]):
        self.tree = tree
        self.positions = list(positions)

    def fill(self, values: Iterable[Any], others: Sequence[Any] | None = None) -> Any:
        """The tree with `values` at the leaves of the part, and `others` or holes elsewhere."""
        full = [HOLE] * len(self.tree.leaves) if others is None else list(others)
        for position, value in zip(self.positions, values, strict=True):
            full[position] = value
        return self.tree.treedef.unflatten(full)

    def cut(self, items: Sequence[Any]) -> Any:
        """The tree with what `alongside` has for the leaves of the part, and holes elsewhere."""
        return self.fill(items[position] for position in self.positions)

    @functools.cached_property
    def treedef(self) -> Any:
        """The structure of a tree that is cut to this part."""
        return jax.tree.structure(self.fill(range(len(self.positions))))

    def values(self, cut: Any) -> list[Any]:
        """What a tree that is cut to this part has at its leaves."""
        return self.treedef.flatten_up_to(cut)
