"""`migrate_state`: what both states have is kept bit for bit, and nothing starts in silence."""

import pickle
import re

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
from hypothesis import assume, given
from hypothesis import strategies as st
from zoo import BARE, PER_EXAMPLE, as_optax_needs_it, build, every_optimizer

from optax_freeze import (
    apply_updates,
    leaf_paths,
    migrate_state,
    param_groups,
    trainable_only,
    unfreeze_at,
    where,
)
from optax_freeze._proof.hostile import extra_args

ADAM = optax.adam(0.1)
PARAMS = {
    "encoder": {
        "l1": {"b": jnp.array([0.5, -1.5]), "w": jnp.array([[1.0, 2.0], [3.0, -4.0]])},
        "l2": {"b": jnp.array([0.25, 8.0]), "w": jnp.array([[-1.0, 0.5], [2.0, 1.0]])},
    },
    "head": {"b": jnp.array([2.0]), "w": jnp.array([[4.0], [-0.5]])},
    "n": 3,
}
NAMES = [name for name in leaf_paths(PARAMS) if name != "n"]
FLOATS = {name: PARAMS[name] for name in ("encoder", "head")}


def gradients(step):
    """Dense gradients that differ from step to step and leaf to leaf."""
    rng = np.random.default_rng(step)
    dense = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), FLOATS)
    return {**dense, "n": None}


def train(tx, steps, state=None, params=PARAMS, begin=0):
    state = tx.init(params) if state is None else state
    for step in range(begin, begin + steps):
        updates, state = tx.update(gradients(step), state, params)
        params = apply_updates(params, updates)
    return params, state


def by_address(state):
    """The leaves of params by what they are and whose, whatever group they are in."""
    found = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(state):
        path = [jax.tree_util.keystr((key,), simple=True) for key in keys]
        for i, key in enumerate(path):
            if key in {"groups", "cohorts"}:
                path[i : i + 2] = ["", ""]
        # What SM3 has for a param is below its path, an array for each axis.
        if any(
            ".".join(path).removesuffix(end).endswith(f".{name}") for name in NAMES for end in ENDS
        ):
            found[".".join(filter(None, path))] = leaf
    return found


