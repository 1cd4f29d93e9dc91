"""What pieces of a stack and of an embedding cost, beside steps written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costs import costs, size

from optax_freeze import (
    apply_updates,
    cut_rows,
    join_rows,
    merge,
    split,
    trainable_only,
    value_and_grad,
)

LAYERS, FROZEN, WIDTH = 12, 10, 32
ADAMW = optax.adamw(1e-3)
FIRST = "blocks.*[0]"


def make_stack():
    rng = np.random.default_rng(0)
    shape = (LAYERS, WIDTH, WIDTH)
    weights = rng.normal(size=shape).astype(np.float32) / np.sqrt(WIDTH)
    return {"blocks": {"w": weights, "b": np.zeros((LAYERS, WIDTH), np.float32)}}


BATCH = np.ones((4, WIDTH), np.float32)


def layer(x, block):
    return jnp.tanh(x @ block["w"] + block["b"][None, :]), None


def run(x, *stacks):
    for stack in stacks:
        x, _ = jax.lax.scan(layer, x, stack)
    return jnp.mean(x**2)


def piece(tree, i):
    """The recipe of `join_rows`'s docstring."""
    return jax.tree.map(
        lambda cut: cut.pieces[i], tree, is_leaf=lambda node: hasattr(node, "pieces")
    )


def loss_in_turn(params, x):
    return run(x, piece(params["blocks"], 0), piece(params["blocks"], 1))


def loss_joined(params, x):
    return run(x, join_rows(params)["blocks"])


def by_hand():
    stack = make_stack()["blocks"]
    frozen, trained = (
        jax.tree.map(lambda leaf, part=part: leaf[part], stack)
        for part in (slice(FROZEN), slice(FROZEN, None))
    )

    def step(trained, state, frozen, x):
        loss, grads = jax.value_and_grad(lambda trained: run(x, frozen, trained))(trained)
        updates, state = ADAMW.update(grads, state, trained)
        return optax.apply_updates(trained, updates), state, loss

    return step, (trained, jax.eval_shape(ADAMW.init, trained), frozen, BATCH)


def by_split(loss):
    trainable, rest = split(cut_rows(make_stack(), {"blocks": FROZEN}), FIRST)

    def step(trainable, state, rest, x):
        value, grads = jax.value_and_grad(lambda some: loss(merge(some, rest), x))(trainable)
        updates, state = ADAMW.update(grads, state, trainable)
        return optax.apply_updates(trainable, updates), state, value

    return step, (trainable, jax.eval_shape(ADAMW.init, trainable), rest, BATCH)


def by_trainable_only(loss):
    params = cut_rows(make_stack(), {"blocks": FROZEN})
    tx = trainable_only(ADAMW, FIRST)

    def step(params, state, x):
        value, grads = value_and_grad(loss, FIRST)(params, x)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state, value

    return step, (params, jax.eval_shape(tx.init, params), BATCH)


def products(jaxpr):
    """How many products of matrices a program runs, those of each turn of a loop counted."""
    count = 0
    for equation in jaxpr.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        inner = [value for value in equation.params.values() if hasattr(value, "jaxpr")]
        count += times * sum(products(value.jaxpr) for value in inner)
        count += equation.primitive.name == "dot_general"
    return count


def products_of(step, args):
    return products(jax.make_jaxpr(step)(*args).jaxpr)


def test_two_scans_over_the_pieces_cost_what_two_arrays_by_hand_cost():
    step, args = by_hand()
    expected = costs(step, *args, donate=(0, 1))
    step, args = by_split(loss_in_turn)
    assert costs(step, *args, donate=(0, 1)) == expected
    step, args = by_trainable_only(loss_in_turn)
    mine = costs(step, *args, donate=(0, 1))
    assert (mine.flops, mine.temp) == (expected.flops, expected.temp)


@pytest.mark.parametrize("way", [by_split, by_trainable_only])
def test_how_many_products_a_step_runs(way):
    """XLA counts the body of a loop once, so the turns are counted in the program."""
    assert products_of(*by_hand()) == FROZEN + 3 * (LAYERS - FROZEN) == 16
    assert products_of(*way(loss_in_turn)) == 16
    assert products_of(*way(loss_joined)) == 3 * LAYERS == 36
    assert all(text in join_rows.__doc__ for text in ("runs 36 products", "over the pieces 16"))


def test_a_joined_stack_is_copied_and_pieces_in_turn_are_not():
    stack = size(make_stack())
    in_turn, joined = (costs(*_flat(by_split(loss))) for loss in (loss_in_turn, loss_joined))
    assert in_turn.temp < stack
    assert joined.temp >= in_turn.temp + stack


def _flat(way):
    step, args = way
    return step, *args


VOCABULARY, TOKENS = 4096, np.array([5, 700, 4000])


@pytest.mark.parametrize("rows", [VOCABULARY - 3, TOKENS], ids=["boundary", "pick"])
def test_new_tokens_have_no_gradient_of_the_whole_table(rows):
    table = {"table": np.ones((VOCABULARY, WIDTH), np.float32)}
    trainable, rest = split(cut_rows(table, {"table": rows}), "table[0]")
    ids = np.arange(8)

    def loss(trainable, rest):
        return jnp.sum(join_rows(merge(trainable, rest))["table"][ids] ** 2)

    forward = costs(loss, trainable, rest)
    both = costs(jax.value_and_grad(loss), trainable, rest)
    gradients = jax.eval_shape(jax.grad(loss), trainable, rest)
    assert size(gradients) == 3 * WIDTH * 4
    # Once the table for the loss, once for the gradient of the eight rows that were looked up.
    assert both.temp <= 3 * size(table)
    assert forward.flops <= 2 * 8 * WIDTH + VOCABULARY * 8
