"""`unfreeze_at`: a cohort moves as if it had been started at its step, and before it not at all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from formats import through_flax, through_orbax, through_pickle
from hostile import all_bits, bits, frozen_leaves
from hypothesis import given
from hypothesis import strategies as st
from zoo import BARE, BUILT, PER_EXAMPLE, as_optax_needs_it, build

from optax_freeze import (
    SpecError,
    apply_updates,
    check_frozen,
    param_groups,
    trainable_only,
    unfreeze_at,
    value_and_grad,
)
from optax_freeze._proof.hostile import extra_args

PARAMS = {
    "a": {"b": jnp.array([0.5, -1.5]), "w": jnp.array([[1.0, 2.0], [3.0, -4.0]])},
    "c": {"b": jnp.array([2.0]), "w": jnp.array([0.25, 8.0])},
    "n": 3,
    "x": jnp.array([-0.0, 1.0, jnp.nan]),
}
FLOATS = {"a": PARAMS["a"], "c": PARAMS["c"], "x": PARAMS["x"]}


@functools.cache
def gradients(step):
    """Dense gradients that differ from step to step and leaf to leaf."""
    rng = np.random.default_rng(step)
    dense = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), FLOATS)
    return {**dense, "n": None}


def train(tx, params, steps, state=None, begin=0, gradient=gradients):
    state = tx.init(params) if state is None else state
    for step in range(begin, steps):
        updates, state = tx.update(gradient(step), state, params)
        params = apply_updates(params, updates)
    return params, state


def subtree(tree, name):
    for key in name.split("."):
        tree = tree[key]
    return tree


OPTIMIZERS = {
    "adamw": optax.adamw(0.1),
    "sgd with momentum": optax.sgd(0.1, momentum=0.9),
    "chain with a schedule": optax.chain(
        optax.clip_by_global_norm(1.0), optax.lion(optax.linear_schedule(0.1, 0.0, 5))
    ),
    "MultiSteps": optax.MultiSteps(optax.adam(0.1), 2),
    "inject_hyperparams": optax.inject_hyperparams(optax.adam)(0.1),
    "schedule_free": optax.contrib.schedule_free_sgd(0.1),
}
steps_of = st.dictionaries(
    st.sampled_from(["a", "a.b", "a.w", "c.b", "c.w"]), st.integers(0, 5), min_size=1
)


def earliest(stages):
    """By hand: from which step each leaf trains, without entries that others release earlier."""
    found = {}
    for name in ("a.b", "a.w", "c.b", "c.w"):
        steps = [step for spec, step in stages.items() if f"{name}.".startswith(f"{spec}.")]
        if steps:
            found[name] = min(steps)
    return found


def is_useless(stages):
    """Whether an entry says nothing, which is an error."""
    found = earliest(stages)
    return any(
        all(found[name] < step for name in found if f"{name}.".startswith(f"{spec}."))
        for spec, step in stages.items()
    )


@given(stages=steps_of, optimizer=st.sampled_from(sorted(OPTIMIZERS)))
def test_a_cohort_moves_as_if_it_had_been_started_at_its_step(stages, optimizer):
    """Bit for bit, where operations are done one by one."""
    tx = OPTIMIZERS[optimizer]
    if is_useless(stages):
        with pytest.raises(SpecError, match="are released earlier by others"):
            unfreeze_at(tx, stages).init(PARAMS)
        return
    with jax.disable_jit():
        params, state = train(unfreeze_at(tx, stages), PARAMS, 7)
        starts = earliest(stages)
        for start in set(starts.values()):
            names = [name for name, step in starts.items() if step == start]
            own = {name: subtree(PARAMS, name) for name in names}
            alone = tx.gradient_transformation() if isinstance(tx, optax.MultiSteps) else tx
            expected, own_state = train(
                alone,
                own,
                7,
                begin=start,
                gradient=lambda step, names=names: {
                    name: subtree(gradients(step), name) for name in names
                },
            )
            assert all_bits({name: subtree(params, name) for name in names}) == all_bits(expected)
            held = state.cohorts[str(start)]
            assert list(map(bits, jax.tree.leaves(held))) == list(
                map(bits, jax.tree.leaves(own_state))
            )
    assert list(state.cohorts) == sorted(map(str, set(starts.values())), key=int)
    assert int(state.step) == 7
    for name in {"a.b", "a.w", "c.b", "c.w", "x"} - starts.keys():
        assert bits(subtree(params, name)) == bits(subtree(PARAMS, name))


# Without the optimizations of LLVM, which take a fifth of this time; with all of XLA's own.
QUICK = {"xla_backend_optimization_level": 0}


@pytest.mark.parametrize("name", sorted(set(BUILT) - PER_EXAMPLE))
def test_every_optimizer_can_wait(name):
    """Inside `jit`, where XLA may fuse otherwise: to rounding."""
    params = {"a": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "c": jnp.array([[1.0, 0.5]])}
    gradient = jax.tree.map(lambda leaf: leaf * 0.5, params)
    with as_optax_needs_it(name):
        tx = build(name)
        late = unfreeze_at(tx, {"c": 0, "a": 2})
        state = late.init(params)
        if name in CHANGING:
            with pytest.raises(ValueError, match="the state of the optimizer has another"):
                jax.jit(late.update)(gradient, state, params)
            return
        asked = (lambda _: {}) if name in BARE else extra_args
        step = jax.jit(
            lambda state, params: late.update(gradient, state, params, **asked(gradient)),
            compiler_options=QUICK,
        )
        for _ in range(2):
            updates, state = step(state, params)
            assert bits(updates["a"]) == bits(-jnp.zeros((2, 2)))
        updates, _ = step(state, params)
        alone = {"a": params["a"]}
        fresh = optax.with_extra_args_support(tx)
        expected, _ = jax.jit(
            lambda state: fresh.update(
                {"a": gradient["a"]}, state, alone, **asked({"a": gradient["a"]})
            ),
            compiler_options=QUICK,
        )(fresh.init(alone))
        np.testing.assert_allclose(updates["a"], expected["a"], rtol=1e-5, atol=1e-7)


# The state of these has another structure after the first update.
CHANGING = {"optax.monitor"}


# Before its step


@pytest.mark.parametrize("kind", ["NaN", "inf", "None", "hole", "zero"])
@pytest.mark.parametrize("run", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
def test_before_its_step_nothing_of_a_cohort_moves(kind, run):
    leaves = frozen_leaves().items()
    frozen = {name: leaf for name, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)}
    params = {"a": frozen, "c": jnp.ones(2)}
    value = {"None": lambda _: None, "hole": lambda _: optax.MaskedNode()}.get(
        kind, lambda leaf: jnp.full_like(leaf, {"NaN": jnp.nan, "inf": jnp.inf, "zero": 0.0}[kind])
    )
    gradient = {"a": jax.tree.map(value, frozen), "c": jnp.ones(2)}
    tx = unfreeze_at(optax.adamw(0.1), {"c": 0, "a": 3})
    state = tx.init(params)
    before = all_bits(state.cohorts["3"])

    def step(params, state):
        updates, state = tx.update(gradient, state, params)
        return apply_updates(params, updates), state, updates["a"]

    step, new = run(step), params
    only = trainable_only(optax.sgd(0.1), "a")
    still = only.update(gradient, only.init(params), params)[0]["a"]
    for _ in range(3):
        new, state, updates = step(new, state)
        assert all_bits(updates) == all_bits(still)  # minus zero, or None
    if updates["float32"] is None:
        assert all_bits(new["a"]) == all_bits(frozen)
    else:  # an addition of minus zero, which XLA cannot drop here
        pairs = (without_subnormals(new["a"]), without_subnormals(frozen))
        jax.tree.map(np.testing.assert_array_equal, *pairs)
        assert jnp.signbit(new["a"]["float32"])[:2].tolist() == [False, True]
    assert all_bits(state.cohorts["3"]) == before
    assert not (new["c"] == params["c"]).any()


def without_subnormals(tree):
    """Which hardware may take for zero when it adds."""
    return jax.tree.map(lambda leaf: np.where(abs(leaf.astype(complex)) < 1e-7, 0, leaf), tree)


LEFT_OUT = {"a": None, "c": jnp.ones(2)}
TWO = {"a": jnp.ones(2), "c": jnp.ones(2)}
LATE = unfreeze_at(optax.sgd(0.5), {"c": 0, "a": 2})


@pytest.mark.parametrize("run", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
def test_a_gradient_that_is_left_out_when_its_cohort_trains_is_an_error(run):
    step, state = run(lambda state: LATE.update(LEFT_OUT, state, TWO)[1]), LATE.init(TWO)
    for _ in range(2):
        state = step(state)
    text = "'a' trains from step 2 on, but the gradient is None: compute it with trainable= of"
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=text):
        jax.block_until_ready(step(state))


def test_of_an_ensemble_the_first_that_lacks_a_gradient_is_an_error():
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), LATE.init(TWO))
    step = jax.jit(jax.vmap(lambda state: LATE.update(LEFT_OUT, state, TWO)[1]))
    state = step(state)
    assert state.step.tolist() == [1, 1]
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="'a' trains from step 2 on"):
        jax.block_until_ready(step(state._replace(step=jnp.array([0, 2], jnp.int32))))


def test_without_params_dense_gradients_will_do():
    state = LATE.init(TWO)
    for expected in (-0.0, -0.0, -0.5):
        updates, state = LATE.update(TWO, state)
        assert updates["a"].tolist() == [expected] * 2
        assert jnp.signbit(updates["a"]).all()


def test_gradients_a_phase_at_a_time():
    """The recipe of the docstring: the same steps as with dense gradients, without their work."""
    stages = {"c": 0, "a": 3}
    tx = unfreeze_at(optax.adam(0.1), stages)

    def loss(params):
        return jnp.sum(params["a"] ** 2) * jnp.sum(params["c"] ** 3)

    def run(gradient):
        params, state = TWO, tx.init(TWO)
        for step in range(5):
            updates, state = tx.update(gradient(step)(params), state, params)
            params = apply_updates(params, updates)
        return params, state

    def by_phase(step):
        now = tuple(spec for spec, at in stages.items() if at <= step)
        return lambda params: value_and_grad(loss, trainable=now)(params)[1]

    assert all_bits(run(by_phase)) == all_bits(run(lambda _: jax.grad(loss)))


# One trace, one structure, any way to run


def test_one_trace_serves_all_steps_and_the_state_keeps_its_structure():
    tx, traces = unfreeze_at(optax.adamw(0.1), {"c": 0, "a.w": 2, "a": 4}), []
    gradient = gradients(0)

    @jax.jit
    def step(params, state):
        traces.append(1)
        updates, state = tx.update(gradient, state, params)
        return apply_updates(params, updates), state

    params, state = FLOATS | {"n": None}, tx.init(FLOATS | {"n": None})
    forms = {str(jax.tree.map(jnp.shape, state)): jax.tree.structure(state)}
    for _ in range(6):
        params, state = step(params, state)
        forms[str(jax.tree.map(jnp.shape, state))] = jax.tree.structure(state)
    assert (len(traces), len(forms)) == (1, 1)
    assert len(set(forms.values())) == 1


def many_steps(tx, params, steps=5):
    def step(carry, gradient):
        params, state = carry
        updates, state = tx.update(gradient, state, params)
        return (apply_updates(params, updates), state), None

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(gradients, range(steps)))
    return jax.lax.scan(step, (params, tx.init(params)), stacked)[0]


def by_steps(tx, params, steps=5):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, gradient):
        updates, state = tx.update(gradient, state, params)
        return apply_updates(params, updates), state

    params = jax.tree.map(jnp.copy, params)
    state = tx.init(params)
    for count in range(steps):
        params, state = step(params, state, gradients(count))
    return params, state


STAGES = {"c": 0, "a.w": 2, "a": 4}
ARRAYS = FLOATS | {"n": None}


def same(found, expected):
    """To rounding: XLA fuses a scan otherwise than single steps."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_scan_and_donation():
    tx = unfreeze_at(optax.adamw(0.1), STAGES)
    same(many_steps(tx, ARRAYS), by_steps(tx, ARRAYS))
    same(by_steps(tx, ARRAYS), train(tx, ARRAYS, 5))