ENDS = ["", ".0", ".1"]
OPTIMIZERS = {
    "adamw": optax.adamw(0.1),
    "rmsprop": optax.rmsprop(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "chain": optax.chain(
        optax.clip_by_global_norm(1.0), optax.lion(optax.linear_schedule(0.1, 0.0, 5))
    ),
    "MultiSteps": optax.MultiSteps(optax.adam(0.1), 2),
    "inject_hyperparams": optax.inject_hyperparams(optax.adam)(0.1),
    "schedule_free": optax.contrib.schedule_free_sgd(0.1),
    "lbfgs": optax.scale_by_lbfgs(),
    "sm3": optax.sm3(0.1),
    "muon": optax.contrib.muon(0.1),
}
WITHOUT_COUNT = {"rmsprop", "momentum", "sm3"}
names_of_optimizers = st.sampled_from(list(OPTIMIZERS))
labels = st.dictionaries(st.sampled_from(NAMES), st.sampled_from("abc"), min_size=1)
kinds = st.sampled_from(["only", "groups", "stages"])
STARTS = {"a": 0, "b": 2, "c": 9}


def make(kind, tx, labels):
    """A transformation for the leaves that have a label, by which they are grouped."""
    if kind == "only":
        return trainable_only(tx, trainable=list(labels))
    entries = {}
    for name in sorted(labels):
        entries.setdefault(labels[name], []).append(name)
    if kind == "groups":
        return param_groups({tuple(names): tx for names in entries.values()}, default=None)
    return unfreeze_at(tx, {tuple(names): STARTS[label] for label, names in entries.items()})


def parts(kind, state):
    """The states of the groups."""
    if kind == "only":
        return [state]
    return list((state.groups if kind == "groups" else state.cohorts).values())


def trained(kind, tx, labels, steps):
    tx = make(kind, tx, labels)
    with jax.disable_jit():  # nothing is compiled anew for each example
        return tx, train(tx, steps)[1]


@given(kinds, kinds, names_of_optimizers, labels, labels, st.integers(0, 3))
def test_what_both_have_is_kept_and_the_rest_is_fresh_as_a_group(
    before, after, name, old_labels, new_labels, steps
):
    """Or it raises."""
    _, state = trained(before, OPTIMIZERS[name], old_labels, steps)
    tx = make(after, OPTIMIZERS[name], new_labels)
    fresh = tx.init(PARAMS)
    try:
        moved = migrate_state(state, tx, PARAMS)
    except ValueError:
        return
    assert jax.tree.structure(moved) == jax.tree.structure(fresh)
    old = by_address(state)
    for part, fresh_part in zip(parts(after, moved), parts(after, fresh), strict=True):
        leaves, fresh_leaves = by_address(part), by_address(fresh_part)
        assert leaves
        for address in leaves.keys() & old.keys():
            assert leaves[address] is old[address]
        new = leaves.keys() - old.keys()
        assert {address: bits(leaves[address]) for address in new} == {
            address: bits(fresh_leaves[address]) for address in new
        }
        if new and name not in WITHOUT_COUNT:  # all of it is new, or nothing has run
            assert new == leaves.keys() or _counts(part) == _counts(fresh_part)
        if new == leaves.keys():
            assert all_bits(part) == all_bits(fresh_part)
    with jax.disable_jit():
        tx.update(gradients(steps), moved, PARAMS)


def _counts(state):
    return [int(leaf) for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.int32]


@given(kinds, kinds, labels, labels, st.integers(0, 3))
def test_it_raises_just_where_one_count_would_have_to_be_two(
    before, after, old_labels, new_labels, steps
):
    """By hand, for Adam: the count of each leaf, which all of a group must have in common."""
    runs = dict.fromkeys(old_labels, steps)
    if before == "stages":
        runs = {name: max(0, steps - STARTS[label]) for name, label in old_labels.items()}
    groups = {}
    for name, label in new_labels.items():
        groups.setdefault("a" if after == "only" else label, []).append(runs.get(name))
    kept = runs.keys() & new_labels.keys()
    counts = {label: set(filter(None, found)) for label, found in groups.items()}
    fits = bool(kept) and all(
        len({count or 0 for count in found}) == 1 or set(found) == {None}
        for found in groups.values()
    )
    updates = steps
    if after == "stages" and before != "stages":
        highest = max((runs[name] for name in kept), default=0)
        updates = highest
        fits = fits and (highest == 0 or counts.get("a") == {highest})
    _, state = trained(before, ADAM, old_labels, steps)
    tx = make(after, ADAM, new_labels)
    if not fits:
        with pytest.raises(ValueError, match=r"^migrate_state: "):
            migrate_state(state, tx, PARAMS)
        return
    moved = migrate_state(state, tx, PARAMS)
    assert after != "stages" or int(moved.step) == updates
    expected = sorted(next(iter(found), 0) for found in counts.values())
    assert sorted(int(part[0].count) for part in parts(after, moved)) == expected


@given(kinds, names_of_optimizers, labels, st.integers(0, 3))
def test_nothing_changes_for_the_same_transformation(kind, name, labels, steps):
    tx, state = trained(kind, OPTIMIZERS[name], labels, steps)
    moved = migrate_state(state, tx, PARAMS)
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    pairs = zip(jax.tree.leaves(moved), jax.tree.leaves(state), strict=True)
    assert all(new is old for new, old in pairs)


@given(kinds, names_of_optimizers, labels, labels, st.integers(0, 3))
def test_there_and_back_again_gives_what_was_kept(kind, name, old_labels, new_labels, steps):
    """By way of a group for each leaf."""
    _, state = trained(kind, OPTIMIZERS[name], old_labels, steps)
    kept = {leaf: label for leaf, label in old_labels.items() if leaf in new_labels}
    assume(kept)
    single = param_groups(dict.fromkeys(new_labels, OPTIMIZERS[name]), default=None)
    there = migrate_state(state, single, PARAMS)
    back = make("groups" if kind == "stages" else kind, OPTIMIZERS[name], kept)
    direct = migrate_state(state, back, PARAMS)
    assert all_bits(migrate_state(there, back, PARAMS)) == all_bits(direct)
    assert by_address(direct).items() <= by_address(state).items()


@every_optimizer
def test_every_optimizer_goes_on_from_its_own_state(name):
    with as_optax_needs_it(name):
        tx = trainable_only(build(name), "encoder")
        gradient = {**FLOATS, "n": None}
        if name in PER_EXAMPLE:
            gradient = jax.tree.map(lambda leaf: leaf[None], gradient)
        asked = {} if name in BARE else extra_args(gradient)
        _, state = tx.update(gradient, tx.init(PARAMS), PARAMS, **asked)
        moved = migrate_state(state, tx, PARAMS)
    if name == "optax.monitor":  # what it measures is in its state from the first update on only
        state = tx.init(PARAMS)
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    pairs = zip(jax.tree.leaves(moved), jax.tree.leaves(state), strict=True)
    assert all(new is old for new, old in pairs)


def in_memory(state, folder):
    return state


def through_pickle(state, folder):
    return pickle.loads(pickle.dumps(state))


def through_orbax(state, folder):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "state")


def through_flax(state, folder):
    return flax.serialization.to_state_dict(state)


def through_msgpack(state, folder):
    return flax.serialization.msgpack_restore(flax.serialization.to_bytes(state))


def through_lists(state, folder):
    """With nothing but lists and dictionaries, and None left out."""
    if isinstance(state, dict):
        pairs = state.items()
    elif hasattr(state, "_fields"):
        pairs = state._asdict().items()
    elif isinstance(state, (list, tuple)):
        return [through_lists(child, folder) for child in state]
    else:
        return state
    return {key: through_lists(child, folder) for key, child in pairs if child is not None}


