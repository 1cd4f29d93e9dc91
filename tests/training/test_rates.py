"""`scale_by_spec`: which leaf is scaled by what, and how exactly."""

import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hostile import all_bits, bits
from hypothesis import given
from hypothesis import strategies as st

from optax_freeze import (
    apply_updates,
    param_groups,
    scale_by_spec,
    trainable_only,
    value_and_grad,
    where,
)

HOLE = optax.MaskedNode()
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


PARAMS = {
    "encoder": {"w": normal(3, 2), "b": normal(2)},
    "head": {"w": normal(2, 3), "b": normal(3)},
    "table": jnp.arange(3),
}
FLOATS = {name: PARAMS[name] for name in ("encoder", "head")}
ONES = {**jax.tree.map(jnp.ones_like, FLOATS), "table": None}


def factors_of(tx, params=PARAMS, updates=ONES):
    """By how much the first number of each leaf is scaled."""
    scaled, _ = tx.update(updates, tx.init(params), params)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): float(leaf.ravel()[0])
        for path, leaf in jax.tree_util.tree_leaves_with_path(scaled)
    }


def of(encoder_b, encoder_w, head_b, head_w):
    return {
        "encoder.b": encoder_b,
        "encoder.w": encoder_w,
        "head.b": head_b,
        "head.w": head_w,
    }


MEANINGS = {
    "nothing": (({}, {}), of(1, 1, 1, 1)),
    "an entry": (({"encoder": 0.5}, {}), of(0.5, 0.5, 1, 1)),
    "default": (({"encoder": 0.5}, {"default": 3}), of(0.5, 0.5, 3, 3)),
    "the first match wins": (
        ({"encoder.b": 4, "encoder": 0.5, "**": 2.0}, {}),
        of(4, 0.5, 2, 2),
    ),
    "a tuple of specs": (({("encoder.b", "head.w"): 4.0}, {}), of(4, 1, 1, 4)),
    "an exception": (({("encoder", "!encoder.b"): 4.0}, {}), of(1, 4, 1, 1)),
    "where": (({where(lambda path, leaf: leaf.ndim < 2): 4.0}, {}), of(4, 1, 4, 1)),
    "an array without axes": (({"head": jnp.float32(0.5)}, {}), of(1, 1, 0.5, 0.5)),
    "a number of NumPy": (({"head": np.float16(0.5)}, {}), of(1, 1, 0.5, 0.5)),
    "an array of integers": (({"head.b": np.array([2, 3, 4])}, {}), of(1, 1, 2, 1)),
    "a schedule": (({"head": lambda count: count + 2}, {}), of(1, 1, 2, 2)),
    "a schedule by default": (({"head": 0.5}, {"default": lambda _: 3}), of(3, 3, 0.5, 0.5)),
    "what trains, besides what does not": (({"**": 0.5}, {}), of(0.5, 0.5, 0.5, 0.5)),
}


@pytest.mark.parametrize("case", MEANINGS)
def test_which_leaf_is_scaled_by_what(case):
    (factors, default), expected = MEANINGS[case]
    assert factors_of(scale_by_spec(factors, **default)) == expected


@pytest.mark.parametrize("case", MEANINGS)
def test_it_is_the_same_without_params(case):
    (factors, default), expected = MEANINGS[case]
    tx = scale_by_spec(factors, **default)
    scaled, _ = tx.update(ONES, tx.init(PARAMS))
    assert [float(leaf.ravel()[0]) for leaf in jax.tree.leaves(scaled)] == list(expected.values())


@pytest.mark.parametrize("left_out", [None, HOLE], ids=["None", "hole"])
def test_what_was_left_out_may_have_been_what_an_entry_is_for(left_out):
    """Nothing is wrong with these entries in the whole tree."""
    factors = {"encoder.b": 4.0, "encoder": 0.5, "head": 2.0}
    updates = {**ONES, "encoder": {"w": left_out, "b": ONES["encoder"]["b"]}}
    tx = scale_by_spec(factors)
    for params in (PARAMS, None):
        scaled, _ = tx.update(updates, tx.init(PARAMS), params)
        assert scaled["encoder"]["w"] == left_out
        assert float(scaled["encoder"]["b"][0]) == 4.0
    inside = trainable_only(optax.chain(optax.sgd(1.0), tx), "encoder.w")
    scaled, _ = inside.update(updates, inside.init(PARAMS), PARAMS)
    assert float(scaled["encoder"]["b"][0]) == -4.0


