"""Flat lists of what another tree has at the leaves of a tree."""

from __future__ import annotations

from typing import Any

import jax

from optax_freeze._trees.places import is_place
from optax_freeze._trees.texts import listing, quote
from optax_freeze._trees.tree import Tree


def alongside(tree: Tree, other: Any, what: str) -> list[Any]:
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
    found = alongside_or_none(tree, other)
    if found is None:
        raise ValueError(f"{what} must have the structure of params: {_difference(tree, other)}")
    return found


def alongside_or_none(tree: Tree, other: Any) -> list[Any] | None:
    """The same as `alongside`, but None if the structures differ."""
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
