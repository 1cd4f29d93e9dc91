"""What moves a frozen leaf although `frozen` stands in front of it, as `check_frozen` finds it."""

import re

import jax.numpy as jnp
import optax
import pytest
from zoo import BUILT, PER_EXAMPLE, as_optax_needs_it, build

from optax_freeze import FrozenLeak, check_frozen, frozen, trainable_only

PARAMS = {"encoder": {"w": jnp.ones((3, 2))}, "head": jnp.ones((4, 2))}
DECAY = "without any gradient: weight decay"
NOISE = "without any gradient: noise, averaging or momentum"
ROUNDING = f"{DECAY}|{NOISE}"  # an average of equal numbers, off by the last bit
SWAYED = "the updates of what trains .* depend on the gradients of frozen leaves"
LEAKS = {
    "optax.adamaxw": DECAY,
    "optax.adamw": DECAY,
    "optax.add_noise": NOISE,
    "optax.chain": DECAY,  # of the adamw that the zoo puts into it, as for the other wrappers
    "optax.contrib.hutchinson_estimator_diag_hessian": NOISE,
    "optax.contrib.schedule_free": ROUNDING,
    "optax.contrib.schedule_free_adamw": ROUNDING,
    "optax.contrib.schedule_free_sgd": ROUNDING,
    "optax.contrib.sophia": DECAY,
    "optax.fromage": DECAY,
    "optax.inject_hyperparams": DECAY,
    "optax.inject_stateful_hyperparams": DECAY,
    "optax.lbfgs": SWAYED,
    "optax.lion": DECAY,
    "optax.multi_transform": DECAY,
    "optax.nadamw": DECAY,
    "optax.named_chain": DECAY,
    "optax.noisy_sgd": NOISE,
    "optax.partition": DECAY,
    "optax.scale_by_backtracking_linesearch": SWAYED,
    "optax.scale_by_yogi": NOISE,
    "optax.scale_by_zoom_linesearch": SWAYED,
    "optax.yogi": NOISE,
}
STILL = {"optax.freeze", "optax.set_to_zero"}  # as the zoo builds them, they move nothing at all
ORDINARY = [name for name in BUILT if name not in PER_EXAMPLE | STILL]


def leak(tx):
    """The first thing that `check_frozen` says, or ""."""
    try:
        check_frozen(tx, PARAMS, "encoder")
    except FrozenLeak as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ORDINARY)
def test_frozen_in_front_is_not_enough_for_these(name):
    """Fails when Optax adds one that leaks, and when one no longer does."""
    with as_optax_needs_it(name):
        found = leak(optax.chain(frozen("encoder"), build(name)))
    assert re.search(LEAKS.get(name, "^$"), found), found


@pytest.mark.parametrize("name", ORDINARY)
def test_trainable_only_always_is(name):
    with as_optax_needs_it(name):
        assert leak(trainable_only(build(name), "encoder")) == ""


@pytest.mark.parametrize("name", sorted(STILL))
def test_what_moves_nothing_shows_nothing(name):
    with pytest.raises(ValueError, match="nothing moved in 3 steps"):
        check_frozen(trainable_only(build(name), "encoder"), PARAMS, "encoder")
