"""Flat lists of what another tree has at the leaves of a tree."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_freeze._abstract import is_array
from optax_freeze._paths import HOLE, Tree, is_place, listing, quote


def slots(tree: Tree, other: Any, what: str) -> list[Any]:
    """What another tree of the same structure has at each leaf of a tree.

    Args:
        tree: the tree.
        other: a tree of the same structure, which may have places where `tree` has leaves.
        what: what the user calls `other`, for error texts.

    Returns:
        A leaf or a place for each leaf of `tree`, in leaf order.

    Raises:
        ValueError: if the structures differ; it names the paths.
    """
    found = slots_or_none(tree, other)
    if found is None:
        raise ValueError(f"{what} must have the structure of params: {_difference(tree, other)}")
    return found


def slots_or_none(tree: Tree, other: Any) -> list[Any] | None:
    """The same as `slots`, but None if the structures differ."""
    try:
        found = tree.treedef.flatten_up_to(other)
    except (ValueError, TypeError):  # which of the two depends on the kind of node
        return None
    leaves = [slot for slot in found if not is_place(slot)]
    return found if jax.tree_util.all_leaves(leaves) else None


def _difference(tree: Tree, other: Any) -> str:
    def bearers(seen: Tree) -> set[str]:
        return {node.name for node in seen.root.walk() if node.is_leaf or is_place(node.value)}

    mine, its = bearers(tree), bearers(Tree(other))
    problems = [f"it lacks {quote(name)}" for name in sorted(mine - its)]
    problems += [f"it has {quote(name)} besides" for name in sorted(its - mine)]
    if problems:
        return listing(problems)
    return "the paths agree, but the containers or their static fields differ"


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

    def cut(self, slots: Sequence[Any]) -> Any:
        """The tree with what `slots` has for the leaves of the part, and holes elsewhere."""
        return self.fill(slots[position] for position in self.positions)

    @functools.cached_property
    def treedef(self) -> Any:
        """The structure of a tree that is cut to this part."""
        return jax.tree.structure(self.fill(range(len(self.positions))))

    def values(self, cut: Any) -> list[Any]:
        """What a tree that is cut to this part has at its leaves."""
        return self.treedef.flatten_up_to(cut)


def zero_like(leaf: Any) -> Any:
    """What can be added to a frozen leaf without a trace.

    Args:
        leaf: the leaf.

    Returns:
        A zero of its shape and dtype; a hole where there is none (PRNG keys, strings, functions,
        and `float8_e8m0fnu`, which has powers of two only).
    """
    for cls in (bool, int, float, complex):  # True is an int as well, so in this order
        if isinstance(leaf, cls):
            return -0.0 if cls is float else cls(0)
    if not (is_array(leaf) or isinstance(leaf, np.generic)):
        return HOLE
    zero = _zero_of(leaf.dtype)
    if zero is None:
        return HOLE
    return jnp.full_like(leaf, zero) if is_array(leaf) else leaf.dtype.type(zero)


@functools.cache
def _zero_of(dtype: Any) -> float | int | None:
    if dtype == np.bool_:
        return 0
    if not jnp.issubdtype(dtype, jnp.number) or np.zeros((), dtype) != 0:
        return None
    # Minus zero, because -0.0 + 0.0 is 0.0, but x + -0.0 has the bits of x. Not for complex
    # numbers, where XLA drops only the addition of plain zeros.
    return -0.0 if jnp.issubdtype(dtype, jnp.floating) else 0
