"""Pieces on eight devices, in modules, and in files."""

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from hostile import all_bits, bits
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from optax_freeze import (
    apply_updates,
    assert_unchanged,
    cut_rows,
    join_rows,
    leaf_paths,
    merge,
    split,
    trainable_only,
    value_and_grad,
)

X = jnp.arange(96.0).reshape(24, 4)
MESH = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


def spread(*axes):
    return NamedSharding(MESH, PartitionSpec(*axes))


def shardings(cut):
    return [leaf.sharding for leaf in jax.tree.leaves(cut)]


def same(mine, its, ndim=2):
    return all(a.is_equivalent_to(b, ndim) for a, b in zip(mine, its, strict=True))


@pytest.mark.parametrize(
    ("axes", "rows", "expected"),
    [
        (("data", "model"), 16, [("data", "model"), ("data", "model")]),
        (("data", "model"), 21, [(None, "model"), (None, "model")]),
        (("data",), [8, 21], [("data",), (), ()]),
        ((None, "model"), 5, [(None, "model"), (None, "model")]),
        (("data", "model"), np.array([1, 3, 8, 2]), [("data", "model"), ("data", "model")]),
        (("data", "model"), np.array([1, 3, 8]), [(None, "model"), (None, "model")]),
    ],
)
def test_pieces_are_spread_like_the_array_where_the_rows_come_out_even(axes, rows, expected):
    whole = jax.device_put(X, spread(*axes))
    cut = cut_rows({"w": whole}, {"w": rows})
    assert same(shardings(cut), [spread(*some) for some in expected])
    abstract = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=whole.sharding)
    assert same(shardings(cut_rows({"w": abstract}, {"w": rows})), shardings(cut))
    joined = join_rows(cut)["w"]
    assert bits(joined) == bits(X)
    assert same([joined.sharding], [spread(*(expected[0]))])


def test_what_lies_on_one_device_is_not_bound_to_it():
    cut = cut_rows({"w": X}, {"w": 8})
    assert [type(one) for one in shardings(cut)] == [SingleDeviceSharding] * 2
    # An array that is bound to a device would not be taken together with one on all devices.
    assert jax.jit(jnp.add)(cut["w"].pieces[0], jax.device_put(X[:8], spread("data"))) is not None


@pytest.mark.parametrize("rows", [16, np.array([1, 3, 8, 2])], ids=["boundary", "pick"])
def test_training_on_eight_devices(rows):
    whole = {"w": X / 96, "head": jnp.ones(4)}
    placed = {"w": jax.device_put(X / 96, spread("data")), "head": whole["head"]}
    tx = trainable_only(optax.adamw(0.1), "w[0]")

    def loss(params):
        return jnp.sum((join_rows(params)["w"] @ params["head"] - 1.0) ** 2)

    @jax.jit
    def step(params, state):
        _, grads = value_and_grad(loss, "w[0]")(params)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    results = []
    for params in (whole, placed):
        params = old = cut_rows(params, {"w": rows})
        state = tx.init(params)
        for _ in range(3):
            params, state = step(params, state)
        assert_unchanged(old, params, "w[0]")
        results.append(params)
    assert same(shardings(results[1]["w"]), [spread("data")] * 2)
    np.testing.assert_allclose(join_rows(results[1])["w"], join_rows(results[0])["w"], rtol=1e-5)


def test_equinox_modules_keep_their_static_fields():
    mlp = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
    cut = cut_rows(mlp, {"**.weight": -1})
    assert leaf_paths(cut)[:3] == ["layers.0.weight.0", "layers.0.weight.1", "layers.0.bias"]
    whole = join_rows(cut)
    assert jax.tree.structure(whole) == jax.tree.structure(mlp)
    assert bits(whole(jnp.ones(3))) == bits(mlp(jnp.ones(3)))
    tx = trainable_only(optax.adamw(0.1), trainable="layers[1].weight[1]")

    @eqx.filter_jit
    def step(model, state):
        _, grads = value_and_grad(
            lambda model: jnp.sum(join_rows(model)(jnp.ones(3)) ** 2),
            trainable="layers[1].weight[1]",
        )(model)
        updates, state = tx.update(grads, state, model)
        return apply_updates(model, updates), state

    new, _ = step(cut, tx.init(cut))
    assert_unchanged(cut, new, trainable="layers[1].weight[1]")
    assert np.all(new.layers[1].weight.pieces[1] != cut.layers[1].weight.pieces[1])


