"""A pytree level by level, with the text of every key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.tree_util import DictKey, all_leaves, keystr, tree_flatten_with_path


def one_level(value: Any) -> Iterator[tuple[str, Any]]:
    """The children of a node, each with the text of its key."""
    kind = type(value)
    # The last way goes for all nodes; the others are what it comes to for most, without its cost.
    if kind is dict:
        return ((_key_text(key), value[key]) for key in sorted(value))
    if kind is list or kind is tuple:
        return ((str(i), child) for i, child in enumerate(value))
    children, _ = tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    return ((keystr(path, simple=True), child) for path, child in children)


def _key_text(key: Any) -> str:
    return key if type(key) is str else keystr((DictKey(key),), simple=True)


def leaf_names(value: Any, prefix: str) -> list[str]:
    """The dotted names of the leaves below a node, in leaf order, each behind a prefix."""
    is_leaf: dict[type, bool] = {}  # the class decides
    names = []
    levels = [(prefix, one_level(value))]
    while levels:
        prefix, level = levels[-1]
        for key, child in level:
            kind = type(child)
            if kind not in is_leaf:
                is_leaf[kind] = all_leaves([child])
            if is_leaf[kind]:
                names.append(prefix + key)
            else:
                levels.append((f"{prefix}{key}.", one_level(child)))
                break
        else:
            levels.pop()
    return names
