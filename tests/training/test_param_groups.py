"""`param_groups`: which optimizer gets which leaf."""

import inspect

import jax
import jax.numpy as jnp
import optax
import pytest
from hostile import all_bits, bits

from optax_freeze import (
    Constant,
    SpecError,
    apply_updates,
    param_groups,
    trainable_mask,
    trainable_only,
    value_and_grad,
    where,
)

HOLE = optax.MaskedNode()
PARAMS = {
    "encoder": {"w": jnp.array([1.0, 2.0]), "b": jnp.array([3.0])},
    "head": {"w": jnp.array([4.0, 5.0, 6.0]), "b": jnp.array([7.0])},
    "rate": 0.5,
    "table": jnp.arange(3),
}
ONES = {
    **{name: jax.tree.map(jnp.ones_like, PARAMS[name]) for name in ("encoder", "head")},
    "rate": None,
    "table": None,
}


def rates(tx, gradient=ONES, params=PARAMS):
    """By how much each leaf moves for a gradient of one."""
    updates, _ = tx.update(gradient, tx.init(params), params)
    found = jax.tree_util.tree_leaves_with_path(updates)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): -float(leaf.ravel()[0])
        for path, leaf in found
    }


SGD = {rate: optax.sgd(rate) for rate in (1.0, 2.0, 4.0)}
MEANINGS = {
    "one entry each": (
        ({"encoder": SGD[1.0], "head": SGD[2.0]}, {}),
        {"encoder.b": 1.0, "encoder.w": 1.0, "head.b": 2.0, "head.w": 2.0},
    ),
    "the first match wins": (
        ({"encoder.b": SGD[4.0], "encoder": SGD[1.0], "**": SGD[2.0]}, {}),
        {"encoder.b": 4.0, "encoder.w": 1.0, "head.b": 2.0, "head.w": 2.0},
    ),
    "None freezes": (
        ({"encoder": None, "head": SGD[2.0]}, {}),
        {"encoder.b": 0.0, "encoder.w": 0.0, "head.b": 2.0, "head.w": 2.0},
    ),
    "an earlier None wins too": (
        ({"**.b": None, "**": SGD[2.0]}, {}),
        {"encoder.b": 0.0, "encoder.w": 2.0, "head.b": 0.0, "head.w": 2.0},
    ),
    "default": (
        ({"**.b": SGD[4.0]}, {"default": SGD[1.0]}),
        {"encoder.b": 4.0, "encoder.w": 1.0, "head.b": 4.0, "head.w": 1.0},
    ),
    "default=None freezes": (
        ({"**.b": SGD[4.0]}, {"default": None}),
        {"encoder.b": 4.0, "encoder.w": 0.0, "head.b": 4.0, "head.w": 0.0},
    ),
    "a default that nothing is left for": (
        ({"**": SGD[4.0]}, {"default": optax.lbfgs()}),
        {"encoder.b": 4.0, "encoder.w": 4.0, "head.b": 4.0, "head.w": 4.0},
    ),
    "no entry at all": (
        ({}, {"default": SGD[1.0]}),
        {"encoder.b": 1.0, "encoder.w": 1.0, "head.b": 1.0, "head.w": 1.0},
    ),
    "a tuple of specs": (
        ({("encoder.b", "head.w"): SGD[4.0], "**": SGD[1.0]}, {}),
        {"encoder.b": 4.0, "encoder.w": 1.0, "head.b": 1.0, "head.w": 4.0},
    ),
    "specs of an entry may overlap": (
        ({("encoder", "**.b"): SGD[4.0], "head.w": SGD[1.0]}, {}),
        {"encoder.b": 4.0, "encoder.w": 4.0, "head.b": 4.0, "head.w": 1.0},
    ),
    "where": (
        ({where(lambda path, leaf: leaf.size == 1): SGD[4.0], "**": SGD[1.0]}, {}),
        {"encoder.b": 4.0, "encoder.w": 1.0, "head.b": 4.0, "head.w": 1.0},
    ),
    "what cannot train may be frozen by name": (
        ({"table": None, "rate": None, "**": SGD[1.0]}, {}),
        {"encoder.b": 1.0, "encoder.w": 1.0, "head.b": 1.0, "head.w": 1.0},
    ),
}


