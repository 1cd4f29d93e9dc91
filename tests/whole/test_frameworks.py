"""Equinox and Flax NNX as their users use them: statistics, dropout, LoRA, serialisation."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hostile import all_bits

from optax_freeze import (
    apply_updates,
    assert_unchanged,
    freeze_mask,
    merge,
    split,
    trainable_mask,
    trainable_only,
    value_and_grad,
)

X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)), jnp.float32)


class Normed(eqx.Module):
    encoder: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear
    rate: float
    act: object

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.encoder = eqx.nn.Linear(4, 4, key=first)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="ema")
        self.head = eqx.nn.Linear(4, 1, key=second)
        self.rate = 0.5
        self.act = jax.nn.relu

    def __call__(self, x, state):
        x, state = self.norm(self.encoder(x), state)
        return self.head(self.act(x) * self.rate), state


def loss(model, statistics):
    batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    y, statistics = batched(X, statistics)
    return jnp.mean((y - 1.0) ** 2), statistics


FREEZE = ["encoder", eqx.nn.BatchNorm]


@pytest.fixture
def normed():
    return eqx.nn.make_with_state(Normed)(jax.random.key(0))


def test_equinox_whole_module_with_batch_statistics(normed):
    model, statistics = normed
    tx = trainable_only(optax.adamw(0.1), FREEZE)

    @eqx.filter_jit
    def step(model, state, statistics):
        gradient = value_and_grad(loss, FREEZE, has_aux=True)
        (value, statistics), grads = gradient(model, statistics)
        updates, state = tx.update(grads, state, model)
        return apply_updates(model, updates), state, statistics, value

    new, state, moved, values = model, tx.init(model), statistics, []
    for _ in range(5):
        new, state, moved, value = step(new, state, moved)
        values.append(float(value))
    assert values[-1] < values[0]
    assert_unchanged(model, new, FREEZE)
    assert (new.rate, new.act) == (model.rate, model.act)
    assert all_bits(moved) != all_bits(statistics), "the statistics are not params: they go on"


def test_equinox_split_through_plain_jit(normed):
    model, statistics = normed
    trainable, rest = split(model, FREEZE)
    tx = optax.adamw(0.1)

    @jax.jit
    def step(trainable, state, rest, statistics):
        gradient = jax.value_and_grad(lambda t: loss(merge(t, rest), statistics), has_aux=True)
        (value, statistics), grads = gradient(trainable)
        updates, state = tx.update(grads, state, trainable)
        return optax.apply_updates(trainable, updates), state, statistics, value

    new, state, values = trainable, tx.init(trainable), []
    for _ in range(5):
        new, state, statistics, value = step(new, state, rest, statistics)
        values.append(float(value))
    assert list(trainable) == ["head.weight", "head.bias"]
    assert values[-1] < values[0]
    assert step._cache_size() == 1
    assert_unchanged(model, merge(new, rest), FREEZE)


def test_equinox_serialisation(normed):
    model, _ = normed
    tx = trainable_only(optax.adam(0.1), FREEZE)
    state = tx.init(model)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, (model, state))
    file.seek(0)
    restored = eqx.tree_deserialise_leaves(file, (model, tx.init(model)))
    assert jax.tree.structure(restored) == jax.tree.structure((model, state))
    assert all_bits(restored) == all_bits((model, state))


class Adapted(nnx.Module):
    def __init__(self, rngs):
        self.encoder = nnx.Linear(4, 4, rngs=rngs)
        self.adapter = nnx.LoRA(4, 2, 1, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        hidden = self.dropout(nnx.relu(self.norm(self.encoder(x))))
        return self.head(hidden) + self.adapter(x)


def pure(model, kind=...):
    return jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model, kind)))


def nnx_step(model, optimizer, wrt):
    def of_model(model):
        return jnp.mean((model(X) - 1.0) ** 2)

    value, grads = nnx.value_and_grad(of_model, argnums=nnx.DiffState(0, wrt))(model)
    optimizer.update(model, grads)
    return value


LORA = {
    "class": {"trainable": nnx.LoRAParam},
    "name": {"trainable": "adapter"},
    "pattern": {"trainable": "**.lora_?"},
    "mask": None,
}


@pytest.mark.parametrize("how", LORA)
def test_nnx_lora_alone(how):
    """LoRA parameters are parameters: `wrt=nnx.Param` covers them and all the rest."""
    model = Adapted(nnx.Rngs(0))
    choice = LORA[how]
    if choice is None:
        mask = trainable_mask(model, trainable=nnx.LoRAParam)
        choice = {"trainable": nnx.state(mask, nnx.Param)}
    if how == "class":  # the pure dict of an update has no classes any more
        choice = {"trainable": nnx.state(trainable_mask(model, **choice), nnx.Param)}
    tx = trainable_only(optax.adamw(0.1, weight_decay=0.1), **choice)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    before = pure(model)
    step = nnx.jit(lambda model, optimizer: nnx_step(model, optimizer, nnx.Param))
    values = [float(step(model, optimizer)) for _ in range(4)]
    after = pure(model)
    assert values[-1] < values[0]
    for part in ("encoder", "head"):
        assert all_bits(after[part]) == all_bits(before[part])
    assert all_bits(after["adapter"]) != all_bits(before["adapter"])
    assert all_bits(after["norm"]["mean"]) != all_bits(before["norm"]["mean"])
    assert all_bits(after["norm"]["scale"]) == all_bits(before["norm"]["scale"])
    assert int(after["dropout"]["rngs"]["count"]) == 4


def test_nnx_wrt_narrower_than_the_mask():
    model = Adapted(nnx.Rngs(0))
    tx = trainable_only(optax.adam(0.1), "**.lora_a")
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.LoRAParam)
    before = pure(model)
    nnx_step(model, optimizer, nnx.LoRAParam)
    after = pure(model)
    assert all_bits(after["adapter"]["lora_a"]) == all_bits(before["adapter"]["lora_a"])
    assert all_bits(after["adapter"]["lora_b"]) != all_bits(before["adapter"]["lora_b"])


def test_nnx_split_and_merge_with_the_functional_api():
    model = Adapted(nnx.Rngs(0))
    graphdef, params, others = nnx.split(model, nnx.Param, ...)
    freeze = ["encoder", "norm"]
    tx = trainable_only(optax.adamw(0.1), freeze)

    @jax.jit
    def step(params, state, others):
        def of_params(params, others):
            model = nnx.merge(
                graphdef, params, others, copy=True
            )  # to write to variables of this trace
            value = jnp.mean((model(X) - 1.0) ** 2)
            return value, nnx.split(model, nnx.Param, ...)[2]

        (value, others), grads = value_and_grad(of_params, freeze, has_aux=True)(params, others)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state, others, value

    new, state, moved, values = params, tx.init(params), others, []
    for _ in range(4):
        new, state, moved, value = step(new, state, moved)
        values.append(float(value))
    assert values[-1] < values[0]
    assert isinstance(new, nnx.State)
    assert_unchanged(params, new, freeze)
    assert all_bits(moved) != all_bits(others)


def test_nnx_one_mask_for_module_state_and_pure_dict():
    model = Adapted(nnx.Rngs(0))
    mask = nnx.state(freeze_mask(model, ["encoder", nnx.BatchStat]), nnx.Param)
    state = nnx.state(model, nnx.Param)
    for tree in (state, nnx.to_pure_dict(state)):
        flags = jax.tree.leaves(trainable_mask(tree, trainable=mask))
        assert flags == jax.tree.leaves(trainable_mask(tree, freeze="encoder"))
