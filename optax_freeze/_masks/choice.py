"""The one resolver: what `freeze` and `trainable` make of every leaf of a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optax_freeze._masks.declared import Constant, fixed_positions
from optax_freeze._masks.default import default_trainable, is_differentiable
from optax_freeze._masks.fitting import MaskError, expand
from optax_freeze._masks.tied import check_shared, check_ties, where_shared
from optax_freeze._specs import (
    Found,
    Pattern,
    Spec,
    SpecError,
    ask,
    holds_bool,
    is_specs,
    read_specs,
    select,
    view,
)
from optax_freeze._trees import Tree, is_array, is_float0

Choice = Callable[..., list[bool]]


def read_choice(freeze: Any = None, trainable: Any = None, mask: Any = None) -> Choice:
    """Check the arguments `freeze` and `trainable`, before there is a tree.

    Args:
        freeze: specs, or None.
        trainable: specs, a mask, or None.
        mask: the same as `trainable`, where only a mask may stand.

    Returns:
        A function `(tree, *, values, predicate=..., fixed=...)` that says for each leaf of a `Tree`
        whether it trains. With `values=False`, functions and `where` see no values.

    Raises:
        SpecError: an entry that is not a spec.
    """
    frozen = () if freeze is None else read_specs(freeze, "freeze")
    by_specs = trainable is not None and is_specs(trainable)
    named = read_specs(trainable, "trainable") if by_specs else ()
    mask = mask if trainable is None or by_specs else trainable

    def choose(
        tree: Tree,
        *,
        values: bool,
        predicate: Callable[[Any], bool] = default_trainable,
        fixed: tuple[type, ...] = (Constant,),
    ) -> list[bool]:
        if type(trainable) in {list, tuple} and not trainable and tree.leaves:
            raise SpecError(
                "trainable=[] would train nothing: leave it out for the default, or pass "
                "trainable=False to freeze everything"
            )
        seen = view(tree, frozen + named, values=values)
        flags = _by_default(tree, predicate, fixed)
        wanted = select(named, seen, "trainable")
        if by_specs:
            may = _may_train(tree, flags, wanted, named)
            flags = [flag and i in may for i, flag in enumerate(flags)]
        if mask is not None:
            flags = _by_mask(tree, flags, mask)
        forbidden = select(frozen, seen, "freeze")
        for spec, one in zip(named, wanted, strict=True):
            _check_not_carved(tree, flags, spec, one, frozen, forbidden)
        for found in forbidden:
            for position in found.positions:
                flags[position] = False
        check_ties(tree, flags, SpecError if mask is None or frozen else MaskError)
        entries = zip(frozen, forbidden, strict=True), zip(named, wanted, strict=True)
        check_shared(tree, flags, *map(list, entries))
        return flags

    return choose


def _by_default(
    tree: Tree, predicate: Callable[[Any], bool], fixed: tuple[type, ...]
) -> list[bool]:
    if predicate is default_trainable:
        flags = list(map(default_trainable, tree.leaves))
    else:
        flags = _by_predicate(tree, predicate)
    for position in fixed_positions(tree, fixed):
        flags[position] = False
    return flags


def _by_predicate(tree: Tree, predicate: Callable[[Any], bool]) -> list[bool]:
    if not callable(predicate) or holds_bool(predicate):
        raise SpecError(
            f"predicate takes a function of a leaf, not {type(predicate).__qualname__}: specs go "
            "to freeze= or trainable=, a mask to trainable="
        )
    flags = [False] * len(tree.leaves)
    refusal = ""
    for i, leaf in enumerate(tree.leaves):
        if not is_differentiable(leaf):
            continue
        path = tree.name_of(i)
        try:
            flags[i] = ask(predicate, (leaf,), f"the predicate, at {path},")
        except AttributeError as error:
            refusal = refusal or f"{error}, at {path}"
    if refusal and not any(flags):
        raise SpecError(f"the predicate lets nothing train (AttributeError: {refusal})")
    return flags


def _may_train(
    tree: Tree, flags: list[bool], found: Sequence[Found], specs: Sequence[Spec]
) -> set[int]:
    for spec, one in zip(specs, found, strict=True):
        if one.nodes and not (one.holds_leaf or one.holds_place):
            raise SpecError(f"trainable: {spec.label} matches nothing that can train: no leaf")
        there = {i for i in one.positions if not is_float0(tree.leaves[i])}
        if there and not any(flags[i] for i in there) and not one.holds_hole:
            first = min(there)
            raise SpecError(
                f"trainable: {spec.label} matches nothing that can train: {tree.name_of(first)} is "
                f"{describe(tree, first)}"
            )
    return {i for one in found for i in one.positions}


def _check_not_carved(
    tree: Tree,
    flags: list[bool],
    spec: Spec,
    found: Found,
    frozen: Sequence[Spec],
    forbidden: Sequence[Found],
) -> None:
    """Raise if all that an entry of `trainable` lets train is frozen by `freeze`."""
    could = {i for i in found.positions if flags[i]}
    if not could or found.holds_hole or could - {i for one in forbidden for i in one.positions}:
        return
    first = min(could)
    by = next(s.label for s, o in zip(frozen, forbidden, strict=True) if first in o.positions)
    away = spec.text if isinstance(spec, Pattern) else tree.leaf_names[first]
    raise SpecError(
        f"trainable: all that {spec.label} matches is frozen by freeze, which goes first: "
        f"{tree.name_of(first)} by {by}. To let it train, take it away there: "
        f"freeze=[{by}, {f'!{away}'!r}]"
    )


def _by_mask(tree: Tree, flags: list[bool], mask: Any) -> list[bool]:
    for i, (value, at_leaf) in enumerate(expand(mask, tree)):
        if not value:
            flags[i] = False
        elif not at_leaf or is_float0(tree.leaves[i]):
            continue
        elif not is_differentiable(tree.leaves[i]):
            raise MaskError(
                f"the mask has True at {tree.name_of(i)}, {describe(tree, i)}: set it to False"
            )
        else:
            flags[i] = True
    return flags


def describe(tree: Tree, position: int) -> str:
    """What a leaf that does not train is, in words."""
    leaf = tree.leaves[position]
    if default_trainable(leaf):
        return (
            "held by a Constant, a frozen_field or the predicate; to release it, pass a mask that "
            "has True at that leaf (trainable_mask(tree, fixed=()) is one for every Constant)"
        )
    if is_array(leaf):
        return f"an array of {leaf.dtype}, which cannot be differentiated"
    if is_differentiable(leaf):
        return (
            f"a {type(leaf).__name__} and no array, which trains only by a mask that has True at "
            "that leaf: make it an array"
        )
    return (
        where_shared(tree, position)
        or f"a leaf of class {type(leaf).__qualname__}, which cannot be differentiated"
    )
