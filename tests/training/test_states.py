"""A state that was made for another choice or other params is refused, by name."""

import pickle
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from formats import (
    through_equinox,
    through_flax,
    through_orbax,
    through_orbax_without_target,
    through_pickle,
)
from hostile import all_bits, bits

from optax_freeze import SpecError, leaf_paths, param_groups, trainable_mask, trainable_only

ADAM = optax.adam(0.1)
PARAMS = {
    "encoder": {"b": jnp.ones(2), "w": jnp.ones((3, 2))},
    "head": {"b": jnp.ones(4), "w": jnp.ones((2, 4))},
}
GRADIENT = jax.tree.map(lambda leaf: leaf * 0.5, PARAMS)
NO_STATE = "{} trains, but the state holds nothing for it"
SPARE = "the state holds moments of {}, which is frozen"
ENDING = re.escape(
    "The state was made, or restored, for another freeze= or trainable=, for other groups or "
    "other params: migrate_state(state, tx, params) carries over what fits"
)


def only(freeze):
    return trainable_only(ADAM, freeze)


def groups(*names, **more):
    return param_groups(dict.fromkeys(names, ADAM), **more)


# The transformation that the state is made with, the one it is passed to, and what must be said.
STRANGERS = {
    "freezing less": (only("encoder"), only("encoder.w"), [NO_STATE.format("'encoder.b'")]),
    "freezing more": (only("encoder.w"), only("encoder"), [SPARE.format("'encoder.b'")]),
    "exchanging": (
        only("encoder"),
        only("head"),
        [NO_STATE.format("'encoder.b'"), NO_STATE.format("'encoder.w'"), SPARE.format("'head.b'")],
    ),
    "freezing everything": (only("encoder"), only("**"), [SPARE.format("'head.w'")]),
    "everything was frozen": (only("**"), only("encoder"), [NO_STATE.format("'head.b'")]),
    "no freezing at all": (ADAM, only("encoder"), [SPARE.format("'encoder.b'")]),
    "another group": (
        groups("encoder", "head"),
        groups("encoder", "head.b", "head.w"),
        ["'head.b' trains, but the state holds nothing for it in the group 'head.b'"],
    ),
    "a group that is now frozen": (
        groups("encoder", "head"),
        param_groups({"encoder": ADAM, "head": None}),
        [SPARE.format("'head.b'")],
    ),
    "a group that is new": (
        groups("encoder", default=None),
        groups("encoder", "head"),
        ["'head.w' trains, but the state holds nothing for it in the group 'head'"],
    ),
    "groups to one": (
        groups("encoder", "head"),
        only("encoder"),
        [SPARE.format("'encoder.b'"), SPARE.format("'encoder.w'")],
    ),
    "one to groups": (
        only("encoder"),
        groups("head", default=None),
        ["'head.b' trains, but the state holds nothing for it in the group 'head'"],
    ),
    "inside a chain": (
        trainable_only(optax.chain(optax.clip(1.0), groups("**")), "encoder"),
        trainable_only(optax.chain(optax.clip(1.0), groups("**")), "head"),
        [NO_STATE.format("'encoder.b'"), SPARE.format("'head.b'")],
    ),
}


def in_memory(state, like, folder):
    return state


