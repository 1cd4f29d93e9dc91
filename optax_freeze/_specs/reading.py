"""The arguments `freeze` and `trainable`: what may stand there, and what it means in a tree."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_origin

import jax
import jax.core
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from optax import GradientTransformation

from optax_freeze._specs.asking import Module, Where, where
from optax_freeze._specs.naming import Class, Pattern, Regex
from optax_freeze._specs.spec import Spec, SpecError
from optax_freeze._specs.taking_away import Without

_KINDS = (
    "a path such as 'encoder' or '**.bias', a compiled regex, a class, a function of a module or "
    "where(...)"
)
_KEYS = (DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey)


def is_bool(leaf: Any) -> bool:
    """Whether a leaf is one bool: Python's, NumPy's, or a concrete 0-d array of one."""
    if isinstance(leaf, (bool, np.bool_)):
        return True
    is_concrete = isinstance(leaf, (np.ndarray, jax.Array)) and not isinstance(
        leaf, jax.core.Tracer
    )
    return is_concrete and leaf.shape == () and leaf.dtype == np.bool_


def holds_bool(value: Any) -> bool:
    """Whether a value is a tree with a bool or an array of bools in it, and so meant as a mask."""
    return any(
        isinstance(leaf, bool) or getattr(leaf, "dtype", None) == np.bool_
        for leaf in jax.tree.leaves(value)
    )


def is_leaf(value: Any) -> bool:
    """Whether a value is a leaf, as opposed to a node of a pytree."""
    return jax.tree_util.all_leaves([value])


def is_specs(value: Any) -> bool:
    """Whether what was passed as `trainable` is a spec or a list of specs rather than a mask."""
    if isinstance(value, (str, re.Pattern, type, where)):
        return True
    if isinstance(value, (list, tuple)):
        # Without a leaf it may be the mask of a tree without leaves.
        return bool(jax.tree.leaves(value)) and not holds_bool(value)
    return _is_function(value)


def _is_function(value: Any) -> bool:
    # A module that can be called, such as an Equinox module of bools, is a tree.
    return callable(value) and is_leaf(value)


def read_specs(value: Any, argument: str) -> tuple[Spec, ...]:
    """Check what was passed as specs.

    Args:
        value: one entry, or a list or tuple of entries.
        argument: what the user calls it, for error texts.

    Returns:
        The entries.

    Raises:
        SpecError: if something in it is not a spec.
    """
    # Not a named tuple: a GradientTransformation would be two functions, a hole an empty list.
    is_many = type(value) in {list, tuple}
    if not is_many or holds_bool(value):
        return (_read_entry(value, argument, ()),)
    specs: list[Spec] = []
    for i, entry in enumerate(value):
        specs.append(_read_entry(entry, f"{argument}[{i}]", tuple(specs)))
    return tuple(specs)


def _read_entry(entry: Any, argument: str, before: tuple[Spec, ...]) -> Spec:
    if isinstance(entry, str):
        if not entry:
            raise SpecError(f"{argument} is an empty string, which names nothing: '**' is all")
        if entry.startswith("!"):
            return Without(entry, before)
        return Pattern(repr(entry), entry)
    if isinstance(entry, re.Pattern):
        if isinstance(entry.pattern, bytes):
            raise SpecError(f"{argument} is a regex of bytes, but paths are text: {entry!r}")
        return Regex(f"re.compile({entry.pattern!r})", entry)
    if isinstance(entry, type):
        try:
            isinstance(None, entry)
        except TypeError as error:
            text = f"{argument}: class {entry.__qualname__} knows no instances: {error}"
            raise SpecError(text) from error
        return Class(f"class {entry.__qualname__}", entry)
    if isinstance(entry, where):
        return Where(f"where({_called(entry.predicate)})", entry.predicate)
    if _is_function(entry) and not get_origin(entry):
        return Module(f"function {_called(entry)}", entry)
    raise SpecError(f"{argument}: {_why_not(entry)}")


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]


def _why_not(entry: Any) -> str:
    kind = type(entry).__qualname__
    if isinstance(entry, GradientTransformation):
        return f"got a gradient transformation, not {_KINDS}"
    if holds_bool(entry):
        return (
            f"got a boolean tree ({kind}); a mask is a trainability mask, True trains: pass it as "
            "trainable="
        )
    if isinstance(entry, _KEYS):
        return (
            f"got a part of a key path ({kind}); pass its text: "
            "jax.tree_util.keystr(path, simple=True, separator='.')"
        )
    if get_origin(entry):
        return f"got a type annotation ({entry}), not a class: what has an instance is a class"
    if isinstance(entry, (int, float)):
        return (
            f"got {entry!r}, not {_KINDS}; the child of key 0 is '[0]', and a mask has True and "
            "False"
        )
    if isinstance(entry, (list, tuple)):
        return f"got a {kind} inside a list of entries: put its entries into the list itself"
    if isinstance(entry, (set, frozenset, dict)):
        return f"got a {kind}: put the entries into a list"
    return f"got {kind}, not {_KINDS}"