WAYS = [
    in_memory,
    through_pickle,
    through_orbax,
    through_flax,
    through_msgpack,
    through_lists,
]
STAGES = {"head": 0, "encoder": 2}


def only(freeze, tx=ADAM):
    return trainable_only(tx, freeze)


def groups(*names, tx=ADAM):
    return param_groups(dict.fromkeys(names, tx), default=None)


def clipped(tx, freeze=None):
    return trainable_only(optax.chain(optax.clip_by_global_norm(1.0), tx), freeze)


# The transformation before and after, and the counts of the new state after five updates.
MOVES = {
    "freezing more": (only("encoder.l1"), only("encoder"), {"0.count": 5}),
    "freezing less, in a group": (
        only("encoder"),
        groups("encoder", "head"),
        {"groups.encoder.0.count": 0, "groups.head.0.count": 5},
    ),
    "all in one group": (only(None), groups("**"), {"groups.**.0.count": 5}),
    "split": (
        only(None),
        groups("encoder.l1", ("encoder.l2", "head")),
        {"groups.encoder.l1.0.count": 5, "groups.encoder.l2, head.0.count": 5},
    ),
    "joined": (groups("encoder", "head"), only(None), {"0.count": 5}),
    "renamed": (groups("head"), groups("head.*"), {"groups.head.*.0.count": 5}),
    "regrouped": (
        groups("encoder", "head"),
        groups("encoder.l1", ("head", "encoder.l2")),
        {"groups.encoder.l1.0.count": 5, "groups.head, encoder.l2.0.count": 5},
    ),
    "into stages": (
        only("encoder"),
        unfreeze_at(ADAM, {"head": 0, "encoder": 7}),
        {"step": 5, "cohorts.0.0.count": 5, "cohorts.7.0.count": 0},
    ),
    "groups into stages": (
        groups("head"),
        unfreeze_at(ADAM, {"head": 0, "encoder": 7}),
        {"step": 5, "cohorts.0.0.count": 5, "cohorts.7.0.count": 0},
    ),
    "stages into groups": (
        unfreeze_at(ADAM, STAGES),
        groups("head", "encoder"),
        {"groups.encoder.0.count": 3, "groups.head.0.count": 5},
    ),
    "stages into one": (unfreeze_at(ADAM, STAGES), only("head"), {"0.count": 3}),
    "other stages": (
        unfreeze_at(ADAM, {"head": 0, "encoder": 9}),
        unfreeze_at(ADAM, {"head": 0, "encoder.l2": 5, "encoder.l1": 6}),
        {"step": 5, "cohorts.0.0.count": 5, "cohorts.5.0.count": 0, "cohorts.6.0.count": 0},
    ),
    "a stage that is new": (
        unfreeze_at(ADAM, {"encoder.l2": 2}),
        unfreeze_at(ADAM, {"encoder.l2": 2, "encoder.l1": 5}),
        {"step": 5, "cohorts.2.0.count": 3, "cohorts.5.0.count": 0},
    ),
    "groups in a chain": (
        clipped(ADAM, "encoder"),
        clipped(groups("encoder", "head")),
        {"1.groups.encoder.0.count": 0, "1.groups.head.0.count": 5},
    ),
    "groups in a chain, back": (
        clipped(groups("encoder", "head")),
        clipped(ADAM, "encoder.l1"),
        {"1.0.count": 5},
    ),
    "stages around a clip": (
        clipped(ADAM, "encoder"),
        optax.chain(
            unfreeze_at(optax.clip_by_global_norm(1.0), {"head": 0, "encoder": 7}),
            unfreeze_at(ADAM, {"head": 0, "encoder": 7}),
        ),
        {"0.step": 5, "1.step": 5, "1.cohorts.0.0.count": 5, "1.cohorts.7.0.count": 0},
    ),
    "stages in a group": (
        groups("encoder.l2", "head"),
        param_groups({
            "encoder": unfreeze_at(ADAM, {"encoder.l2": 0, "encoder.l1": 7}),
            "head": ADAM,
        }),
        {
            "groups.encoder.step": 5,
            "groups.encoder.cohorts.0.0.count": 5,
            "groups.encoder.cohorts.7.0.count": 0,
            "groups.head.0.count": 5,
        },
    ),
    "stages in a group that is new": (
        groups("head"),
        param_groups({"encoder": unfreeze_at(ADAM, {"encoder": 0}), "head": ADAM}),
        {
            "groups.encoder.step": 0,
            "groups.encoder.cohorts.0.0.count": 0,
            "groups.head.0.count": 5,
        },
    ),
    "MultiSteps": (
        only("encoder", optax.MultiSteps(ADAM, 2)),
        groups("encoder", "head", tx=optax.MultiSteps(ADAM, 2)),
        {
            "groups.encoder.gradient_step": 0,
            "groups.encoder.inner_opt_state.0.count": 0,
            "groups.encoder.mini_step": 0,
            "groups.head.gradient_step": 2,
            "groups.head.inner_opt_state.0.count": 2,
            "groups.head.mini_step": 1,
        },
    ),
    "inject_hyperparams": (
        only("encoder", optax.inject_hyperparams(optax.adam)(0.1)),
        groups("encoder", "head", tx=optax.inject_hyperparams(optax.adam)(0.1)),
        {
            "groups.encoder.count": 0,
            "groups.encoder.inner_state.0.count": 0,
            "groups.head.count": 5,
            "groups.head.inner_state.0.count": 5,
        },
    ),
    "groups in inject_hyperparams": (
        only("encoder", optax.inject_hyperparams(optax.adam)(0.1)),
        only(
            "encoder",
            optax.inject_hyperparams(lambda learning_rate: groups("head", tx=ADAM))(0.1),
        ),
        {"count": 5, "inner_state.groups.head.0.count": 5},
    ),
    "schedule-free": (
        only("encoder", optax.contrib.schedule_free_adamw(0.1)),
        groups("encoder", "head", tx=optax.contrib.schedule_free_adamw(0.1)),
        {
            "groups.encoder.base_optimizer_state.0.count": 0,
            "groups.encoder.step_count": 1,
            "groups.head.base_optimizer_state.0.count": 5,
            "groups.head.step_count": 6,
        },
    ),
    "schedule-free into stages": (
        only("encoder", optax.contrib.schedule_free_sgd(0.1)),
        unfreeze_at(optax.contrib.schedule_free_sgd(0.1), {"head": 0, "encoder": 7}),
        {"step": 5, "cohorts.0.step_count": 6, "cohorts.7.step_count": 1},
    ),
    "lbfgs": (
        only("encoder", optax.scale_by_lbfgs()),
        groups("encoder", "head", tx=optax.scale_by_lbfgs()),
        {"groups.encoder.count": 0, "groups.head.count": 5},
    ),
    "a schedule, by the label of the group": (
        groups("head", tx=optax.sgd(optax.linear_schedule(1.0, 0.0, 9))),
        groups("encoder", "head", tx=optax.sgd(optax.linear_schedule(1.0, 0.0, 9))),
        {"groups.encoder.1.count": 0, "groups.head.1.count": 5},
    ),
    "schedules, by the label of the cohort": (
        unfreeze_at(optax.sgd(optax.linear_schedule(1.0, 0.0, 9)), STAGES),
        unfreeze_at(optax.sgd(optax.linear_schedule(1.0, 0.0, 9)), STAGES),
        {"step": 5, "cohorts.0.1.count": 5, "cohorts.2.1.count": 3},
    ),
    "several arrays for a leaf": (
        only("encoder", optax.sm3(0.1)),
        groups("encoder", "head", tx=optax.sm3(0.1)),
        {},
    ),
    "nothing to keep": (only(None), only(None, optax.sgd(0.1)), {}),
}