def test_a_mapping_that_changes_later_changes_nothing():
    factors = {"encoder": 0.5}
    tx = scale_by_spec(factors)
    factors["encoder"] = 2.0
    assert factors_of(tx)["encoder.w"] == 0.5


# Exactness


OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": functools.partial(optax.sgd, momentum=0.9),
    "adam": optax.adam,
    "adamw": functools.partial(optax.adamw, weight_decay=0.1),
    "lion": functools.partial(optax.lion, weight_decay=0.1),
}
RATE = 3e-3
GRADIENTS = [jax.tree.map(lambda leaf: normal(*leaf.shape), FLOATS) for _ in range(5)]


def train(tx, params):
    state = tx.init(params)
    for gradient in GRADIENTS:
        updates, state = tx.update(gradient, state, params)
        params = apply_updates(params, updates)
    return params


def train_by_hand(make, factors):
    """An optimizer for each part, with a rate of its own, as in PyTorch."""
    done = {}
    for name, factor in factors.items():
        tx = make(RATE * factor)
        params, state = FLOATS[name], tx.init(FLOATS[name])
        for gradient in GRADIENTS:
            updates, state = tx.update(gradient[name], state, params)
            params = optax.apply_updates(params, updates)
        done[name] = params
    return done


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_it_equals_groups_with_rates_of_their_own(make):
    """A power of two, by which no product is rounded: bit for bit."""
    factors = {"encoder": 2.0**-5, "head": 2.0}
    trained = train(optax.chain(make(RATE), scale_by_spec(factors)), FLOATS)
    assert all_bits(trained) == all_bits(train_by_hand(make, factors))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_it_equals_groups_but_for_where_a_product_is_rounded(make):
    factors = {"encoder": 0.75**13, "head": 1.0}
    trained = train(optax.chain(make(RATE), scale_by_spec(factors)), FLOATS)
    expected = train_by_hand(make, factors)
    assert all_bits(trained["head"]) == all_bits(expected["head"])
    for leaf, other in zip(*map(jax.tree.leaves, (trained, expected)), strict=True):
        np.testing.assert_array_max_ulp(np.asarray(leaf), np.asarray(other), maxulp=8)


def test_the_recipe_that_leaves_decay_as_it_is():
    """The decay of a group is multiplied by its factor, so divided by it before, it stays."""
    factor, decay = 2.0**-4, 0.5
    tx = optax.chain(
        optax.scale_by_adam(),
        scale_by_spec({"encoder": factor}),
        optax.add_decayed_weights(decay),
        optax.scale_by_learning_rate(RATE),
    )
    by_hand = functools.partial(optax.adamw, weight_decay=decay / factor)
    expected = train_by_hand(by_hand, {"encoder": factor})["encoder"]
    trained = train(tx, FLOATS)["encoder"]
    assert all_bits(trained) == all_bits(expected)
    behind = train(
        optax.chain(
            optax.adamw(RATE, weight_decay=decay),
            scale_by_spec({"encoder": factor}),
        ),
        FLOATS,
    )
    assert all_bits(behind["encoder"]) != all_bits(trained)


def test_in_front_of_adam_it_has_no_effect():
    """As the docstring says: powers of two cancel, but for the epsilon."""
    adam = optax.adam(RATE, eps=0.0)
    in_front = train(optax.chain(scale_by_spec({"encoder": 2.0**-5}), adam), FLOATS)
    assert all_bits(in_front) == all_bits(train(adam, FLOATS))


numbers = st.floats(2.0**-60, 2.0**60, width=32) | st.floats(-(2.0**60), -(2.0**-60), width=32)
factors = st.floats(2.0**-40, 2.0**40)
updates = st.lists(numbers | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan]), max_size=9)


@given(updates, factors)
def test_a_float32_times_a_factor(values, factor):
    update = np.array(values, np.float32)
    (scaled,), _ = scale_by_spec({"**": factor}).update([jnp.asarray(update)], optax.EmptyState())
    expected = update * np.float32(factor)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, expected)
    assert (np.signbit(scaled) == np.signbit(expected)).all()


LOW = [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2]


