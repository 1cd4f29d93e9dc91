"""Frozen is free: the compiled steps cost what those cost that freeze by hand."""

import gc
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costs import CASES, Costs, by_hand, by_split, by_trainable_only, costs, size

from optax_freeze import (
    count_trainable_params,
    freeze_mask,
    leaf_paths,
    merge,
    split,
    tree_mask,
    tree_unmask,
)

EVERY_STEP_ON = ["dense, 6 of 12 layers", "dense, all but biases", "transformer, LoRA only"]


def one_jit(way, state, batch):
    def step(variables, state, rest, batch):
        loss, grads = way.gradient(variables, rest, batch)
        updates, state = way.tx.update(grads, state, variables)
        return way.apply(variables, updates), state, loss

    return costs(step, way.variables, state, way.rest, batch, donate=(0, 1))


def logging_the_norm(way, state, batch):
    def step(variables, state, rest, batch):
        loss, grads = way.gradient(variables, rest, batch)
        updates, state = way.tx.update(grads, state, variables)
        return way.apply(variables, updates), state, loss, optax.tree.norm(grads)

    return costs(step, way.variables, state, way.rest, batch, donate=(0, 1))


def two_jits(way, state, batch):
    def update(variables, state, grads):
        updates, state = way.tx.update(grads, state, variables)
        return way.apply(variables, updates), state

    _, grads = jax.eval_shape(way.gradient, way.variables, way.rest, batch)
    return costs(way.gradient, way.variables, way.rest, batch) + costs(
        update, way.variables, state, grads, donate=(0, 1)
    )


def accumulating(way, state, batch):
    def step(variables, state, rest, batches):
        def add(total, batch):
            loss, grads = way.gradient(variables, rest, batch)
            return jax.tree.map(jnp.add, total, grads), loss

        _, grads = jax.eval_shape(way.gradient, variables, rest, batch)
        zeros = jax.tree.map(lambda grad: jnp.zeros(grad.shape, grad.dtype), grads)
        total, losses = jax.lax.scan(add, zeros, batches)
        updates, state = way.tx.update(total, state, variables)
        return way.apply(variables, updates), state, losses

    return costs(step, way.variables, state, way.rest, np.stack([batch] * 2), donate=(0, 1))


ADAMW = optax.adamw(1e-3)
STEPS = {
    "clipping": (one_jit, optax.chain(optax.clip_by_global_norm(1.0), ADAMW)),
    "logging the norm": (logging_the_norm, ADAMW),
    "MultiSteps": (one_jit, optax.MultiSteps(ADAMW, 2).gradient_transformation()),
    "apply_if_finite": (one_jit, optax.apply_if_finite(ADAMW, 3)),
    "two jits": (two_jits, ADAMW),
    "accumulating by scan": (accumulating, ADAMW),
}


class Measured(NamedTuple):
    program: Costs
    state: int


def check_costs(case, measure, tx):
    _, batch = case.model()
    measured = {}
    for make in (by_hand, by_trainable_only, by_split):
        way = make(case, tx)
        state = jax.eval_shape(way.tx.init, way.variables)
        measured[make] = Measured(measure(way, state, batch), size(state))
    assert measured[by_split] == measured[by_hand]
    mine, its = measured[by_trainable_only], measured[by_hand]
    assert mine.state == its.state
    assert (mine.program.flops, mine.program.temp) == (its.program.flops, its.program.temp)
    # Params that pass through are donated, so nothing of them is read or written. What is left of
    # them is a pointer for each in the table of the results, which XLA counts as 4 or 8 bytes.
    pointers = {size * len(jax.tree.leaves(by_hand(case, tx).rest)) for size in (4, 8)}
    assert mine.program.bytes_accessed - its.program.bytes_accessed in pointers
    assert mine.program.peak - its.program.peak in pointers


@pytest.mark.parametrize("name", CASES)
def test_a_step_costs_what_the_one_by_hand_costs(name):
    check_costs(CASES[name], one_jit, ADAMW)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", EVERY_STEP_ON)
def test_every_kind_of_step_costs_what_the_one_by_hand_costs(name, step):
    check_costs(CASES[name], *STEPS[step])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_cases_freeze_what_they_say(case):
    params, _ = case.model()
    trains = freeze_mask(params, case.freeze)
    assert jax.tree.leaves(trains) == list(map(case.trains, leaf_paths(params)))
    left = count_trainable_params(params, mask=trains) / count_trainable_params(params)
    assert round(100 * (1 - left)) in {case.share, case.share + 1}


def test_the_counts_can_tell_a_gradient_that_is_computed_for_nothing():
    case = CASES["dense, 11 of 12 layers"]
    params, batch = case.model()
    way = by_trainable_only(case, ADAMW)
    full = way._replace(gradient=lambda params, _, x: jax.value_and_grad(case.loss)(params, x))
    state = jax.eval_shape(way.tx.init, params)
    logged = logging_the_norm(full, state, batch)
    assert logged.flops > 2 * logging_the_norm(way, state, batch).flops


def calls(fun, *args):
    """How many calls of functions, in Python and in C, a call makes."""
    count = 0

    def see(frame, event, arg):
        nonlocal count
        count += event in {"call", "c_call"}

    fun(*args)  # fills caches
    gc.disable()  # which JAX has a callback for
    sys.setprofile(see)
    try:
        fun(*args)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def tree_of(groups):
    return {
        f"g{i:04}": {f"l{j}": np.zeros(1, np.float32) for j in range(10)} for i in range(groups)
    }


OVER_LEAVES = {
    "freeze_mask, one path": lambda tree: freeze_mask(tree, "g0000.l3"),
    "freeze_mask, a pattern": lambda tree: freeze_mask(tree, "**.l3"),
    "split and merge": lambda tree: merge(*split(tree, "g0000")),
    "tree_mask and tree_unmask": lambda tree: tree_unmask(tree_mask(tree, np.ndarray)),
}


@pytest.mark.parametrize("work", OVER_LEAVES.values(), ids=OVER_LEAVES)
def test_calls_grow_linearly_with_the_leaves(work):
    few, more, many = (calls(work, tree_of(groups)) for groups in (100, 200, 300))
    assert many - more == more - few
