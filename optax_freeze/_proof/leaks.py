"""`check_frozen`: that a transformation would move nothing frozen, whatever the gradients."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_freeze._masks import read_choice
from optax_freeze._proof.drift import distance, drift
from optax_freeze._proof.hostile import FROZEN_GRADIENTS, extra_args, gradients, params_like
from optax_freeze._training import apply_updates, keep, read_transformation
from optax_freeze._trees import Part, Tree, alongside, is_array_of_jit, is_place, listing


class FrozenLeak(AssertionError):
    """A transformation moves what was believed frozen, or is moved by it."""


@dataclasses.dataclass(frozen=True)
class StateCost:
    """What an optimizer's state costs; returned by `check_frozen`.

    Attributes:
        total_bytes: the bytes of the whole state.
        frozen_bytes: those of them that `trainable_only` would spare.
    """

    total_bytes: int
    frozen_bytes: int


def check_frozen(
    tx: optax.GradientTransformation,
    params: Any,
    freeze: Any = None,
    *,
    trainable: Any = None,
    steps: int = 3,
    state: Any = None,
) -> StateCost:
    """Assert that a transformation keeps frozen leaves still, whatever their gradients are.

    Runs `tx` on params and gradients of its own making: the frozen gradients are zero, then large,
    then larger, then NaN, while those of what trains stay the same. Nothing that is passed in
    changes. Made for a test suite::

        def test_the_encoder_stays():
            check_frozen(make_optimizer(), abstract_params, freeze="encoder")

    Args:
        tx: the transformation as it is used in training.
        params: concrete, sharded or abstract (`jax.eval_shape`) params; only their structure,
            shapes, dtypes and shardings matter.
        freeze: specs of what must not move.
        trainable: what may move and nothing else: specs, or a mask. `freeze` is carved out of it.
        steps: for how many steps, at least 1: what is averaged or accumulated moves late.
        state: a state to start from, such as one of a run before something was frozen, whose
            momentum would go on; by default a fresh one.

    Returns:
        What the state costs. State that is held for frozen leaves is a waste, not a leak.

    Raises:
        TypeError: if `tx` is not a gradient transformation.
        FrozenLeak: a frozen leaf would move, or its gradient changes how others move. Names the
            leaves, the size of the move, the likely cause and the way out.
        ValueError: if nothing is frozen, so that there is nothing to check, or nothing that trains
            has moved, or `steps` < 1.
        SpecError: an entry that is not a spec or matches nothing.
        MaskError: a mask that does not fit `params`.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import check_frozen, frozen, trainable_only
        >>> params = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
        >>> check_frozen(trainable_only(optax.adamw(1e-3), "encoder"), params, "encoder")
        StateCost(total_bytes=20, frozen_bytes=0)
        >>> check_frozen(optax.chain(frozen("encoder"), optax.adamw(1e-3)), params, "encoder")
        Traceback (most recent call last):
        optax_freeze...FrozenLeak: 'encoder' would move by up to ... weight decay. ...
    """
    if steps < 1:
        raise ValueError(f"check_frozen needs at least one step, not steps={steps}")
    tx = read_transformation(tx, "check_frozen")
    flags = read_choice(freeze, trainable)(Tree(params), values=False)
    if all(flags):
        raise ValueError("check_frozen: nothing is frozen, so there is nothing to check")
    own = Tree(params_like(Tree(params)))
    start = tx.init(own.value) if state is None else state
    step = _compiled_step(tx, own, start)
    with jax.debug_nans(new_val=False), jax.debug_infs(new_val=False):  # made on purpose here
        runs = [_run(step, own, flags, run, steps, start) for run in FROZEN_GRADIENTS]
    leaks, swayed = [], []
    for i, flag in enumerate(flags):
        moves = [run[i] for run in runs]
        if flag and any(drift(moves[0], move) for move in moves[1:]):
            swayed.append(own.name_of(i))
        elif not flag and any(move.any() for move in moves):
            leaks.append(f"{own.name_of(i)} {_cause(own.leaves[i], moves)}")
    if swayed:
        leaks.append(
            f"the updates of what trains ({listing(swayed)}) depend on the gradients of frozen "
            "leaves, as after a clip by a global norm that counts them"
        )
    if leaks:
        raise FrozenLeak(
            f"{listing(leaks)}. The way out: trainable_only(tx, ...) around all of it, with "
            "everything else inside and the freeze= of this check"
        )
    if any(flags) and not any(runs[0][i].any() for i, flag in enumerate(flags) if flag):
        raise ValueError(
            f"check_frozen: nothing moved in {steps} steps, so nothing is shown: pass more steps="
        )
    return _state_cost(tx, own, flags)


def _compiled_step(tx: Any, own: Tree, state: Any) -> Any:
    """One step of training, from the arrays of the params, the gradient and the state."""
    tx = optax.with_extra_args_support(tx)
    arrays = Part(own, [i for i, leaf in enumerate(own.leaves) if is_array_of_jit(leaf)])

    def step(asks: Any, values: list[Any], gradient: Any, state: Any) -> tuple[Any, Any, Any]:
        params = arrays.fill(values, own.leaves)
        extra = extra_args(gradient) if asks else {}
        updates, state = tx.update(gradient, state, params, **extra)
        moves = [
            jnp.zeros(()) if is_place(move) else move for move in alongside(own, updates, "updates")
        ]
        changed = jax.tree.leaves(apply_updates(params, updates))
        return [changed[i] for i in arrays.positions], moves, state

    plain, asking = (functools.partial(step, asks) for asks in (False, True))
    values = list(filter(is_array_of_jit, own.leaves))
    gradient = own.treedef.unflatten(gradients(own, [True] * len(own.leaves), 1.0, 0))
    try:  # most transformations ask for nothing, and a few refuse to be told
        jax.eval_shape(plain, values, gradient, state)
    except Exception:
        return jax.jit(asking)
    return jax.jit(plain)


def _run(
    step: Any, own: Tree, flags: list[bool], run: str, steps: int, state: Any
) -> list[np.ndarray]:
    """The updates that a transformation makes: for each leaf an array, steps first."""
    values = list(filter(is_array_of_jit, own.leaves))
    history = []
    for count in range(steps):
        gradient = own.treedef.unflatten(gradients(own, flags, FROZEN_GRADIENTS[run], count))
        values, moves, state = step(values, gradient, state)
        history.append(moves)
    return [np.stack(of_leaf) for of_leaf in zip(*history, strict=True)]


def _cause(param: Any, moves: list[np.ndarray]) -> str:
    """What probably moved a frozen leaf, by the runs in which it moved."""
    sizes = dict(zip(FROZEN_GRADIENTS, (distance(np.zeros_like(m), m) for m in moves), strict=True))
    if sizes["zero"]:
        share = moves[0][0] / np.asarray(param)
        is_decay = bool(share.size) and np.allclose(share, share.flat[0], rtol=1e-2)
        why = "weight decay" if is_decay else "noise, averaging or momentum in the state"
        return f"would move by up to {sizes['zero']:.3g} without any gradient: {why}"
    if sizes["large"]:
        return (
            f"would move by up to {sizes['large']:.3g} by its gradient: nothing keeps the "
            "transformation from using it (optax.masked passes raw gradients through)"
        )
    return "would become NaN or infinite with its gradient: it is multiplied by zero, not left out"


def _state_cost(tx: Any, own: Tree, flags: list[bool]) -> StateCost:
    spared = keep(tx, lambda _: flags)
    total, needed = (
        sum(
            leaf.size * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(jax.eval_shape(lambda init=one.init: init(own.value)))
        )
        for one in (tx, spared)
    )
    return StateCost(total_bytes=total, frozen_bytes=total - needed)