def counts(state):
    pairs = zip(leaf_paths(state), jax.tree.leaves(state), strict=True)
    return {path: int(leaf) for path, leaf in pairs if leaf.dtype == jnp.int32 and leaf.ndim == 0}


@pytest.mark.parametrize("case", MOVES)
@pytest.mark.parametrize("through", WAYS, ids=lambda way: way.__name__)
def test_a_move(case, through, tmp_path):
    before, after, expected = MOVES[case]
    _, state = train(before, 5)
    fresh = after.init(PARAMS)
    moved = migrate_state(through(state, tmp_path), after, PARAMS)
    assert jax.tree.structure(moved) == jax.tree.structure(fresh)
    assert counts(moved) == expected
    old, start = by_address(state), by_address(fresh)
    assert {address: bits(leaf) for address, leaf in by_address(moved).items()} == {
        address: bits(old.get(address, leaf)) for address, leaf in start.items()
    }
    # A state of plain containers does the same as the one in memory.
    assert all_bits(moved) == all_bits(migrate_state(state, after, PARAMS))
    if through is in_memory:
        jax.jit(after.update)(gradients(5), moved, PARAMS)


def test_hyperparams_and_keys_go_along():
    def noisy(learning_rate):
        return optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.adam(learning_rate))

    tx = optax.inject_hyperparams(noisy)(learning_rate=0.1)
    _, state = train(only("encoder", tx), 2)
    state.hyperparams["learning_rate"] = jnp.float32(-0.0)
    moved = migrate_state(state, groups("encoder", "head", tx=tx), PARAMS).groups
    assert bits(moved["head"].hyperparams["learning_rate"]) == bits(jnp.float32(-0.0))
    assert moved["encoder"].hyperparams["learning_rate"] == jnp.float32(0.1)
    key = moved["head"].inner_state[0].rng_key
    assert bits(key) == bits(state.inner_state[0].rng_key)
    assert bits(key) != bits(moved["encoder"].inner_state[0].rng_key)


