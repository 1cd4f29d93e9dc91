"""Extra arguments of `update`, as an optimizer wants them that sees a part of the params."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from optax_freeze._trees import Part, is_array, is_place, none_is_a_hole, view_alongside_or_none


def cut_extra(part: Part, extra: Any, params: Any) -> Any:
    """Make an extra argument fit a part of the params.

    Args:
        part: what its transformation gets of the params.
        extra: a tree of the structure and shapes of params, a function of such a tree, or anything
            else.
        params: the params, or None if `update` was called without.

    Returns:
        The tree cut to the part; a function that takes cut trees and sees them whole; or `extra`.
    """
    cut = _cut_like_params(part, extra)
    # The tree first: a model can be called too. A function may be a node (`jax.tree_util.Partial`).
    if cut is extra and callable(extra) and params is not None:
        return _with_frozen_values(part, extra)
    return cut


def _cut_like_params(part: Part, value: Any) -> Any:
    found = view_alongside_or_none(part.tree, value)
    if found is None:
        return value
    pairs = zip(part.tree.leaves, found, strict=True)
    if all(
        is_place(slot) or np.shape(slot) == np.shape(leaf) for leaf, slot in pairs if is_array(leaf)
    ):
        return part.cut(found)
    return value


def _with_frozen_values(part: Part, fun: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function such as a line search's `value_fn` see the full params."""

    def fill(arg: Any) -> Any:
        if jax.tree.structure(arg) == part.treedef:
            return part.fill(part.values(arg), part.tree.leaves)
        return arg

    @functools.wraps(fun)
    def filled(*args: Any, **kwargs: Any) -> Any:
        with none_is_a_hole(yes=False):  # the tree is whole again
            result = fun(*map(fill, args), **{name: fill(arg) for name, arg in kwargs.items()})
        cut = _cut_like_params(part, result)
        if cut is result and type(result) is tuple:  # such as a value and a gradient
            return tuple(_cut_like_params(part, element) for element in result)
        return cut

    return filled