@given(st.sampled_from(LOW), st.lists(st.floats(-100, 100), max_size=9), st.floats(0.01, 4.0))
def test_less_than_float32_is_rounded_once(dtype, values, factor):
    update = np.array(values, np.float32).astype(dtype)
    (scaled,), _ = scale_by_spec({"**": factor}).update([jnp.asarray(update)], optax.EmptyState())
    expected = (update.astype(np.float32) * np.float32(factor)).astype(dtype)
    assert bits(scaled)[:2] == bits(expected)[:2]
    # XLA may flush what is subnormal in float32.
    np.testing.assert_allclose(
        np.asarray(scaled, np.float32), expected.astype(np.float32), rtol=0, atol=1e-37
    )


def test_a_factor_is_not_rounded_to_the_dtype_of_the_update():
    """0.75**30 is 0 in float8, and 3/8 of a percent off in bfloat16."""
    update = jnp.array([256.0], jnp.float8_e4m3fn)
    (scaled,), _ = scale_by_spec({"**": 0.75**20}).update([update], optax.EmptyState())
    assert float(scaled[0]) == float(ml_dtypes.float8_e4m3fn(256 * 0.75**20)) > 0.8
    assert float(ml_dtypes.float8_e4m3fn(0.75**20)) * 256 == 1.0


def test_a_complex_update_is_scaled_by_its_parts():
    update = jnp.array([complex(1.0, -0.0), complex(-0.0, np.inf), complex(3.0, -4.0)])
    (scaled,), _ = scale_by_spec({"**": 0.5}).update([update], optax.EmptyState())
    expected = [complex(0.5, -0.0), complex(-0.0, np.inf), complex(1.5, -2.0)]
    assert bits(scaled) == bits(np.array(expected, np.complex64))


def test_a_float64_is_scaled_in_float64():
    import jax.experimental  # where it is before JAX 0.8

    home = jax if hasattr(jax, "enable_x64") else jax.experimental
    with home.enable_x64(True):
        update = jnp.array([1.0 + 2.0**-40], jnp.float64)
        for leaf in (update, update.astype(jnp.complex128)):
            (scaled,), _ = scale_by_spec({"**": 0.3}).update([leaf], optax.EmptyState())
            assert scaled.dtype == leaf.dtype
            assert complex(scaled[0]).real == float(update[0]) * 0.3


@pytest.mark.parametrize(
    "update",
    [0.5, 1 + 2j, np.float64(0.5), np.float32(0.5)],
    ids=lambda update: type(update).__name__,
)
def test_updates_that_are_numbers(update):
    (scaled,), _ = scale_by_spec({"**": 3}).update([update], optax.EmptyState())
    assert scaled == update * 3
    assert jnp.result_type(scaled) == jnp.result_type(update)


def test_what_is_not_scaled_is_the_same_object():
    params = [jnp.ones(2)] * 6
    float0 = np.zeros(2, jax.dtypes.float0)
    updates = [jnp.ones(2), None, HOLE, float0, jnp.arange(2), np.ones(2, np.float32)]
    for factors, default in (({}, 1.0), ({}, np.float32(1)), ({"[0]": 1.0, "[5]": 1}, 0.5)):
        scaled, _ = scale_by_spec(factors, default=default).update(
            updates, optax.EmptyState(), params
        )
        assert all(map(operator.is_, scaled, updates))


# One factor for each row


def test_a_factor_for_each_row_of_a_stack():
    rows = 0.75 ** np.arange(3, -1, -1)
    layers = [{"w": normal(2, 3), "b": normal(2)} for _ in rows]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    apart, _ = scale_by_spec({f"[{i}]": row for i, row in enumerate(rows)}).update(
        layers, optax.EmptyState()
    )
    for factor in (rows, jnp.asarray(rows), lambda count: jnp.asarray(rows)):
        tx = scale_by_spec({"blocks": factor})
        scaled, _ = tx.update({"blocks": stack}, tx.init({"blocks": stack}))
        for i, layer in enumerate(apart):
            row = jax.tree.map(operator.itemgetter(i), scaled["blocks"])
            assert all_bits(row) == all_bits(layer)
    column = scale_by_spec({"blocks.w": rows[:, None]})
    scaled, _ = column.update({"blocks": stack}, optax.EmptyState())
    assert bits(scaled["blocks"]["w"][1]) == bits(apart[1]["w"])


# Schedules


