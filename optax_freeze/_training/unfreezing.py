"""`unfreeze_at`: leaves that train from a step on, each cohort as if it had been started then."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.core
import jax.numpy as jnp
import numpy as np
import optax

from optax_freeze._masks import read_choice
from optax_freeze._specs import SpecError
from optax_freeze._training.cohorts import Moment, start_at
from optax_freeze._training.declared import declare_starts
from optax_freeze._training.first_match import assign_first, read_entries
from optax_freeze._training.routing import Packing, read_transformation, route
from optax_freeze._trees import Tree

_LAST_STEP = 2**31 - 1  # the largest int32, where `optax.safe_increment` stops


class UnfreezeAtState(NamedTuple):
    """The state of `unfreeze_at`.

    Attributes:
        step: how many updates there were, an int32 of shape ().
        cohorts: from the text of a step, `"1000"`, to the state of the optimizer of the leaves that
            train from this step on.
    """

    step: Any
    cohorts: dict[str, Any]


def unfreeze_at(
    tx: optax.GradientTransformation, stages: Mapping[Any, int], freeze: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Gradual unfreezing: leaves begin to train at given steps.

    The leaves of one step are a *cohort* with a state of its own, and a cohort moves as if a fresh
    `tx` had been started on it at that step. (With one count for all, Adam takes the moments of a
    leaf that was frozen for 1,000 steps for those of a long run: its first updates are up to five
    times too large.) Before its step the update of a cohort is that of a frozen leaf, its state is
    not touched, whatever its gradient is, and the work is not done. There is one trace for all
    steps, and one structure of state from first to last.

    - To save the gradients of what does not train yet, leave them out, a phase at a time::

          now = tuple(spec for spec, at in stages.items() if at <= step)
          value_and_grad(loss, trainable=now)

      `step` is here a Python number outside of `jit`. A gradient that is still left out when its
      cohort trains is an error, inside `jit` at run time (where several devices work together, the
      others wait for the one that says so, and the process ends with its text in the log).
    - For one global norm over what trains at the moment::

          optax.chain(
              unfreeze_at(optax.identity(), stages),
              optax.clip_by_global_norm(1.0),
              unfreeze_at(optax.adamw(1e-3), stages),
          )

    - A schedule in `tx` counts from the step at which the cohort begins.
    - Inside `jit` XLA may fuse the operations of a cohort otherwise than those of `tx` alone, a
      matter of the last bit. It also adds the zeros of a cohort that waits, which leaves every
      value alone, but may quiet a signalling NaN or flush a subnormal: gradients that are left out
      make no zeros. Under `jax.vmap` with a state for each example, what is frozen is computed and
      thrown away.

    Idea: gradual unfreezing, as in [ULMFiT](https://arxiv.org/abs/1801.06146).

    Args:
        tx: the optimizer, or an `optax.MultiSteps`, that each cohort has one of.
        stages: from a spec, or a tuple of specs, to the step from which the leaves that it matches
            train: an integer from 0 on, which counts updates. Of several that match a leaf the
            earliest holds. What none of them matches stays frozen and has no state.
        freeze: specs of what stays frozen although an entry matches it.

    Returns:
        An `optax.GradientTransformationExtraArgs`. Its state has the number of updates, `step`, and
        `cohorts`, a dictionary from the text of a step to the state of that cohort's optimizer.
        `init` and `update` raise `SpecError` for an entry that matches nothing, nothing that can
        train, or only leaves that others release earlier; `update` a `ValueError` for a gradient
        that is missing and for a state that does not fit. For the updates of frozen leaves, extra
        arguments and `optax.tree_map_params` see `trainable_only`.

    Raises:
        TypeError: if `tx` is not a gradient transformation, or `stages` not a mapping from specs
            to integers.
        ValueError: a step below 0, or one that an int32 cannot count to.
        SpecError: a key that is not a spec, or no entry at all.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import apply_updates, unfreeze_at
        >>> params = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
        >>> tx = unfreeze_at(optax.sgd(1.0), {"head": 0, "encoder": 2})
        >>> state = tx.init(params)
        >>> for _ in range(3):
        ...     updates, state = tx.update(params, state, params)
        ...     print({name: float(update[0]) for name, update in updates.items()})
        {'encoder': -0.0, 'head': -1.0}
        {'encoder': -0.0, 'head': -1.0}
        {'encoder': -1.0, 'head': -1.0}
        >>> int(state.step), list(state.cohorts)
        (3, ['0', '2'])
    """
    tx = read_transformation(tx, "unfreeze_at")
    steps = _read_stages(stages)
    specs = read_entries(steps, "unfreeze_at")
    keys = sorted(set(steps.values()))
    # One entry for each step, the earliest first: then the first match is the earliest.
    entries = [
        tuple(
            spec
            for entry, step in zip(specs, steps.values(), strict=True)
            if step == key
            for spec in entry
        )
        for key in keys
    ]
    choice = read_choice(freeze)

    def starts(tree: Tree) -> list[int | None]:
        can_train = [i for i, flag in enumerate(choice(tree, values=False)) if flag]
        found = assign_first(
            tree, entries, "unfreeze_at", can_train, taken_text="are released earlier by others"
        )
        return [None if number is None else keys[number] for number in found]

    def assign(tree: Tree) -> list[str | None]:
        return [None if step is None else str(step) for step in starts(tree)]

    def pack(states: dict[str, Any], moment: Moment | None) -> UnfreezeAtState:
        step = jnp.zeros([], jnp.int32) if moment is None else moment.next_step()
        return UnfreezeAtState(step, states)

    routed = route(
        {str(step): start_at(tx, step) for step in keys},
        assign,
        Packing(pack, lambda state: state.cohorts, "cohort", lambda state: Moment(state.step)),
    )
    return declare_starts(routed, starts)


def _read_stages(stages: Any) -> dict[Any, int]:
    if not isinstance(stages, Mapping):
        raise TypeError(
            f"unfreeze_at takes a mapping from specs to steps, not {type(stages).__qualname__}"
        )
    if not stages:
        raise SpecError("unfreeze_at: without a stage nothing ever trains: name what is to train")
    return {key: _read_step(step, key) for key, step in stages.items()}


def _read_step(step: Any, key: Any) -> int:
    what = f"unfreeze_at: the step of {key!r}"
    if isinstance(step, jax.core.Tracer):
        raise TypeError(f"{what} is a tracer: stages must be known before tracing")
    try:
        number = None if isinstance(step, (bool, np.bool_)) else operator.index(step)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{what} is {step!r}: it must be an integer, which counts updates")
    if number < 0:
        raise ValueError(f"{what} is {number}: the first update is that of step 0")
    if number > _LAST_STEP:
        raise ValueError(
            f"{what} is {number}: updates are counted up to {_LAST_STEP}: leave out the "
            "entry of what never trains"
        )
    return number
