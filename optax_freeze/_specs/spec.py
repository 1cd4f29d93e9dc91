"""What is common to all specs: how they see a tree, and what they find in it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import ClassVar, NamedTuple

from optax_freeze._trees import Node, Tree, is_hole, is_place


class SpecError(ValueError):
    """An entry that is not a spec, matches nothing, or misbehaves."""


class View(NamedTuple):
    """A tree as specs see it.

    Attributes:
        tree: the tree.
        shown: the tree that functions and `where` see: itself, or with its arrays made abstract.
    """

    tree: Tree
    shown: Tree

    @property
    def is_abstract(self) -> bool:
        """Whether functions see no values."""
        return self.tree is not self.shown


class Found(NamedTuple):
    """What one entry means in a tree.

    Attributes:
        nodes: the nodes and leaves.
        refusal: the first AttributeError of a function that was asked, or `""`.
        takes_away: whether it is what the entries before this one are not to mean.
        away: the positions of leaves that such an entry took away.
    """

    nodes: Sequence[Node]
    refusal: str = ""
    takes_away: bool = False
    away: Set[int] = frozenset()

    @property
    def positions(self) -> set[int]:
        """The positions of the leaves."""
        return {i for node in self.nodes for i in range(node.start, node.stop)} - self.away

    @property
    def holds_leaf(self) -> bool:
        """Whether there is a leaf at or below one of the nodes."""
        return any(node.start < node.stop for node in self.nodes)

    @property
    def holds_hole(self) -> bool:
        """Whether a leaf has been left out at or below one of the nodes."""
        return any(is_hole(below.value) for node in self.nodes for below in node.walk())

    @property
    def holds_place(self) -> bool:
        """Whether a leaf may have been left out at or below one of the nodes."""
        return any(is_place(below.value) for node in self.nodes for below in node.walk())


class Spec:
    """One entry, checked.

    Attributes:
        label: the entry as error texts show it.
        may_mean_a_hole: whether what it means cannot be recognised once it has been left out.
    """

    may_mean_a_hole: ClassVar[bool] = True

    def __init__(self, label: str):
        self.label = label

    def find(self, view: View) -> Found:
        """The nodes and leaves that this entry means."""
        raise NotImplementedError

    def why_missed(self, tree: Tree, refusal: str) -> str:
        """What may have been meant, after `find` found nothing."""
        raise NotImplementedError
