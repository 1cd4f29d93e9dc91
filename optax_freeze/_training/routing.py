"""The mechanism under `trainable_only` and `param_groups`: each leaf to one optimizer, or none."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from optax_freeze._training.declared import declare_starts
from optax_freeze._training.extra_args import cut_extra
from optax_freeze._training.states import StateForms
from optax_freeze._training.zeros import frozen_update
from optax_freeze._trees import (
    HOLE,
    Part,
    Tree,
    is_float0,
    is_place,
    none_is_a_hole,
    view_alongside,
)

MOMENT = "unfreeze_at_moment"
Labels = Callable[[Tree], Sequence[str | None]]


class Packing(NamedTuple):
    """How the states of several transformations are held in one.

    Attributes:
        pack: makes a state out of those of the groups that have leaves, by label, and of what
            `moment_of` gave, which is None at `init`.
        unpack: gives the states by label; called only with a state of the form that `pack` gives.
        noun: what error texts call a group; `""` if there is only one.
        moment_of: what the groups are told of the state, as the extra argument `MOMENT`; then
            they must know what to do with a gradient that is missing.
    """

    pack: Callable[[dict[str, Any], Any], Any]
    unpack: Callable[[Any], dict[str, Any]]
    noun: str = ""
    moment_of: Callable[[Any], Any] | None = None


_ALONE = Packing(lambda states, _: states.get("", optax.EmptyState()), lambda state: {"": state})


@functools.cache
def _placeholder() -> type:
    """The class that `optax.tree_map_params` passes to `init` in the place of params."""
    seen: list[type] = []
    optax.tree_map_params(lambda params: seen.append(type(params)) or (), lambda leaf: leaf, ())
    return seen[0]


def is_placeholder(params: Any) -> bool:
    """Whether `init` is called by `optax.tree_map_params`, which asks where the params go."""
    return isinstance(params, _placeholder())


def read_transformation(tx: Any, where: str) -> optax.GradientTransformation:
    """Check what was passed as a transformation.

    Args:
        tx: a transformation, or `optax.MultiSteps`, which only can be made into one.
        where: where it was passed, for the error text.

    Returns:
        The transformation.

    Raises:
        TypeError: if it is none.
    """
    if isinstance(tx, optax.MultiSteps):
        return tx.gradient_transformation()
    if not isinstance(tx, optax.GradientTransformation):
        hint = ": call it first, as in optax.adam(1e-3)" if callable(tx) else ""
        raise TypeError(f"{where}: {tx!r} is not an optax.GradientTransformation{hint}")
    return tx


def route(
    groups: Mapping[str, optax.GradientTransformation],
    assign: Labels,
    packing: Packing,
) -> optax.GradientTransformationExtraArgs:
    """A transformation that sends every leaf to one of several others, or keeps it still.

    Args:
        groups: the transformations by label. Each sees the tree with None in the place of what is
            not its, and one that gets no leaf is not run and has no state.
        assign: says for each leaf of a tree which of `groups` gets it; None keeps it still.
        packing: how their states are held.

    Returns:
        The transformation.
    """
    inner = {label: optax.with_extra_args_support(tx) for label, tx in groups.items()}

    sentinels: dict[str, Any] = {}  # nothing depends on this memory but how often init is traced

    def parts(tree: Tree) -> dict[str, Part]:
        members: dict[str, list[int]] = {}
        for position, label in enumerate(assign(tree)):
            if label is not None:
                members.setdefault(label, []).append(position)
        found = {label: Part(tree, members[label]) for label in inner if label in members}
        for label, part in found.items():
            if label not in sentinels:
                sentinels[label] = _sentinel(inner[label], part)
            part.left_out = sentinels[label]
        return found

    def start(cuts: Mapping[str, Any]) -> Any:
        with none_is_a_hole():
            states = {label: inner[label].init(cut) for label, cut in cuts.items()}
        return packing.pack(states, None)

    forms = StateForms(start, packing.noun)

    def init(params: Any) -> Any:
        if is_placeholder(params):
            return start(dict.fromkeys(inner, params))  # the state where all have leaves
        tree = Tree(params)
        of_group = parts(tree)
        state = start({label: part.cut(tree.leaves) for label, part in of_group.items()})
        forms.learn(of_group, state)
        return state

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        tree = Tree(updates if params is None else params)
        gradient = view_alongside(tree, updates, "updates")
        of_group = parts(tree)
        if packing.moment_of is None:
            for part in of_group.values():
                _check_gradient(part, gradient)
        state = forms.check(tree, of_group, state)
        states = packing.unpack(state)
        moment = None
        if packing.moment_of is not None:
            moment = extra_args[MOMENT] = packing.moment_of(state)
        moved: dict[int, Any] = {}
        new_states = {}
        for label, part in of_group.items():
            cut_params = None if params is None else part.cut(tree.leaves)
            extra = {name: cut_extra(part, value, params) for name, value in extra_args.items()}
            with none_is_a_hole():
                cut, new_states[label] = inner[label].update(
                    part.cut(gradient), states[label], cut_params, **extra
                )
            moved.update(zip(part.positions, part.values(cut), strict=True))
        new_updates = [
            moved[i] if i in moved else frozen_update(leaf, gradient[i])
            for i, leaf in enumerate(tree.leaves)
        ]
        return tree.treedef.unflatten(new_updates), packing.pack(new_states, moment)

    routed = optax.GradientTransformationExtraArgs(init, update)
    return declare_starts(
        routed, lambda tree: [None if label is None else 0 for label in assign(tree)]
    )


def _sentinel(tx: optax.GradientTransformation, part: Part) -> Any:
    """What a transformation takes for leaves that it does not get: None, or a hole."""
    leaf = jax.ShapeDtypeStruct((2, 2), np.float32)
    trials = [  # on the params only if it does not take others, because that takes long
        (None, lambda: {"a": leaf, "b": None}),
        (HOLE, lambda: {"a": leaf, "b": HOLE}),
        (None, part.abstract),
        (HOLE, Part(part.tree, part.positions, HOLE).abstract),
    ]
    for nothing, params in trials:
        # GaLore, for one, stops its tree maps at None and then asks it for its dtype.
        with contextlib.suppress(Exception):
            jax.eval_shape(tx.init, params())
            return nothing
    return None  # it refuses these params whatever stands there, and will say why


def keep(
    tx: optax.GradientTransformation, choose: Callable[[Tree], Sequence[bool]]
) -> optax.GradientTransformationExtraArgs:
    """A transformation for some leaves, whose state is that of `tx`.

    Args:
        tx: the transformation.
        choose: says for each leaf of a tree whether `tx` gets it.

    Returns:
        The transformation; its state is `optax.EmptyState()` for a tree of which `tx` gets nothing.
    """
    return route({"": tx}, lambda tree: ["" if flag else None for flag in choose(tree)], _ALONE)


def _check_gradient(part: Part, gradient: Sequence[Any]) -> None:
    for position in part.positions:
        slot = gradient[position]
        if is_place(slot):
            what = "float0, as of an integer" if is_float0(slot) else f"{slot!r}"
            raise ValueError(
                f"{part.tree.name_of(position)} trains, but its gradient is {what}: give the "
                "transformation and the gradient the same freeze= and trainable="
            )