def test_an_ensemble():
    tx = unfreeze_at(optax.adamw(0.1), STAGES)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf * 2]), ARRAYS)
    params, state = jax.vmap(lambda params: many_steps(tx, params))(stacked)
    for i in range(2):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], (params, state))
        alone = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        same(one, many_steps(tx, alone))
        assert bits(one[0]["x"]) == bits(alone["x"])


def test_before_release_the_work_is_not_done():
    """As XLA sees it: all of the optimizer's arithmetic on the cohort is inside a conditional."""
    tx = unfreeze_at(optax.adamw(0.1), {"c": 0, "a": 2})
    jaxpr = jax.make_jaxpr(tx.update)(TWO, tx.init(TWO), TWO)
    conds = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "cond"]
    assert len(conds) == 1
    waiting, running = sorted(len(branch.eqns) for branch in conds[0].params["branches"])
    assert (waiting, running > 10) == (1, True)  # the zeros


def test_updates_of_another_dtype_than_the_params_keep_it():
    """The zeros of a cohort that waits are then of that dtype as well."""
    params = {"a": jnp.ones(2, jnp.bfloat16), "c": jnp.ones(2, jnp.bfloat16)}
    wide = optax.stateless(lambda updates, _: jax.tree.map(jnp.float32, updates))
    tx = unfreeze_at(optax.chain(wide, optax.add_noise(0.0, 0.0, 0)), {"c": 0, "a": 1})
    step, state = jax.jit(tx.update), tx.init(params)
    for expected in (-0.0, 1.0):
        updates, state = step(params, state, params)
        assert updates["a"].dtype == jnp.float32
        assert bits(updates["a"]) == bits(jnp.full(2, expected, jnp.float32))