@pytest.mark.parametrize("case", STRANGERS)
@pytest.mark.parametrize("through", [in_memory, through_pickle], ids=lambda way: way.__name__)
@pytest.mark.parametrize("run", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
def test_a_state_of_another_choice_is_refused_by_name(case, through, run, tmp_path):
    maker, taker, texts = STRANGERS[case]
    state = through(maker.init(PARAMS), taker.init(PARAMS), tmp_path)
    with pytest.raises(ValueError, match=ENDING) as caught:
        run(taker.update)(GRADIENT, state, PARAMS)
    for text in texts:
        assert text in str(caught.value)


WAYS = [through_orbax, through_orbax_without_target, through_flax, through_equinox]


def by_param(state):
    """The moments by the end of their paths, such as `mu.head.w`."""
    named = zip(leaf_paths(state), jax.tree.leaves(state), strict=True)
    return {".".join(path.split(".")[-3:]): bits(leaf) for path, leaf in named if "u." in path}


@pytest.mark.parametrize("case", STRANGERS)
@pytest.mark.parametrize("through", WAYS, ids=lambda way: way.__name__)
def test_a_restored_state_of_another_choice_is_refused_or_right(case, through, tmp_path):
    """Some formats drop what the target does not ask for: what is left must be right."""
    maker, taker, _ = STRANGERS[case]
    _, state = maker.update(GRADIENT, maker.init(PARAMS), PARAMS)
    try:
        restored = through(state, taker.init(PARAMS), tmp_path)
        taker.update(GRADIENT, restored, PARAMS)
    except (ValueError, RuntimeError, AttributeError, KeyError, TypeError):
        return
    assert by_param(restored).items() <= by_param(state).items()


def test_a_format_that_brings_the_leaves_alone_cannot_tell(tmp_path):
    """The README says so: with these, save what `split` gives."""
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    state = through_equinox(only("a").init(params), only("b").init(params), tmp_path)
    only("b").update(params, state, params)


@pytest.mark.parametrize("tx", [only("encoder"), groups("encoder", "head")], ids=["only", "groups"])
@pytest.mark.parametrize("through", [through_orbax_without_target], ids=lambda way: way.__name__)
def test_a_state_that_lost_its_containers_says_so(tx, through, tmp_path):
    state = through(tx.init(PARAMS), None, tmp_path)
    with pytest.raises(
        ValueError, match=r"the state has the right paths, but other containers \(a"
    ):
        tx.update(GRADIENT, state, PARAMS)


def test_a_resized_leaf_is_named_with_both_shapes():
    wide = {**PARAMS, "head": {"b": jnp.ones(7), "w": jnp.ones((2, 7))}}
    tx = only("encoder")
    text = r"the state holds an array of shape \(2, 4\) for 'head.w', not \(2, 7\)"
    with pytest.raises(ValueError, match=text):
        tx.update(wide, tx.init(PARAMS), wide)


@pytest.mark.parametrize("tx", [only("encoder"), groups("encoder", "head")], ids=["only", "groups"])
def test_the_state_of_the_same_choice_made_elsewhere_is_taken(tx):
    """No memory of `init` is needed: the transformation was made anew, as after a restart."""
    state = pickle.loads(pickle.dumps(tx.init(PARAMS)))
    expected = tx.update(GRADIENT, tx.init(PARAMS), PARAMS)
    again = only("encoder") if isinstance(state, tuple) and len(state) == 2 else None
    taker = again or groups("encoder", "head")
    assert all_bits(taker.update(GRADIENT, state, PARAMS)) == all_bits(expected)


def test_holes_in_a_state_are_taken_as_none():
    """As `optax.masked` leaves them."""
    mask = trainable_mask(PARAMS, freeze="encoder")
    masked = optax.masked(ADAM, mask).init(PARAMS).inner_state
    tx = trainable_only(ADAM, trainable=mask)
    expected = tx.update(GRADIENT, tx.init(PARAMS), PARAMS)
    updates, state = tx.update(GRADIENT, masked, PARAMS)
    assert all_bits((updates, state)) == all_bits(expected)
    assert jax.tree.structure(state) == jax.tree.structure(expected[1])


def test_groups_in_another_order_are_found_by_name(tmp_path):
    """Case 32: each group keeps its own moments and its own count."""
    fast, slow = optax.adam(0.1), optax.chain(optax.clip(1.0), optax.adam(0.01))
    tx = param_groups({"encoder": fast, "head": slow})
    _, state = tx.update(GRADIENT, tx.init(PARAMS), PARAMS)
    turned = param_groups({"head": slow, "encoder": fast})
    restored = through_orbax(state, turned.init(PARAMS), tmp_path)
    assert all_bits(turned.update(GRADIENT, restored, PARAMS)) == all_bits(
        tx.update(GRADIENT, state, PARAMS)
    )


def test_hyperparams_of_a_group_are_found_by_name_and_changed_without_a_trace():
    adam = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    tx = param_groups({"head": adam, "encoder": None})
    traces = []

    @jax.jit
    def step(state):
        traces.append(1)
        return tx.update(GRADIENT, state, PARAMS)

    state = tx.init(PARAMS)
    _, state = step(state)
    assert float(state.groups["head"].hyperparams["learning_rate"]) == pytest.approx(0.1)
    rates = state.groups["head"].hyperparams
    rates["learning_rate"] = jnp.zeros_like(rates["learning_rate"])
    updates, _ = step(state)
    assert not updates["head"]["w"].any()
    assert len(traces) == 1


def test_optax_finds_its_way_through_the_groups():
    tx = groups("encoder", "head")
    state = tx.init(PARAMS)
    found = dict(optax.tree_utils.tree_get_all_with_path(state, "count"))
    assert len(found) == 2
    moments = optax.tree_utils.tree_get(state.groups["head"], "mu")
    assert (moments["encoder"], moments["head"]["b"].shape) == ({"b": None, "w": None}, (4,))


def test_labels():
    def is_head(module):
        return isinstance(module, Head)

    params = Head(jnp.ones(1), {"a": jnp.ones(2), "b": jnp.ones(3), "c": jnp.ones(4)})
    tx = param_groups({("rest.a", "rest.b"): ADAM, Head: ADAM}, default=ADAM)
    assert list(tx.init(params).groups) == ["rest.a, rest.b", "Head"]
    tx = param_groups({"rest": ADAM, is_head: ADAM}, default=ADAM)
    assert list(tx.init(params).groups) == ["rest", "is_head"]


class Head(eqx.Module):
    w: jax.Array
    rest: dict


@pytest.mark.parametrize(
    "make",
    [
        lambda: param_groups({"default": ADAM}, default=ADAM),
        lambda: param_groups({"a, b": ADAM, ("a", "b"): ADAM}),
        lambda: param_groups({(lambda m: True): ADAM, (lambda m: False): ADAM}),
    ],
    ids=["default", "a tuple", "lambdas"],
)
def test_two_groups_of_one_label_are_refused(make):
    with pytest.raises(SpecError, match=r"2 groups would be called '.*', and their states"):
        make()


class WithStatic(eqx.Module):
    """A module whose structure can be neither hashed nor compared."""

    w: jax.Array
    b: jax.Array
    table: np.ndarray = eqx.field(static=True)


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_params_whose_structure_cannot_be_compared():
    def model():
        return WithStatic(jnp.ones(2), jnp.ones(3), np.arange(3))

    tx, params = trainable_only(ADAM, "b"), model()
    stranger = tx.init(model())
    with pytest.raises(ValueError, match=r"metadata|ambiguous"):  # of JAX, which cannot compare
        tx.update(params, stranger, params)
    tx.init(model())  # is remembered, and cannot be compared with what comes now
    updates, state = tx.update(params, tx.init(params), params)
    assert (updates.w < -0.09).all()
    with pytest.raises(ValueError, match=NO_STATE.format("'b'")):
        only("w").update(params, state, params)


def test_many_kinds_of_params_are_no_matter():
    """The memory of forms is small, and nothing depends on it."""
    tx = trainable_only(optax.trace(0.9), "a")
    states = {n: tx.init({"a": np.ones(1), "b": np.ones(n, np.float32)}) for n in range(1, 20)}
    params = {"a": np.ones(1), "b": np.ones(1, np.float32)}
    tx.update(params, states[1], params)
    with pytest.raises(ValueError, match=r"an array of shape \(19,\) for 'b', not \(1,\)"):
        tx.update(params, states[19], params)
