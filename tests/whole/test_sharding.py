"""Params on eight devices, and maps over the optimizer's state (case 22)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hostile import bits
from jax.sharding import NamedSharding, PartitionSpec

from optax_freeze import (
    apply_updates,
    frozen,
    merge,
    param_groups,
    split,
    trainable_only,
    value_and_grad,
)

MESH = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
ROWS, COLUMNS = (NamedSharding(MESH, PartitionSpec(*s)) for s in (("data",), (None, "data")))
WHOLE = NamedSharding(MESH, PartitionSpec())
SHARDINGS = {"encoder": {"w": ROWS, "b": ROWS}, "head": {"w": COLUMNS, "b": WHOLE}}
HOLE = optax.MaskedNode()


def make_params():
    params = {
        "encoder": {"w": jnp.full((16, 16), -0.0, jnp.float32), "b": jnp.ones(16)},
        "head": {"w": jnp.ones((16, 16)), "b": jnp.ones(16)},
    }
    return jax.tree.map(jax.device_put, params, SHARDINGS)


def is_none(node):
    return node is None


def loss(params):
    x = params["encoder"]["w"] + params["encoder"]["b"][None]
    return jnp.sum((x @ params["head"]["w"] + params["head"]["b"][None]) ** 2)


def shardings(tree):
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def test_there_are_eight_devices():
    assert jax.device_count() == 8


MOMENTUM = optax.sgd(0.1, momentum=0.9)
TRANSFORMATIONS = {
    "trainable_only": trainable_only(MOMENTUM, freeze="encoder"),
    "param_groups": param_groups({"encoder": None, "head": MOMENTUM}),
    "frozen": optax.chain(frozen("encoder"), MOMENTUM),
}
each = pytest.mark.parametrize("tx", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys())


def is_trace(node):
    return isinstance(node, optax.TraceState)


def head_trace(state):
    """The momentum of what trains."""
    (trace,) = filter(is_trace, jax.tree.leaves(state, is_leaf=is_trace))
    return trace.trace["head"]


def state_shardings(tx, state):
    """What `jit` wants to know of a state: a sharding for every leaf, None where it has None."""

    def choose(leaf, sharding):
        return None if leaf is None else sharding

    return optax.tree_map_params(
        tx, choose, state, SHARDINGS, transform_non_params=lambda _: WHOLE, is_leaf=is_none
    )


@each
def test_steps_under_jit_with_shardings_and_donation_keep_them(tx):
    params = make_params()
    placed = SHARDINGS, state_shardings(tx, jax.eval_shape(tx.init, params))
    state = jax.jit(tx.init, out_shardings=placed[1])(params)

    def step(params, state):
        gradient = value_and_grad(loss, freeze="encoder")(params)[1]
        updates, state = tx.update(gradient, state, params)
        return apply_updates(params, updates), state

    run = jax.jit(step, donate_argnums=(0, 1), in_shardings=placed, out_shardings=placed)
    before, old = bits(params["encoder"]["w"]), params
    for _ in range(3):
        params, state = run(params, state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert shardings(params) == SHARDINGS
    assert shardings(head_trace(state)) == SHARDINGS["head"]
    assert bits(params["encoder"]["w"]) == before
    assert float(jnp.max(jnp.abs(params["head"]["w"] - 1.0))) > 0.0


@each
def test_jit_without_a_word_about_shardings_keeps_those_of_frozen_leaves(tx):
    params = make_params()

    @jax.jit
    def step(params, state):
        gradient = value_and_grad(loss, freeze="encoder")(params)[1]
        return apply_updates(params, tx.update(gradient, state, params)[0])

    new = step(params, tx.init(params))
    for name, sharding in SHARDINGS["encoder"].items():
        assert new["encoder"][name].sharding.is_equivalent_to(sharding, new["encoder"][name].ndim)


def test_outside_jit_zeros_have_the_sharding_of_the_param():
    params = make_params()
    tx = TRANSFORMATIONS["trainable_only"]
    updates, _ = tx.update(params, tx.init(params), params)
    assert shardings(updates["encoder"]) == SHARDINGS["encoder"]


def test_the_recipe_of_the_docstring_places_a_state():
    tx, params = TRANSFORMATIONS["trainable_only"], make_params()
    state = tx.init(jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params))
    placed = optax.tree_map_params(
        tx,
        lambda leaf, sharding: jax.device_put(leaf, sharding),
        state,
        SHARDINGS,
        is_leaf=lambda node: node is None,
    )
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    assert shardings(head_trace(placed)) == SHARDINGS["head"]


def test_maps_over_a_state_without_a_companion_need_no_recipe():
    tx, params = TRANSFORMATIONS["trainable_only"], make_params()
    narrow = optax.tree_map_params(tx, lambda leaf: leaf.astype(jnp.bfloat16), tx.init(params))
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow)} == {jnp.dtype(jnp.bfloat16)}


def test_split_keeps_shardings_and_objects():
    params = make_params()
    trainable, rest = split(params, freeze="encoder")
    assert {path: leaf.sharding for path, leaf in trainable.items()} == {
        "head.b": WHOLE,
        "head.w": COLUMNS,
    }
    new = jax.jit(lambda t, r: jax.tree.map(jnp.negative, merge(t, r)))(trainable, rest)
    assert new["encoder"]["w"].sharding.is_equivalent_to(ROWS, 2)
    assert rest["encoder"]["w"] is params["encoder"]["w"]


def test_no_all_reduce_for_the_gradient_of_a_frozen_leaf():
    """Data parallel: what costs is the sum of gradients over devices."""
    params = {"encoder": jnp.ones((16, 16)), "head": jnp.ones((16, 16))}
    x = jax.device_put(jnp.ones((16, 16)), ROWS)

    def loss(params, x):
        return jnp.sum((jnp.tanh(x @ params["encoder"]) @ params["head"]) ** 2)

    def collectives(fun, params):
        placed = jax.device_put(params, WHOLE)
        run = jax.jit(fun, in_shardings=(WHOLE, ROWS), out_shardings=WHOLE)
        text = run.lower(placed, x).compile().as_text()
        return [line for line in text.splitlines() if "all-reduce(" in line and "16,16" in line]

    assert len(collectives(jax.grad(loss), params)) >= 1
    by_hand = collectives(
        jax.grad(lambda head, x: loss({"encoder": jnp.ones((16, 16)), "head": head}, x)),
        params["head"],
    )
    ours = collectives(value_and_grad(loss, freeze="encoder"), params)
    shapes = [line.count("f32[16,16]") for line in ours]
    assert shapes == [line.count("f32[16,16]") for line in by_hand]
    everything = [line.count("f32[16,16]") for line in collectives(jax.grad(loss), params)]
    assert sum(everything) > sum(shapes) > 0


def test_a_donated_frozen_buffer_is_aliased_and_not_copied():
    params = {"encoder": jnp.ones((64, 64)), "head": jnp.ones((64, 64))}
    tx = trainable_only(MOMENTUM, freeze="encoder")

    def step(params, state):
        _, grads = value_and_grad(
            lambda p: jnp.sum((p["encoder"] @ p["head"]) ** 2), freeze="encoder"
        )(params)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    donating = jax.jit(step, donate_argnums=(0, 1))
    buffer = params["encoder"].unsafe_buffer_pointer()
    memory = donating.lower(params, tx.init(params)).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 3 * 64 * 64 * 4  # encoder, head and its momentum
    new, _ = donating(params, tx.init(params))
    assert new["encoder"].unsafe_buffer_pointer() == buffer


def test_shard_map_sums_only_the_gradients_of_what_trains():
    params = {"encoder": jnp.ones((16, 16)), "head": jnp.ones((16, 16))}
    x = jnp.arange(256.0).reshape(16, 16) / 256
    tx = trainable_only(MOMENTUM, freeze="encoder")
    shapes = []

    def loss(params, x):
        return jnp.sum((jnp.tanh(x @ params["encoder"]) @ params["head"]) ** 2)

    def sum_over_devices(leaf):
        shapes.append(leaf.shape)
        return jax.lax.psum(leaf, "data")

    def step(params, state, x):
        local = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "data", to="varying"), params)
        _, grads = value_and_grad(loss, freeze="encoder")(local, x)
        updates, state = tx.update(jax.tree.map(sum_over_devices, grads), state, params)
        return apply_updates(params, updates), state

    sharded = jax.shard_map(
        step,
        mesh=MESH,
        in_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec("data")),
        out_specs=PartitionSpec(),
    )
    new, _ = jax.jit(sharded)(params, tx.init(params), x)
    assert shapes == [(16, 16)]
    alone = optax.apply_updates(
        params["head"],
        MOMENTUM.update(
            jax.grad(lambda head: loss({**params, "head": head}, x))(params["head"]),
            MOMENTUM.init(params["head"]),
        )[0],
    )
    np.testing.assert_allclose(new["head"], alone, rtol=1e-5)  # another order of the sum
    assert bits(new["encoder"]) == bits(params["encoder"])
