"""Gradual unfreezing under `jit`, for models of every framework."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from hostile import all_bits

from optax_freeze import apply_updates, unfreeze_at, value_and_grad

X = jnp.ones((2, 3))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(4)(x)))


def linen():
    net = LinenNet()
    params = net.init(jax.random.key(0), X)["params"]
    return params, lambda params: net.apply({"params": params}, X), ("Dense_1", "Dense_0")


def haiku():
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([4, 1])(x)))
    params = net.init(jax.random.key(0), X)
    return params, lambda params: net.apply(params, X), ("mlp/~/linear_1", "mlp/~/linear_0")


def equinox():
    net = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    return net, lambda net: jax.vmap(net)(X), ("layers[1]", "layers[0]")


def plain():
    params = {"encoder": jnp.ones((3, 4)), "head": jnp.ones((4, 1))}
    return params, lambda params: X @ params["encoder"] @ params["head"], ("head", "encoder")


MODELS = [plain, linen, haiku, equinox]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("phases", [True, False], ids=["left out", "dense"])
def test_a_model_in_two_stages(make, phases):
    params, call, (head, encoder) = make()
    stages = {head: 0, encoder: 2}
    tx = unfreeze_at(optax.adamw(0.1), stages)

    def loss(params):
        return jnp.mean((call(params) - 1.0) ** 2)

    @eqx.filter_jit
    def step(params, state, now):
        _, grads = value_and_grad(loss, trainable=now)(params)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    def part(params, name):
        _, grads = value_and_grad(loss, trainable=name)(params)
        kept = jax.tree.map(
            lambda grad, leaf: None if grad is None else leaf,
            grads,
            params,
            is_leaf=lambda node: node is None,
        )
        return all_bits(kept)

    start, state = params, tx.init(params)
    for count in range(4):
        now = tuple(name for name, at in stages.items() if at <= count or not phases)
        params, state = step(params, state, now)
        assert (part(params, encoder) == part(start, encoder)) == (count < 2)
        assert part(params, head) != part(start, head)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.encoder = nnx.Linear(3, 4, rngs=rngs)
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.encoder(x)))


def test_nnx_with_its_own_optimizer():
    model = NnxNet(nnx.Rngs(0))
    tx = unfreeze_at(optax.adamw(0.1), {"head": 0, "encoder": 2})
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        grads = nnx.grad(lambda model: jnp.mean((model(X) - 1.0) ** 2))(model)
        optimizer.update(model, grads)

    def bits(model):
        state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        return all_bits(jax.tree.map(jnp.copy, state["encoder"])), all_bits(state["head"])

    encoder, head = bits(model)
    for count in range(4):
        step(model, optimizer)
        assert (bits(model)[0] == encoder) == (count < 2)
        assert bits(model)[1] != head