@pytest.mark.parametrize(
    "after",
    [groups("encoder", "head"), unfreeze_at(ADAM, {"head": 0, "encoder": 4})],
    ids=["groups", "stages"],
)
def test_a_released_leaf_starts_as_with_a_fresh_adam_and_the_others_go_on(after):
    before = only("encoder")
    with jax.disable_jit():  # inside jit another program may round otherwise
        uninterrupted, _ = train(before, 8)
        params, state = train(before, 4)
        params, _ = train(after, 4, migrate_state(state, after, params), params, begin=4)
        alone, _ = train(only("head"), 4, begin=4)
    assert all_bits(params["head"]) == all_bits(uninterrupted["head"])
    assert all_bits(params["encoder"]) == all_bits(alone["encoder"])


def test_holes_of_optax_masked():
    mask = {"encoder": False, "head": True, "n": False}
    _, state = train(optax.chain(optax.masked(ADAM, mask)), 0)
    moved = migrate_state(state[0].inner_state, groups("encoder", "head"), PARAMS)
    assert moved.groups["head"][0].mu["head"]["w"] is state[0].inner_state[0].mu["head"]["w"]


def test_masked_inside():
    """Prefixes of holes in the place of a subtree."""

    def part(*names):
        mask = {name: name in names for name in PARAMS}
        return trainable_only(optax.chain(optax.masked(ADAM, mask)))

    _, state = train(part("head"), 2)
    assert migrate_state(state, part("head"), PARAMS)[0].inner_state[0].count == 2
    with pytest.raises(ValueError, match=r"'encoder.l1.b'.* would start with fresh moments under"):
        migrate_state(state, part("encoder", "head"), PARAMS)


STARTS_UNDER = "{} would start with fresh moments under {!r}, which has run ({})"
SCHEDULED = optax.sgd(optax.linear_schedule(0.1, 0.0, 5))
L2 = "'encoder.l2.b'; 'encoder.l2.w'"
ENCODER = f"'encoder.l1.b'; 'encoder.l1.w'; {L2}"
HOW_MANY = (
    "{!r} counts updates, and the state does not say how many there were: pass their number n "
    'with it, as in migrate_state({{"step": n, "cohorts": {{"0": state}}}}, tx, params)'
)
WHOSE = (
    "{!r} may be that of '1.count', but the state does not say whose that is: set it by hand in "
    "tx.init(params), as optax.tree_utils.tree_set does it"
)
NOTHING = (
    "migrate_state: the state shares nothing with that of tx, for these params: it has no {}. To "
    "start afresh: tx.init(params)"
)
DOGS = optax.contrib.dowg()

