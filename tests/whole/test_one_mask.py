"""One mask, built once, fits the same parameters in whatever container they come."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import FrozenDict

from optax_freeze import freeze_mask, leaf_paths, trainable_mask, trainable_only

X = jnp.ones((2, 2))


class Linear(eqx.Module):
    kernel: jax.Array
    bias: jax.Array


class Net(eqx.Module):
    encoder: Linear
    head: Linear


class NNXNet(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.encoder = nnx.Linear(2, 2, rngs=rngs)
        self.head = nnx.Linear(2, 2, rngs=rngs)


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="head")(nn.Dense(2, name="encoder")(x))


def haiku_params():
    def net(x):
        return hk.Linear(2, name="head")(hk.Linear(2, name="encoder")(x))

    params = hk.transform(net).init(jax.random.key(0), X)
    return {name: {"kernel": layer["w"], "bias": layer["b"]} for name, layer in params.items()}


def spy(seen):
    """An optimizer that keeps the params it is given."""

    def update(updates, state, params=None, **_):
        seen.append(params)
        return updates, state

    return optax.GradientTransformationExtraArgs(lambda params: seen.append(params), update)


def optimizer_params():
    """What `nnx.Optimizer` passes to `init` and to `update`."""
    seen, model = [], NNXNet()
    optimizer = nnx.Optimizer(model, spy(seen), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda model: model.encoder(X).sum())(model))
    return seen


CONTAINERS = {
    "dict": {name: {"kernel": X, "bias": X[0]} for name in ("encoder", "head")},
    "FrozenDict": FrozenDict({name: {"kernel": X, "bias": X[0]} for name in ("encoder", "head")}),
    "flat": {f"{name}.{leaf}": X for name in ("encoder", "head") for leaf in ("kernel", "bias")},
    "equinox": Net(Linear(X, X[0]), Linear(X, X[0])),
    "nnx module": NNXNet(),
    "nnx state": nnx.state(NNXNet(), nnx.Param),
    "nnx pure dict": nnx.to_pure_dict(nnx.state(NNXNet(), nnx.Param)),
    "nnx optimizer, init": optimizer_params()[0],
    "nnx optimizer, update": optimizer_params()[1],
    "linen": LinenNet().init(jax.random.key(0), X)["params"],
    "haiku": haiku_params(),
    "abstract": jax.eval_shape(lambda: nnx.state(NNXNet(), nnx.Param)),
}
MASKS = {
    "nested": {
        "encoder": {"kernel": False, "bias": True},
        "head": {"kernel": True, "bias": True},
    },
    "prefix": {"encoder": {"kernel": False, "bias": True}, "head": True},
    "dotted": {"encoder.kernel": False, "encoder.bias": True, "head": True},
    "with value": {"encoder": {"kernel": {"value": False}, "bias": {"value": True}}, "head": True},
    **{name: freeze_mask(tree, "encoder.kernel") for name, tree in CONTAINERS.items()},
}


def by_name(tree):
    paths = [path.removesuffix(".value") for path in leaf_paths(tree)]
    return dict(zip(paths, jax.tree.leaves(tree), strict=True))


EXPECTED = {"encoder.kernel": False, "encoder.bias": True, "head.kernel": True, "head.bias": True}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_one_mask_for_all(container, mask):
    tree = CONTAINERS[container]
    met = trainable_mask(tree, trainable=MASKS[mask])
    assert by_name(met) == EXPECTED
    assert jax.tree.structure(met) == jax.tree.structure(jax.tree.map(lambda _: True, tree))


def test_haiku_names_with_slashes():
    params = hk.transform(lambda x: hk.nets.MLP([2, 2])(x)).init(jax.random.key(0), X)
    mask = freeze_mask(params, "mlp/~/linear_[:1].w")
    assert mask == {
        "mlp/~/linear_0": {"b": True, "w": False},
        "mlp/~/linear_1": {"b": True, "w": True},
    }
    assert freeze_mask(FrozenDict(params), None, mask) == FrozenDict(mask)


def test_a_mask_of_an_nnx_module_is_cut_to_the_parameters():
    class WithStatistics(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
            self.norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))

    model = WithStatistics()
    mask = nnx.state(freeze_mask(model, "linear"), nnx.Param)
    assert by_name(mask) == {
        "linear.kernel": False,
        "linear.bias": False,
        "norm.scale": True,
        "norm.bias": True,
    }
    assert trainable_mask(nnx.state(model, nnx.Param), trainable=mask) == mask


@pytest.mark.parametrize("mask", ["nested", "equinox", "nnx module", "nnx optimizer, update"])
def test_one_mask_serves_an_nnx_optimizer_at_init_and_at_update(mask):
    model = NNXNet()
    before = by_name(nnx.to_pure_dict(nnx.state(model)))
    tx = trainable_only(optax.adamw(1e-1), trainable=MASKS[mask])
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda model: model.head(model.encoder(X)).sum())(model))
    after = by_name(nnx.to_pure_dict(nnx.state(model)))
    moved = {path: bool((after[path] != before[path]).any()) for path in before}
    assert moved == EXPECTED
