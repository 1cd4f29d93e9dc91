"""The leaves of optimizer states: what each is, whatever groups and containers hold it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from optax_freeze._trees import Node, Tree, is_place

Path = tuple[str, ...]
COHORTS = "cohorts"
_LABELLED = ("groups", COHORTS)


class StateLeaf(NamedTuple):
    """A leaf of an optimizer state.

    Attributes:
        value: the leaf itself.
        name: its dotted path in the state.
        path: the keys of that path, but for the last `.value` of a Variable of NNX.
        owner: the path of the innermost group or cohort that it is in, `("1", "groups", "head")`;
            `()` if it is in none.
        address: its path without what says groups and cohorts, the same in whichever it is.
    """

    value: Any
    name: str
    path: Path
    owner: Path
    address: Path

    def is_below(self, owner: Path) -> bool:
        """Whether it is in a group or cohort, or in one inside of it."""
        return self.owner[: len(owner)] == owner

    @property
    def is_marker(self) -> bool:
        """Whether it is such as says how far a run is: an integer or a bool."""
        return np.shape(self.value) == () and _as_numpy(self.value).dtype.kind in "iub"

    def is_like(self, other: StateLeaf) -> bool:
        """Whether it has the value of another leaf."""
        if self.value is other.value:
            return True
        # The texts tell -0.0 from 0.0, call NaN the same as NaN, and do not care for containers.
        one, two = (repr(_as_numpy(leaf.value).tolist()) for leaf in (self, other))
        return one == two


def _as_numpy(value: Any) -> np.ndarray:
    """A leaf for NumPy, which cannot read PRNG keys."""
    dtype = getattr(value, "dtype", None)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def state_leaves(state: Any, params: Tree) -> list[StateLeaf]:
    """The leaves of a state, in leaf order.

    Args:
        state: any state, also one of plain dicts and lists.
        params: the params, because below their names nothing is taken for a group.

    Returns:
        The leaves.
    """
    names = {_without_value(_texts(keys)) for keys, _ in tree_flatten_with_path(params.value)[0]}
    return [
        _state_leaf(_texts(keys), value, names) for keys, value in tree_flatten_with_path(state)[0]
    ]


def _texts(keys: Any) -> Path:
    return tuple(keystr((key,), simple=True) for key in keys)


def _without_value(path: Path) -> Path:
    """A path but for the last `.value`, which only some views of NNX have."""
    return path[:-1] if path[-1:] == ("value",) else path


def _state_leaf(texts: Path, value: Any, params: set[Path]) -> StateLeaf:
    path = _without_value(texts)
    stop = next((start for start in range(len(path)) if path[start:] in params), len(path))
    address: list[str] = []
    owner, at = 0, 0
    while at < stop:
        if path[at] in _LABELLED and at + 1 < stop:
            at += 2
            owner = at
        else:
            address.append(path[at])
            at += 1
    return StateLeaf(value, ".".join(texts), path, path[:owner], (*address, *path[stop:]))


def params_of(state: Tree, params: Tree) -> list[str | None]:
    """The name of the param that each leaf of a state belongs to; None for what all share.

    Args:
        state: a state that was just made for the params, so that it holds trees like them.
        params: the params. If they are one bare array, no leaf can be told to be its.

    Returns:
        A name, or None, for each leaf of the state.
    """
    found: list[str | None] = [None] * len(state.leaves)
    nodes = [] if params.root.is_leaf else [state.root]
    while nodes:
        node = nodes.pop()
        pairs = _mirrored(node, params.root)
        if pairs is None:
            nodes.extend(child for _, child in node.children())
            continue
        for mine, its in pairs:
            for position in range(mine.start, mine.stop):
                found[position] = params.leaf_names[its.start]
    return found


def _mirrored(node: Node, params: Node) -> list[tuple[Node, Node]] | None:
    """What a tree like params has for each of them; None if it is no such tree."""
    pairs = [(node, params)]
    found = []
    while pairs:
        mine, its = pairs.pop()
        if is_place(mine.value):
            continue
        if its.is_leaf:
            if not (mine.is_leaf or _holds_leaves(mine)):
                return None
            found.append((mine, its))
        elif type(mine.value) is not type(its.value):
            return None
        else:
            below = (mine.children(), its.children())
            keys = [[key for key, _ in children] for children in below]
            if keys[0] != keys[1]:
                return None
            pairs.extend((one, two) for (_, one), (_, two) in zip(*below, strict=True))
    return found


def _holds_leaves(node: Node) -> bool:
    """Whether a node is several arrays for one param, as SM3 has them, one for each axis."""
    return type(node.value) in (tuple, list) and all(child.is_leaf for _, child in node.children())


def all_around(owner: Path) -> Iterator[Path]:
    """The path of a group or cohort, of all that it is inside of, and `()`."""
    return (owner[:stop] for stop in range(len(owner) + 1))