# The transformation before and after, and the whole text of the error after three updates.
REFUSED = {
    "freezing less": (
        only("encoder"),
        only("encoder.l1"),
        f"migrate_state: {STARTS_UNDER.format(L2, '0.count', 3)}. Instead: "
        "param_groups({'encoder.l2': tx, 'head': tx}, default=None)",
    ),
    "freezing nothing": (
        only("encoder"),
        only(None),
        f"migrate_state: {STARTS_UNDER.format(ENCODER, '0.count', 3)}. Instead: "
        "param_groups({'encoder': tx, 'head': tx})",
    ),
    "several parts": (
        only(["encoder.l1.w", "encoder.l2"]),
        only(None),
        "migrate_state: "
        + STARTS_UNDER.format("'encoder.l1.w'; 'encoder.l2.b'; 'encoder.l2.w'", "0.count", 3)
        + ". Instead: param_groups({('encoder.l1.b', 'head'): tx, "
        "('encoder.l1.w', 'encoder.l2'): tx})",
    ),
    "in one of the groups": (
        groups("encoder.l1", "head"),
        groups("encoder", "head"),
        f"migrate_state: {STARTS_UNDER.format(L2, 'groups.encoder.l1.0.count', 3)}. "
        "Instead: param_groups({'encoder.l1': tx, 'encoder.l2': tx, 'head': tx})",
    ),
    "in one of the cohorts": (
        unfreeze_at(ADAM, {"encoder.l1": 2, "head": 0}),
        unfreeze_at(ADAM, {"encoder": 2, "head": 0}),
        f"migrate_state: {STARTS_UNDER.format(L2, 'cohorts.2.0.count', 1)}. Instead: "
        "unfreeze_at(tx, {'head': 0, 'encoder.l1': 2, 'encoder.l2': 3})",
    ),
    "in the first cohort": (
        only("encoder"),
        unfreeze_at(ADAM, {"**": 0}),
        f"migrate_state: {STARTS_UNDER.format(ENCODER, '0.count', 3)}. Instead: "
        "unfreeze_at(tx, {'encoder': 3, 'head': 0})",
    ),
    "joining cohorts": (
        unfreeze_at(ADAM, {"encoder": 2, "head": 0}),
        only(None),
        "migrate_state: '0.count' would have to be 3 for 'head' in 'cohorts.0'; 1 for 'encoder' "
        "in 'cohorts.2'. Instead: param_groups({'encoder': tx, 'head': tx})",
    ),
    "joining cohorts to one": (
        unfreeze_at(ADAM, {"encoder": 2, "head": 0}),
        unfreeze_at(ADAM, {"**": 0}),
        "migrate_state: 'cohorts.0.0.count' would have to be 3 for 'head' in 'cohorts.0'; 1 for "
        "'encoder' in 'cohorts.2'. Instead: unfreeze_at(tx, {'encoder': 2, 'head': 0})",
    ),
    "joining rates": (
        param_groups({
            "encoder": optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9),
            "head": optax.inject_hyperparams(optax.sgd)(0.2, momentum=0.9),
        }),
        only(None, optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9)),
        "migrate_state: 'hyperparams.learning_rate' would have to be another value for "
        "'encoder' in 'groups.encoder'; another value for 'head' in 'groups.head'. Instead: "
        "param_groups({'encoder': tx, 'head': tx})",
    ),
    "joining schedules": (
        unfreeze_at(SCHEDULED, {"encoder": 2, "head": 0}),
        only(None, SCHEDULED),
        "migrate_state: '1.count' would have to be 3 for what is not named in 'cohorts.0'; 1 for "
        "what is not named in 'cohorts.2'",
    ),
    "no count, but a distance": (
        only("encoder", DOGS),
        only("encoder.l1", DOGS),
        "migrate_state: 'encoder.l2.b'; 'encoder.l2.w' would start with fresh moments under "
        "'1.weighted_sq_norm_grads', which has run (it is no count). Instead: "
        "param_groups({'encoder.l2': tx, 'head': tx}, default=None)",
    ),
    "splitting a schedule": (
        only(None, SCHEDULED),
        groups("encoder", "head", tx=SCHEDULED),
        f"migrate_state: {WHOSE.format('groups.encoder.1.count')}; "
        f"{WHOSE.format('groups.head.1.count')}",
    ),
    "a schedule into stages": (
        only(None, SCHEDULED),
        unfreeze_at(SCHEDULED, {"**": 0}),
        f"migrate_state: {WHOSE.format('cohorts.0.1.count')}; {HOW_MANY.format('step')}",
    ),
    "no count for the step": (
        only(None, optax.sgd(0.1, momentum=0.9)),
        unfreeze_at(optax.sgd(0.1, momentum=0.9), {"**": 0}),
        f"migrate_state: {HOW_MANY.format('step')}",
    ),
    "nothing at all for the step": (
        only(None, optax.sgd(0.1)),
        unfreeze_at(optax.sgd(0.1), {"**": 0}),
        f"migrate_state: {HOW_MANY.format('step')}",
    ),
    "two counts for the step": (
        only(None, optax.MultiSteps(ADAM, 2)),
        unfreeze_at(optax.MultiSteps(ADAM, 2), {"**": 0}),
        f"migrate_state: {HOW_MANY.format('step')}",
    ),
    "a longer run than that of the first cohort": (
        unfreeze_at(ADAM, {"encoder": 2, "head": 0}).init and groups("encoder", "head"),
        unfreeze_at(ADAM, {"head": 7}),
        f"migrate_state: {HOW_MANY.format('step')}",
    ),
    "another optimizer": (
        only("encoder", optax.rmsprop(0.1)),
        only("encoder", optax.rmsprop(0.1, centered=True)),
        "migrate_state: the state has no '0.mu.head.b' for 'head.b'; the state has no "
        "'0.mu.head.w' for 'head.w'",
    ),
    "one more transformation": (
        only("encoder"),
        only("encoder", optax.adam(optax.linear_schedule(0.1, 0.0, 5))),
        "migrate_state: the state has no '1.count'",
    ),
    "nothing shared": (only("encoder"), only("head"), NOTHING.format("'0.mu.encoder.l1.b'")),
    "nothing at all": (only("**"), only("head"), NOTHING.format("'0.mu.encoder.l1.b'")),
    "nothing but a count": (
        only(None, optax.sgd(0.1)),
        only(None, SCHEDULED),
        NOTHING.format("'1.count'"),
    ),
    "another position": (
        clipped(ADAM, "encoder"),
        only("encoder"),
        NOTHING.format(
            "'0.mu.head.b', but '1.0.mu.head.b': elements of an optax.chain go by position"
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_go_on_is_named(case):
    before, after, text = REFUSED[case]
    _, state = train(before, 3)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        migrate_state(state, after, PARAMS)


@pytest.mark.parametrize("case", [case for case in REFUSED if "Instead: " in REFUSED[case][2]])
def test_the_code_in_the_error_works(case):
    """It keeps all that there is."""
    before, after, _ = REFUSED[case]
    _, state = train(before, 3)
    with pytest.raises(ValueError, match="Instead: ") as caught:
        migrate_state(state, after, PARAMS)
    code = str(caught.value).partition("Instead: ")[2]
    tx = {"no count, but a distance": DOGS}.get(case, ADAM)
    if case == "joining rates":
        tx = optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9)
    tx = eval(code, {"tx": tx, "param_groups": param_groups, "unfreeze_at": unfreeze_at})
    moved = migrate_state(state, tx, PARAMS)
    assert by_address(moved).keys() == by_address(after.init(PARAMS)).keys()
    assert all_bits(by_address(state)).items() <= all_bits(by_address(moved)).items()
    train(tx, 1, moved, begin=3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (only(None, SCHEDULED), unfreeze_at(SCHEDULED, {"**": 0})),
        (only("encoder", OPTIMIZERS["momentum"]), unfreeze_at(OPTIMIZERS["momentum"], STAGES)),
        (only("encoder", OPTIMIZERS["MultiSteps"]), unfreeze_at(OPTIMIZERS["MultiSteps"], STAGES)),
    ],
    ids=["schedule", "momentum", "MultiSteps"],
)
def test_the_number_of_updates_can_be_said(before, after):
    _, state = train(before, 3)
    moved = migrate_state({"step": 3, "cohorts": {"0": state}}, after, PARAMS)
    assert int(moved.step) == 3
    kept = zip(jax.tree.leaves(moved.cohorts["0"]), jax.tree.leaves(state), strict=True)
    assert all(new is old for new, old in kept)


