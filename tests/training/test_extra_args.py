"""What optimizers ask for besides gradients: values, functions, line searches, L-BFGS (case 8)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from hostile import all_bits, bits, frozen_leaves, without_weak_types

from optax_freeze import apply_updates, param_groups, trainable_only, value_and_grad

HOLE = optax.MaskedNode()
SCALE = jnp.array([1.0, 2.0, 0.5])
FROZEN = {"scale": SCALE, **frozen_leaves()}
START = {"x": jnp.array([1.2, -1.0, 0.3]), "y": jnp.array([-0.5, 2.0])}
PARAMS = {"a": START["x"], "m": FROZEN, "z": START["y"]}


def value_fn(params):
    x, y = params["a"], params["z"]
    of_x = jnp.sum((params["m"]["scale"] * x) ** 2 + 0.1 * x**4)
    return of_x + jnp.sum((y - 1.0) ** 2) + x[0] * y[0]


def with_closure_over(frozen):
    """The same problem of the subset, with the frozen values held in a closure."""
    return lambda part: value_fn({"a": part["a"], "m": frozen, "z": part["z"]})


SUBSET = {"a": PARAMS["a"], "z": PARAMS["z"]}
SEARCHES = {
    "lbfgs": optax.lbfgs(),
    "lbfgs, backtracking": optax.lbfgs(
        linesearch=optax.scale_by_backtracking_linesearch(10, store_grad=True)
    ),
    "zoom": optax.chain(optax.sgd(1.0), optax.scale_by_zoom_linesearch(10)),
    "backtracking": optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10)),
    "polyak_sgd": optax.polyak_sgd(0.5),
    "momo": optax.contrib.momo(0.1),
    "reduce_on_plateau": optax.chain(optax.sgd(0.01), optax.contrib.reduce_on_plateau(patience=1)),
}


@pytest.mark.parametrize("tx", SEARCHES.values(), ids=SEARCHES.keys())
@pytest.mark.parametrize("gradients", ["dense", "holes"])
def test_same_iterates_as_the_subset_problem(gradients, tx):
    ours = trainable_only(tx, freeze="m")
    numeric = value_and_grad(value_fn, freeze="m")
    if gradients == "dense":
        numeric = jax.value_and_grad(value_fn, allow_int=True)

    def step(tx, value_and_gradient, add, value_fn, params, state):
        value, gradient = value_and_gradient(params)
        extra = {"value": value, "grad": gradient, "value_fn": value_fn}
        updates, state = tx.update(gradient, state, params, **extra)
        return add(params, updates), state

    @jax.jit
    def both(whole, part):
        # Not over constants, with which XLA calculates beforehand, and rounds in another place.
        in_closure = with_closure_over(whole[0]["m"])
        return (
            step(ours, numeric, apply_updates, value_fn, *whole),
            step(tx, jax.value_and_grad(in_closure), optax.apply_updates, in_closure, *part),
        )

    whole = PARAMS, without_weak_types(ours.init(PARAMS))
    part = SUBSET, without_weak_types(tx.init(SUBSET))
    for _ in range(4):
        whole, part = both(whole, part)
        assert all_bits(whole[0]) == all_bits({**PARAMS, **part[0]})
    assert float(value_fn(whole[0])) < float(value_fn(PARAMS))
    assert list(map(bits, jax.tree.leaves(whole[1]))) == list(map(bits, jax.tree.leaves(part[1])))


class Spy:
    """A transformation that keeps what it is called with."""

    def __init__(self):
        self.params, self.extra = None, {}
        self.tx = optax.GradientTransformationExtraArgs(optax.init_empty_state, self.update)

    def update(self, updates, state, params=None, **extra):
        self.params, self.extra = params, extra
        return updates, state


def seen(freeze="m", params=PARAMS, **extra):
    """What an optimizer sees of extra arguments."""
    spy = Spy()
    tx = trainable_only(spy.tx, freeze)
    tx.update(
        {**SUBSET, "m": jax.tree.map(lambda _: HOLE, FROZEN)}, tx.init(PARAMS), params, **extra
    )
    return spy


MASKED = {"a": SUBSET["a"], "m": dict.fromkeys(FROZEN), "z": SUBSET["z"]}


def test_the_optimizer_sees_none_for_what_is_frozen():
    assert seen().params == MASKED


def test_a_tree_like_params_is_masked():
    spy = seen(grad=PARAMS, holes=MASKED, nones={**PARAMS, "m": dict.fromkeys(FROZEN)})
    assert spy.extra == {"grad": MASKED, "holes": MASKED, "nones": MASKED}


def test_a_tree_like_params_is_masked_without_params_too():
    gradient = {**SUBSET, "m": FROZEN}
    spy = Spy()
    tx = trainable_only(spy.tx, "m")
    tx.update(gradient, tx.init(PARAMS), grad=gradient)
    assert spy.extra == {"grad": MASKED}


OTHERS = {
    "number": 1.5,
    "text": "x",
    "None": None,
    "of other shapes": jax.tree.map(lambda leaf: np.zeros((*leaf.shape, 2)), PARAMS),
    "of another structure": SUBSET,
}


@pytest.mark.parametrize("value", OTHERS.values(), ids=OTHERS.keys())
def test_anything_else_comes_as_it_is(value):
    assert seen(value=value).extra["value"] is value


def test_a_function_comes_as_it_is_without_params_to_fill_in():
    spy = Spy()
    tx = trainable_only(spy.tx, "m")
    tx.update(PARAMS, tx.init(PARAMS), value_fn=value_fn)
    assert spy.extra["value_fn"] is value_fn


class Callable(eqx.Module):
    power: int

    def __call__(self, params):
        return value_fn(params) ** self.power


FUNCTIONS = {
    "function": value_fn,
    "jitted": jax.jit(value_fn),
    "a node": jax.tree_util.Partial(value_fn),
    "Equinox's jit": eqx.filter_jit(value_fn),
    "a module": Callable(1),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_function_gets_the_full_params(function):
    spy = seen(value_fn=function)
    assert float(spy.extra["value_fn"](spy.params)) == pytest.approx(float(value_fn(PARAMS)))
    moved = {**MASKED, "z": SUBSET["z"] + 1.0}
    expected = value_fn({**PARAMS, "z": moved["z"]})
    assert float(spy.extra["value_fn"](moved)) == pytest.approx(float(expected))


def test_a_function_may_take_them_by_name_and_much_else():
    spy = seen(fun=lambda scale, *, tree, flag: (scale, tree["m"], flag))
    scale, frozen, flag = spy.extra["fun"](2.0, tree=spy.params, flag="x")
    assert (scale, flag) == (2.0, "x")
    assert frozen["key"] is FROZEN["key"]


def test_what_a_function_returns_like_params_is_masked():
    spy = seen(grad_fn=lambda params: params, both=lambda params: (1.0, params))
    assert spy.extra["grad_fn"](spy.params) == MASKED
    assert spy.extra["both"](spy.params) == (1.0, MASKED)


def test_a_model_that_can_be_called_is_a_tree():
    """Case 5: an Equinox module as the gradient."""
    model = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    spy = Spy()
    tx = trainable_only(spy.tx, "bias")
    tx.update(model, tx.init(model), model, grad=model)
    assert spy.extra["grad"].bias is None
    assert spy.extra["grad"].weight is model.weight


def test_param_groups_give_each_group_its_part():
    one, two = Spy(), Spy()
    tx = param_groups({"a": one.tx, "z": two.tx}, default=None)
    tx.update(PARAMS, tx.init(PARAMS), PARAMS, grad=PARAMS, value_fn=value_fn)
    assert (one.extra["grad"]["z"], two.extra["grad"]["a"]) == (None, None)
    assert bits(one.extra["value_fn"](one.params)) == bits(value_fn(PARAMS))
    assert bits(two.extra["value_fn"](two.params)) == bits(value_fn(PARAMS))


def test_sam_in_its_opaque_form_asks_for_gradients_itself():
    def opaque():
        return optax.contrib.sam(optax.sgd(0.01), optax.sgd(0.05), opaque_mode=True)

    ours, alone = trainable_only(opaque(), freeze="m"), opaque()
    whole, part = (PARAMS, ours.init(PARAMS)), (SUBSET, alone.init(SUBSET))
    gradient = jax.grad(value_fn, allow_int=True)

    @jax.jit
    def both(whole, part):
        in_closure = with_closure_over(whole[0]["m"])
        updates, state = ours.update(
            gradient(whole[0]), whole[1], whole[0], grad_fn=lambda params, _: gradient(params)
        )
        new, part_state = alone.update(
            jax.grad(in_closure)(part[0]), part[1], part[0],
            grad_fn=lambda params, _: jax.grad(in_closure)(params),
        )  # fmt: skip
        return (apply_updates(whole[0], updates), state), (
            optax.apply_updates(part[0], new),
            part_state,
        )

    for _ in range(3):
        whole, part = both(whole, part)
    assert all_bits(whole[0]) == all_bits({**PARAMS, **part[0]})
    assert np.isfinite(float(value_fn(whole[0])))
