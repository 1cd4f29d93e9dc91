"""The mechanism under `trainable_only` and `param_groups`: each leaf to one optimizer, or none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
import optax

from optax_freeze._training.zeros import zero_like
from optax_freeze._trees import (
    HOLE,
    Part,
    Tree,
    alongside,
    alongside_or_none,
    is_array,
    is_float0,
    is_place,
    listing,
)

Route = Callable[[Tree], list[int | None]]


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


def still(leaf: Any, slot: Any) -> Any:
    """The update of a frozen leaf: a zero where its gradient is an array, else a place as well."""
    if slot is None:
        return None  # what `eqx.apply_updates` expects where it gave None
    if is_place(slot):
        return HOLE
    return zero_like(leaf)


def route(
    groups: Sequence[optax.GradientTransformation | None], assign: Route
) -> optax.GradientTransformationExtraArgs:
    """A transformation that sends every leaf to one of several others, or keeps it still.

    Args:
        groups: the transformations. Each sees the tree with holes in the place of what is not its.
            None, for a group of leaves that stay still, is never assigned.
        assign: says for each leaf of a tree which of `groups` gets it; None keeps it still.

    Returns:
        An `optax.GradientTransformationExtraArgs`. Its state is a tuple with the state of every
        group, `optax.EmptyState()` for one that has no leaf, which is not run.
    """
    idle = optax.identity()
    inner = [optax.with_extra_args_support(idle if group is None else group) for group in groups]

    def parts(tree: Tree) -> list[Part]:
        members: list[list[int]] = [[] for _ in groups]
        for position, group in enumerate(assign(tree)):
            if group is not None:
                members[group].append(position)
        return [Part(tree, positions) for positions in members]

    def init(params: Any) -> tuple[Any, ...]:
        if is_placeholder(params):
            return tuple(tx.init(params) for tx in inner)  # the state where all have leaves
        tree = Tree(params)
        return tuple(
            tx.init(part.cut(tree.leaves)) if part.positions else optax.EmptyState()
            for tx, part in zip(inner, parts(tree), strict=True)
        )

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        tree = Tree(updates if params is None else params)
        gradient = alongside(tree, updates, "updates")
        moved: dict[int, Any] = {}
        new_state = list(state)
        for group, part in enumerate(parts(tree)):
            if not part.positions:
                continue
            _check_gradient(part, gradient)
            cut_params = None if params is None else part.cut(tree.leaves)
            extra = {name: _cut_extra(part, value, params) for name, value in extra_args.items()}
            try:
                values, new_state[group] = inner[group].update(
                    part.cut(gradient), state[group], cut_params, **extra
                )
            except Exception as error:
                _note_state(error, inner[group], state[group], part)
                _note_floats(error, part)
                raise
            moved.update(zip(part.positions, part.values(values), strict=True))
        new_updates = [
            moved[i] if i in moved else still(leaf, gradient[i])
            for i, leaf in enumerate(tree.leaves)
        ]
        return tree.treedef.unflatten(new_updates), tuple(new_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_gradient(part: Part, gradient: Sequence[Any]) -> None:
    for position in part.positions:
        slot = gradient[position]
        if is_place(slot):
            what = "float0, as of an integer" if is_float0(slot) else f"{slot!r}"
            raise ValueError(
                f"{part.tree.name_of(position)} trains, but its gradient is {what}: give the "
                "transformation and the gradient the same freeze= and trainable="
            )


def _note_state(error: Exception, tx: Any, state: Any, part: Part) -> None:
    """Say so if the state is that of another mask, which a checkpoint may have brought."""
    expected = jax.eval_shape(lambda: tx.init(part.cut(part.tree.leaves)))
    if jax.tree.structure(state) != jax.tree.structure(expected):
        error.add_note(
            "the state is not one that init gives for this mask: it was made, or restored, for "
            "another freeze= or trainable=, or for other params"
        )


def _note_floats(error: Exception, part: Part) -> None:
    """Name what `jit` may have turned from a frozen Python float into an array that trains."""
    leaves = part.tree.leaves
    names = [
        part.tree.name_of(i)
        for i in part.positions
        if isinstance(leaves[i], jax.core.Tracer) and leaves[i].aval.weak_type
    ]
    if names:
        error.add_note(
            f"{listing(names)} trains now, and perhaps did not before: inside jit a Python float "
            "that came in as an argument is an array. Freeze it by name"
        )


def _cut_extra(part: Part, extra: Any, params: Any) -> Any:
    """Make an extra argument fit the part: a tree like params, or a function of such a tree."""
    cut = _cut_like_params(part, extra)
    # The tree first: a model can be called too. A function may be a node (`jax.tree_util.Partial`).
    if cut is extra and callable(extra) and params is not None:
        return _with_frozen_values(part, extra)
    return cut


def _cut_like_params(part: Part, value: Any) -> Any:
    found = alongside_or_none(part.tree, value)
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
        result = fun(*map(fill, args), **{name: fill(arg) for name, arg in kwargs.items()})
        cut = _cut_like_params(part, result)
        if cut is result and type(result) is tuple:  # such as a value and a gradient
            return tuple(_cut_like_params(part, element) for element in result)
        return cut

    return filled