def test_a_resized_leaf_is_named_with_both_shapes():
    _, state = train(only("encoder"), 2)
    wide = {**PARAMS, "head": {"b": jnp.ones(7), "w": jnp.ones((2, 7))}}
    text = r"the state holds an array of shape \(2, 1\) for 'head.w', not \(2, 7\)"
    with pytest.raises(ValueError, match=text):
        migrate_state(state, only("encoder"), wide)


def test_what_is_no_leaf_of_params_is_named_by_its_path():
    flat = optax.flatten(ADAM)
    _, state = train(only("encoder", flat), 2)
    assert int(migrate_state(state, only("encoder", flat), PARAMS)[0].count) == 2
    text = r"the state holds an array of shape \(3,\) for '0.mu', not \(9,\)"
    with pytest.raises(ValueError, match=text):
        migrate_state(state, only("encoder.l1", flat), PARAMS)


def test_two_states_of_one_leaf():
    state = only("encoder").init(PARAMS)
    text = "the state holds 'head.b' more than once: 'groups.a.0.mu.head.b'; 'groups.b.0.mu.head.b'"
    with pytest.raises(ValueError, match=re.escape(text)):
        migrate_state({"groups": {"a": state, "b": state}}, only("encoder"), PARAMS)


def test_long_lists_are_cut():
    params = {f"{kind}{i}": jnp.ones(1) for i in range(9) for kind in "ab"}
    old, new = trainable_only(ADAM, [f"b{i}" for i in range(9)]), trainable_only(ADAM)
    _, state = old.update(params, old.init(params), params)
    with pytest.raises(ValueError, match="'b5'; and 3 more would start") as caught:
        migrate_state(state, new, params)
    assert "('a0', 'a1', 'a2', 'a3', 'a4', 'a5', ...): tx" in str(caught.value)


def test_a_leaf_that_no_path_names_alone():
    params = {"a": jnp.ones(2), "a.b": jnp.ones(3)}
    old = trainable_only(ADAM, trainable=where(lambda path, _: path == "a"))
    _, state = old.update(params, old.init(params), params)
    text = "Instead: param_groups({'a': tx, 'a.b': tx})"
    with pytest.raises(ValueError, match=re.escape(text)):
        migrate_state(state, trainable_only(ADAM), params)


def test_only_outside_of_jit():
    tx = only("encoder")
    state = tx.init(PARAMS)
    text = "reads the counts of a state: call it outside of jit, on arrays"
    with pytest.raises(TypeError, match=text):
        jax.jit(lambda state: migrate_state(state, tx, PARAMS))(state)
    with pytest.raises(TypeError, match=text):
        migrate_state(jax.eval_shape(tx.init, PARAMS), tx, PARAMS)


def test_no_transformation():
    with pytest.raises(TypeError, match=r"migrate_state: 3 is not an optax.GradientTransformation"):
        migrate_state((), 3, PARAMS)


