"""The tree of dotted names, in which a flat dictionary and a nested one look alike."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from optax_freeze._trees.holes import is_hole
from optax_freeze._trees.places import is_place

if TYPE_CHECKING:
    from optax_freeze._trees.tree import Node


class Name:
    """One dotted name, what bears it and what continues it.

    The names of a tree form a tree of their own, cut at the dots. It has the shape of the pytree
    unless a key contains dots, so that a flat dictionary with dotted keys and a nested one look
    alike here. It is built only where somebody looks.

    Attributes:
        text: the name.
        nodes: the nodes and leaves with exactly this name: usually one; none inside a dotted key.
    """

    def __init__(self, text: str, nodes: list[Node]):
        self.text = text
        self.nodes = nodes
        self._longer: list[tuple[str, Node]] = []  # tails of keys, behind this name

    @functools.cached_property
    def children(self) -> dict[str, Name]:
        """The names that are longer by one segment, by that segment."""
        children: dict[str, Name] = {}
        below = [item for parent in self.nodes for item in parent.children()]
        for tail, node in self._longer + below:
            first, dot, rest = tail.partition(".")
            name = children.get(first)
            if name is None:
                name = children[first] = Name(node.name[: len(node.name) - len(dot + rest)], [])
            if dot:
                name._longer.append((rest, node))
            else:
                name.nodes.append(node)
        return children

    def find(self, text: str) -> tuple[list[Node], list[Node]]:
        """Look up a name as it is written, from this one downwards.

        Args:
            text: the name.

        Returns:
            The uppermost nodes and leaves whose names are this one or continue it, and the places
            that were met on the way.
        """
        name, places = self, []
        for segment in text.split("."):
            places += name.place.nodes
            name = name.children.get(segment)
            if name is None:
                return [], places
        return name.tops, places

    @property
    def tops(self) -> list[Node]:
        """The uppermost nodes and leaves whose names are this name or continue it."""
        return self.nodes + [node for _, node in self._longer]

    @property
    def is_end(self) -> bool:
        """Whether no other name continues this one."""
        return not self._longer and all(node.is_childless for node in self.nodes)

    @property
    def leaf(self) -> Node | None:
        """The leaf of exactly this name, or None."""
        return next((node for node in self.nodes if node.is_leaf), None)

    @property
    def place(self) -> Name:
        """The same name, but borne and continued only by its holes, None, `float0` and the like."""
        return Name(self.text, [node for node in self.nodes if is_place(node.value)])

    @property
    def is_place(self) -> bool:
        """Whether a hole, None, `float0` or a hidden leaf bears exactly this name."""
        return any(is_place(node.value) for node in self.nodes)

    @property
    def is_hole(self) -> bool:
        """Whether a hole bears exactly this name."""
        return any(is_hole(node.value) for node in self.nodes)
