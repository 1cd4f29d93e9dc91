"""`scale_by_spec`: what it refuses, and in what words."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_freeze import SpecError, scale_by_spec

WHAT = "a factor is a number above 0, an array of such, or a schedule"
STILL = (
    "0 .* keeps nothing still, because 0 times NaN is NaN; name .* in the freeze= of trainable_only"
)
NO_FACTOR = {
    "bool": (True, rf"got bool: {WHAT}$"),
    "None": (None, rf"got NoneType: {WHAT}; name .* in the freeze= of trainable_only"),
    "text": ("0.5", rf"got str: {WHAT}$"),
    "complex": (1j, rf"got complex: {WHAT}$"),
    "list": ([1.0, 2.0], rf"got list: {WHAT}; make it one by numpy\.array"),
    "optimizer": (optax.sgd(0.1), rf"got Grad\w+: {WHAT}; an optimizer for each .* param_groups"),
    "array of bools": (np.array([True]), "got ndarray of bool: a factor"),
    "array of text": (np.array(["a"]), "got ndarray of <U1: a factor"),
    "array of complex": (jnp.ones(2, jnp.complex64), "got ArrayImpl of complex64: a factor"),
    "bool of NumPy": (np.True_, "got bool of bool: a factor"),
    "PRNG key": (jax.random.key(0), r"got PRNGKeyArray of key<fry>: a factor"),
    "abstract": (jax.ShapeDtypeStruct((2,), jnp.float32), "got ShapeDtypeStruct of float32: a"),
}
NO_RATE = {
    "0": (0, rf"got 0: {STILL}"),
    "0.0": (0.0, rf"got 0\.0: {STILL}"),
    "-0.0": (-0.0, rf"got -0\.0: {STILL}"),
    "0 in float32": (1e-50, rf"got 1e-50: {STILL}"),
    "an array with 0": (np.array([1.0, 0.0]), rf"got an array with 0\.0 in it: {STILL}"),
    "negative": (-1, f"got -1: {WHAT}; a negative one walks uphill"),
    "NaN": (float("nan"), f"got nan: {WHAT}, and finite"),
    "infinity": (float("inf"), f"got inf: {WHAT}, and finite"),
    "minus infinity": (-float("inf"), f"got -inf: {WHAT}, and finite"),
    "too large": (1e300, f"got 1e\\+300: {WHAT}, and finite"),
    "an array with NaN": (jnp.array([[1.0], [jnp.nan]]), "got an array with nan in it: a factor"),
}


@pytest.mark.parametrize(("factor", "text"), NO_FACTOR.values(), ids=NO_FACTOR)
def test_what_is_no_factor_raises_at_once(factor, text):
    with pytest.raises(TypeError, match=rf"scale_by_spec, entry 'a': {text}"):
        scale_by_spec({"a": factor})
    with pytest.raises(TypeError, match=rf"scale_by_spec, default: {text}"):
        scale_by_spec({}, default=factor)


@pytest.mark.parametrize(("factor", "text"), NO_RATE.values(), ids=NO_RATE)
def test_what_is_no_rate_raises_at_once(factor, text):
    with pytest.raises(ValueError, match=rf"scale_by_spec, entry 'a': {text}"):
        scale_by_spec({"a": factor})
    with pytest.raises(ValueError, match=rf"scale_by_spec, default: {text}"):
        scale_by_spec({}, default=factor)


def test_a_traced_bool_is_no_factor_either():
    with pytest.raises(TypeError, match="got DynamicJaxprTracer of bool: a factor is"):
        jax.jit(lambda flag: scale_by_spec({"a": flag}).init({"a": jnp.ones(2)}))(True)


WRONG_KEYS = {
    "empty": ("", "the key '' of scale_by_spec is an empty string"),
    "nothing": ((), r"the key \(\) of scale_by_spec names nothing: leave the entry out"),
    "an index": (0, "the key 0 of scale_by_spec: got 0"),
}


@pytest.mark.parametrize(("key", "text"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_a_key_is_a_spec(key, text):
    with pytest.raises(SpecError, match=text):
        scale_by_spec({key: 0.5})


def test_it_takes_a_mapping():
    with pytest.raises(TypeError, match="takes a mapping from specs to factors, not float"):
        scale_by_spec(0.5)


PARAMS = {
    "encoder": {"w": jnp.ones((4, 2)), "b": jnp.ones(2)},
    "head": jnp.ones(()),
    "table": jnp.arange(3),
    "name": "net",
}
MISSES = {
    "misspelt": ({"encodr": 0.5}, "'encodr': closest: 'encoder'"),
    "two of them": ({"encodr": 0.5, ("head", "hed"): 2.0}, r"2 entries match no (.|\n)*'hed': clo"),
    "taken": ({"encoder": 0.5, "encoder.w": 2.0}, "all leaves that 'encoder.w' matches were taken"),
    "taken by a 1": ({"**": 1.0, "head": 2.0}, "that 'head' .* put it before them"),
    "an integer": (
        {"table": 0.5},
        "'table' matches nothing that can train: 'table' is an array of",
    ),
    "a text": (
        {"name": 0.5},
        "'name' matches nothing that can train: 'name' is a leaf of class st",
    ),
}


@pytest.mark.parametrize(("factors", "text"), MISSES.values(), ids=MISSES)
def test_what_does_not_fit_the_tree_raises(factors, text):
    tx = scale_by_spec(factors)
    with pytest.raises(SpecError, match=rf"scale_by_spec: (.|\n)*{text}"):
        tx.init(PARAMS)
    with pytest.raises(SpecError, match=rf"scale_by_spec: (.|\n)*{text}"):
        tx.update(PARAMS, optax.EmptyState(), PARAMS)


FITS = "must fit the leaf from the left, a number for each row: that of entry "
SHAPES = {
    "too short": (
        {"encoder.w": np.ones(3)},
        rf"{FITS}'encoder.w' has shape \(3,\), but 'encoder.w' has \(4, 2\)",
    ),
    "from the right": (
        {"encoder": np.ones(2)},
        rf"{FITS}'encoder' has shape \(2,\), but 'encoder.w' has \(4, 2\)$",
    ),
    "more axes": ({"head": np.ones(1)}, rf"{FITS}'head' has shape \(1,\), but 'head' has \(\)"),
    "would make it larger": ({"encoder.b": np.ones((2, 3))}, r"has shape \(2, 3\), but .* \(2,\)"),
}


@pytest.mark.parametrize(("factors", "text"), SHAPES.values(), ids=SHAPES)
def test_an_array_fits_its_leaves(factors, text):
    with pytest.raises(ValueError, match=text):
        scale_by_spec(factors).init(PARAMS)
    ((key, array),) = factors.items()
    tx = scale_by_spec({key: lambda _: array})
    with pytest.raises(ValueError, match=text):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_a_default_array_fits_all_others():
    with pytest.raises(ValueError, match=r"that of default has shape \(4,\), but 'head' has \(\)"):
        scale_by_spec({"encoder.b": 2.0}, default=np.ones(4)).init(PARAMS)


@pytest.mark.parametrize("given", [None, "0.5", True, optax.adam])
def test_a_schedule_gives_a_factor(given):
    tx = scale_by_spec({"head": lambda _: given})
    with pytest.raises(TypeError, match=r"entry 'head': what the schedule gave: got .*: a factor"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_a_structure_that_differs_is_named():
    tx = scale_by_spec({"head": 0.5})
    with pytest.raises(ValueError, match=r"updates must have the structure of params: .*'encoder"):
        tx.update({"head": jnp.ones(())}, tx.init(PARAMS), PARAMS)
