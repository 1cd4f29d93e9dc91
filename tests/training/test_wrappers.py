"""Composition: Optax's wrappers inside and around, and the frameworks' own training loops."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx
from flax.core import FrozenDict, freeze
from flax.training.train_state import TrainState
from hostile import all_bits, bits, frozen_leaves, poisoned

from optax_freeze import (
    SpecError,
    apply_updates,
    frozen,
    merge,
    param_groups,
    split,
    trainable_mask,
    trainable_only,
    value_and_grad,
)

HOLE = optax.MaskedNode()
HEAD = {"b": jnp.array([0.5]), "w": jnp.array([[1.0, -2.0], [0.25, 3.0]])}
PARAMS = {"encoder": frozen_leaves(), "head": HEAD}
SGD = optax.sgd(0.1)


def loss(params):
    head = params["head"]
    return jnp.sum((head["w"] * head["b"][None]) ** 2) + poisoned(params["encoder"])


def head_loss(head):
    return loss({"encoder": {}, "head": head})


def run(tx, steps=4, params=PARAMS, dense=True, add=apply_updates):
    """The params and the state after some steps on dense gradients with NaN, or on holes."""
    gradient = jax.grad(loss, allow_int=True)
    if not dense:
        gradient = lambda params: value_and_grad(loss, freeze="encoder")(params)[1]  # noqa: E731

    @jax.jit
    def step(params, state):
        updates, state = tx.update(gradient(params), state, params)
        return add(params, updates), state

    state = tx.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


def run_alone(tx, steps=4):
    """The same with what trains only, and plain Optax."""

    @jax.jit
    def step(head, state):
        updates, state = tx.update(jax.grad(head_loss)(head), state, head)
        return optax.apply_updates(head, updates), state

    head, state = HEAD, tx.init(HEAD)
    for _ in range(steps):
        head, state = step(head, state)
    return head, state


INSIDE = {
    "chain": optax.chain(optax.clip_by_global_norm(0.1), SGD),
    "named_chain": optax.named_chain(("clip", optax.clip(0.1)), ("sgd", SGD)),
    "MultiSteps": optax.MultiSteps(SGD, 2),
    "MultiSteps that skips": optax.MultiSteps(SGD, 2, should_skip_update_fn=optax.skip_not_finite),
    "apply_if_finite": optax.apply_if_finite(SGD, 1),
    "inject_hyperparams": optax.inject_hyperparams(optax.sgd)(
        optax.schedules.linear_schedule(0.1, 0.01, 4)
    ),
    "flatten": optax.flatten(SGD),
    "schedule_free": optax.contrib.schedule_free(SGD, 0.1),
    "sam": optax.contrib.sam(SGD, optax.contrib.normalize(), sync_period=2),
    "masked": optax.masked(SGD, lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)),
    "partition": optax.partition({"all": SGD}, lambda tree: jax.tree.map(lambda _: "all", tree)),
    "trainable_only": trainable_only(SGD),
    "param_groups": param_groups({"**.b": optax.sgd(0.2)}, default=SGD),
    "frozen": optax.chain(frozen("**.b"), SGD),
}


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "holes"])
@pytest.mark.parametrize("tx", INSIDE.values(), ids=INSIDE.keys())
def test_inside_it_is_as_if_what_trains_were_alone(tx, dense):
    # Its state holds a weak float and an integer power, which are not strict.
    with jax.numpy_dtype_promotion("standard"):
        params, state = run(trainable_only(tx, freeze="encoder"), dense=dense)
        head, state_alone = run_alone(tx)
    assert all_bits(params) == all_bits({**PARAMS, "head": head})
    assert list(map(bits, jax.tree.leaves(state))) == list(map(bits, jax.tree.leaves(state_alone)))
    assert all_bits(params["head"]) != all_bits(HEAD)


def test_apply_if_finite_inside_counts_no_frozen_gradient():
    _, state = run(trainable_only(optax.apply_if_finite(SGD, 1), "encoder"))
    assert int(state.total_notfinite) == 0


ONLY = trainable_only(SGD, freeze="encoder")
HALF = optax.chain(SGD, optax.scale(0.5))
AROUND = {
    "chain": optax.chain(ONLY, optax.scale(0.5)),
    "named_chain": optax.named_chain(("freeze", ONLY), ("scale", optax.scale(0.5))),
    "masked": optax.masked(optax.chain(ONLY, optax.scale(0.5)), {"encoder": True, "head": True}),
    "partition": optax.partition(
        {"ours": optax.chain(ONLY, optax.scale(0.5)), "theirs": optax.set_to_zero()},
        {"encoder": "theirs", "head": "ours"},
    ),
    "trainable_only": trainable_only(optax.chain(ONLY, optax.scale(0.5))),
    "conditionally_transform": optax.conditionally_transform(
        optax.chain(ONLY, optax.scale(0.5)), lambda step: True, forward_extra_args=False
    ),
}
FLOATS = {"a": jnp.array([-0.0, 2.0]), "b": jnp.array([1.5], jnp.bfloat16)}


@pytest.mark.parametrize("tx", AROUND.values(), ids=AROUND.keys())
def test_around_it_where_it_makes_sense(tx):
    params = {"encoder": FLOATS, "head": HEAD}
    new, _ = run(tx, params=params)
    head, _ = run_alone(HALF)
    assert all_bits(new) == all_bits({"encoder": FLOATS, "head": head})


def test_inject_hyperparams_around_it():
    def make(wrap):
        return optax.inject_hyperparams(lambda learning_rate: wrap(optax.sgd(learning_rate)))(0.05)

    params = {"encoder": FLOATS, "head": HEAD}
    new, state = run(make(lambda tx: trainable_only(tx, freeze="encoder")), params=params)
    head, state_alone = run_alone(make(lambda tx: tx))
    assert all_bits(new) == all_bits({"encoder": FLOATS, "head": head})
    assert all_bits(state.hyperparams) == all_bits(state_alone.hyperparams)


def look_ahead(tx, gradient, add, params):
    """The fast and the slow params after some steps."""
    pair = optax.LookaheadParams.init_synced(params)

    @jax.jit
    def step(pair, state):
        updates, state = tx.update(gradient(pair.fast), state, pair)
        return add(pair, updates), state

    state = tx.init(pair)
    for _ in range(4):
        pair, state = step(pair, state)
    return pair


def test_lookahead_goes_around_because_its_updates_are_not_like_its_gradients():
    """It adds plain zeros to what is frozen: `frozen` comes last and keeps the sign of -0.0."""
    around = optax.lookahead(trainable_only(SGD, freeze="encoder"), 2, 0.5)
    tx = optax.chain(around, frozen(["fast.encoder", "slow.encoder"]))
    params = {"encoder": FLOATS, "head": HEAD}
    new = look_ahead(tx, jax.grad(loss), apply_updates, params)
    alone = look_ahead(optax.lookahead(SGD, 2, 0.5), jax.grad(head_loss), optax.apply_updates, HEAD)
    assert all_bits(new.fast) == all_bits({"encoder": FLOATS, "head": alone.fast})
    assert all_bits(new.slow) == all_bits({"encoder": FLOATS, "head": alone.slow})


def test_lookahead_on_what_split_gives_keeps_no_copy_of_the_rest():
    trainable, rest = split(PARAMS, freeze="encoder")
    gradient = jax.grad(lambda trainable: loss(merge(trainable, rest)))
    new = look_ahead(optax.lookahead(SGD, 2, 0.5), gradient, optax.apply_updates, trainable)
    alone = look_ahead(optax.lookahead(SGD, 2, 0.5), jax.grad(head_loss), optax.apply_updates, HEAD)
    assert all_bits(merge(new.fast, rest)) == all_bits({**PARAMS, "head": alone.fast})
    assert new.slow.keys() == {"head.b", "head.w"}


def test_schedule_free_evaluates_what_trains():
    tx = optax.contrib.schedule_free(SGD, 0.1)
    params, state = run(trainable_only(tx, freeze="encoder"))
    head, state_alone = run_alone(tx)
    expected = optax.contrib.schedule_free_eval_params(state_alone, head)
    found = optax.contrib.schedule_free_eval_params(
        state, {**params, "encoder": dict.fromkeys(PARAMS["encoder"])}
    )
    assert all_bits(found["head"]) == all_bits(expected)


def test_hyperparams_can_be_set_in_the_state():
    tx = trainable_only(optax.inject_hyperparams(optax.sgd)(0.1), freeze="encoder")
    state = tx.init(PARAMS)
    state.hyperparams["learning_rate"] = jnp.array(2.0)
    gradient = {"encoder": jax.tree.map(lambda _: HOLE, PARAMS["encoder"]), "head": HEAD}
    updates, _ = tx.update(gradient, state, PARAMS)
    assert all_bits(updates["head"]) == all_bits(jax.tree.map(lambda leaf: leaf * -2.0, HEAD))


def test_the_wrong_order_that_the_docstring_shows_holds_more_and_takes_no_holes():
    params = {"encoder": FLOATS, "head": HEAD}
    wrong = optax.MultiSteps(trainable_only(SGD, freeze="encoder"), 2)
    right = trainable_only(optax.MultiSteps(SGD, 2), freeze="encoder")
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tx.init(params))) for tx in (wrong, right)]
    assert sizes[0] - sizes[1] == sum(leaf.size for leaf in jax.tree.leaves(FLOATS))
    state = wrong.init(params)
    with pytest.raises((ValueError, AttributeError), match=r"structure error|attribute 'dtype'"):
        wrong.update({"encoder": {"a": HOLE, "b": HOLE}, "head": HEAD}, state, params)


NESTED = {
    "masked": lambda tx: optax.masked(tx, {"encoder": False, "head": {"b": True, "w": True}}),
    "partition": lambda tx: optax.partition(
        {"ours": tx, "theirs": optax.set_to_zero()}, {"encoder": "theirs", "head": "ours"}
    ),
    "trainable_only": lambda tx: trainable_only(tx, trainable="head"),
    "param_groups": lambda tx: param_groups({"head": tx}, default=None),
}
INNER = {
    "frozen": optax.chain(frozen(["encoder", "head.b"]), SGD),
    "frozen, a place below": optax.chain(frozen(["encoder.a", "head.b"]), SGD),
    "trainable_only": trainable_only(SGD, freeze=["encoder", "head.b"]),
    "param_groups": param_groups({"encoder": None, "head.b": None, "head": SGD}),
}


@pytest.mark.parametrize("around", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
def test_nested_specs_name_what_an_outer_wrapper_left_out(inner, around):
    """Case 10."""
    tx, params = around(inner), {"encoder": FLOATS, "head": HEAD}
    updates, _ = tx.update({"encoder": FLOATS, "head": HEAD}, tx.init(params), params)
    assert bits(updates["head"]["w"]) == bits(-0.1 * HEAD["w"])
    assert not jnp.any(updates["head"]["b"])


@pytest.mark.parametrize("around", NESTED.values(), ids=NESTED.keys())
def test_nested_specs_that_name_nothing_at_all_still_raise(around):
    tx = around(optax.chain(frozen(["encoder", "haed"]), SGD))
    with pytest.raises(SpecError, match="'haed': closest: 'head'"):
        tx.init({"encoder": FLOATS, "head": HEAD})


def test_equinox_with_its_own_gradients_and_updates():
    model = eqx.nn.MLP(2, 1, 4, 2, key=jax.random.key(0))  # functions, ints, a bool are leaves
    model = (model, {"rate": 0.1, "step": 3})
    tx = trainable_only(optax.sgd(0.1, momentum=0.9), freeze="0.layers[0]")
    x = jnp.ones((8, 2))

    @eqx.filter_jit
    def step(model, state):
        value, gradient = eqx.filter_value_and_grad(
            lambda model: jnp.mean((jax.vmap(model[0])(x) - 1.0) ** 2)
        )(model)
        updates, state = tx.update(gradient, state, model)
        return eqx.apply_updates(model, updates), state, value

    new, state, values = model, tx.init(model), []
    for _ in range(4):
        new, state, value = step(new, state)
        values.append(float(value))
    assert values[-1] < values[0]
    assert all_bits(new[0].layers[0]) == all_bits(model[0].layers[0])
    assert all_bits(new[0].layers[1]) != all_bits(model[0].layers[1])
    assert (new[1], new[0].activation) == (model[1], model[0].activation)
    assert all(type(x) is type(y) for x, y in zip(new[1].values(), model[1].values(), strict=True))


@pytest.mark.parametrize("tx", [frozen("0.layers[0]"), trainable_only(SGD, "0.layers[0]")])
def test_equinox_whole_modules_outside_jit(tx):
    """`eqx.filter_grad` gives None at keys and functions, and `eqx.apply_updates` wants it."""
    model = (
        eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)),
        jax.random.key(1),
        3,
        len,
        jnp.arange(2),
    )
    gradient = eqx.filter_grad(lambda model: jnp.sum(model[0](jnp.ones(2))))(model)
    updates, _ = tx.update(gradient, tx.init(model), model)
    new = eqx.apply_updates(model, updates)
    assert new[1:4] == model[1:4]
    assert bits(new[4]) == bits(model[4])
    assert all_bits(new[0].layers[0]) == all_bits(model[0].layers[0])
    assert all_bits(new[0].layers[1]) != all_bits(model[0].layers[1])


class Net(nnx.Module):
    def __init__(self, rngs):
        self.encoder = nnx.Linear(2, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(nnx.relu(self.encoder(x))))


@pytest.mark.parametrize("how", ["spec", "mask"])
def test_nnx_optimizer_for_several_steps(how):
    """Case 17: one mask serves at init and at update."""
    model = Net(nnx.Rngs(0))
    freeze_encoder = {"freeze": "encoder"}
    if how == "mask":
        freeze_encoder = {
            "trainable": nnx.state(trainable_mask(model, freeze="encoder"), nnx.Param)
        }
    tx = trainable_only(optax.sgd(0.1, momentum=0.9), **freeze_encoder)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 2)), jnp.float32)
    before = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model)))

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            return jnp.mean((model(x) - 1.0) ** 2)

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    values = [float(step(model, optimizer)) for _ in range(4)]
    after = nnx.to_pure_dict(nnx.state(model))
    assert values[-1] < values[0]
    assert all_bits(after["encoder"]) == all_bits(before["encoder"])
    assert all_bits(after["head"]) != all_bits(before["head"])
    assert bits(after["norm"]["mean"]) != bits(before["norm"]["mean"]), "statistics go on"
    states = nnx.to_pure_dict(nnx.state(optimizer.opt_state))
    sizes = sum(np.size(leaf) for leaf in jax.tree.leaves(states))
    assert sizes == 4 + 1 + 4 + 4  # the momentum of head and norm


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="head")(nn.relu(nn.Dense(4, name="encoder")(x)))


@pytest.mark.parametrize("container", [dict, freeze], ids=["dict", "FrozenDict"])
def test_linen_train_state(container):
    """Case 16: the same dict mask for both containers."""
    module, x = Linen(), jnp.ones((8, 2))
    params = container(module.init(jax.random.key(0), x)["params"])
    mask = {"encoder": False, "head": {"bias": True, "kernel": True}}
    tx = trainable_only(optax.sgd(0.1), trainable=mask)
    state = TrainState.create(apply_fn=module.apply, params=params, tx=tx)

    @jax.jit
    def step(state):
        def loss(params):
            return jnp.mean((state.apply_fn({"params": params}, x) - 1.0) ** 2)

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    values = []
    for _ in range(3):
        state, value = step(state)
        values.append(float(value))
    assert values[-1] < values[0]
    assert isinstance(state.params, FrozenDict if container is freeze else dict)
    assert all_bits(state.params["encoder"]) == all_bits(params["encoder"])


def test_haiku():
    network = hk.without_apply_rng(
        hk.transform(lambda x: hk.Linear(1, name="head")(jnp.tanh(hk.Linear(4, name="encoder")(x))))
    )
    x = jnp.ones((8, 2))
    params = network.init(jax.random.key(0), x)
    tx = trainable_only(optax.sgd(0.1, momentum=0.9), freeze="encoder")

    @jax.jit
    def step(params, state):
        value, gradient = value_and_grad(
            lambda params: jnp.mean((network.apply(params, x) - 1.0) ** 2), freeze="encoder"
        )(params)
        updates, state = tx.update(gradient, state, params)
        return apply_updates(params, updates), state, value

    new, state, values = params, tx.init(params), []
    for _ in range(3):
        new, state, value = step(new, state)
        values.append(float(value))
    assert values[-1] < values[0]
    assert all_bits(new["encoder"]) == all_bits(params["encoder"])
    assert all_bits(new["head"]) != all_bits(params["head"])