def test_a_schedule_is_called_with_the_number_of_updates_so_far():
    seen = []
    schedule = optax.linear_schedule(1.0, 0.0, 4)

    def spied(count):
        seen.append((int(count), count.dtype))
        return schedule(count)

    tx = scale_by_spec({"encoder": spied})
    state = tx.init(FLOATS)
    assert isinstance(state, optax.ScaleByScheduleState)
    found = []
    for _ in range(6):
        scaled, state = tx.update(ONES, state, PARAMS)
        found.append(float(scaled["encoder"]["w"][0, 0]))
    assert seen == [(i, jnp.int32) for i in range(6)]
    assert found == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert int(state.count) == 6


def test_without_a_schedule_there_is_no_state():
    tx = scale_by_spec({"encoder": 0.5, "head.b": np.ones(3)})
    state = tx.init(PARAMS)
    assert state == optax.EmptyState()
    assert tx.update(ONES, state, PARAMS)[1] == optax.EmptyState()


def test_a_schedule_is_traced_once():
    traces = []

    def schedule(count):
        traces.append(count)
        return 0.5**count

    tx = optax.chain(optax.sgd(1.0), scale_by_spec({"encoder": schedule}))
    update = jax.jit(tx.update)
    state = tx.init(FLOATS)
    for step in range(4):
        scaled, state = update(ONES, state, PARAMS)
        assert float(scaled["encoder"]["w"][0, 0]) == -(0.5**step)
    assert len(traces) == 1


# Together with others


def loss(params):
    x = jnp.ones((4, 3)) @ params["encoder"]["w"] + params["encoder"]["b"][None]
    return jnp.sum((x @ params["head"]["w"] + params["head"]["b"][None]) ** 2)


def descend(tx, params=PARAMS, steps=3, **choice):
    """What a jitted step with the gradients of what trains comes to, the state donated."""
    state = tx.init(params)

    @functools.partial(jax.jit, donate_argnums=1)
    def step(params, state):
        _, gradient = value_and_grad(loss, **choice)(params)
        updates, state = tx.update(gradient, state, params)
        return apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


def halved(schedule=None):
    """Half of the rate for biases, by a number or by a schedule."""
    return scale_by_spec({"**.b": schedule or 0.5})


FROZEN = {"freeze": "encoder.w"}
WRAPPED = {
    "trainable_only": trainable_only(optax.chain(optax.sgd(0.01), halved()), **FROZEN),
    "around trainable_only": optax.chain(trainable_only(optax.sgd(0.01), **FROZEN), halved()),
    "param_groups": param_groups({
        "encoder.w": None,
        "encoder": optax.chain(optax.sgd(0.01), scale_by_spec({"encoder": 0.5})),
        "head": optax.chain(optax.sgd(0.01), scale_by_spec({"head.b": 0.5})),
    }),
    "MultiSteps": trainable_only(
        optax.MultiSteps(optax.chain(optax.sgd(0.01), halved()), 1), **FROZEN
    ),
    "inject_hyperparams": trainable_only(
        optax.inject_hyperparams(
            lambda rate: optax.chain(optax.sgd(rate), scale_by_spec({"**.w": 1.0}, default=0.5))
        )(0.01),
        **FROZEN,
    ),
    "an injected default": trainable_only(
        optax.chain(
            optax.sgd(0.01),
            optax.inject_hyperparams(scale_by_spec)({"**.w": 1.0}, default=0.5),
        ),
        **FROZEN,
    ),
    "a schedule": trainable_only(optax.chain(optax.sgd(0.01), halved(lambda _: 0.5)), **FROZEN),
    "flatten": trainable_only(
        optax.chain(optax.flatten(optax.sgd(0.01)), halved()),
        **FROZEN,
    ),
}


@pytest.mark.parametrize("tx", WRAPPED.values(), ids=WRAPPED)
def test_it_works_inside_and_around_others(tx):
    by_hand = param_groups({"encoder.w": None, "**.b": optax.sgd(0.005), "**.w": optax.sgd(0.01)})
    trained = descend(tx, **FROZEN)
    assert all_bits(trained["encoder"]["w"]) == all_bits(PARAMS["encoder"]["w"])
    for leaf, other in zip(
        jax.tree.leaves(trained), jax.tree.leaves(descend(by_hand, **FROZEN)), strict=True
    ):
        np.testing.assert_allclose(leaf, other, rtol=1e-6)


