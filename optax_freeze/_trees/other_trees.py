"""Flat lists of what another tree has at the leaves of a tree."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax

from optax_freeze._trees.arrays import is_array
from optax_freeze._trees.holes import is_hole
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
    return _or_raise(_up_to(tree.treedef, other), tree, other, what)


def view_alongside(tree: Tree, other: Any, what: str) -> list[Any]:
    """What another view of the same model has at each leaf of a tree.

    A whole module is one view, its arrays with None or holes for all else another.

    Args:
        tree: the tree.
        other: a tree of the same structure. What is None, a hole or no array in one of the two is
            not there for the other.
        what: what the user calls `other`, for error texts.

    Returns:
        A leaf or a place for each leaf of `tree`, in leaf order.

    Raises:
        ValueError: if the structures differ; it names the paths.
    """
    return _or_raise(view_alongside_or_none(tree, other), tree, other, what)


def view_alongside_or_none(tree: Tree, other: Any) -> list[Any] | None:
    """The same as `view_alongside`, but None if the structures differ."""
    found = _up_to(tree.treedef, other)
    if found is not None or not tree.has_places:
        return found
    places = {node.name for node in tree.root.walk() if is_place(node.value)}
    seen = Tree(other)
    named = zip(seen.leaf_names, seen.leaves, strict=True)
    shared = [None if name in places and not is_array(leaf) else leaf for name, leaf in named]
    return _up_to(jax.tree.structure(_bare(tree, tree.leaves)), _bare(seen, shared))


def _bare(tree: Tree, leaves: list[Any]) -> Any:
    """The tree with other leaves, and None for its holes."""
    value = tree.treedef.unflatten(leaves)
    return jax.tree.map(lambda node: None if is_hole(node) else node, value, is_leaf=is_hole)


def _up_to(treedef: Any, other: Any) -> list[Any] | None:
    try:
        found = treedef.flatten_up_to(other)
    except (ValueError, TypeError):  # which of the two depends on the kind of node
        return None
    leaves = [item for item in found if not is_place(item)]
    return found if jax.tree_util.all_leaves(leaves) else None


def _or_raise(found: list[Any] | None, tree: Tree, other: Any, what: str) -> list[Any]:
    if found is None:
        raise ValueError(f"{what} must have the structure of params: {_difference(tree, other)}")
    return found


def _difference(tree: Tree, other: Any) -> str:
    def bearers(seen: Tree) -> set[str]:
        return {node.name for node in seen.root.walk() if node.is_leaf or is_place(node.value)}

    seen = Tree(other)
    mine, its = bearers(tree), bearers(seen)
    empty = {n.name: n.value for n in tree.root.walk() if is_place(n.value) and not n.is_leaf}
    at = {name: place for name in seen.leaf_names if (place := _at(name, empty)) is not None}
    problems = [f"it has {quote(name)}, where params have {empty[at[name]]!r}" for name in at]
    problems += [f"it lacks {quote(name)}" for name in sorted(mine - its - {*at.values()})]
    problems += [f"it has {quote(name)} besides" for name in sorted(its - mine - {*at})]
    if problems:
        return listing(problems)
    return "the paths agree, but the containers or their static fields differ"


def _at(name: str, places: Collection[str]) -> str | None:
    """Which of some places a name is at or below."""
    while name not in places:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return name