def test_devices_keep_what_is_where():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    params = jax.device_put({"a": jnp.ones((8, 2)), "c": jnp.ones((8,))}, rows)
    tx = unfreeze_at(optax.adam(0.1), {"c": 0, "a": 1})
    state = jax.jit(tx.init)(params)
    step = jax.jit(tx.update)
    for expected in (0.0, -0.1):
        updates, state = step(params, state, params)
        assert updates["a"].sharding.is_equivalent_to(rows, 2)
        np.testing.assert_allclose(updates["a"], expected, rtol=1e-5)


# Saved and restored


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("through", [through_pickle, through_orbax, through_flax])
def test_restored_at_any_step_it_goes_on_bit_for_bit(through, at, tmp_path):
    tx = unfreeze_at(optax.adam(0.1), STAGES)
    params, state = train(tx, ARRAYS, at)
    restored = through(state, tx.init(ARRAYS), tmp_path)
    again = train(unfreeze_at(optax.adam(0.1), STAGES), params, 6, restored, begin=at)
    assert all_bits(again) == all_bits(train(tx, params, 6, state, begin=at))


def test_a_state_of_other_stages_is_refused():
    state = unfreeze_at(optax.adam(0.1), {"c": 0, "a": 2}).init(TWO)
    other = unfreeze_at(optax.adam(0.1), {"c": 0, "a": 3})
    text = "'a' trains, but the state holds nothing for it in the cohort '3'"
    with pytest.raises(ValueError, match=text):
        other.update(TWO, state, TWO)
    with pytest.raises(ValueError, match=text):
        other.update(TWO, optax.adam(0.1).init(TWO), TWO)


