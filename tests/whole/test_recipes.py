"""The recipes of the notebook 05: what it claims, where it is easy to get wrong."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import safetensors.flax
from flax import nnx
from hostile import all_bits, bits, frozen_leaves

import optax_freeze
from optax_freeze import (
    SpecError,
    apply_updates,
    assert_unchanged,
    cut_rows,
    default_trainable,
    freeze_mask,
    join_rows,
    layer_decay,
    leaf_paths,
    merge,
    scale_by_spec,
    split,
    trainable_mask,
    trainable_only,
    value_and_grad,
    where,
)

ADAMW = optax.adamw(0.02, weight_decay=0.1)
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


X, PULL = normal(16, 4), normal(16, 1)


def make_params():
    rng = np.random.default_rng(1)
    shapes = {"encoder": {"w": (4, 8), "b": (8,)}, "head": {"w": (8, 1), "b": (1,)}}
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def loss(params):
    encoder, head = params["encoder"], params["head"]
    hidden = jnp.tanh(X @ encoder["w"] + encoder["b"][None, :])
    return jnp.mean((hidden @ head["w"] + head["b"][None, :] - PULL) ** 2)


def whole_step(loss, tx, **choice):
    tx = trainable_only(tx, **choice)

    def step(params, state, *batch):
        value, grads = value_and_grad(loss, **choice)(params, *batch)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state, value

    return tx.init, step


def train_whole(loss, params, tx, steps=10, **choice):
    init, step = whole_step(loss, tx, **choice)
    state, step, values = init(params), jax.jit(step), []
    for _ in range(steps):
        params, state, value = step(params, state)
        values.append(float(value))
    assert values[-1] < values[0]
    return params, state


def train_split(loss, trainable, rest, tx, steps=10):
    state, values = tx.init(trainable), []

    @jax.jit
    def step(trainable, state, rest):
        value, grads = jax.value_and_grad(lambda some: loss(merge(some, rest)))(trainable)
        updates, state = tx.update(grads, state, trainable)
        return optax.apply_updates(trainable, updates), state, value

    for _ in range(steps):
        trainable, state, value = step(trainable, state, rest)
        values.append(float(value))
    assert values[-1] < values[0]
    return trainable, state


# Statistics of a frozen BatchNorm


class NnxEncoder(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.norm(self.linear(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.encoder = NnxEncoder(rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(self.encoder(x)))


@pytest.mark.parametrize("is_told", [True, False])
def test_statistics_of_nnx(is_told):
    model = NnxNet(nnx.Rngs(0))
    if is_told:
        model.encoder.eval()
    optimizer = nnx.Optimizer(model, trainable_only(ADAMW, "encoder"), wrt=nnx.Param)
    before = jax.tree.map(jnp.copy, nnx.state(model))

    @nnx.jit
    def step(model, optimizer):
        value, grads = nnx.value_and_grad(lambda model: jnp.mean((model(X) - PULL) ** 2))(model)
        optimizer.update(model, grads)
        return value

    values = [float(step(model, optimizer)) for _ in range(10)]
    after = nnx.state(model)
    assert values[-1] < values[0]
    with pytest.raises(AssertionError, match=r"'norm\.mean"):  # what trains keeps its statistics
        assert_unchanged(before, after, "norm.mean")
    if is_told:
        assert_unchanged(before, after, "encoder")
    else:
        with pytest.raises(AssertionError, match=r"2 of 6 .*'encoder\.norm\.mean.*norm\.var"):
            assert_unchanged(before, after, "encoder")


class LinenEncoder(nn.Module):
    trains: bool

    @nn.compact
    def __call__(self, x):
        with jax.numpy_rank_promotion("allow"):  # Flax adds a bias to a batch
            x = nn.Dense(8, name="linear")(x)
        return nn.relu(nn.BatchNorm(use_running_average=not self.trains, name="norm")(x))


class LinenNet(nn.Module):
    encoder_trains: bool

    @nn.compact
    def __call__(self, x):
        x = LinenEncoder(self.encoder_trains, name="encoder")(x)
        x = nn.BatchNorm(use_running_average=False, name="norm")(x)
        with jax.numpy_rank_promotion("allow"):
            return nn.Dense(1, name="head")(x)


def train_linen(model, variables):
    tx = trainable_only(ADAMW, "encoder")

    def loss(params, statistics):
        y, new = model.apply({"params": params, **statistics}, X, mutable=["batch_stats"])
        return jnp.mean((y - PULL) ** 2), new

    @jax.jit
    def step(params, state, statistics):
        gradient = value_and_grad(loss, "encoder", has_aux=True)
        (value, statistics), grads = gradient(params, statistics)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state, statistics, value

    params, statistics, values = variables["params"], {"batch_stats": variables["batch_stats"]}, []
    state = tx.init(params)
    for _ in range(10):
        params, state, statistics, value = step(params, state, statistics)
        values.append(float(value))
    assert values[-1] < values[0]
    return {"params": params, **statistics}


def test_statistics_of_linen():
    variables = LinenNet(encoder_trains=True).init(jax.random.key(0), X)
    after = train_linen(LinenNet(encoder_trains=False), variables)
    assert_unchanged(variables, after, "*.encoder")
    with pytest.raises(AssertionError, match=r"'batch_stats\.norm\.mean'"):
        assert_unchanged(variables, after, "batch_stats.norm")


def test_statistics_of_linen_untold():
    model = LinenNet(encoder_trains=True)
    variables = model.init(jax.random.key(0), X)
    with pytest.raises(AssertionError, match=r"2 of 6 .*'batch_stats\.encoder\.norm\.mean'"):
        assert_unchanged(variables, train_linen(model, variables), "*.encoder")


def test_linen_refuses_to_write_what_is_not_mutable():
    encoder = LinenEncoder(trains=True)
    variables = encoder.init(jax.random.key(0), X)
    with pytest.raises(Exception, match='"batch_stats" is immutable'):
        encoder.apply(variables, X)
    LinenEncoder(trains=False).apply(variables, X)


class EqxEncoder(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.linear = eqx.nn.Linear(4, 8, key=key)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="ema")

    def __call__(self, x, statistics):
        x, statistics = self.norm(self.linear(x), statistics)
        return jax.nn.relu(x), statistics


class EqxNet(eqx.Module):
    encoder: EqxEncoder
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        self.encoder, self.head = EqxEncoder(key), eqx.nn.Linear(8, 1, key=key)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="ema")

    def __call__(self, x, statistics):
        x, statistics = self.norm(*self.encoder(x, statistics))
        return self.head(x), statistics


def eqx_loss(model, statistics):
    batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    y, statistics = batched(X, statistics)
    return jnp.mean((y - PULL) ** 2), statistics


@pytest.mark.parametrize("is_told", [True, False])
def test_statistics_of_equinox(is_told):
    model, statistics = eqx.nn.make_with_state(EqxNet)(jax.random.key(0))
    if is_told:
        model = eqx.tree_at(lambda m: m.encoder, model, replace_fn=eqx.nn.inference_mode)
    tx = trainable_only(ADAMW, "encoder")

    @eqx.filter_jit
    def step(model, state, statistics):
        gradient = value_and_grad(eqx_loss, "encoder", has_aux=True)
        (value, statistics), grads = gradient(model, statistics)
        updates, state = tx.update(grads, state, model)
        return apply_updates(model, updates), state, statistics, value

    new, state, moved, values = model, tx.init(model), statistics, []
    for _ in range(10):
        new, state, moved, value = step(new, state, moved)
        values.append(float(value))
    assert values[-1] < values[0]
    assert_unchanged(model, new, "encoder")

    def of(norm, statistics):
        return all_bits(statistics.get(norm.ema_state_index))

    assert of(model.norm, moved) != of(model.norm, statistics)
    assert (of(model.encoder.norm, moved) == of(model.encoder.norm, statistics)) == is_told


# Averages


def test_an_average_of_the_whole_tree_drifts():
    params = make_params()
    average = params
    for _ in range(50):
        average = jax.jit(optax.incremental_update)(params, average, 0.1)
    with pytest.raises(AssertionError, match=r"'encoder\.w'"):
        assert_unchanged(params, average, "encoder")


@pytest.mark.parametrize("kind", ["incremental_update", "ema"])
def test_an_average_of_what_trains(kind):
    params = make_params()
    trainable, rest = split(params, "encoder")
    ema = optax.ema(0.9, debias=False)
    start = ema.init(trainable)._replace(ema=trainable)

    @jax.jit
    def step(trainable, state, average, rest):
        grads = jax.grad(lambda some: loss(merge(some, rest)))(trainable)
        updates, state = ADAMW.update(grads, state, trainable)
        trainable = optax.apply_updates(trainable, updates)
        if kind == "ema":
            average = ema.update(trainable, average)[1]
        else:
            average = optax.incremental_update(trainable, average, 0.1)
        return trainable, state, average

    average = start if kind == "ema" else trainable
    expected, now, state = np.asarray(trainable["head.w"]), trainable, ADAMW.init(trainable)
    for _ in range(10):
        now, state, average = step(now, state, average, rest)
        expected = 0.9 * expected + 0.1 * np.asarray(now["head.w"])
    values = average.ema if kind == "ema" else average
    evaluated = merge(values, rest)
    assert_unchanged(params, evaluated, "encoder")
    assert loss(evaluated) < loss(params)
    np.testing.assert_allclose(values["head.w"], expected, rtol=1e-5)


def test_an_average_over_an_unfreezing():
    params = make_params()
    trainable, _ = split(params, "encoder")
    average = jax.tree.map(jnp.zeros_like, trainable)  # as if it had come a long way
    released, rest = split(params, "encoder.w")
    average = {**released, **average}
    assert average.keys() == released.keys()
    assert bits(average["encoder.b"]) == bits(params["encoder"]["b"])
    assert not np.any(average["head.w"])
    average = jax.jit(optax.incremental_update)(released, average, 0.1)
    assert_unchanged(params, merge(average, rest), "encoder.w")


# A frozen base in fewer bits


class Int8(NamedTuple):
    values: jax.Array
    scale: jax.Array


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if default_trainable(leaf) else leaf, tree)


def quantise(leaf):
    if not default_trainable(leaf):
        return leaf
    scale = jnp.max(jnp.abs(leaf), axis=0, keepdims=True) / 127
    return Int8(jnp.round(leaf / scale).astype(jnp.int8), scale)


def dequantise(tree):
    return jax.tree.map(
        lambda node: node.values * node.scale if isinstance(node, Int8) else node,
        tree,
        is_leaf=lambda node: isinstance(node, Int8),
    )


CASTS = {
    "bfloat16": (partial(cast, dtype=jnp.bfloat16), partial(cast, dtype=jnp.float32), 2, 0),
    "float8": (partial(cast, dtype=jnp.float8_e4m3fn), partial(cast, dtype=jnp.float32), 1, 0),
    "int8": (partial(jax.tree.map, quantise), dequantise, 1, 4),  # a scale for each column
}


@pytest.mark.parametrize("name", CASTS)
def test_a_base_in_fewer_bits(name):
    small_of, in_float32, per_weight, per_column = CASTS[name]
    base = {"w": normal(4, 8), "order": jnp.array([3, 1, 0, 2]), "name": "base"}
    params = {"base": base, "adapter": {"w": jnp.zeros((8, 1))}}
    trainable, rest = split(params, "base")
    small = small_of(rest)
    leaves = jax.tree.leaves(small)
    assert sum(leaf.nbytes for leaf in leaves) == 32 * per_weight + 8 * per_column + 16
    assert small["base"]["order"].dtype == jnp.int32

    def adapted(params):
        assert params["base"]["name"] == "base"
        base = in_float32(params["base"])
        assert base["w"].dtype == jnp.float32
        hidden = jnp.tanh(X[:, base["order"]] @ base["w"])
        return jnp.mean((hidden @ params["adapter"]["w"] - PULL) ** 2)

    trained, state = train_split(adapted, trainable, small, ADAMW)
    assert [leaf.dtype for leaf in trained.values()] == [jnp.float32]
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == 2 * 8 * 4 + 4
    assert_unchanged(params, merge(trained, rest), "base")


def test_float8_has_no_room_for_large_weights():
    assert np.isnan(jnp.array([1e3], jnp.float32).astype(jnp.float8_e4m3fn))


# Weight decay


DECAYING = {
    "names": lambda tree: freeze_mask(tree, "**.b"),
    "shapes": lambda tree: freeze_mask(tree, where(lambda path, leaf: leaf.ndim < 2)),
}


@pytest.mark.parametrize("decays", DECAYING)
def test_a_decay_mask_of_our_specs(decays):
    params = make_params()
    tx = optax.adamw(0.1, weight_decay=0.5, mask=DECAYING[decays])
    only, zeros = trainable_only(tx, "encoder"), jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(only.update)(zeros, only.init(params), params)
    trainable, rest = split(params, "encoder")
    flat, _ = jax.jit(tx.update)(split(zeros, "encoder")[0], tx.init(trainable), trainable)
    for got in (updates, merge(flat, jax.tree.map(jnp.zeros_like, rest))):
        np.testing.assert_allclose(got["head"]["w"], -0.05 * params["head"]["w"], rtol=1e-6)
        assert not np.any(got["head"]["b"])
        assert not np.any(got["encoder"]["w"])


def test_a_nested_decay_mask_and_a_flat_dictionary():
    params = make_params()
    tx = optax.adamw(0.1, mask=freeze_mask(params, "**.b"))
    trainable_only(tx, "encoder").init(params)
    trainable, _ = split(params, "encoder")
    with pytest.raises(ValueError, match="structure"):
        tx.init(trainable)


# Schedule-free


def eval_params(state, params):
    seen = jax.tree.map(lambda p, z: None if z is None else p, params, state.z)
    averaged = optax.contrib.schedule_free_eval_params(state, seen)
    return jax.tree.map(lambda p, a: p if a is None else a, params, averaged)


def test_schedule_free():
    params = {**make_params(), "steps": 3}
    tx = optax.contrib.schedule_free_adamw(0.05)
    choice = {"freeze": ["encoder", "steps"]}
    fitted, state = train_whole(loss, params, tx, **choice)
    trainable, rest = split(params, **choice)
    flat, flat_state = train_split(loss, trainable, rest, tx)
    evaluated = jax.jit(eval_params)(state, fitted)
    same = merge(optax.contrib.schedule_free_eval_params(flat_state, flat), rest)
    for got in (evaluated, same):
        assert_unchanged(params["encoder"], got["encoder"], "**")
        np.testing.assert_allclose(got["head"]["w"], same["head"]["w"], rtol=1e-4)
    assert np.all(evaluated["head"]["w"] != fitted["head"]["w"])
    assert loss(evaluated) < loss(params)


# In turn


def test_players_in_turn():
    """Actor and critic, generator and discriminator: each moves its own part and sees both."""

    def judged(params):
        return jnp.mean(jnp.tanh(X @ params["actor"]) @ params["critic"])

    params = {"actor": normal(4, 3), "critic": normal(3)}
    choices = {"actor": {"trainable": "actor"}, "critic": {"freeze": "actor"}}
    losses = {"actor": lambda params: -judged(params), "critic": lambda p: (judged(p) - 1) ** 2}
    players = {who: whole_step(losses[who], ADAMW, **choices[who]) for who in choices}
    states = {who: players[who][0](params) for who in players}
    for who, state in states.items():
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == 2 * params[who].nbytes + 4

    @jax.jit
    def turn(params, states):
        seen, new_states = [params], {}
        for who in ("critic", "actor"):
            params, new_states[who], _ = players[who][1](params, states[who])
            seen.append(params)
        return seen, new_states

    for _ in range(5):
        (before, between, after), states = turn(params, states)
        assert losses["critic"](between) < losses["critic"](before)
        assert losses["actor"](after) < losses["actor"](between)
        assert_unchanged(before, between, "actor")
        assert_unchanged(between, after, "critic")
        params = after


# New tokens


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_new_tokens(head):
    old, new, width = 12, np.array([12, 13, 14]), 8
    tokens = jnp.array([12, 3, 13, 5, 14, 12, 0, 7, 13])
    params = {"embed": normal(15, width), "mix": normal(width, width)}
    cut = cut_rows(params, {"embed": new})
    if head == "untied":
        params["head"] = normal(width, 15)
        cut = cut_rows({**cut, "head": params["head"]}, {"head": new}, axis=1)

    def next_token(params):
        params = join_rows(params)
        last = params.get("head", params["embed"].T)
        scores = jnp.tanh(params["embed"][tokens[:-1]] @ params["mix"]) @ last
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, tokens[1:]))

    choice = {"trainable": ["embed[1]", *(["head[1]"] if head == "untied" else [])]}
    trainable, rest = split(cut, **choice)
    trained, state = train_split(next_token, trainable, rest, ADAMW)
    whole, _ = train_whole(next_token, cut, ADAMW, **choice)
    pieces = len(choice["trainable"])
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == 2 * pieces * 3 * width * 4 + 4
    for tuned in map(join_rows, (merge(trained, rest), whole)):
        assert bits(tuned["embed"][:old]) == bits(params["embed"][:old])
        assert np.all(tuned["embed"][old:] != params["embed"][old:])
        assert bits(tuned["mix"]) == bits(params["mix"])
        if head == "untied":
            assert bits(tuned["head"][:, :old]) == bits(params["head"][:, :old])
            assert np.all(tuned["head"][:, old:] != params["head"][:, old:])


# Pruned weights


def keep_pruned():
    def update(updates, state, params=None, *, kept, **_):
        return jax.tree.map(lambda u, k: jnp.where(k, u, -0.0), updates, kept), state

    return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)


@pytest.mark.parametrize("place", ["last", "first"])
@pytest.mark.parametrize("how", ["trainable_only", "split"])
def test_pruned_weights(how, place):
    params, rest = make_params(), None
    of_params, wrap = loss, partial(trainable_only, freeze="encoder.b")
    if how == "split":
        params, rest = split(params, "encoder.b")
        of_params, wrap = lambda some: loss(merge(some, rest)), lambda tx: tx
    warm, parts = wrap(ADAMW), [ADAMW, keep_pruned()]
    momentum = warm.init(params)
    _, momentum = jax.jit(warm.update)(jax.grad(of_params)(params), momentum, params)
    kept = jax.tree.map(lambda leaf: jnp.abs(leaf) > 0.5, params)
    # Zeros of both signs, as they come from a product with a mask.
    pruned = jax.tree.map(lambda leaf, k: leaf * k.astype(leaf.dtype), params, kept)
    states = [momentum, optax.EmptyState()]
    order = slice(None) if place == "last" else slice(None, None, -1)
    tx, state = wrap(optax.chain(*parts[order])), tuple(states[order])

    @jax.jit
    def step(params, state, kept):
        updates, state = tx.update(jax.grad(of_params)(params), state, params, kept=kept)
        return apply_updates(params, updates), state

    now = pruned
    for _ in range(5):
        now, state = step(now, state, kept)
    leaves = zip(*(jax.tree.leaves(jax.device_get(t)) for t in (pruned, now, kept)), strict=True)
    for name, (old, new, k) in zip(leaf_paths(pruned), leaves, strict=True):
        if name == "encoder.b":
            assert bits(new) == bits(old), "frozen"
        elif name.endswith(".w"):
            assert not k.all()
            assert (bits(new[~k]) == bits(old[~k])) == (place == "last")
            assert np.all(new[k] != old[k])


# Files


def test_a_part_in_a_file(tmp_path):
    path, params = tmp_path / "part.safetensors", make_params()
    trainable, rest = split(params, "encoder")
    trained, _ = train_split(loss, trainable, rest, ADAMW)
    safetensors.flax.save_file(dict(trained), path)  # it writes into the dictionary
    part = safetensors.flax.load_file(path)
    tuned = merge(trained, rest)
    assert all_bits(merge(part, rest)) == all_bits(tuned)
    other = jax.tree.map(lambda leaf: leaf + 1, params)
    over_other = merge(part, split(other, "encoder")[1])
    assert all_bits(over_other) == all_bits({**other, "head": tuned["head"]})
    with pytest.raises(ValueError, match=r"trainable=list\(part\)"):
        merge(part, split(params, "encoder.w")[1])
    fitting = split(params, trainable=list(part))[1]
    assert all_bits(merge(part, fitting)) == all_bits(tuned)

    command = [sys.executable, "-m", "optax_freeze", "show", path.name, "--freeze", "head.b"]
    run = partial(subprocess.run, capture_output=True, text=True, cwd=tmp_path, check=False)
    root = str(Path(optax_freeze.__file__).parents[1])
    done = run(command, env={**os.environ, "PYTHONPATH": root})
    assert (done.returncode, done.stderr) == (0, "")
    assert "trainable params: 8 | all params: 9" in done.stdout


def test_keys_are_data(tmp_path):
    leaves = frozen_leaves()
    part = {"file": leaves["bfloat16"], "allow_pickle": leaves["float32"]}
    with pytest.raises(TypeError, match="file"):
        np.savez(tmp_path / "part.npz", **part)
    safetensors.flax.save_file(dict(part), tmp_path / "part.safetensors")
    assert all_bits(safetensors.flax.load_file(tmp_path / "part.safetensors")) == all_bits(part)


# Rules


def block(*stack):
    shapes = {"w": (*stack, 4, 4), "b": (*stack, 4), "norm": (*stack, 4)}
    return {name: jnp.ones(shape) for name, shape in shapes.items()}


LISTED = {"blocks": [block(), block()], "norm": jnp.ones(4)}
STACKED = {"blocks": block(2), "norm": jnp.ones(4)}
BY_NDIM = where(lambda path, leaf: leaf.ndim < 2)
BY_PATH = where(lambda path, leaf: path.split(".")[-1] in {"b", "norm"})


@pytest.mark.parametrize(
    ("tree", "freeze", "trains"),
    [
        (LISTED, BY_NDIM, ["blocks.0.w", "blocks.1.w"]),
        (STACKED, BY_NDIM, ["blocks.b", "blocks.norm", "blocks.w"]),
        (LISTED, BY_PATH, ["blocks.0.w", "blocks.1.w"]),
        (STACKED, BY_PATH, ["blocks.w"]),
        (STACKED, ["**.b", "**.norm"], ["blocks.w"]),
    ],
)
def test_a_rule_by_ndim_and_a_stack(tree, freeze, trains):
    mask = jax.tree.leaves(trainable_mask(tree, freeze=freeze))
    named = zip(leaf_paths(tree), mask, strict=True)
    assert [name for name, flag in named if flag] == trains


TOWER = {"embed": jnp.ones((6, 4)), "encoder": [block(), block()], "head": jnp.ones(4)}


def test_all_but_the_norms():
    trainable, _ = split(TOWER, ["encoder", "!encoder.**.norm"])
    assert list(trainable) == ["embed", "encoder.0.norm", "encoder.1.norm", "head"]
    with pytest.raises(SpecError, match=r"'!encoder\.\*\*\.norm'"):
        split(TOWER, "encoder", trainable="encoder.**.norm")


@pytest.mark.parametrize("freeze", [[], "embed", "encoder[0]"])
def test_rates_for_layers_beside_freezing(freeze):
    factors = layer_decay(TOWER, ["embed", "encoder[:]", "head"], 0.5)
    assert factors == {"embed": 0.125, "encoder.0": 0.25, "encoder.1": 0.5, "head": 1.0}
    adamw, ones = optax.adamw(0.1), jax.tree.map(jnp.ones_like, TOWER)
    tx = trainable_only(optax.chain(adamw, scale_by_spec(factors)), freeze)
    plain = trainable_only(adamw, freeze)
    state, plain_state = tx.init(TOWER), plain.init(TOWER)
    assert jax.tree.map(jnp.shape, state[0]) == jax.tree.map(jnp.shape, plain_state)
    updates, _ = jax.jit(tx.update)(ones, state, TOWER)
    unscaled, _ = jax.jit(plain.update)(ones, plain_state, TOWER)
    mask = jax.tree.leaves(trainable_mask(TOWER, freeze=freeze))
    leaves = zip(leaf_paths(TOWER), *map(jax.tree.leaves, (updates, unscaled)), mask, strict=True)
    for path, scaled, whole, trains in leaves:
        factor = next(factor for name, factor in factors.items() if path.startswith(name))
        assert np.any(whole) == trains
        np.testing.assert_array_equal(scaled, factor * whole)
