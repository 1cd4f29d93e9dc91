"""Everything that Optax exports, under `trainable_only`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hostile import all_bits, bits, frozen_leaves, poisoned, without_weak_types
from zoo import (
    ARGUMENTS,
    BARE,
    BUILT,
    DEPRECATED,
    EXPORTED,
    NAMED,
    OTHER,
    PER_EXAMPLE,
    UNMAPPED,
    VARIADIC,
    as_optax_needs_it,
    build,
    every_optimizer,
    required,
)

from optax_freeze import apply_updates, trainable_only, value_and_grad

X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).normal(size=(8, 3)), jnp.float32)


def make_params():
    """Frozen leaves stand before, between and after those that train."""
    rng = np.random.default_rng(2)
    trainable = {
        "b": jnp.asarray(rng.normal(size=3), jnp.float32),
        "w": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32),
    }
    frozen = frozen_leaves()
    return {**trainable, "a": frozen, "m": frozen["plain"], "z": frozen["float32"]}, trainable


FREEZE = ["a", "m", "z"]


def loss(params):
    """Of the trainable leaves only, but its gradient is NaN and inf at frozen floats."""
    frozen = [params[name] for name in FREEZE if name in params]
    error = X @ params["w"] + params["b"][None] - Y
    return jnp.mean(error**2) + poisoned(frozen)


def value_fn(params, obj_fn=None):  # Optax's zoom line search refuses what this does not name
    del obj_fn
    return loss(params)


def step(name, tx, value_and_gradient, add, params, state):
    value, gradient = value_and_gradient(params)
    if name in PER_EXAMPLE:
        gradient = jax.tree.map(lambda leaf: leaf[None], gradient)
    extra = {"value": value, "grad": gradient, "value_fn": value_fn, "obj_fn": value_fn}
    updates, state = tx.update(gradient, state, params, **({} if name in BARE else extra))
    return add(params, updates), state


def test_everything_that_optax_exports_is_built_or_named():
    known = {name: required(EXPORTED[name]) for name in BUILT if name not in VARIADIC}
    lacking = {name: set(needs) - ARGUMENTS.keys() for name, needs in known.items()}
    assert {name: needs for name, needs in lacking.items() if needs} == {}


def test_nothing_is_named_that_optax_does_not_export():
    named = [*NAMED, *OTHER, *VARIADIC, *PER_EXAMPLE, *BARE, *DEPRECATED]
    assert sorted(set(named) - EXPORTED.keys()) == []


def test_the_walk_finds_functions_partials_and_classes():
    assert {"optax.adam", "optax.nadam", "optax.MultiSteps", "optax.contrib.dog"} <= set(BUILT)


@every_optimizer
def test_four_steps_move_what_trains_as_if_it_were_alone_and_nothing_else(name):
    params, subset = make_params()
    with as_optax_needs_it(name):
        alone = optax.with_extra_args_support(build(name))
        tx = trainable_only(build(name), freeze=FREEZE)
        by_holes = value_and_grad(loss, freeze=FREEZE)
        densely = jax.value_and_grad(loss, allow_int=True)

        @jax.jit  # all three in one program, because it is compiling that takes the time
        def steps(dense, holes, reference):
            return (
                step(name, tx, densely, apply_updates, *dense),
                step(name, tx, by_holes, apply_updates, *holes),
                step(name, alone, densely, optax.apply_updates, *reference),
            )

        dense = holes = params, without_weak_types(tx.init(params))
        reference = subset, without_weak_types(alone.init(subset))
        for _ in range(4):
            dense, holes, reference = steps(dense, holes, reference)
        expected = all_bits(params | reference[0])
        assert all_bits(dense[0]) == expected
        assert all_bits(holes[0]) == expected
        # The state too, to the bit, so it takes exactly as many bytes.
        assert all_bits_in_order(holes[1]) == all_bits_in_order(reference[1])
        assert all_bits_in_order(dense[1]) == all_bits_in_order(reference[1])


def all_bits_in_order(tree):
    return list(map(bits, jax.tree.leaves(tree)))


@every_optimizer
def test_if_all_is_frozen_it_is_neither_initialised_nor_run(name):
    params, _ = make_params()
    with as_optax_needs_it(name):
        tx = trainable_only(build(name), freeze="**")
    state = tx.init(params)
    assert state == optax.EmptyState()
    gradient = jax.grad(lambda tree: poisoned(tree["a"]), allow_int=True)(params)
    updates, state = tx.update(gradient, state, params, value=jnp.nan, value_fn=loss)
    assert state == optax.EmptyState()
    assert {float(jnp.sum(jnp.abs(x)).real) for x in jax.tree.leaves(updates)} == {0.0}
    by_holes, _ = tx.update(value_and_grad(loss, freeze="**")(params)[1], state, params)
    assert jax.tree.leaves(by_holes) == []


@every_optimizer
def test_tree_map_params_does_what_it_does_for_the_optimizer_alone(name):
    params, subset = make_params()
    with as_optax_needs_it(name):
        alone, tx = build(name), trainable_only(build(name), freeze=FREEZE)
        state = tx.init(params)

        def mapped(tx, state):
            return optax.tree_map_params(
                tx, lambda leaf: leaf.shape, state, transform_non_params=lambda _: "other"
            )

        try:
            expected = mapped(alone, alone.init(subset))
        except (AttributeError, IndexError, TypeError, ValueError):
            assert name in UNMAPPED
            return
        assert name not in UNMAPPED
        assert jax.tree.leaves(mapped(tx, state)) == jax.tree.leaves(expected)