def test_nnx_variables_hold_pieces():
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    cut = cut_rows(model, {"kernel": 2})
    assert "kernel.value.0" in leaf_paths(cut)
    assert bits(join_rows(cut)(jnp.ones((1, 3)))) == bits(model(jnp.ones((1, 3))))
    optimizer = nnx.Optimizer(cut, trainable_only(optax.adamw(0.1), "kernel[0]"), wrt=nnx.Param)
    old = join_rows(cut).kernel[...]
    grads = nnx.grad(lambda cut: jnp.sum(join_rows(cut)(jnp.ones((1, 3))) ** 2))(cut)
    optimizer.update(cut, grads)
    new = join_rows(cut).kernel[...]
    assert bits(new[:2]) == bits(old[:2])
    assert np.all(new[2:] != old[2:])
    state = cut_rows(nnx.state(model, nnx.Param), {"kernel": 2})
    assert all_bits(join_rows(state)) == all_bits(nnx.state(model, nnx.Param))


CUTS = {"boundary": 9, "pick": np.array([7, 2])}
each_cut = pytest.mark.parametrize("rows", CUTS.values(), ids=CUTS)


def through_orbax(tree, like, folder):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "tree", tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "tree", like)


@each_cut
def test_orbax_with_a_template(rows, tmp_path):
    params = cut_rows({"w": X, "b": X}, {"w": rows})
    saved = {"params": params, "state": trainable_only(optax.adam(0.1), "w[0]").init(params)}
    restored = through_orbax(saved, saved, tmp_path)
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    assert all_bits(restored) == all_bits(saved)
    abstract = cut_rows(jax.eval_shape(lambda: {"w": X, "b": X}), {"w": rows})
    again = through_orbax(params, abstract, tmp_path / "abstract")
    assert all_bits(join_rows(again)) == all_bits({"w": X, "b": X})


@each_cut
def test_orbax_without_one_needs_the_structure_of_fresh_params(rows, tmp_path):
    params = cut_rows({"w": X, "b": X}, {"w": rows})
    restored = through_orbax(params, None, tmp_path)
    assert type(restored["w"]) in {list, dict}
    fresh = cut_rows({"w": jnp.zeros_like(X), "b": X}, {"w": rows})
    again = jax.tree.unflatten(jax.tree.structure(fresh), jax.tree.leaves(restored))
    assert all_bits(join_rows(again)) == all_bits({"w": X, "b": X})


@each_cut
def test_what_split_gives_goes_through_flax_and_safetensors(rows, tmp_path):
    safetensors = pytest.importorskip("safetensors.flax")
    trainable, rest = split(cut_rows({"w": X, "b": X}, {"w": rows}), "w[0]")
    moved = jax.tree.map(lambda leaf: leaf + 1.0, trainable)
    ours = flax.serialization.from_bytes(trainable, flax.serialization.to_bytes(moved))
    safetensors.save_file(moved, tmp_path / "part.safetensors")
    theirs = safetensors.load_file(tmp_path / "part.safetensors")
    assert sorted(theirs) == ["b", "w.1"]
    for back in (ours, theirs):
        assert all_bits(join_rows(merge(back, rest))) == all_bits(join_rows(merge(moved, rest)))


def test_flax_serialization_of_a_node_fails_and_does_not_lose_it():
    params = cut_rows({"w": X}, {"w": 9})
    with pytest.raises(TypeError, match="Pieces"):
        flax.serialization.to_bytes(params)
