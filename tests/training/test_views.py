"""`init`, the gradients and the params may be different views of one model; None stands inside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from hostile import all_bits, bits

from optax_freeze import (
    SpecError,
    apply_updates,
    frozen,
    param_groups,
    trainable_only,
    value_and_grad,
    where,
)

ADAMW = optax.adamw(0.1)


class Net(eqx.Module):
    mlp: eqx.nn.MLP
    rate: float = 0.5
    name: str = "net"


NET = Net(eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0)))
FREEZE = "mlp.layers[0]"
VIEWS = {"whole": NET, "filtered": eqx.filter(NET, eqx.is_array)}
TRANSFORMATIONS = {
    "trainable_only": trainable_only(ADAMW, FREEZE),
    "param_groups": param_groups(
        {FREEZE: None, "mlp.layers[1].bias": optax.sgd(0.1)}, default=ADAMW
    ),
    "dense": optax.chain(frozen(FREEZE), optax.sgd(0.1)),
    "nested": trainable_only(
        optax.chain(optax.clip(1.0), param_groups({"mlp.layers[1]": ADAMW, FREEZE: None})), FREEZE
    ),
}


def net_loss(net):
    return jnp.sum(net.mlp(jnp.ones(2)) ** 2)


GRADIENTS = {
    "dense": eqx.filter_grad(net_loss)(NET),
    "left out": value_and_grad(net_loss, FREEZE)(NET)[1],
}


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("at_update", VIEWS)
@pytest.mark.parametrize("at_init", VIEWS)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_every_mix_of_views_gives_the_same_step(name, at_init, at_update, gradient):
    """Case 30."""
    tx = TRANSFORMATIONS[name]
    updates, _ = tx.update(GRADIENTS[gradient], tx.init(VIEWS[at_init]), VIEWS[at_update])
    new, reference = apply_updates(NET, updates), reference_step(tx)
    assert all_bits(new) == all_bits(reference)
    assert new.mlp.layers[0].weight is NET.mlp.layers[0].weight or "dense" in (gradient, name)
    assert all_bits(eqx.apply_updates(NET, updates)) == all_bits(reference)


def reference_step(tx):
    updates, _ = tx.update(GRADIENTS["dense"], tx.init(NET), NET)
    return apply_updates(NET, updates)


def test_updates_of_the_whole_view_are_applied_to_the_filtered_one():
    updates = jax.tree.map(lambda leaf: leaf * 0.5 if eqx.is_array(leaf) else leaf, NET)
    filtered = VIEWS["filtered"]
    assert all_bits(apply_updates(filtered, updates)) == all_bits(
        jax.tree.map(lambda leaf: leaf + leaf * 0.5, filtered)
    )


def test_a_view_that_lacks_an_array_of_the_other_is_refused():
    """What is no array is not there; an array is."""
    params = {"a": None, "b": jnp.ones(2)}
    for fun in (
        lambda updates: apply_updates(params, updates),
        lambda updates: trainable_only(ADAMW).update(updates, None, params),
    ):
        with pytest.raises(
            ValueError,
            match="updates must have the structure of params: it has 'a', where params have None",
        ):
            fun({"a": jnp.ones(2), "b": jnp.ones(2)})


def test_holes_and_none_are_the_same_to_the_other_view():
    hole, tx = optax.MaskedNode(), trainable_only(optax.sgd(1.0))
    params = {"a": hole, "b": jnp.ones(2), "c": None}
    gradient = {"a": None, "b": jnp.ones(2), "c": hole}
    updates, _ = tx.update(gradient, tx.init(params), params)
    assert (updates["a"], updates["c"], updates["b"].tolist()) == (hole, None, [-1.0, -1.0])


def test_nnx_state_of_the_parameters():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    params, tx = nnx.state(model, nnx.Param), trainable_only(ADAMW, "bias")
    gradient = jax.tree.map(jnp.ones_like, params)
    updates, _ = tx.update(gradient, tx.init(params), params)
    new = apply_updates(params, updates)
    assert all_bits(new["bias"]) == all_bits(params["bias"])
    with pytest.raises(ValueError, match="updates must have the structure of params: "):
        tx.update(gradient, tx.init(model), model)


# What stands inside for the rest is a hole to those who look for it by a rule.
PARAMS = {"a": jnp.ones(1), "b": jnp.ones((2, 2)), "none": None}
MATRICES = where(lambda path, leaf: leaf.ndim == 2)
INSIDE = {
    "frozen": optax.chain(frozen(MATRICES), optax.sgd(1.0)),
    "param_groups": param_groups({MATRICES: optax.sgd(3.0)}, default=optax.sgd(1.0)),
    "param_groups twice": param_groups(
        {"a": optax.sgd(1.0), "**": trainable_only(param_groups({"b": ADAMW, "a": None}), "b")},
    ),
}


@pytest.mark.parametrize("tx", INSIDE.values(), ids=INSIDE.keys())
def test_a_rule_for_what_was_left_out_selects_nothing(tx):
    outer = trainable_only(tx, "b")
    updates, _ = outer.update(PARAMS, outer.init(PARAMS), PARAMS)
    assert updates["a"].tolist() == [-1.0]
    assert bits(updates["b"]) == bits(-jnp.zeros((2, 2)))


@pytest.mark.parametrize("tx", [INSIDE["frozen"], INSIDE["param_groups"]], ids=["frozen", "groups"])
def test_the_models_own_none_excuses_no_rule(tx):
    with pytest.raises(SpecError, match="it was False for every leaf"):
        tx.init({"a": jnp.ones(1), "none": None})


def test_a_value_fn_sees_a_whole_tree_with_nothing_left_out():
    """So that a misspelt rule inside of it is an error, as everywhere."""
    seen = []

    def value_fn(params):
        with pytest.raises(SpecError, match="it was False for every leaf"):
            frozen(where(lambda path, leaf: leaf.ndim == 7)).init(params)
        seen.append(params)
        return jnp.sum(params["a"]) + jnp.sum(params["b"])

    tx = trainable_only(optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(3)), "b")
    gradient = {"a": jnp.ones(1), "b": None, "none": None}
    tx.update(gradient, tx.init(PARAMS), PARAMS, value=5.0, grad=gradient, value_fn=value_fn)
    assert seen


# Updates of None in the hands of others: the README's table.
TREE = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
LEFT_OUT = {"encoder": None, "head": jnp.ones(2)}
DENSE = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
SGD = trainable_only(optax.sgd(1.0), "encoder")
AROUND = {
    "apply_if_finite": optax.apply_if_finite(SGD, 2),
    "clip": optax.chain(optax.clip_by_global_norm(10.0), SGD),
    "frozen first": optax.chain(frozen("encoder"), optax.sgd(1.0)),
    "inject_hyperparams": optax.inject_hyperparams(
        lambda rate: trainable_only(optax.sgd(rate), "encoder")
    )(1.0),
}


@pytest.mark.parametrize("tx", AROUND.values(), ids=AROUND.keys())
@pytest.mark.parametrize("gradient", [LEFT_OUT, DENSE], ids=["left out", "dense"])
def test_what_takes_left_out_gradients(tx, gradient):
    new = apply_updates(TREE, tx.update(gradient, tx.init(TREE), TREE)[0])
    assert (new["encoder"].tolist(), new["head"].tolist()) == ([1.0, 1.0], [0.0, 0.0])


ONLY_DENSE = {
    "MultiSteps around": optax.MultiSteps(SGD, 1).gradient_transformation(),
    "frozen last": optax.chain(optax.adam(0.5), frozen("encoder")),
}


@pytest.mark.parametrize("tx", ONLY_DENSE.values(), ids=ONLY_DENSE.keys())
def test_what_takes_dense_gradients(tx):
    new = apply_updates(TREE, tx.update(DENSE, tx.init(TREE), TREE)[0])
    assert new["encoder"].tolist() == [1.0, 1.0]
    assert (new["head"] < 0.6).all()


def test_around_it_multi_steps_wants_dense_gradients():
    tx = ONLY_DENSE["MultiSteps around"]
    with pytest.raises((ValueError, AttributeError), match=r"structure|attribute 'dtype'"):
        tx.update(LEFT_OUT, tx.init(TREE), TREE)


def test_a_train_state_of_flax_takes_dense_gradients():
    state = TrainState.create(apply_fn=None, params=TREE, tx=SGD)
    assert state.apply_gradients(grads=DENSE).params["head"].tolist() == [0.0, 0.0]
    with pytest.raises(TypeError, match="unsupported operand"):
        state.apply_gradients(grads=LEFT_OUT)


def test_optax_applies_dense_updates_only():
    updates, _ = SGD.update(LEFT_OUT, SGD.init(TREE), TREE)
    with pytest.raises(TypeError, match="unsupported operand"):
        optax.apply_updates(TREE, updates)
    updates, _ = SGD.update(DENSE, SGD.init(TREE), TREE)
    assert optax.apply_updates(TREE, updates)["head"].tolist() == [0.0, 0.0]
