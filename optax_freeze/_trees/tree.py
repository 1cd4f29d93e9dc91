"""Dotted names of the leaves and nodes of a pytree."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax.tree_util import treedef_children
from optax import MaskedNode

from optax_freeze._trees.holes import Hole, is_hole
from optax_freeze._trees.keys import leaf_names, one_level
from optax_freeze._trees.names import Name
from optax_freeze._trees.places import Place, is_place, is_variable
from optax_freeze._trees.texts import quote

_LEAF = jax.tree.structure(0)


def _is_leaf(treedef: Any) -> bool:
    return treedef.num_nodes == 1 == treedef.num_leaves


class Node:
    """A node or leaf of a pytree, with its dotted name and the range of leaves that it holds.

    Attributes:
        value: the node or leaf itself.
        name: its dotted name; `""` for the whole tree.
        start: the position of its first leaf among all leaves.
        stop: the position after its last leaf.
    """

    __slots__ = ("_prefix", "_treedef", "name", "start", "stop", "value")

    def __init__(self, value: Any, name: str, prefix: str, treedef: Any, start: int):
        self.value = value
        self.name = name
        self.start = start
        self.stop = start + treedef.num_leaves
        self._prefix = prefix  # of the names below
        self._treedef = treedef

    @property
    def is_leaf(self) -> bool:
        """Whether this is a leaf, as opposed to a node (None and holes are nodes)."""
        return _is_leaf(self._treedef)

    @property
    def is_childless(self) -> bool:
        """Whether nothing is below this: a leaf, or a node such as None or an empty container."""
        return self._treedef.num_nodes == 1

    @property
    def is_one_leaf(self) -> bool:
        """Whether this is a leaf, a place or an NNX Variable around one of them."""
        if self.is_leaf or is_place(self.value):
            return True
        return is_variable(self.value) and all(
            key == "value" and child.is_one_leaf for key, child in self.children()
        )

    def children(self) -> list[tuple[str, Node]]:
        """The nodes and leaves one level below, each with the text of its key."""
        if self.is_childless:
            return []
        start, found = self.start, []
        below = zip(one_level(self.value), treedef_children(self._treedef), strict=True)
        for (key, value), treedef in below:
            name = self._prefix + key
            found.append((key, Node(value, name, f"{name}.", treedef, start)))
            start += treedef.num_leaves
        return found

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents before their children, in leaf order."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed([child for _, child in node.children()]))

    def leaf_names(self) -> list[str]:
        """The dotted names of the leaves at and below this node, in leaf order."""
        return [self.name] if self.is_leaf else leaf_names(self.value, self._prefix)

    def leaves(self) -> Iterator[Node]:
        """The leaves at and below this node, in leaf order."""
        return (node for node in self.walk() if node.is_leaf)


class Tree:
    """A pytree together with the names of what is in it.

    Attributes:
        value: the pytree.
        leaves: its leaves, in leaf order.
        treedef: its structure.
        classes: the classes of all its nodes and leaves.
        root: the node that is the whole tree.
    """

    def __init__(self, value: Any):
        everything: list[Any] = []
        see: Any = everything.append  # which returns None, so that nothing becomes a leaf by it
        self.leaves, self.treedef = jax.tree.flatten(value, is_leaf=see)
        self.classes = set(map(type, everything))
        self.value = value
        self.root = Node(value, "", "", self.treedef, 0)

    @property
    def has_holes(self) -> bool:
        """Whether a leaf has been left out somewhere."""
        return any(issubclass(cls, (MaskedNode, Hole)) for cls in self.classes) or (
            type(None) in self.classes and is_hole(None)
        )

    @property
    def has_places(self) -> bool:
        """Whether there is a hole, None or a hidden leaf somewhere."""
        return any(issubclass(cls, (MaskedNode, Place, type(None))) for cls in self.classes)

    @functools.cached_property
    def has_leafless_nodes(self) -> bool:
        """Whether there is a node without leaves somewhere: a place, or a bare module."""
        stack = [self.treedef]
        while stack:
            treedef = stack.pop()
            if not treedef.num_leaves:
                return True
            if treedef.num_nodes > 1:
                stack.extend(treedef_children(treedef))
        return False

    @functools.cached_property
    def names(self) -> Name:
        """The name that the whole tree bears, `""`, from which all others are reached."""
        return Name("", [self.root])

    @functools.cached_property
    def leaf_names(self) -> list[str]:
        """The dotted names of the leaves, in leaf order."""
        return self.root.leaf_names()

    def leaf(self, position: int) -> Node:
        """One leaf, by its position among all leaves."""
        name = self.leaf_names[position]
        return Node(self.leaves[position], name, f"{name}.", _LEAF, position)

    @functools.cached_property
    def subtree_names(self) -> list[str]:
        """The dotted names of the leaves and of all that they lie in, but for the whole tree."""
        names = dict.fromkeys(self.leaf_names)
        for name in self.leaf_names:
            while (name := name.rpartition(".")[0]) and name not in names:
                names[name] = None
        return list(names)

    def name_of(self, position: int) -> str:
        """The dotted name of one leaf, in words."""
        return quote(self.leaf_names[position])


def leaf_paths(tree: Any) -> list[str]:
    """The dotted paths of all leaves of a pytree, in leaf order.

    Args:
        tree: any pytree.

    Returns:
        One path for each leaf: the keys of `jax.tree_util.tree_flatten_with_path`, joined by dots.
        A tree that is one bare leaf has the path `""`. Holes (`optax.MaskedNode`) and None are not
        leaves.

    Example:
        >>> from optax_freeze import leaf_paths
        >>> leaf_paths({"encoder": [{"w": 1.0}, {"w": 2.0}], "head": 3.0})
        ['encoder.0.w', 'encoder.1.w', 'head']
    """
    return Tree(tree).leaf_names