@pytest.mark.parametrize("case", MEANINGS)
def test_which_leaf_gets_which_optimizer(case):
    (groups, default), expected = MEANINGS[case]
    assert rates(param_groups(groups, **default)) == expected


def test_groups_do_not_mix():
    """Leaves of one shape and dtype, so that a mix-up would not show by itself."""
    params = {f"p{i}": jnp.full(2, float(i)) for i in range(12)}
    groups = {(f"p{i}", f"p{i + 6}"): optax.sgd(float(i + 1)) for i in range(6)}
    gradient = jax.tree.map(jnp.ones_like, params)
    assert rates(param_groups(groups), gradient, params) == {
        f"p{i}": float(i % 6 + 1) for i in range(12)
    }


def test_every_group_holds_the_state_of_its_leaves():
    tx = param_groups({"encoder": optax.trace(0.9), "head.b": None}, default=optax.adam(1.0))
    groups = tx.init(PARAMS).groups
    assert list(groups) == ["encoder", "default"]
    assert [leaf.shape for leaf in jax.tree.leaves(groups["encoder"])] == [(1,), (2,)]
    assert [leaf.shape for leaf in jax.tree.leaves(groups["default"])] == [(), (3,), (3,)]


def test_each_group_takes_the_steps_of_its_optimizer_alone():
    groups = {"encoder": optax.rmsprop(0.1), "head": optax.sgd(0.1, momentum=0.9)}
    tx = param_groups(groups)

    def loss(params):
        return sum(jnp.sum(leaf**3) for leaf in jax.tree.leaves(params))

    @jax.jit
    def step(params, state):
        updates, state = tx.update(value_and_grad(loss)(params)[1], state, params)
        return apply_updates(params, updates), state

    params = {name: PARAMS[name] for name in groups}
    state = tx.init(params)
    for _ in range(3):
        params, state = step(params, state)
    for name, alone in groups.items():

        @jax.jit
        def step_alone(part, state, alone=alone):
            updates, state = alone.update(jax.grad(loss)(part), state, part)
            return optax.apply_updates(part, updates), state

        part = PARAMS[name]
        state_alone = alone.init(part)
        for _ in range(3):
            part, state_alone = step_alone(part, state_alone)
        assert all_bits(params[name]) == all_bits(part)


def test_one_global_norm_over_all_groups():
    gradient = {**ONES, "encoder": {"w": jnp.array([3.0, 0.0]), "b": jnp.array([jnp.nan])}}
    tx = trainable_only(
        optax.chain(
            optax.clip_by_global_norm(1.0),
            param_groups({"encoder": SGD[1.0], "head.w": SGD[2.0]}, default=None),
        ),
        freeze=["encoder.b", "head.w"],
    )
    with pytest.raises(SpecError, match="matches nothing that can train"):
        param_groups({"table": SGD[1.0]}, default=None).init(PARAMS)
    found = rates(tx, gradient)
    norm = (3.0**2 + 1.0) ** 0.5  # of encoder.w and head.b: what is frozen has no share
    assert found["encoder.w"] == pytest.approx(3.0 / norm, rel=1e-6)
    assert (found["encoder.b"], found["head.w"], found["head.b"]) == (0.0, 0.0, 0.0)


