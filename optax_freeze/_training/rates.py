"""`scale_by_spec`: a rate of its own for each part of a model, with one optimizer for all."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from optax_freeze._masks import is_differentiable
from optax_freeze._training.factors import fits, read_factor, real, scale
from optax_freeze._training.first_match import assign_first, read_entries
from optax_freeze._training.routing import is_placeholder
from optax_freeze._trees import Tree, is_place, listing, none_is_a_hole, view_alongside


def scale_by_spec(
    factors: Mapping[Any, Any], *, default: Any = 1.0
) -> optax.GradientTransformationExtraArgs:
    """Multiply the updates of some leaves: rates of their own under one optimizer.

    It belongs *behind* the optimizer, whose learning rate it multiplies::

        optax.chain(optax.adamw(1e-3), scale_by_spec({"encoder": 0.1}))

    - In front of Adam, Lion and the like it has no effect, because they divide by the size of the
      gradient again.
    - Behind, it multiplies all that an update holds, decoupled weight decay too, as a learning rate
      of 1e-4 for a group of `torch.optim.AdamW` does. To leave the decay as it is, put it between::

          optax.chain(
              optax.scale_by_adam(),
              scale_by_spec({"encoder": 0.1}),
              optax.add_decayed_weights(1e-4),
              optax.scale_by_learning_rate(1e-3),
          )

    - There is one optimizer state for the whole model, where `param_groups` has one for each group.
    - It keeps nothing still: see `trainable_only`, inside which it goes with the optimizer.

    Rates for layers come from `layer_decay`. Where all layers lie in one stacked array, which
    `jax.lax.scan` runs over, an array has a factor for each row::

        scale_by_spec({"blocks": 0.75 ** np.arange(12, 0, -1)})  # each (12, ...) from the left

    Args:
        factors: from a spec, or a tuple of specs, to the factor of the leaves that it matches. Of
            several that match a leaf the first wins. A factor is

            - a number above 0;
            - an array of such that broadcasts to each of the leaves from the left: shape (n,), or
              (n, 1), against (n, ...);
            - a schedule, as Optax has them: a function from the number of updates so far to one of
              these. What it gives may be 0, and is not checked; 0 times NaN is NaN.

            A traced number or array is taken as it is.
        default: the factor of what no entry matches.

    Returns:
        An `optax.GradientTransformationExtraArgs`. Its state is `optax.EmptyState`, with a schedule
        `optax.ScaleByScheduleState`. An update keeps its dtype; the product is rounded to it once,
        from float32 where the update has less. A factor of 1 leaves the very same object, and
        None, holes and `float0` stay. `init` and `update` raise `SpecError` for an entry that
        matches nothing, or nothing that can train, and for one whose leaves were all taken by
        earlier ones, and `ValueError` for an array that does not fit a leaf.

    Raises:
        TypeError: if `factors` is not a mapping, or a factor not a number, an array or a schedule.
        ValueError: a factor that is or holds 0, a negative number, NaN or an infinity.
        SpecError: a key that is not a spec.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import scale_by_spec
        >>> params = {"encoder": jnp.ones(2), "head": {"w": jnp.ones(2), "b": jnp.ones(2)}}
        >>> tx = optax.chain(optax.sgd(1.0), scale_by_spec({"encoder": 0.25, "**.b": 2.0}))
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> {"encoder": float(updates["encoder"][0]), "head.b": float(updates["head"]["b"][0])}
        {'encoder': -0.25, 'head.b': -2.0}
    """
    if not isinstance(factors, Mapping):
        raise TypeError(
            f"scale_by_spec takes a mapping from specs to factors, not {type(factors).__qualname__}"
        )
    entries = read_entries(factors, "scale_by_spec")
    labels = [*(f"entry {key!r}" for key in factors), "default"]
    wheres = [f"scale_by_spec, {label}" for label in labels]
    read = [read_factor(*pair) for pair in zip([*factors.values(), default], wheres, strict=True)]
    has_schedule = any(map(callable, read))

    def assign(tree: Tree) -> list[int]:
        """The position of the factor of each leaf."""
        can_train = [i for i, leaf in enumerate(tree.leaves) if is_differentiable(leaf)]
        assigned = assign_first(tree, entries, "scale_by_spec", can_train)
        return [len(entries) if number is None else number for number in assigned]

    def init(params: Any) -> optax.EmptyState | optax.ScaleByScheduleState:
        if not is_placeholder(params):
            tree = Tree(params)  # so that a wrong name raises before training
            _check_shapes(tree, tree.leaves, assign(tree), read, labels)
        if has_schedule:
            return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None, **_: Any) -> tuple[Any, Any]:
        tree = Tree(updates if params is None else params)
        found = view_alongside(tree, updates, "updates")
        # Without params, what gradients leave out cannot be told from what was never there.
        with none_is_a_hole() if params is None else contextlib.nullcontext():
            assigned = assign(tree)
        now = [
            real(factor(state.count), f"{where}: what the schedule gave")
            if callable(factor)
            else factor
            for factor, where in zip(read, wheres, strict=True)
        ]
        _check_shapes(tree, found, assigned, now, labels)
        new = [scale(slot, now[number]) for slot, number in zip(found, assigned, strict=True)]
        if has_schedule:
            state = optax.ScaleByScheduleState(optax.safe_increment(state.count))
        return tree.treedef.unflatten(new), state

    return optax.GradientTransformationExtraArgs(init, update)


def _check_shapes(
    tree: Tree,
    found: Sequence[Any],
    assigned: Sequence[int],
    factors: Sequence[Any],
    labels: Sequence[str],
) -> None:
    problems = []
    for position, (leaf, number) in enumerate(zip(found, assigned, strict=True)):
        factor = factors[number]
        if callable(factor) or is_place(leaf) or not is_differentiable(leaf):
            continue
        if not fits(factor, np.shape(leaf)):
            problems.append(
                f"that of {labels[number]} has shape {factor.shape}, but {tree.name_of(position)} "
                f"has {np.shape(leaf)}"
            )
    if problems:
        raise ValueError(
            "scale_by_spec: an array of factors must fit the leaf from the left, a number for each "
            f"row: {listing(problems)}"
        )
