"""How a mask meets a tree: by path, not by container."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

from optax_freeze._specs import is_bool
from optax_freeze._trees import (
    SHOWN,
    Name,
    Node,
    Tree,
    closest,
    hint_of_state,
    is_place,
    listing,
    quote,
)


class MaskError(ValueError):
    """A mask that does not fit its tree, or a leaf of it that is not a bool."""


class Flag(NamedTuple):
    """What a mask says of one leaf.

    Attributes:
        value: True trains, False is frozen.
        at_leaf: whether it is said of this very leaf, not of a subtree that it lies in.
    """

    value: bool
    at_leaf: bool


def expand(mask: Any, tree: Tree) -> list[Flag]:
    """Say for every leaf of a tree what a mask means for it.

    Args:
        mask: a pytree of bools that has the paths of `tree`, or leads only to subtrees of it, or
            goes deeper with bools that agree.
        tree: the tree.

    Returns:
        A flag for every leaf, in leaf order; what it says of a `float0` leaf means nothing.

    Raises:
        MaskError: a leaf that is not a bool; a missing, extra or misspelt key; bools that do not
            agree.
    """
    bools = Tree(mask)
    for i, leaf in enumerate(bools.leaves):
        if not is_bool(leaf):
            raise MaskError(f"the mask has {_found(leaf)} at {bools.name_of(i)}: {_fix(leaf)}")
    if _have_same_structure(bools, tree):
        return [Flag(bool(leaf), at_leaf=True) for leaf in bools.leaves]
    meeting = _Meeting(tree, bools)
    if meeting.problems:
        raise MaskError(
            f"the mask does not fit the tree: {listing(meeting.problems)}{hint_of_state(tree)}. "
            "Every leaf needs one bool, at itself or at a subtree that it lies in"
        )
    return meeting.flags


def _have_same_structure(mask: Tree, tree: Tree) -> bool:
    try:
        return mask.treedef == tree.treedef
    except ValueError:  # static fields that cannot be compared, such as NumPy arrays
        return False


class _Meeting:
    """A walk down two trees of names at once.

    Attributes:
        flags: what the mask says of each leaf.
        problems: where it does not fit, in words.
    """

    def __init__(self, tree: Tree, mask: Tree):
        self.flags = [Flag(value=False, at_leaf=False)] * len(tree.leaves)
        self.problems: list[str] = []
        self._waiting = [(tree.names, mask.names)]
        while self._waiting:
            self._meet(*self._waiting.pop())

    def _meet(self, name: Name, mask: Name) -> None:
        leaf = None if name.is_place else name.leaf
        bools = {bool(node.value) for node in mask.nodes if node.is_leaf}
        if bools and not any(map(_holds_leaf, mask.children.values())):
            self._set(name, name.tops, bools)
        elif bools and name.children and (leaf or name.is_place):
            # Keys such as "a" and "a.b" side by side: each bool is for its own.
            self._set(name, name.nodes, bools)
            self._meet_children(name, mask)
        elif bools and not name.is_place:
            self.problems.append(f"it says two things about {quote(name.text)}")
        elif leaf and not name.children:
            self._meet_deeper(name, mask)
        elif leaf:
            self.problems.append(f"it has no bool for {quote(name.text)} itself")
        else:
            self._meet_children(name, mask)

    def _set(self, name: Name, nodes: Iterable[Node], bools: set[bool]) -> None:
        if len(bools) > 1:
            self.problems.append(f"it says two things about {quote(name.text)}")
            return
        (value,) = bools
        for node in nodes:
            flag = Flag(value, at_leaf=node.name == name.text and node.is_one_leaf)
            for i in range(node.start, node.stop):
                self.flags[i] = flag

    def _meet_deeper(self, name: Name, mask: Name) -> None:
        below = {bool(leaf.value): leaf.name for top in mask.tops for leaf in top.leaves()}
        if len(below) > 1:
            self.problems.append(
                f"{quote(name.text)} is one leaf, but it has True at {below[True]!r} and False at "
                f"{below[False]!r}"
            )
        elif below:
            self._set(name, name.nodes, set(below))
        else:
            self.problems.append(f"it has no bool for {quote(name.text)}")

    def _meet_children(self, name: Name, mask: Name) -> None:
        missing = [key for key in name.children if key not in mask.children]
        extra = [key for key in mask.children if key not in name.children]
        suspects = set()
        for key in missing:
            child = name.children[key]
            if _holds_leaf(child):
                near = self._closest(key, extra)
                suspects.add(near)
                hint = f" (is {mask.children[near].text!r} misspelt?)" if near else ""
                self.problems.append(f"it has no bool for {quote(child.text)}{hint}")
        for key in extra:
            child = mask.children[key]
            if _holds_leaf(child) and not name.is_place and key not in suspects:
                near = self._closest(key, missing or name.children)
                hint = f" (the closest is {name.children[near].text!r})" if near else ""
                self.problems.append(f"it has {quote(child.text)}, which the tree does not{hint}")
        met = [(child, mask.children.get(key)) for key, child in name.children.items()]
        self._waiting.extend((child, other) for child, other in reversed(met) if other)

    def _closest(self, key: str, candidates: Iterable[str]) -> str | None:
        if len(self.problems) >= SHOWN:
            return None  # nobody will read it
        return next(iter(closest(key, candidates, 1)), None)


def _holds_leaf(name: Name) -> bool:
    return any(not is_place(leaf.value) for top in name.tops for leaf in top.leaves())


def _found(leaf: Any) -> str:
    if isinstance(leaf, jax.core.Tracer):
        return "a tracer"
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
    kind = type(leaf).__qualname__
    if not isinstance(leaf, (str, bytes, int, float, complex)):
        return f"an object of class {kind}"  # whose repr may show an array
    return f"{reprlib.repr(leaf)} ({kind})"


def _fix(leaf: Any) -> str:
    if isinstance(leaf, jax.core.Tracer):
        return "a mask must be known before tracing: build it outside of jit"
    if isinstance(leaf, (jax.Array, np.ndarray)) and leaf.dtype == np.bool_:
        return "a leaf trains as a whole or not at all: one bool for each leaf"
    return "a mask has True where a leaf trains and False where it is frozen, and nothing else"
