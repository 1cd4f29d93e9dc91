"""Some leaves of a tree, and the tree cut to them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_freeze._trees.tree import Tree


class Part:
    """Some leaves of a tree, and what stands for all others in trees that are cut to this part.

    Attributes:
        tree: the whole tree.
        positions: the positions of the leaves of the part, in leaf order.
        left_out: what stands for the others: None, or a hole.
    """

    def __init__(self, tree: Tree, positions: Iterable[int], left_out: Any = None):
        self.tree = tree
        self.positions = list(positions)
        self.left_out = left_out

    @property
    def leaves(self) -> list[Any]:
        """The leaves of the part, in leaf order."""
        return [self.tree.leaves[position] for position in self.positions]

    def fill(self, values: Iterable[Any], others: Sequence[Any] | None = None) -> Any:
        """The tree with `values` at the leaves of the part, and `others` or nothing elsewhere."""
        full = [self.left_out] * len(self.tree.leaves) if others is None else list(others)
        for position, value in zip(self.positions, values, strict=True):
            full[position] = value
        whole = self.tree.treedef.unflatten(full)
        if others is None and self.left_out is not None:  # for what cannot take None at all
            return jax.tree.map(self._no_none, whole, is_leaf=lambda node: node is None)
        return whole

    def _no_none(self, node: Any) -> Any:
        return self.left_out if node is None else node

    def abstract(self) -> Any:
        """The tree cut to this part, with a `jax.ShapeDtypeStruct` for every leaf."""
        return self.fill(map(_abstract, self.leaves))

    def cut(self, items: Sequence[Any]) -> Any:
        """The tree with what `items` has for the leaves of the part, and nothing elsewhere."""
        return self.fill(items[position] for position in self.positions)

    @functools.cached_property
    def treedef(self) -> Any:
        """The structure of a tree that is cut to this part."""
        return jax.tree.structure(self.fill(range(len(self.positions))))

    def values(self, cut: Any) -> list[Any]:
        """What a tree that is cut to this part has at its leaves."""
        return self.treedef.flatten_up_to(cut)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))
