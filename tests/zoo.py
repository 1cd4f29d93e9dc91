"""Every optimizer and wrapper that Optax exports, found by walking it, not by a list."""

import contextlib
import inspect
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest


def norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


# What has no default, by the name of the parameter.
ARGUMENTS = {
    "adv_optimizer": optax.sgd(0.05),
    "base_optimizer": optax.adam(0.1),
    "clipping": 0.1,
    "decay": 0.9,
    "eta": 0.1,
    "every_k_schedule": 2,
    "f": lambda updates, params: updates,
    "freeze_mask": False,
    "gamma": 0.5,
    "inner": optax.adam(0.1),
    "inner_factory": optax.adamw,
    "l2_norm_clip": 1.0,
    "learning_rate": 0.1,
    "mask": True,
    "max_backtracking_steps": 5,
    "max_consecutive_errors": 2,
    "max_delta": 0.1,
    "max_linesearch_steps": 5,
    "max_norm": 0.1,
    "measure": norm,
    "measure_name": "norm",
    "measures": {"norm": norm},
    "noise_multiplier": 0.1,
    "opt": optax.adam(0.1),
    "optimizer": optax.adam(0.1),
    "param_labels": lambda params: jax.tree.map(lambda _: "all", params),
    "seed": 3,
    "should_transform_fn": lambda step, **_: step < 2,
    "step_size": -0.1,
    "step_size_fn": lambda count: -0.1,
    "threshold": 0.1,
    "transforms": {"all": optax.adamw(0.1)},
    "tx": optax.adam(0.1),
}
# What takes any number of arguments.
VARIADIC = {
    "optax.chain": [optax.clip_by_global_norm(0.1), optax.adamw(0.1)],
    "optax.named_chain": [("clip", optax.clip_by_global_norm(0.1)), ("adamw", optax.adamw(0.1))],
}
# What cannot be built from these.
NAMED = {
    "optax.contrib.scale_by_muon": "wants to be told about every leaf, as `muon` does it",
    "optax.measure_with_ema": "gives a measurement in the place of updates: for `monitor`",
    "optax.lookahead": "wants params of its own class: see test_wrappers.py",
}
# What has no return annotation and makes no transformation.
OTHER = {
    "optax.WrappedSchedule",
    "optax.bias_correction",
    "optax.contrib.schedule_free_eval_params",
    "optax.matrix_inverse_pth_root",
    "optax.sigmoid_binary_cross_entropy",
    "optax.update_infinity_moment",
    "optax.update_moment",
    "optax.update_moment_per_elem_norm",
}
# These take gradients with one more axis, of examples.
PER_EXAMPLE = {"optax.contrib.differentially_private_aggregate", "optax.contrib.dpsgd"}
# Optax cannot map over the states of these, because they compute with params to make them.
UNMAPPED = {
    "optax.flatten",
    "optax.lbfgs",
    "optax.scale_by_backtracking_linesearch",
    "optax.scale_by_zoom_linesearch",
}
# These refuse extra arguments.
BARE = {"optax.contrib.sam"}
DEPRECATED = {
    "optax.contrib.dpsgd",  # only its argument `seed`, which has no default
    "optax.inject_stateful_hyperparams",
    "optax.optimistic_adam",
}


def could_make_a_transformation(value):
    if inspect.isclass(value):
        return hasattr(value, "update") and not issubclass(value, (tuple, dict))
    if not (
        inspect.isfunction(value) or isinstance(value, partial) or hasattr(value, "__wrapped__")
    ):
        return False
    returns = inspect.signature(value).return_annotation
    return returns is inspect.Signature.empty or "GradientTransformation" in str(returns)


def exported():
    """All that may make a transformation, by its full name."""
    return {
        f"{module.__name__}.{name}": value
        for module in (optax, optax.contrib)
        for name, value in inspect.getmembers(module)
        if not name.startswith("_") and could_make_a_transformation(value)
    }


def required(function):
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def build(name):
    """The transformation, from defaults and the tables above."""
    function = EXPORTED[name]
    if name in VARIADIC:
        return function(*VARIADIC[name])
    arguments = {argument: ARGUMENTS[argument] for argument in required(function)}
    if "key" in inspect.signature(function).parameters:
        arguments["key"] = 3  # has a default, with which Optax warns that it will have none
    made = function(**arguments)
    return made if hasattr(made, "update") else made(0.1)  # `inject_hyperparams` gives a factory


@contextlib.contextmanager
def as_optax_needs_it(name):
    """The settings of the suite, but for what an optimizer violates by itself."""
    # Half of all optimizers raise a Python float to the power of an integer count, which is not
    # strict; this one multiplies a leaf by an array of shape (1,).
    ranks = "allow" if name == "optax.scale_by_distance_over_gradients" else "raise"
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion(ranks),
        warnings.catch_warnings(),
    ):
        if name in DEPRECATED:
            warnings.simplefilter("ignore", DeprecationWarning)
        yield


EXPORTED = exported()
BUILT = sorted(EXPORTED.keys() - NAMED.keys() - OTHER)
every_optimizer = pytest.mark.parametrize("name", BUILT)
