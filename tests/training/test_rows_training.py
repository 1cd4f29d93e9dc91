"""Training with a part of an array frozen: the same as a mask over rows applied by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costs import size
from hostile import bits, frozen_leaves
from hypothesis import given, settings
from hypothesis import strategies as st

from optax_freeze import (
    apply_updates,
    assert_unchanged,
    check_frozen,
    cut_rows,
    frozen,
    join_rows,
    merge,
    split,
    trainable_only,
    value_and_grad,
)

ROWS, WIDTH = 12, 4
X = jnp.asarray(np.random.default_rng(1).normal(size=(5, ROWS)), jnp.float32)
PICK = np.array([7, 2, 11])
CUTS = {"boundary": 9, "pick": PICK}
TRAINS = {
    "boundary": np.arange(ROWS) >= 9,
    "pick": np.isin(np.arange(ROWS), PICK),
}
each_cut = pytest.mark.parametrize("cut", CUTS)
OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adamw": optax.adamw(0.1, weight_decay=0.1),
    "lion": optax.lion(0.01),
    "noisy": optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1)),
}
ONLY = {name: trainable_only(tx, "table[0]") for name, tx in OPTIMIZERS.items()}


def make_params(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "table": jnp.asarray(rng.normal(size=(ROWS, WIDTH)), jnp.float32),
        "head": jnp.asarray(rng.normal(size=WIDTH), jnp.float32),
    }


def loss(params):
    return jnp.mean((jnp.tanh(X @ params["table"]) @ params["head"] - 1.0) ** 2)


def loss_of_pieces(params):
    return loss(join_rows(params))


@functools.cache  # so that other params meet the program that is there
def compiled_step(tx):
    @jax.jit
    def step(params, state):
        _, grads = value_and_grad(loss_of_pieces, "table[0]")(params)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    return step


def train(tx, params, state, steps=4):
    for _ in range(steps):
        params, state = compiled_step(tx)(params, state)
    return params, state


@functools.cache
def compiled_step_by_hand(tx):
    @jax.jit
    def step(params, state, mask):
        grads = jax.tree.map(lambda m, g: jnp.where(m, g, 0.0), mask, jax.grad(loss)(params))
        updates, state = tx.update(grads, state, params)
        updates = jax.tree.map(lambda m, u: jnp.where(m, u, -0.0), mask, updates)
        return optax.apply_updates(params, updates), state

    return step


def by_hand(tx, params, trains, steps=4):
    """The whole, with a mask over its rows on the gradients and, last, on the updates."""
    mask = {"table": jnp.asarray(trains)[:, None], "head": jnp.array(True)}
    state = tx.init(params)
    for _ in range(steps):
        params, state = compiled_step_by_hand(tx)(params, state, mask)
    return params


@each_cut
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "noisy"])
@settings(max_examples=3)
@given(seed=st.integers(0, 1000))
def test_training_is_that_of_the_whole_under_a_row_mask(cut, name, seed):
    params, tx = make_params(seed), OPTIMIZERS[name]
    cut_params = cut_rows(params, {"table": CUTS[cut]})
    only = ONLY[name]
    new, _ = train(only, cut_params, only.init(cut_params))
    expected = by_hand(tx, params, TRAINS[cut])
    still = ~TRAINS[cut]
    assert bits(join_rows(new)["table"][still]) == bits(params["table"][still])
    # XLA fuses the two programs differently, which is a matter of the last bits.
    np.testing.assert_allclose(join_rows(new)["table"], expected["table"], rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(new["head"], expected["head"], rtol=2e-4, atol=1e-6)
    moved = np.asarray(join_rows(new)["table"] != params["table"])
    assert moved[TRAINS[cut]].all()


@each_cut
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_step_by_step_it_is_the_same_bits(cut, name):
    """Without `jit`, so that the same operations meet the same numbers."""
    params, tx = make_params(), OPTIMIZERS[name]
    cut_params = cut_rows(params, {"table": CUTS[cut]})
    only = ONLY[name]
    state, whole_state = only.init(cut_params), tx.init(params)
    for _ in range(3):
        grads = jax.grad(loss)(params)
        pieces = cut_rows(grads, {"table": CUTS[cut]})
        updates, state = only.update(pieces, state, cut_params)
        cut_params = apply_updates(cut_params, updates)
        whole, whole_state = tx.update(grads, whole_state, params)
        mask = jnp.asarray(TRAINS[cut])[:, None]
        whole["table"] = jnp.where(mask, whole["table"], -0.0)
        params = optax.apply_updates(params, whole)
        assert bits(join_rows(cut_params)["table"]) == bits(params["table"])


@each_cut
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_rows_keep_their_bits(cut, name):
    hostile = jnp.asarray(np.tile(np.asarray(frozen_leaves()["float32"])[:6], 2)[:, None])
    table = jnp.broadcast_to(hostile, (ROWS, WIDTH))
    params = cut_rows({**make_params(), "table": table}, {"table": CUTS[cut]})
    only = ONLY[name]
    new, _ = train(only, params, only.init(params))
    assert_unchanged(params, new, "table[0]")
    assert bits(join_rows(new)["table"][~TRAINS[cut]]) == bits(table[~TRAINS[cut]])


@each_cut
def test_momentum_from_before_does_not_move_them(cut):
    """All of the table trained first; then, with its momentum, only some rows do."""
    params = cut_rows(make_params(), {"table": CUTS[cut]})
    warm = OPTIMIZERS["momentum"]
    state = warm.init(params)
    for _ in range(2):
        updates, state = warm.update(jax.grad(loss_of_pieces)(params), state, params)
        params = apply_updates(params, updates)
    assert np.all(state[0].trace["table"].pieces[0])
    tx = optax.chain(warm, frozen("table[0]"))
    state = (state, optax.EmptyState())
    new = params
    for _ in range(2):
        updates, state = tx.update(jax.grad(loss_of_pieces)(new), state, new)
        new = apply_updates(new, updates)
    assert bits(new["table"].pieces[0]) == bits(params["table"].pieces[0])
    assert np.all(new["table"].pieces[1] != params["table"].pieces[1])


@each_cut
def test_the_state_is_that_of_the_pieces_that_train(cut):
    params = cut_rows(make_params(), {"table": CUTS[cut]})
    state = trainable_only(optax.adam(1e-3), ["table[0]", "head"]).init(params)
    assert size(state) == 4 + 2 * 3 * WIDTH * 4
    assert size(optax.adam(1e-3).init(split(params, ["table[0]", "head"])[0])) == size(state)


@each_cut
def test_split_trains_the_same(cut):
    params = cut_rows(make_params(), {"table": CUTS[cut]})
    trainable, rest = split(params, "table[0]")
    tx = OPTIMIZERS["adamw"]
    state = tx.init(trainable)

    @jax.jit
    def step(trainable, state, rest):
        grads = jax.grad(lambda some: loss_of_pieces(merge(some, rest)))(trainable)
        updates, state = tx.update(grads, state, trainable)
        return optax.apply_updates(trainable, updates), state

    for _ in range(4):
        trainable, state = step(trainable, state, rest)
    only = ONLY["adamw"]
    expected, _ = train(only, params, only.init(params))
    np.testing.assert_allclose(
        join_rows(merge(trainable, rest))["table"], join_rows(expected)["table"], rtol=1e-5
    )


def test_no_optimizer_leaks():
    params = cut_rows(make_params(), {"table": 9})
    check_frozen(trainable_only(optax.adamw(0.1), "table[0]"), params, "table[0]")


def test_one_norm_over_the_pieces_that_train():
    params = cut_rows(make_params(), {"table": 9})
    clip = trainable_only(optax.clip_by_global_norm(1.0), ["table[0]", "head"])
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, 3.0), params)
    updates, _ = clip.update(grads, clip.init(params), params)
    assert float(optax.tree.norm(updates)) == pytest.approx(1.0)


def test_new_tokens_of_an_embedding():
    """Three tokens that the vocabulary had room for: only their rows learn."""
    tokens, new = jnp.array([[1, 7, 2], [11, 0, 7]]), np.array([7, 2, 11])
    params = make_params()

    def next_token_loss(params, tokens):
        logits = params["table"][tokens] @ params["table"].T
        return jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
        )

    cut = cut_rows(params, {"table": new})
    tx = trainable_only(optax.adamw(0.1), trainable="table[1]")
    state = tx.init(cut)

    @jax.jit
    def step(cut, state):
        value, grads = value_and_grad(
            lambda cut: next_token_loss(join_rows(cut), tokens), trainable="table[1]"
        )(cut)
        updates, state = tx.update(grads, state, cut)
        return apply_updates(cut, updates), state, value

    values = []
    for _ in range(20):
        cut, state, value = step(cut, state)
        values.append(float(value))
    assert values[-1] < values[0] / 2
    table = join_rows(cut)["table"]
    others = np.setdiff1d(np.arange(ROWS), new)
    assert bits(table[others]) == bits(params["table"][others])
    assert bits(table[new]) == bits(cut["table"].pieces[1])


def keep_still(mask):
    """Elements where a mask is False stay: last in a chain. The recipe for pruning."""

    def update(updates, params=None):
        return jax.tree.map(lambda m, u: jnp.where(m, u, -jnp.zeros_like(u)), mask, updates)

    return optax.stateless(update)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_recipe_for_single_elements(name):
    params = make_params()
    old = jnp.where(jnp.abs(params["table"]) > 0.5, params["table"], -0.0)
    params["table"] = old
    mask = jax.tree.map(lambda leaf: leaf != 0.0, params)
    warm = OPTIMIZERS[name]
    state = warm.init(params)
    for _ in range(3):  # the momentum of elements that are to stay is not zero
        _, state = warm.update(jax.grad(loss)(params), state, params)
    tx = optax.chain(warm, keep_still(mask))
    state = (state, tx.init(params)[1])

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return apply_updates(params, updates), state

    for _ in range(4):
        params, state = step(params, state)
    kept = ~np.asarray(mask["table"])
    assert kept.any()
    assert bits(params["table"][kept]) == bits(old[kept])
    assert np.all(params["table"][~kept] != old[~kept])
