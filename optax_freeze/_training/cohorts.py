"""A transformation that starts at a step: before it, nothing is computed and nothing moves."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax

from optax_freeze._training.routing import MOMENT
from optax_freeze._training.zeros import frozen_update
from optax_freeze._trees import Tree, is_place, listing


class Moment:
    """What the cohorts of one update have in common.

    Attributes:
        step: how many updates there were.
        lacking: by the step of a cohort that lacks gradients, what error texts say of them.
    """

    def __init__(self, step: Any):
        self.step = step
        self.lacking: dict[int, str] = {}

    def next_step(self) -> Any:
        """The next step, if nothing that trains by now lacked its gradient."""
        step = self.step
        for start, text in sorted(self.lacking.items()):
            step = _checked(step, start, text)
        return optax.safe_increment(step)


def _checked(step: Any, start: int, text: str) -> Any:
    """The same step, with an error if it is `start` or later; inside `jit` at run time."""

    def refuse(step: Any) -> Any:
        if np.any(np.asarray(step) >= start):  # of the examples of a `vmap`, any
            raise ValueError(text)
        return step

    if not isinstance(step, jax.core.Tracer):
        return refuse(step)
    form = jax.ShapeDtypeStruct(jnp.shape(step), jnp.result_type(step))
    call = functools.partial(jax.pure_callback, refuse, form, vmap_method="broadcast_all")
    return jax.lax.cond(step >= start, call, lambda step: step, step)


def start_at(tx: optax.GradientTransformation, start: int) -> optax.GradientTransformationExtraArgs:
    """A transformation whose first update is that of a step; until then its leaves are frozen.

    Args:
        tx: the transformation, whose state this one has.
        start: the step.

    Returns:
        A transformation whose `update` wants an extra argument `MOMENT`, a `Moment`.
    """
    tx = optax.with_extra_args_support(tx)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        moment: Moment = extra.pop(MOMENT)

        def run() -> tuple[Any, Any]:
            return tx.update(updates, state, params, **extra)

        def wait() -> tuple[Any, Any]:
            return _still(updates, params), state

        step = moment.step
        missing = _missing(updates, params)
        if missing:
            moment.lacking[start] = (
                f"{missing} from step {start} on, but the gradient is None: compute it with "
                "trainable= of what is released by then, or leave nothing out"
            )
            return wait()
        if start == 0:
            return run()
        if not isinstance(step, jax.core.Tracer):
            return run() if step >= start else wait()
        return _cond(step >= start, run, wait)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def _missing(updates: Any, params: Any) -> str:
    """The names of the leaves that train and have no gradient, in words."""
    if params is None:
        return ""
    tree = Tree(params)
    gradient = tree.treedef.flatten_up_to(updates)
    names = [tree.name_of(i) for i, item in enumerate(gradient) if is_place(item)]
    return f"{listing(names)} {'trains' if len(names) == 1 else 'train'}" if names else ""


def _still(updates: Any, params: Any) -> Any:
    leaves, treedef = jax.tree.flatten(updates if params is None else params)
    return treedef.unflatten(map(frozen_update, leaves, treedef.flatten_up_to(updates)))


def _cond(begun: Any, run: Callable[[], Any], wait: Callable[[], Any]) -> Any:
    """What `run` gives if it has begun, else what `wait` gives, of the dtypes of the other."""
    with contextlib.suppress(TypeError):  # the branches are nearly always of the same types
        return jax.lax.cond(begun, run, wait)
    forms = jax.eval_shape(run)

    def cast(form: Any, leaf: Any) -> Any:
        is_same = jnp.result_type(leaf) == form.dtype  # such as PRNG keys, which cannot be cast
        return leaf if is_same else jax.lax.convert_element_type(leaf, form.dtype)

    try:
        waiting = jax.tree.map(cast, forms, wait())
    except ValueError as error:
        raise ValueError(
            "unfreeze_at: the state of the optimizer has another structure after its first update "
            f"than before it, and so no optimizer can wait: {error}"
        ) from error
    return jax.lax.cond(begun, run, lambda: waiting)