MASK = {"encoder": False, "head": True, "rate": False, "table": False}
AROUND = {
    "trainable_only": lambda tx: trainable_only(tx, freeze="encoder"),
    "masked": lambda tx: optax.masked(tx, {**MASK, "head": {"w": True, "b": True}}),
    "partition": lambda tx: optax.partition(
        {"ours": tx, "theirs": optax.set_to_zero()},
        {"encoder": "theirs", "head": "ours", "rate": "theirs", "table": "theirs"},
    ),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
def test_inside_wrappers_that_leave_leaves_out(around):
    """Case 10: the holes hide what a key names."""
    tx = around(param_groups({"encoder": SGD[4.0], "head.w": SGD[2.0], "**.b": SGD[1.0]}))
    found = rates(tx)
    assert (found["head.w"], found["head.b"]) == (2.0, 1.0)


def test_an_entry_is_not_shadowed_by_what_was_left_out():
    """What is left of "encoder" was taken before, but it also names a hole."""
    params = {**PARAMS, "encoder": {**PARAMS["encoder"], "w": HOLE}}
    tx = param_groups({"**.b": None, "encoder": SGD[1.0], "head.w": SGD[2.0]})
    assert rates(tx, {**ONES, "encoder": {"w": HOLE, "b": jnp.ones(1)}}, params) == {
        "encoder.b": 0.0,
        "head.b": 0.0,
        "head.w": 2.0,
    }


def test_nested_in_itself():
    inner = param_groups({"**.b": SGD[4.0]}, default=SGD[2.0])
    found = rates(param_groups({"head": inner}, default=SGD[1.0]))
    assert found == {"encoder.b": 1.0, "encoder.w": 1.0, "head.b": 4.0, "head.w": 2.0}


def test_multi_steps_is_an_optimizer_too():
    tx = param_groups({"head": optax.MultiSteps(optax.sgd(1.0), 2)}, default=None)
    state, moved = tx.init(PARAMS), []
    for _ in range(2):
        updates, state = tx.update(ONES, state, PARAMS)
        moved.append(float(updates["head"]["b"][0]))
    assert moved == [0.0, -1.0]


def test_tree_map_params_where_every_group_has_leaves():
    tx = param_groups({"encoder": optax.adam(1.0), "head.b": None}, default=optax.trace(0.9))
    state = optax.tree_map_params(
        tx, lambda leaf: leaf.shape, tx.init(PARAMS), transform_non_params=lambda _: "count"
    )
    leaves = jax.tree.leaves(state, is_leaf=lambda node: type(node) is tuple and node[:1] == (1,))
    assert leaves.count("count") == 1
    assert state.groups["default"].trace["head"]["w"] == (3,)


def test_tree_map_params_cannot_map_over_a_group_without_leaves():
    tx = param_groups({"**": SGD[1.0]}, default=optax.adam(1.0))
    state = tx.init(PARAMS)
    assert list(state.groups) == ["**"]
    with pytest.raises(ValueError, match=r"[Mm]ismatch|key"):
        optax.tree_map_params(tx, lambda leaf: leaf, state)


UNCOVERED = {
    "one": ({"encoder": SGD[1.0], "head.w": None}, "no entry matches 'head.b': add one, or pass"),
    "two": (
        {"encoder": SGD[1.0]},
        "no entry matches 'head.b'; 'head.w': add one, or pass default=",
    ),
}
SHADOWED = {
    "by one": ({"**": SGD[1.0], "head": SGD[2.0]}, "all leaves that 'head' matches were taken"),
    "by two": (
        {"**.w": None, "**.b": SGD[1.0], "head": SGD[2.0]},
        "by earlier entries: put it before them",
    ),
    "one of a tuple": ({"**.w": None, ("head.w", "**"): SGD[2.0]}, "all leaves that 'head.w'"),
    "a None": ({"**": SGD[1.0], "head": None}, "all leaves that 'head' matches were taken"),
}
MISSES = {
    "misspelt": ({"encodr": None, "**": SGD[1.0]}, "'encodr': closest: 'encoder'"),
    "misspelt in a tuple": ({("head", "encodr"): None, "**": SGD[1.0]}, "'encodr': closest"),
    "cannot train": (
        {"table": SGD[1.0], "**": SGD[1.0]},
        "'table' matches nothing that can train: 'table' is an array of int32",
    ),
    "a float": ({"rate": SGD[1.0], "**": SGD[1.0]}, "'rate' matches nothing that can train"),
}


@pytest.mark.parametrize(
    ("groups", "text"),
    [*UNCOVERED.values(), *SHADOWED.values(), *MISSES.values()],
    ids=[*UNCOVERED, *SHADOWED, *MISSES],
)
def test_what_does_not_fit_the_tree_raises_at_init(groups, text):
    tx = param_groups(groups)
    with pytest.raises(SpecError, match=rf"param_groups: (.|\n)*{text}"):
        tx.init(PARAMS)


def test_it_raises_at_update_too():
    tx = param_groups({"encoder": SGD[1.0]})
    state = param_groups({"**": SGD[1.0]}).init(PARAMS)
    with pytest.raises(SpecError, match=r"no entry matches 'head\.b'"):
        tx.update(ONES, state, PARAMS)


WRONG = {
    "not a mapping": (SGD[1.0], {}, TypeError, "takes a mapping from specs"),
    "not called": ({"head": optax.adam}, {}, TypeError, "entry 'head': .*call it first"),
    "not a transformation": ({"head": 0.1}, {}, TypeError, "entry 'head': 0.1 is not an optax"),
    "default": ({}, {"default": 0.1}, TypeError, "param_groups, default: 0.1 is not an optax"),
    "an empty key": (
        {"": SGD[1.0]},
        {},
        SpecError,
        "the key '' of param_groups is an empty string",
    ),
    "an empty tuple": (
        {(): SGD[1.0]},
        {},
        SpecError,
        r"the key \(\) of param_groups names nothing",
    ),
    "an index": ({0: SGD[1.0]}, {}, SpecError, "the key 0 of param_groups: got 0"),
    "a bool": ({True: SGD[1.0]}, {}, SpecError, "the key True of param_groups: got a boolean tree"),
}


@pytest.mark.parametrize(("groups", "default", "error", "text"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_by_itself_raises_at_once(groups, default, error, text):
    with pytest.raises(error, match=text):
        param_groups(groups, **default)


def test_a_mapping_that_changes_later_changes_nothing():
    groups = {"encoder": SGD[1.0], "head": SGD[2.0]}
    tx = param_groups(groups)
    groups.clear()
    assert rates(tx)["head.w"] == 2.0


def test_scan_over_steps_of_an_ensemble_with_donation():
    tx = param_groups({"encoder": None, "**.b": optax.sgd(0.1)}, default=optax.rmsprop(0.01))
    params = {name: PARAMS[name] for name in ("encoder", "head", "table")}
    ensemble = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf, leaf]), params)

    def loss(params):
        return (
            jnp.sum(params["head"]["w"] ** 2) * params["head"]["b"][0] * params["encoder"]["b"][0]
        )

    def train(params):
        def step(carry, _):
            params, state = carry
            value, gradient = value_and_grad(loss, freeze="encoder")(params)
            updates, state = tx.update(gradient, state, params)
            return (apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, tx.init(params)), length=4)

    (alone, _), values = jax.jit(train)(params)
    before = all_bits(ensemble["encoder"])
    (together, _), _ = jax.jit(jax.vmap(train), donate_argnums=0)(ensemble)
    assert float(values[-1]) < float(values[0])
    assert all_bits(together["encoder"]) == before
    member = jax.tree.map(lambda leaf: leaf[1], together)
    assert jnp.allclose(member["head"]["w"], alone["head"]["w"], rtol=1e-6)
    assert bits(member["table"]) == bits(params["table"])


def test_none_beside_a_leaf_excuses_nothing():
    params = {"a": {"w": jnp.ones(2), "none": None}, "n": {"i": jnp.arange(2), "none": None}}
    with pytest.raises(SpecError, match="all leaves that 'a' matches were taken by earlier"):
        param_groups({"**": optax.sgd(1.0), "a": None}).init(params)
    with pytest.raises(SpecError, match=r"'n' matches nothing that can train: 'n\.i' is an array"):
        param_groups({"n": optax.sgd(1.0)}, default=None).init(params)


def test_a_mask_releases_what_does_not_train_by_default():
    params = {"c": Constant(jnp.ones(2)), "w": jnp.ones(2)}
    mask = trainable_mask(params, fixed=())
    groups = param_groups({"c": optax.sgd(1.0), "w": optax.sgd(2.0)}, trainable=mask)
    for tx in (groups, trainable_only(groups, trainable=mask)):
        updates, _ = tx.update(params, tx.init(params), params)
        assert updates["c"].value.tolist() == [-1.0, -1.0]
        assert updates["w"].tolist() == [-2.0, -2.0]


def test_the_signature_says_that_a_default_may_be_left_out():
    assert repr(inspect.signature(param_groups).parameters["default"].default) == "<unset>"
