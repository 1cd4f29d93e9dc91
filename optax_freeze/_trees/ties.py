"""Parameters that stand under several paths: NNX Variables, and what `eqx.nn.Shared` shares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import jax

from optax_freeze._trees.places import is_variable, variable_classes
from optax_freeze._trees.texts import listing
from optax_freeze._trees.tree import Node, Tree


def ties(tree: Tree) -> list[list[int]]:
    """The leaves that are one parameter, because one NNX Variable stands under several paths.

    Two leaves that merely are the same array are two parameters.

    Args:
        tree: the tree.

    Returns:
        For each such parameter the positions of its leaves, in leaf order.
    """
    if not any(issubclass(cls, variable_classes()) for cls in tree.classes):
        return []  # as in most trees: no walk
    variables = filter(is_variable, jax.tree.leaves(tree.value, is_leaf=is_variable))
    seen = [id(variable) for variable in variables]
    if len(set(seen)) == len(seen):
        return []
    nodes: dict[int, list[Node]] = {}
    for node in tree.root.walk():
        if is_variable(node.value):
            nodes.setdefault(id(node.value), []).append(node)
    return [
        list(positions)
        for same in nodes.values()
        if len(same) > 1
        for positions in zip(*(range(node.start, node.stop) for node in same), strict=True)
    ]


def further_positions(tree: Tree) -> set[int]:
    """The positions of leaves that are a parameter which stands before under another path."""
    return {position for tied in ties(tree) for position in tied[1:]}


def refuse_ties(tree: Tree, what: str) -> None:
    """Raise for a tree that would come apart: JAX knows no leaf that stands in two places.

    Args:
        tree: the tree.
        what: the name of the function that would untie it.

    Raises:
        ValueError: if one NNX Variable stands under several paths in it.
    """
    tied = ties(tree)
    if tied:
        names = [" and ".join(map(tree.name_of, positions)) for positions in tied]
        raise ValueError(
            f"{what} would untie {listing(names)}: one parameter under several paths, which the "
            "trees of JAX do not know. Use nnx.value_and_grad with nnx.Optimizer, which do, or "
            "take the module apart by nnx.split first"
        )


def hint_of_state(tree: Tree) -> str:
    """What may be the matter with a path that an `nnx.State` does not have, in words."""
    flax = sys.modules.get("flax.nnx")
    if flax is None or not any(issubclass(cls, flax.State) for cls in tree.classes):
        return ""
    return " (an nnx.State has a Variable that stands under several paths only under the first)"


class Shared(NamedTuple):
    """A leaf that only stands for others, as `eqx.nn.Shared` leaves it.

    Attributes:
        place: the leaf.
        values: the leaves that it stands for.
    """

    place: Node
    values: list[Node]


def shared(tree: Tree) -> list[Shared]:
    """What stands in the place of shared leaves, with the leaves themselves.

    Args:
        tree: the tree.

    Returns:
        Every place, in leaf order.
    """
    equinox = sys.modules.get("equinox")  # not imported here: no Equinox, no node of its
    if equinox is None or not any(issubclass(cls, equinox.nn.Shared) for cls in tree.classes):
        return []
    found = (node for node in tree.root.walk() if isinstance(node.value, equinox.nn.Shared))
    return [one for node in found for one in _shared_by(node)]


class _Touched(Exception):
    """Something more was done with a tag than to pass it on."""

    def __init__(self, tag: _Tag):
        self.tag = tag


class _Tag:
    """Stands for a leaf while somebody says where it is."""

    def __init__(self, node: Node):
        self.node = node

    def _touch(self, *_: Any) -> NoReturn:
        raise _Touched(self)

    __getattr__ = __getitem__ = __neg__ = _touch
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _touch
    __matmul__ = __rmatmul__ = _touch


def _shared_by(owner: Node) -> Iterator[Shared]:
    whole: Any = owner.value
    (below,) = (child for key, child in owner.children() if key == "pytree")
    tagged = jax.tree.structure(whole.pytree).unflatten(map(_Tag, below.leaves()))
    places: list[Any] = []
    try:
        places, split = jax.tree.flatten(whole.where(tagged))
        values = split.flatten_up_to(whole.get(tagged))
    except _Touched as touched:  # such as a matrix that is transposed
        values = [touched.tag] * len(places)
    except Exception:  # a part of the model has been left out, with the node that they look for
        return
    for place, value in zip(places, values, strict=True):
        nodes = [tag.node for tag in jax.tree.leaves(value) if isinstance(tag, _Tag)]
        if nodes:
            yield Shared(place.node, nodes)