def test_factors_may_be_traced():
    """An ensemble in which every member has a rate of its own, and the derivative by a rate."""

    def moved(rate):
        tx = scale_by_spec({"encoder": rate, "head": 1.0})
        updates, _ = tx.update(ONES, tx.init(FLOATS), PARAMS)
        return updates["encoder"]["w"]

    rates = jnp.array([0.5, 0.0, 2.0])
    assert jax.jit(jax.vmap(moved))(rates)[:, 0, 0].tolist() == [0.5, 0.0, 2.0]
    assert float(jax.grad(lambda rate: jnp.sum(moved(rate)))(0.5)) == 6.0


def test_scan_over_steps_of_an_ensemble():
    tx = optax.chain(
        optax.adam(0.01), scale_by_spec({"encoder": optax.linear_schedule(0.0, 1.0, 4)})
    )

    def train(params):
        def step(carry, _):
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = tx.update(gradient, state, params)
            return (apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, tx.init(params)), length=4)

    ensemble = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), FLOATS)
    (alone, _), values = jax.jit(train)(FLOATS)
    (together, (_, state)), _ = jax.jit(jax.vmap(train), donate_argnums=0)(ensemble)
    assert float(values[-1]) < float(values[0])
    assert state.count.tolist() == [4, 4]
    jax.tree.map(lambda leaf, one: np.testing.assert_allclose(leaf[1], one, 1e-6), together, alone)


def test_the_state_can_be_mapped_and_is_that_of_the_optimizer():
    adam = optax.adam(0.01)
    for factor, size in ((0.5, 0), (lambda count: 0.5, 1)):
        tx = optax.chain(adam, scale_by_spec({"encoder": factor}))
        state = tx.init(FLOATS)
        assert len(jax.tree.leaves(state)) == len(jax.tree.leaves(adam.init(FLOATS))) + size
        mapped = optax.tree_map_params(tx, lambda leaf: leaf + 1, state)
        assert float(mapped[0][0].mu["head"]["b"][0]) == 1.0
        assert jax.tree.leaves(mapped[1]) == jax.tree.leaves(state[1])


def test_extra_arguments_are_welcome():
    tx = scale_by_spec({"encoder": 0.5})
    tx.update(ONES, tx.init(PARAMS), PARAMS, value=1.0)


class Model(eqx.Module):
    blocks: tuple[eqx.nn.Linear, ...]
    act: object
    rate: float


def test_a_module_and_its_arrays_are_views_of_one_model():
    keys = jax.random.split(jax.random.key(0), 3)
    model = Model(tuple(eqx.nn.Linear(2, 2, key=key) for key in keys), jax.nn.relu, 0.5)
    arrays = eqx.filter(model, eqx.is_array)
    holes = eqx.filter(model, eqx.is_array, replace=HOLE)
    updates = jax.tree.map(jnp.ones_like, arrays)
    tx = scale_by_spec({"blocks[0]": 0.5, where(lambda path, leaf: path.endswith("bias")): 2.0})
    for seen in (model, arrays):
        for params in (model, arrays, holes, None):
            scaled, _ = tx.update(updates, tx.init(seen), params)
            assert float(scaled.blocks[0].bias[0]) == 0.5
            assert float(scaled.blocks[2].bias[0]) == 2.0
            assert scaled.blocks[2].weight is updates.blocks[2].weight


def test_on_eight_devices_an_update_stays_where_it_is():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    stack = jax.device_put(normal(8, 3), sharding)
    rows = np.arange(1.0, 9.0)
    for factor in (0.5, rows, jnp.asarray(rows), lambda count: 0.5):
        tx = scale_by_spec({"**": factor})
        state = tx.init([stack])
        for update in (tx.update, jax.jit(tx.update)):
            (scaled,), _ = update([stack], state, [stack])
            assert scaled.sharding == sharding
            rate = 0.5 if callable(factor) else np.asarray(factor, np.float32)
            expected = np.asarray(stack) * np.reshape(rate, (-1, 1))
            assert bits(scaled) == bits(expected.astype(np.float32))


def test_it_costs_one_product_for_each_number_that_it_scales():
    params = {"encoder": jnp.ones((64, 64)), "head": jnp.ones((8, 8))}
    adamw = optax.adamw(0.01)

    def flops(tx):
        lowered = jax.jit(tx.update).lower(params, tx.init(params), params)
        return lowered.cost_analysis()["flops"]

    assert flops(optax.chain(adamw, scale_by_spec({"head": 0.5}))) == flops(adamw) + 8 * 8
    assert flops(optax.chain(adamw, scale_by_spec({"head": 1.0}))) == flops(adamw)