# With others


def test_one_global_norm_over_what_trains_at_the_moment():
    stages = {"c": 0, "a": 2}
    tx = optax.chain(
        unfreeze_at(optax.identity(), stages),
        optax.clip_by_global_norm(1.0),
        unfreeze_at(optax.sgd(1.0), stages),
    )
    gradient = {"a": jnp.full(2, 1e6), "c": jnp.array([3.0, 4.0])}
    _, state = train(tx, TWO, 2, gradient=lambda _: gradient)
    updates, _ = tx.update(gradient, tx.init(TWO), TWO)
    np.testing.assert_allclose(updates["c"], [-0.6, -0.8], rtol=1e-6)
    updates, _ = tx.update(gradient, state, TWO)
    assert float(jnp.abs(updates["c"]).max()) < 1e-5


INSIDE = {
    "trainable_only": lambda tx: trainable_only(tx, "x"),
    "chain": lambda tx: optax.chain(optax.identity(), tx),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 1).gradient_transformation(),
    "inject_hyperparams": lambda tx: optax.inject_hyperparams(lambda rate: tx)(rate=0.1),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 2),
}


@pytest.mark.parametrize("wrap", INSIDE.values(), ids=INSIDE.keys())
def test_inside_other_wrappers(wrap):
    tx = unfreeze_at(optax.adam(0.1), STAGES)
    params = {**ARRAYS, "x": jnp.ones(3)}
    found, _ = by_steps(wrap(tx), params)
    same(found, by_steps(tx, params)[0])


def test_inside_groups():
    inner = unfreeze_at(optax.sgd(0.5), {"a.w": 2, "a.b": 0})
    tx = param_groups({"a": inner, "c": optax.sgd(0.1), "x": None})
    params, state = train(tx, FLOATS | {"n": 3}, 2)
    assert bits(params["a"]["w"]) == bits(FLOATS["a"]["w"])
    assert int(state.groups["a"].step) == 2
    assert not (params["c"]["w"] == FLOATS["c"]["w"]).any()


