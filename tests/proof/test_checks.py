"""`assert_unchanged` and `check_frozen`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from optax_freeze import (
    FrozenLeak,
    SpecError,
    StateCost,
    assert_unchanged,
    check_frozen,
    frozen,
    param_groups,
    trainable_only,
)

PARAMS = {"encoder": {"w": jnp.ones((3, 2))}, "head": jnp.zeros(4)}
FIRST = frozen("encoder")


def nan_with_payload(payload):
    return np.array([0x7FC00000 + payload], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (np.ones(3, np.float32), jnp.ones(3)),
        (jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.bfloat16)),
        (nan_with_payload(1), nan_with_payload(1)),
        (jnp.asarray(2.0), jnp.asarray(2.0, dtype=jnp.float32)),
        (0.5, jnp.asarray(0.5)),
        (jax.random.key(3), jax.random.key(3)),
        (jnp.ones((0, 2)), jnp.ones((0, 2))),
        ("name", "name"),
        (int("3000"), int("3000")),
        (jnp.tanh, jnp.tanh),
        (np.array([1, "x"], object), np.array([1, "x"], object)),
        (np.zeros(2, jax.dtypes.float0), np.zeros(2, jax.dtypes.float0)),
        (optax.MaskedNode(), optax.MaskedNode()),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_same_bits_are_unchanged(old, new):
    assert_unchanged({"a": old, "b": 1}, {"a": new, "b": 1}, trainable=False)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (jnp.ones(3), jnp.array([1.0, 1.0, 3.0]), "'a' in 1 of 3 elements, by up to 2"),
        (jnp.zeros(2), jnp.array([0.0, -0.0]), "'a' in 1 of 2 elements, by up to 0"),
        (nan_with_payload(1), nan_with_payload(2), "'a' in 1 of 1 elements, by up to 0"),
        (jnp.ones(1), jnp.full(1, jnp.nan), "by up to inf"),
        (jnp.ones(1), jnp.full(1, jnp.inf), "by up to inf"),
        (jnp.array(1 + 1j), jnp.array(4 + 5j), "by up to 5"),
        (jnp.arange(3), jnp.arange(3) + 1, "in 3 of 3 elements, by up to 1"),
        (jnp.ones(2), jnp.ones(2, jnp.bfloat16), "its dtype from float32 to bfloat16"),
        (jnp.ones(2), jnp.ones((2, 1)), "its shape from (2,) to (2, 1)"),
        (jax.random.key(3), jax.random.key(4), "in 1 of 2 elements"),
        (0.5, jnp.asarray(0.25), "in 1 of 1 elements, by up to 0.25"),
        (jnp.ones(2), "ones", "'a' is another str: f32[2] became 'ones'"),
        ("name", "other", "is another str: 'name' became 'other'"),
        (1, True, "is another bool: 1 became True"),
        ("name", "o" * 99, "became 'ooooooooooooooooooooooooooooooooooooooo..."),
        (jnp.ones(2), optax.MaskedNode(), "was left out"),
        (jnp.ones(2), None, "was left out"),
        (np.array(["x"]), np.array(["y"]), "is another ndarray: <U1[1](numpy) became"),
        (10**12, jnp.arange(2), "is another ArrayImpl: 1000000000000 became i32[2]"),
    ],
    ids=str,
)
def test_a_drift_is_named(old, new, text):
    with pytest.raises(AssertionError, match=re.escape(text)):
        assert_unchanged({"a": old, "b": 1}, {"a": new, "b": 1}, freeze="**")


def test_all_drifts_are_counted_and_only_frozen_ones():
    before = {"a": [jnp.ones(1)] * 9, "b": jnp.ones(1)}
    after = jax.tree.map(lambda leaf: leaf + 1, before)
    with pytest.raises(AssertionError, match=r"^9 of 9 frozen leaves changed: .*; and 3 more$"):
        assert_unchanged(before, after, freeze="a")
    assert_unchanged(before, {**before, "b": after["b"]}, freeze="a")
    assert_unchanged(before, {**before, "b": after["b"]}, trainable="b")


def test_a_donated_leaf_is_named():
    before = {"a": jnp.ones(3) + 1}
    before["a"].delete()
    with pytest.raises(AssertionError, match="'a' cannot be compared: it was donated or deleted"):
        assert_unchanged(before, {"a": jnp.ones(3)}, freeze="a")


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="nothing is frozen, so there is nothing to compare"):
        assert_unchanged(PARAMS, PARAMS)


def test_other_structures_are_refused():
    with pytest.raises(ValueError, match=r"after must have .* it lacks 'b'"):
        assert_unchanged({"a": jnp.ones(1), "b": 1}, {"a": jnp.ones(1)}, freeze="a")


def test_sharded_leaves_are_compared():
    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    before = {"a": jax.device_put(jnp.arange(16.0), sharding)}
    assert_unchanged(before, {"a": jnp.arange(16.0)}, freeze="a")
    with pytest.raises(AssertionError, match="in 1 of 16 elements"):
        assert_unchanged(before, {"a": jnp.arange(16.0).at[9].set(0.0)}, freeze="a")


SAFE = {
    "trainable_only": trainable_only(optax.adamw(0.1), "encoder"),
    "everything inside": trainable_only(
        optax.MultiSteps(optax.chain(optax.clip_by_global_norm(0.1), optax.lion(0.1)), 2), "encoder"
    ),
    "line search inside": trainable_only(optax.lbfgs(), "encoder"),
    "first": optax.chain(FIRST, optax.clip_by_global_norm(0.1), optax.adam(0.1)),
    "last": optax.chain(optax.adamw(0.1), FIRST),
    "groups": param_groups({"encoder": None, "head": optax.adamw(0.1)}),
    "selective": optax.partition(
        {"train": optax.adamw(0.1), "freeze": optax.set_to_zero()},
        {"encoder": "freeze", "head": "train"},
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_is_safe_passes(name):
    check_frozen(SAFE[name], PARAMS, "encoder")


NO_GRADIENT = r"'encoder\.w' would move by up to [\d.e-]+ without any gradient: "
LEAKS = {
    "adamw": (optax.chain(FIRST, optax.adamw(0.1)), NO_GRADIENT + "weight decay"),
    "lion": (optax.chain(FIRST, optax.lion(0.1)), NO_GRADIENT + "weight decay"),
    "noise": (
        optax.chain(FIRST, optax.noisy_sgd(0.1, key=0)),
        NO_GRADIENT + "noise, averaging or mom",
    ),
    "averaging": (
        optax.chain(FIRST, optax.contrib.schedule_free_adamw(0.1, weight_decay=0.1)),
        NO_GRADIENT + "(weight decay|noise, averaging)",
    ),
    "raw gradient": (
        optax.masked(optax.adam(0.1), {"encoder": False, "head": True}),
        r"'encoder\.w' would move by up to [\d.]+ by its gradient: .*\(optax\.masked",
    ),
    "nothing": (optax.sgd(0.1), r"'encoder\.w' would move by up to [\d.]+ by its gradient"),
    "times zero": (
        optax.stateless(lambda u, _: {**u, "encoder": {"w": u["encoder"]["w"] * 0.0}}),
        r"'encoder\.w' would become NaN or infinite with its gradient: it is multiplied by zero",
    ),
    "clip": (
        optax.chain(optax.clip_by_global_norm(0.1), trainable_only(optax.sgd(0.1), "encoder")),
        r"the updates of what trains \('head'\) depend on the gradients of frozen leaves",
    ),
    "if finite": (
        optax.apply_if_finite(trainable_only(optax.sgd(0.1), "encoder"), 3),
        r"the updates of what trains \('head'\) depend",
    ),
    "late": (
        optax.MultiSteps(optax.chain(FIRST, optax.adamw(0.1)), 3),
        NO_GRADIENT + "weight decay",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_named_with_its_cause_and_the_way_out(name):
    tx, text = LEAKS[name]
    with pytest.raises(FrozenLeak, match=text + r".*The way out: trainable_only\(tx, \.\.\.\)"):
        check_frozen(tx, PARAMS, "encoder")


@pytest.mark.parametrize("tx", [LEAKS["late"][0], optax.set_to_zero()], ids=["late", "never"])
def test_a_run_in_which_nothing_moved_proves_nothing(tx):
    with pytest.raises(ValueError, match="nothing moved in 2 steps, so nothing is shown"):
        check_frozen(tx, PARAMS, "encoder", steps=2)


def test_what_only_infinite_gradients_move():
    def zero_if_finite(updates, _):
        finite = jnp.isfinite(updates["encoder"]["w"]).all()
        return {**updates, "encoder": {"w": jnp.where(finite, 0.0, updates["encoder"]["w"])}}

    with pytest.raises(
        FrozenLeak, match=r"'encoder\.w' would become NaN or infinite with its gradient"
    ):
        check_frozen(optax.stateless(zero_if_finite), PARAMS, "encoder")


@pytest.mark.parametrize("how", ["released", "frozen"])
def test_python_floats(how):
    params = {"rate": 0.5, "encoder": jnp.ones(2), "head": jnp.ones(2)}
    if how == "frozen":
        check_frozen(optax.chain(FIRST, optax.adam(0.1)), {**params}, "encoder", trainable="head")
        return
    mask = {"rate": True, "encoder": False, "head": True}
    check_frozen(trainable_only(optax.adam(0.1), trainable=mask), params, trainable=mask)


@pytest.mark.parametrize("name", ["adamw", "first"])
def test_nan_is_made_on_purpose(name):
    with jax.debug_nans(new_val=True):
        if name == "first":
            check_frozen(SAFE[name], PARAMS, "encoder")
        else:
            with pytest.raises(FrozenLeak, match="weight decay"):
                check_frozen(LEAKS[name][0], PARAMS, "encoder")


def test_arrays_that_are_not_for_jit_are_left_alone():
    params = {"name": np.array(["a"]), "object": np.array([None], object), "head": jnp.ones(2)}
    check_frozen(trainable_only(optax.adam(0.1)), params)


def test_a_factory_that_was_not_called():
    with pytest.raises(TypeError, match=r"call it first, as in optax\.adam"):
        check_frozen(optax.adam, PARAMS, "encoder")


def test_momentum_of_an_earlier_mask():
    adam = optax.adam(0.1)
    _, used = adam.update(jax.tree.map(jnp.ones_like, PARAMS), adam.init(PARAMS), PARAMS)
    tx = optax.chain(FIRST, adam)
    check_frozen(tx, PARAMS, "encoder")
    with pytest.raises(FrozenLeak, match="momentum in the state"):
        check_frozen(tx, PARAMS, "encoder", state=(optax.EmptyState(), used))


def test_state_of_frozen_leaves_is_a_cost():
    moments = 2 * 4 * 6
    cost = check_frozen(optax.chain(FIRST, optax.adam(0.1)), PARAMS, "encoder")
    assert cost == StateCost(total_bytes=4 + moments + 2 * 4 * 4, frozen_bytes=moments)
    assert check_frozen(SAFE["trainable_only"], PARAMS, "encoder").frozen_bytes == 0


def test_abstract_params():
    abstract = jax.eval_shape(lambda: PARAMS)
    assert check_frozen(SAFE["first"], abstract, "encoder").frozen_bytes == 48
    with pytest.raises(FrozenLeak, match="weight decay"):
        check_frozen(LEAKS["adamw"][0], abstract, "encoder")


def test_leaves_of_every_kind():
    params = {
        "encoder": {
            "half": jnp.ones(2, jnp.bfloat16),
            "tiny": jnp.ones(2, jnp.float8_e4m3fn),
            "wave": jnp.ones(2, jnp.complex64),
            "index": jnp.arange(3),
            "flag": jnp.array(True),
            "key": jax.random.key(0),
            "rate": 0.5,
            "name": "encoder",
            "act": jnp.tanh,
            "none": None,
            "hole": optax.MaskedNode(),
        },
        "head": jnp.zeros(4),
    }
    check_frozen(SAFE["trainable_only"], params, "encoder")
    with pytest.raises(FrozenLeak, match=r"'encoder\.half' .*'encoder\.tiny' .*'encoder\.wave' "):
        check_frozen(trainable_only(optax.adamw(0.1)), params, "encoder")


def test_sharded_params_and_nothing_is_changed():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    params = {"encoder": jax.device_put(jnp.arange(16.0), sharding), "head": jnp.zeros(4)}
    seen = []

    def spy(updates, params):
        seen.extend(jax.typeof(tree["encoder"]).sharding.spec for tree in (updates, params))
        return updates

    check_frozen(optax.chain(optax.stateless(spy), FIRST), params, "encoder")
    assert set(seen) == {sharding.spec}
    assert params["encoder"].tolist() == list(range(16))


def test_nothing_to_check():
    with pytest.raises(ValueError, match="nothing is frozen"):
        check_frozen(optax.sgd(0.1), PARAMS)


def test_no_steps():
    with pytest.raises(ValueError, match="at least one step, not steps=0"):
        check_frozen(optax.sgd(0.1), PARAMS, "encoder", steps=0)


def test_a_wrong_name():
    with pytest.raises(SpecError, match="'encodr': closest: 'encoder'"):
        check_frozen(optax.sgd(0.1), PARAMS, "encodr")


def test_a_model_in_which_only_functions_are_fixed_has_nothing_to_compare():
    """Or every array of it could have moved and the check would have passed."""
    before, after = ({"w": jnp.full(2, value), "activation": jnp.tanh} for value in (1.0, 2.0))
    with pytest.raises(ValueError, match=r"nothing to compare: pass the freeze= or trainable= of"):
        assert_unchanged(before, after)
    assert_unchanged(before, after, freeze="activation")