ODD = {
    "names of the states' own": {
        "groups": {"count": jnp.ones(2), "mu": jnp.ones(3)},
        "cohorts": {"0": {"step": jnp.ones(2), "cohorts": jnp.ones(2)}},
        "count": jnp.ones(4),
        "mu": {"value": jnp.ones(1), "mu": jnp.ones(1)},
    },
    "nothing but groups": {"groups": {"a": jnp.ones(2), "b": jnp.ones(3)}},
    "dots": {"a.b": jnp.ones(2), "a": {"c": jnp.ones(3)}},
    "a list": [jnp.ones(2), (jnp.ones(3), jnp.ones(2)), None],
    "a pair": (jnp.ones(2), jnp.ones(3)),
    "a module": eqx.nn.MLP(2, 1, 2, 1, key=jax.random.key(0)),
    "integers for keys": {0: jnp.ones(2), 1: {10: jnp.ones(3)}},
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("through", [in_memory, through_orbax], ids=lambda way: way.__name__)
def test_odd_params(case, through, tmp_path):
    """All into two groups, the first of which is new, and back."""
    params = ODD[case]
    first, *others = [
        path
        for path, leaf in zip(leaf_paths(params), jax.tree.leaves(params), strict=True)
        if eqx.is_array(leaf)
    ]
    old = trainable_only(ADAM, first)
    gradient = jax.tree.map(lambda leaf: leaf if eqx.is_array(leaf) else None, params)
    _, state = old.update(gradient, old.init(params), params)
    new = param_groups({first: ADAM, tuple(others): ADAM})
    moved = migrate_state(through(state, tmp_path), new, params)
    counts = {label: int(adam[0].count) for label, adam in moved.groups.items()}
    assert counts == {first: 0, ", ".join(others): 1}
    assert all_bits(migrate_state(moved, old, params)) == all_bits(state)
    with pytest.raises(ValueError, match="would start with fresh moments") as caught:
        migrate_state(state, trainable_only(ADAM), params)
    code = str(caught.value).partition("Instead: ")[2]
    shown = eval(code, {"tx": ADAM, "param_groups": param_groups})
    again = migrate_state(state, shown, params).groups.values()
    assert sorted(map(str, map(all_bits, again))) == sorted(
        map(str, map(all_bits, moved.groups.values()))
    )


def test_one_bare_array():
    tx = trainable_only(ADAM)
    _, state = tx.update(jnp.ones(3), tx.init(jnp.ones(3)), jnp.ones(3))
    assert all_bits(migrate_state(state, tx, jnp.ones(3))) == all_bits(state)
    with pytest.raises(ValueError, match="does not say whose that is"):
        migrate_state(state, param_groups({"**": ADAM}), jnp.ones(3))


class Net(nnx.Module):
    def __init__(self):
        self.encoder = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(2, 2, rngs=nnx.Rngs(1))
        self.tied = self.encoder.kernel


@pytest.mark.parametrize("through", [in_memory, through_orbax], ids=lambda way: way.__name__)
def test_nnx(through, tmp_path):
    """From its own optimizer, whose state is made of Variables, into the new one."""
    model = Net()
    optimizer = nnx.Optimizer(model, only("encoder"), wrt=nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
    state = nnx.to_pure_dict(nnx.state(optimizer))["opt_state"]
    params = nnx.state(model, nnx.Param)
    moved = migrate_state(through(state, tmp_path), groups("encoder", "head"), params)
    assert [int(moved.groups[name][0].count) for name in ("encoder", "head")] == [0, 1]
    kept = migrate_state(optimizer.opt_state, only("encoder"), params)
    assert bits(moved.groups["head"][0].mu["head"]["kernel"][...]) == bits(
        kept[0].mu["head"]["kernel"][...]
    )
    nnx.update(kept[0].mu, moved.groups["head"][0].mu)


def test_shardings_are_kept():
    devices = jax.sharding.Mesh(np.array(jax.devices()), "x")
    sharding = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("x"))
    params = {"encoder": jnp.ones(8), "head": jax.device_put(jnp.ones(8), sharding)}
    tx = only("encoder")
    _, state = jax.jit(tx.update)(params, tx.init(params), params)
    moved = migrate_state(state, groups("encoder", "head"), params)
    assert moved.groups["head"][0].mu["head"] is state[0].mu["head"]
    assert moved.groups["head"][0].mu["head"].sharding.is_equivalent_to(sharding, 1)


def test_before_the_first_update_anything_goes():
    state = only("encoder").init(PARAMS)
    moved = migrate_state(state, unfreeze_at(ADAM, {"encoder": 0, "head": 4}), PARAMS)
    assert int(moved.step) == 0
    assert all_bits(migrate_state(state, only(None), PARAMS)) == all_bits(only(None).init(PARAMS))


def test_another_rate_before_the_first_update_is_no_run():
    tx = optax.inject_hyperparams(optax.adam)(0.1)
    state = only("encoder", tx).init(PARAMS)
    state.hyperparams["learning_rate"] = jnp.float32(0.5)
    moved = migrate_state(state, only(None, tx), PARAMS)
    assert moved.hyperparams["learning_rate"] == 0.5


@pytest.mark.parametrize("name", sorted(WITHOUT_COUNT))
def test_where_nothing_counts_a_released_leaf_is_as_fresh_as_alone(name):
    """The first update of each is then that of an optimizer that was started on it alone."""
    tx = OPTIMIZERS[name]
    _, state = train(only("encoder", tx), 3)
    moved = migrate_state(state, only(None, tx), PARAMS)
    old, fresh = by_address(state), by_address(only(None, tx).init(PARAMS))
    assert all_bits(by_address(moved)) == all_bits({**fresh, **old})
    with jax.disable_jit():
        params, _ = train(only(None, tx), 1, moved, begin=3)
        alone, _ = train(only("head", tx), 1, begin=3)
    assert all_bits(params["encoder"]) == all_bits(alone["encoder"])
