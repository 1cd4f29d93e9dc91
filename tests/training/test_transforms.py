"""`frozen` and `trainable_only`: what they do to updates, whatever the optimizer."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hostile import all_bits, bits, frozen_leaves, poisoned

from optax_freeze import (
    MaskError,
    SpecError,
    apply_updates,
    frozen,
    trainable_only,
    tree_mask,
    value_and_grad,
    where,
)

HOLE = optax.MaskedNode()
ENCODER = jnp.array([3.0, -4.0])
HEAD = jnp.array([[1.0, 2.0], [0.5, -1.0]])
PARAMS = {"encoder": ENCODER, "head": HEAD}
GRADIENT = {"encoder": jnp.array([jnp.nan, jnp.inf]), "head": HEAD}
TRANSFORMATIONS = {
    "frozen": frozen,
    "trainable_only": lambda *args, **kwargs: trainable_only(optax.sgd(1.0), *args, **kwargs),
}
each = pytest.mark.parametrize("make", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys())


def never(*_, **__):
    raise AssertionError("the optimizer was asked")


def once(tx, gradient=GRADIENT, params=PARAMS, **extra):
    """The updates of the first step."""
    return tx.update(gradient, tx.init(params), params, **extra)[0]


@each
def test_the_gradient_of_a_frozen_leaf_is_never_read(make):
    updates = once(make("encoder"))
    assert bits(updates["encoder"]) == bits(jnp.full(2, -0.0))


@each
def test_masks_are_one_polarity_true_trains(make):
    by_mask = once(make(trainable={"encoder": False, "head": True}))
    assert all_bits(by_mask) == all_bits(once(make("encoder")))
    assert all_bits(by_mask) == all_bits(once(make(trainable="head")))


def test_masked_moves_the_rest_and_trainable_only_does_not():
    """Cases 1: what `optax.masked` does with the rest is to hand its gradient through."""
    gradient = {"encoder": jnp.array([0.5, 0.25]), "head": HEAD}
    mask = {"encoder": False, "head": True}
    moved = optax.apply_updates(PARAMS, once(optax.masked(optax.sgd(1.0), mask), gradient))
    assert bits(moved["encoder"]) == bits(ENCODER + gradient["encoder"])
    still = optax.apply_updates(PARAMS, once(trainable_only(optax.sgd(1.0), "encoder"), gradient))
    assert bits(still["encoder"]) == bits(ENCODER)


MOVERS = {
    "adamw": optax.adamw(0.1),
    "add_decayed_weights": optax.add_decayed_weights(0.1),
    "add_noise": optax.add_noise(0.1, 0.5, jax.random.key(0)),
    "fromage": optax.fromage(0.1),
    "lion": optax.lion(0.1, weight_decay=0.1),
    "nadamw": optax.nadamw(0.1),
}


@pytest.mark.parametrize("tx", MOVERS.values(), ids=MOVERS.keys())
def test_frozen_in_front_of_decay_or_noise_is_not_enough(tx):
    """Case 2: the order rule of the docstring of `frozen`."""
    with jax.numpy_dtype_promotion("standard"):  # adamw raises a float to an integer power
        in_front = once(optax.chain(frozen("encoder"), tx))
        last = once(optax.chain(tx, frozen("encoder")))
        inside = once(trainable_only(tx, "encoder"))
    assert bool(jnp.any(in_front["encoder"] != 0))
    assert not jnp.any(last["encoder"])
    assert not jnp.any(inside["encoder"])


def test_frozen_first_keeps_frozen_gradients_out_of_clipping_and_last_is_a_guarantee():
    clip = optax.clip_by_global_norm(1.0)
    alone = clip.update({"head": HEAD}, clip.init(HEAD))[0]
    first = once(optax.chain(frozen("encoder"), clip))
    assert bits(first["head"]) == bits(alone["head"])
    last = once(optax.chain(clip, frozen("encoder")))
    assert bits(last["encoder"]) == bits(jnp.full(2, -0.0))
    assert bool(jnp.isnan(last["head"]).all()), "a frozen NaN has poisoned the norm before"


@pytest.mark.parametrize("gradient", [GRADIENT, {"encoder": HOLE, "head": HEAD}])
def test_a_norm_counts_only_what_trains(gradient):
    """Case 7."""
    clip = optax.clip_by_global_norm(1.0)
    alone = clip.update({"head": HEAD}, clip.init(HEAD))[0]
    assert bits(once(trainable_only(clip, "encoder"), gradient)["head"]) == bits(alone["head"])


def test_frozen_fills_places_with_zeros_so_that_a_chain_takes_our_gradients():
    tx = optax.chain(frozen("encoder"), optax.trace(0.9))
    _, gradient = value_and_grad(lambda p: jnp.sum(p["head"] ** 2), freeze="encoder")(PARAMS)
    assert gradient["encoder"] is None
    updates = once(tx, gradient)
    assert bits(updates["encoder"]) == bits(jnp.zeros(2))
    assert bits(updates["head"]) == bits(2 * HEAD)


@pytest.mark.parametrize("place", [HOLE, None, np.zeros(2, jax.dtypes.float0)], ids=repr)
def test_a_place_at_a_frozen_array_is_filled_by_frozen_and_mirrored_by_trainable_only(place):
    gradient = {"encoder": place, "head": HEAD}
    filled = once(frozen("encoder"), gradient)
    assert bits(filled["encoder"]) == bits(jnp.full(2, -0.0))
    mirrored = once(trainable_only(optax.sgd(1.0), "encoder"), gradient)
    # None is what eqx.apply_updates wants where it has given None.
    assert mirrored["encoder"] is None


ZEROS = {
    name: (leaf, jnp.full(leaf.shape, -0.0, leaf.dtype))
    for name, leaf in frozen_leaves().items()
    if jnp.issubdtype(leaf.dtype, jnp.floating)
} | {
    "complex64": (jnp.ones(2, jnp.complex64), jnp.zeros(2, jnp.complex64)),
    "int32": (jnp.arange(2), jnp.zeros(2, jnp.int32)),
    "bool": (jnp.ones(2, bool), jnp.zeros(2, bool)),
    "numpy": (np.ones(2, np.float32), jnp.full(2, -0.0)),
    "NumPy scalar": (np.float32(2.0), np.float32(-0.0)),
    "Python float": (0.5, -0.0),
    "Python int": (3, 0),
    "Python bool": (True, False),
    "Python complex": (1j, 0j),
    "key": (jax.random.key(0), None),
    "text": ("name", None),
    "NumPy text": (np.array(["name"]), None),
    "a dtype without zero": (jnp.ones(2, jnp.float8_e8m0fnu), None),
}


@each
@pytest.mark.parametrize("name", ZEROS)
def test_dense_zeros_are_of_the_dtype_of_the_param(name, make):
    leaf, expected = ZEROS[name]
    params = {"frozen": leaf, "head": HEAD}
    gradient = {"frozen": jnp.full(np.shape(leaf), jnp.nan), "head": HEAD}
    found = once(make("frozen"), gradient, params)["frozen"]
    assert type(found) is type(expected)
    assert bits(found) == bits(expected)


@pytest.mark.parametrize("leaf", ["name", len, jax.random.key(0), np.array(["name"]), 0.5, 3])
@pytest.mark.parametrize("place", [None, HOLE])
def test_a_place_where_there_is_no_zero_or_no_array_stays_in_frozen(place, leaf):
    params = {"frozen": leaf, "head": HEAD}
    updates = once(frozen(), {"frozen": place, "head": HEAD}, params)
    assert updates["frozen"] == place
    assert updates["head"] is HEAD


@pytest.mark.parametrize("place", [None, HOLE, tree_mask(3)], ids=repr)
@each
def test_places_of_the_params_stay(place, make):
    params = {"none": place, "encoder": ENCODER, "head": HEAD}
    updates = once(make("encoder"), {**GRADIENT, "none": place}, params)
    assert updates["none"] == place


def test_dense_zeros_leave_the_bits_alone_inside_jit():
    params = {"frozen": frozen_leaves(), "head": HEAD}

    def loss(params):
        return jnp.sum(params["head"] ** 2) + poisoned(params["frozen"])

    @jax.jit
    def step(params):
        gradient = jax.grad(loss, allow_int=True)(params)
        return apply_updates(params, once(frozen("frozen"), gradient, params))

    new = step(params)
    assert all_bits(new["frozen"]) == all_bits(params["frozen"])
    assert bool(jnp.any(new["head"] != HEAD))


def test_a_frozen_python_float_stays_one_outside_jit():
    """Case 15."""
    params = {"rate": 0.1, "encoder": ENCODER, "head": HEAD}
    tx = trainable_only(optax.sgd(1.0), "encoder")
    _, gradient = value_and_grad(lambda p: p["rate"] * jnp.sum(p["head"]), "encoder")(params)
    new = apply_updates(params, once(tx, gradient, params))
    assert new["rate"] is params["rate"]
    assert new["encoder"] is ENCODER
    assert bits(apply_updates(params, once(tx, {"rate": 9.0, **GRADIENT}, params))["rate"]) == (
        float,
        0.1,
    )


def test_integers_are_taken_with_float0_and_with_holes():
    """Case 29."""
    params = {"table": jnp.arange(2), "head": HEAD}

    def loss(params):
        return jnp.sum(params["head"][params["table"]] ** 2)

    tx = trainable_only(optax.adam(0.1))
    with jax.numpy_dtype_promotion("standard"):  # adam raises a float to an integer power
        dense = apply_updates(params, once(tx, jax.grad(loss, allow_int=True)(params), params))
        holes = apply_updates(params, once(tx, value_and_grad(loss)(params)[1], params))
    assert all_bits(dense) == all_bits(holes)
    assert dense["table"] is params["table"]


def test_state_is_that_of_the_subset():
    """Cases 19 and 21: adapter-sized buffers."""
    params = {"base": jnp.ones((64, 64)), "lora": {"a": jnp.ones((64, 2)), "b": jnp.ones((2, 64))}}
    state = trainable_only(optax.adam(0.1), trainable="lora").init(params)
    shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
    assert shapes == [(), (64, 2), (2, 64), (64, 2), (2, 64)]


def test_frozen_is_stateless_and_trainable_only_has_the_state_of_what_it_wraps():
    assert frozen("encoder").init(PARAMS) == optax.EmptyState()
    inner, state = optax.trace(0.9), trainable_only(optax.trace(0.9), "encoder").init(PARAMS)
    assert type(state) is type(inner.init(PARAMS))
    assert state.trace["encoder"] is None


@each
def test_without_params_the_updates_say_what_is_what(make):
    tx = make("encoder")
    updates, _ = tx.update(GRADIENT, tx.init(PARAMS))
    assert all_bits(updates) == all_bits(once(tx))


@pytest.mark.parametrize("place", [HOLE, None], ids=repr)
def test_trainable_only_takes_places_without_params(place):
    tx = trainable_only(optax.sgd(1.0), "encoder")
    updates, _ = tx.update({"encoder": place, "head": HEAD}, tx.init(PARAMS))
    assert updates["encoder"] == place
    assert bits(updates["head"]) == bits(-HEAD)


@pytest.mark.parametrize("place", [HOLE, np.zeros(2, jax.dtypes.float0)], ids=repr)
def test_frozen_cannot_fill_holes_without_params(place):
    with pytest.raises(ValueError, match=r"the updates have holes, .* pass params to update"):
        frozen("encoder").update({"encoder": place, "head": HEAD}, optax.EmptyState())


@each
def test_extra_arguments_are_taken(make):
    assert all_bits(once(make("encoder"), value=1.0, anything="x")) == all_bits(
        once(make("encoder"))
    )
    assert isinstance(make("encoder"), optax.GradientTransformationExtraArgs)


HOLES_TO_REFUSE = [
    (HOLE, r"MaskedNode\(\)"),
    (None, "None"),
    (np.zeros((2, 2), jax.dtypes.float0), "float0, as of an integer"),
    (tree_mask("x"), "#'x'"),
]


@pytest.mark.parametrize(("place", "text"), HOLES_TO_REFUSE, ids=lambda x: str(x)[:20])
def test_a_trainable_leaf_must_have_a_gradient(place, text):
    tx = trainable_only(optax.sgd(1.0), "encoder")
    gradient = {"encoder": ENCODER, "head": place}
    state = tx.init(PARAMS)
    with pytest.raises(ValueError, match=rf"'head' trains, but its gradient is {text}: give the"):
        tx.update(gradient, state, PARAMS)


DIFFERENT = {
    "a key is missing": ({"encoder": ENCODER}, "it lacks 'head'"),
    "a key too many": ({**GRADIENT, "x": HEAD}, "it has 'x' besides"),
    "deeper": ({"encoder": ENCODER, "head": [HEAD]}, "it lacks 'head'; it has 'head.0' besides"),
    "a hole for a subtree": (HOLE, "it lacks 'encoder'; it lacks 'head'; it has .* besides"),
    "another container": (
        collections.OrderedDict(GRADIENT),
        "the paths agree, but the containers or their static fields differ",
    ),
}


@each
@pytest.mark.parametrize(("gradient", "text"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_updates_of_another_structure_are_refused_by_path(gradient, text, make):
    tx = make("encoder")
    state = tx.init(PARAMS)
    with pytest.raises(ValueError, match=f"updates must have the structure of params: {text}$"):
        tx.update(gradient, state, PARAMS)


@pytest.mark.parametrize(
    ("params", "updates", "text"),
    [
        ({"a": None, "b": HEAD}, {"a": HEAD, "b": HEAD}, "it has 'a', where params have None"),
        ({"a": None, "b": HEAD}, {"a": {"w": HEAD}}, "'a.w', where params have None; it lacks 'b'"),
        ({"a": HOLE}, {"a": HEAD, "c": HEAD}, "'a', where params have MaskedNode(); it has 'c' be"),
        ({"a": tree_mask(3)}, {"a": HEAD}, "it has 'a', where params have #3"),
        (None, HEAD, "it has the tree itself, where params have None"),
    ],
    ids=str,
)
def test_updates_where_params_have_nothing(params, updates, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        apply_updates(params, updates)


@each
@pytest.mark.parametrize("moment", ["init", "update"])
def test_a_misspelt_name_raises_at_init_and_at_update(moment, make):
    tx = make("encodr")
    with pytest.raises(SpecError, match="'encodr': closest: 'encoder'"):
        tx.init(PARAMS) if moment == "init" else tx.update(GRADIENT, (), PARAMS)


def test_a_python_float_that_jit_made_an_array_is_named():
    params = {"rate": 0.1, "encoder": ENCODER, "head": HEAD}
    tx = trainable_only(optax.trace(0.9), "encoder")
    gradient = {**GRADIENT, "rate": 1.0}
    state = tx.init(params)
    text = r"nothing for it \(a Python float that goes through jit is an array inside: freeze it"
    with pytest.raises(ValueError, match=f"'rate' trains, but the state holds {text}"):
        jax.jit(tx.update)(gradient, state, params)
    by_name = trainable_only(optax.trace(0.9), ["encoder", "rate"])
    updates, _ = jax.jit(by_name.update)(gradient, by_name.init(params), params)
    assert bits(updates["rate"]) == bits(jnp.array(-0.0))


def test_an_error_of_the_optimizer_itself_gets_no_such_note():
    tx = trainable_only(optax.GradientTransformation(optax.init_empty_state, never), "encoder")
    with pytest.raises(AssertionError) as caught:
        tx.update(GRADIENT, optax.EmptyState(), PARAMS)
    assert not hasattr(caught.value, "__notes__")


@each
def test_a_wrong_mask_raises_at_init(make):
    tx = make(trainable={"encoder": False})
    with pytest.raises(MaskError, match="no bool for 'head'"):
        tx.init(PARAMS)


@each
def test_a_rule_that_reads_values_raises_and_says_what_to_do(make):
    tx = make(where(lambda path, leaf: bool(leaf.sum() > 0)))
    with pytest.raises(SpecError, match="build the mask with freeze_mask"):
        tx.init(PARAMS)


NO_TRANSFORMATIONS = [
    (
        optax.adam,
        r"is not an optax.GradientTransformation: call it first, as in optax.adam\(1e-3\)",
    ),
    ("encoder", "'encoder' is not an optax.GradientTransformation$"),
    (None, "None is not an optax.GradientTransformation$"),
]


@pytest.mark.parametrize(("tx", "text"), NO_TRANSFORMATIONS)
def test_what_is_no_transformation_is_refused(tx, text):
    with pytest.raises(TypeError, match=f"trainable_only: .*{text}"):
        trainable_only(tx, "encoder")


def test_if_all_is_frozen_the_inner_optimizer_is_not_asked():
    tx = trainable_only(optax.GradientTransformation(never, never), "**")
    updates, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS)
    assert state == optax.EmptyState()
    assert all_bits(updates) == all_bits(jax.tree.map(lambda x: jnp.full(x.shape, -0.0), PARAMS))


def test_an_outer_prefix_and_an_inner_full_mask():
    """Case 18."""
    full = {"encoder": {"a": True, "b": True}, "head": {"a": True, "b": False}}
    params = jax.tree.map(lambda _: jnp.ones(2), full)
    inner = trainable_only(optax.sgd(1.0), trainable=full)
    tx = trainable_only(inner, trainable={"encoder": False, "head": True})
    updates = jax.tree.map(lambda leaf: float(leaf.sum()), once(tx, params, params))
    assert updates == {"encoder": {"a": 0.0, "b": 0.0}, "head": {"a": -2.0, "b": 0.0}}


def test_zeros_are_made_for_what_is_frozen_only():
    tx = trainable_only(optax.identity(), "encoder")
    dense = jax.make_jaxpr(lambda gradient: tx.update(gradient, optax.EmptyState(), PARAMS)[0])
    assert [equation.outvars[0].aval.shape for equation in dense(GRADIENT).eqns] == [(2,)]
    assert dense({"encoder": HOLE, "head": HEAD}).eqns == []