def test_optax_maps_over_its_state():
    tx = unfreeze_at(optax.adam(0.1), {"c": 0, "a": 2})
    state = optax.tree_map_params(tx, lambda leaf: leaf.astype(jnp.bfloat16), tx.init(TWO))
    assert state.cohorts["2"][0].mu["a"].dtype == jnp.bfloat16
    assert state.step.dtype == jnp.int32


def test_freeze_is_stronger_than_a_stage():
    tx = unfreeze_at(optax.adam(0.1), {"a": 0}, freeze="a.b")
    params, state = train(tx, PARAMS, 2)
    assert bits(params["a"]["b"]) == bits(PARAMS["a"]["b"])
    assert len(jax.tree.leaves(state)) == 2 + 2  # two counts, two moments


def test_check_frozen_finds_no_leak():
    tx = unfreeze_at(optax.adamw(0.1), {"c": 0, "a": 50})
    check_frozen(tx, TWO, "a")


def test_the_last_step_that_can_be_counted():
    tx = unfreeze_at(optax.sgd(1.0), {"c": 0, "a": 2**31 - 1})
    last = tx.init(TWO)._replace(step=jnp.int32(2**31 - 2))
    before, state = jax.jit(tx.update)(TWO, last, TWO)
    after, state = jax.jit(tx.update)(TWO, state, TWO)
    assert not before["a"].any()
    assert bits(after["a"]) == bits(-TWO["a"])
    assert state.step == 2**31 - 1


# Errors

WRONG = {
    "negative": (
        {"a": -1},
        ValueError,
        "the step of 'a' is -1: the first update is that of",
    ),
    "beyond int32": (
        {"a": 2**31},
        ValueError,
        "the step of 'a' is 2147483648: updates are counted up to 2147483647: leave out the entry",
    ),
    "fraction": ({"a": 1.5}, TypeError, "the step of 'a' is 1.5: it must be an integer, which"),
    "bool": ({"a": True}, TypeError, "the step of 'a' is True: it must be an integer"),
    "NumPy's bool": ({"a": np.True_}, TypeError, "it must be an integer, which counts updates"),
    "None": ({"a": None}, TypeError, "the step of 'a' is None: it must be an integer"),
    "empty": ({}, SpecError, "without a stage nothing ever trains"),
    "a list": (["a"], TypeError, "takes a mapping from specs to steps, not list"),
    "no spec": ({3: 0}, SpecError, "the key 3 of unfreeze_at: got 3, not a path"),
    "an empty key": ({(): 0}, SpecError, r"the key \(\) of unfreeze_at names nothing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_stages(case):
    stages, kind, text = WRONG[case]
    with pytest.raises(kind, match=text):
        unfreeze_at(optax.sgd(0.1), stages)


def test_a_traced_step_is_refused():
    with pytest.raises(TypeError, match="the step of 'a' is a tracer: stages must be known before"):
        jax.jit(lambda step: unfreeze_at(optax.sgd(0.1), {"a": step}).init(TWO))(1)


def test_integers_of_numpy_are_steps():
    state = unfreeze_at(optax.sgd(0.1), {"a": np.int64(3), "c": np.array(3)}).init(TWO)
    assert list(state.cohorts) == ["3"]


UNUSED = {
    "misspelt": (
        {"a": 0, "cc": 1},
        "an entry matches no leaf .*\n  'cc': closest: 'c'",
    ),
    "cannot train": ({"n": 0}, "'n' matches nothing that can train: 'n' is a leaf"),
    "released earlier": (
        {"a": 1, "a.b": 2},
        "unfreeze_at: all leaves that 'a.b' matches are released earlier by others",
    ),
}


@pytest.mark.parametrize("case", UNUSED)
def test_an_entry_without_effect(case):
    stages, text = UNUSED[case]
    with pytest.raises(SpecError, match=text):
        unfreeze_at(optax.sgd(0.1), stages).init(PARAMS)


def test_the_same_step_twice_is_one_cohort():
    tx = unfreeze_at(optax.adam(0.1), {"a": 1, "a.b": 1, ("c.w", "c.b"): 1})
    assert list(tx.init(PARAMS).cohorts) == ["1"]
