"""`grad` and `value_and_grad`: only what trains is differentiated, and the rest costs nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hostile import all_bits, bits, poison

from optax_freeze import (
    MaskError,
    SpecError,
    apply_updates,
    grad,
    merge,
    split,
    trainable_only,
    tree_mask,
    unmasked,
    value_and_grad,
)

HOLE = optax.MaskedNode()
X = jnp.asarray(np.random.default_rng(0).normal(size=(32, 16)), jnp.float32)


def make_params(depth=3, width=16):
    rng = np.random.default_rng(1)

    def layer():
        return {
            "w": jnp.asarray(rng.normal(size=(width, width)) / 4, jnp.float32),
            "b": jnp.zeros(width),
        }

    return {"encoder": [layer() for _ in range(depth)], "head": layer()}


PARAMS = make_params()


def loss(params, x):
    for layer in params["encoder"]:
        x = jnp.tanh(x @ layer["w"] + layer["b"][None])
    return jnp.mean((x @ params["head"]["w"] + params["head"]["b"][None]) ** 2)


def by_hand(params, x):
    """The gradient of two separate arguments."""
    rest = {"encoder": params["encoder"]}
    return jax.value_and_grad(lambda head: loss({**rest, "head": head}, x))(params["head"])


def test_the_gradient_is_that_of_the_part_with_none_elsewhere():
    value, gradient = value_and_grad(loss, freeze="encoder")(PARAMS, X)
    expected_value, expected = by_hand(PARAMS, X)
    assert bits(value) == bits(expected_value)
    assert all_bits(gradient["head"]) == all_bits(expected)
    assert gradient["encoder"] == [{"b": None, "w": None}] * 3


@pytest.mark.parametrize("kwargs", [
    {"freeze": "encoder"},
    {"trainable": "head"},
    {"trainable": {"encoder": False, "head": True}},
    {"trainable": {"encoder": True, "head": True}, "freeze": "encoder"},
])  # fmt: skip
def test_all_ways_to_say_it_and_both_functions_agree(kwargs):
    _, both = value_and_grad(loss, **kwargs)(PARAMS, X)
    alone = grad(loss, **kwargs)(PARAMS, X)
    assert all_bits(both) == all_bits(alone)
    assert jax.tree.structure(both) == jax.tree.structure(alone)
    assert set(all_bits(alone)) == {"['head']['b']", "['head']['w']"}


def flops(fun, *args):
    return jax.jit(fun).lower(*args).compile().cost_analysis()["flops"]


def test_it_costs_what_two_separate_arguments_cost():
    """Case 20. Nothing frozen is differentiated, so there is no backward matmul for it."""
    ours = flops(value_and_grad(loss, freeze="encoder"), PARAMS, X)
    everything = flops(value_and_grad(loss), PARAMS, X)
    assert ours == flops(by_hand, PARAMS, X)
    assert everything > 1.5 * ours


def matmuls(fun, *args):
    return str(jax.make_jaxpr(fun)(*args)).count("dot_general")


def test_no_backward_matmul_is_even_traced_for_what_is_frozen():
    assert matmuls(value_and_grad(loss, freeze="encoder"), PARAMS, X) == 5
    assert matmuls(by_hand, PARAMS, X) == 5
    assert matmuls(jax.value_and_grad(loss), PARAMS, X) > 9


def test_the_backward_pass_of_a_frozen_leaf_does_not_run():
    """Case 6: its gradient would be NaN."""

    def poisoned(params):
        return jnp.sum(params["a"] ** 2) + poison(params["a"] * params["b"])

    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    assert bool(jnp.isnan(grad(poisoned)(params)["b"][0]))
    gradient = grad(lambda p: jnp.sum(p["a"] ** 2) + poison(p["b"]), freeze="b")(params)
    assert bits(gradient["a"]) == bits(jnp.full(2, 2.0))
    assert gradient["b"] is None


TRANSFORMED = {
    "plain": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "clipping": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "MultiSteps": optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
}


@pytest.mark.parametrize("tx", TRANSFORMED.values(), ids=TRANSFORMED.keys())
def test_a_whole_step_costs_what_the_step_by_hand_costs(tx):
    frozen_tx = trainable_only(tx, freeze="encoder")
    trainable, rest = split(PARAMS, freeze="encoder")

    def ours(params, state, x):
        value, gradient = value_and_grad(loss, freeze="encoder")(params, x)
        updates, state = frozen_tx.update(gradient, state, params)
        return apply_updates(params, updates), state, value

    def by_split(trainable, state, rest, x):
        value, gradient = jax.value_and_grad(lambda t: loss(merge(t, rest), x))(trainable)
        updates, state = tx.update(gradient, state, trainable)
        return optax.apply_updates(trainable, updates), state, value

    def hand(head, encoder, state, x):
        params = {"encoder": encoder, "head": head}
        value, gradient = by_hand(params, x)
        updates, state = tx.update(gradient, state, head)
        return optax.apply_updates(head, updates), state, value

    head = PARAMS["head"]
    expected = flops(hand, head, PARAMS["encoder"], tx.init(head), X)
    assert flops(ours, PARAMS, frozen_tx.init(PARAMS), X) == expected
    assert flops(by_split, trainable, tx.init(trainable), rest, X) == expected


def test_dense_zeros_are_dropped_from_the_compiled_step():
    """`chain(frozen, ...)` computes them, but XLA does not add them."""
    zeros = jax.tree.map(lambda leaf: jnp.full_like(leaf, -0.0), PARAMS["encoder"])

    def ours(params, x):
        _, gradient = value_and_grad(loss, freeze="encoder")(params, x)
        return apply_updates(params, {"encoder": zeros, "head": gradient["head"]})

    def hand(params, x):
        _, gradient = by_hand(params, x)
        return {**params, "head": optax.apply_updates(params["head"], gradient)}

    assert flops(ours, PARAMS, X) == flops(hand, PARAMS, X)


def product(a, b, c=1.0):
    return jnp.sum(a["x"] * b["x"] * c)


A, B = {"x": jnp.array(2.0), "n": 1}, {"x": jnp.array(3.0), "n": jnp.arange(2)}
ARGNUMS = {
    "0": (0, {"x": 3.0}),
    "1": (1, {"x": 2.0}),
    "-1": (-1, {"x": 2.0}),
    "-2": (-2, {"x": 3.0}),
    "NumPy": (np.int64(1), {"x": 2.0}),
    "both": ((0, 1), ({"x": 3.0}, {"x": 2.0})),
    "both, turned": ((1, 0), ({"x": 2.0}, {"x": 3.0})),
    "a list, negative": ([-1, 0], ({"x": 2.0}, {"x": 3.0})),
    "a tuple of one": ((1,), ({"x": 2.0},)),
    "none": ((), ()),
}


@pytest.mark.parametrize(("argnums", "expected"), ARGNUMS.values(), ids=ARGNUMS.keys())
def test_argnums(argnums, expected):
    found = grad(product, argnums=argnums)(A, B)
    assert jax.tree.map(float, found) == jax.tree.map(
        lambda part: {"n": None, **part}, expected, is_leaf=lambda node: isinstance(node, dict)
    )


def test_of_several_arguments_paths_begin_with_their_place():
    first, second = grad(product, freeze="1", argnums=(1, 0))(A, B)
    assert float(first["x"]) == 2.0
    assert second["x"] is None


def test_other_arguments_come_as_they_are():
    assert float(grad(product)(A, B, c=4.0)["x"]) == 12.0
    assert float(grad(product)(A, B, 4.0)["x"]) == 12.0


def test_has_aux():
    def with_aux(params):
        return params["x"] ** 2, {"text": "aux", "n": params["n"]}

    (value, aux), gradient = value_and_grad(with_aux, has_aux=True)(A)
    assert (float(value), aux, float(gradient["x"])) == (4.0, {"text": "aux", "n": 1}, 4.0)
    gradient, aux = grad(with_aux, has_aux=True)(A)
    assert (float(gradient["x"]), aux) == (4.0, {"text": "aux", "n": 1})


STRANGERS = {
    "bool": True,
    "callable": jnp.tanh,
    "float": 0.5,
    "int": 3,
    "int array": jnp.arange(2),
    "key": jax.random.key(0),
    "None": None,
    "text": "name",
}


def test_strangers_in_the_tree_come_to_the_function_as_they_are():
    def fun(params):
        for name, leaf in STRANGERS.items():
            assert params[name] is leaf
        return params["callable"](params["w"]) * params["float"]

    gradient = grad(fun)({"w": jnp.array(0.0), **STRANGERS})
    assert float(gradient.pop("w")) == 0.5
    assert gradient == {**dict.fromkeys(STRANGERS), "None": None}


def test_a_python_float_trains_by_a_mask_that_names_it():
    gradient = grad(lambda p: p["x"] * p["rate"], trainable={"x": False, "rate": True})({
        "x": jnp.array(2.0),
        "rate": 0.5,
    })
    assert (gradient["x"], float(gradient["rate"])) == (None, 2.0)


def test_nothing_trains():
    value, gradient = value_and_grad(loss, freeze="**")(PARAMS, X)
    assert bits(value) == bits(loss(PARAMS, X))
    assert jax.tree.leaves(gradient) == []


def test_a_bare_array_and_a_complex_leaf():
    assert float(grad(lambda x: x**2)(jnp.array(3.0))) == 6.0
    gradient = grad(lambda p: jnp.abs(p["z"]) ** 2)({"z": jnp.array(3.0 + 4.0j)})
    assert complex(gradient["z"]) == pytest.approx(complex(6.0, -8.0))


def test_hidden_leaves_and_holes_of_the_tree_stay():
    tree = {"hidden": tree_mask(3), "hole": HOLE, "x": jnp.array(2.0)}
    gradient = grad(unmasked(lambda p: p["x"] * p["hidden"]))(tree)
    assert gradient == {"hidden": tree_mask(3), "hole": HOLE, "x": 3.0}


def test_an_equinox_module():
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))

    def fun(model, x):
        return jnp.sum(model(x))

    gradient = grad(fun, freeze="layers[0]")(model, jnp.ones(2))
    theirs = eqx.filter_grad(fun)(model, jnp.ones(2))
    assert isinstance(gradient, eqx.nn.MLP)
    assert gradient.layers[0].weight is None
    assert bits(gradient.layers[1].weight) == bits(theirs.layers[1].weight)


HEAD_SHAPES = {"b": (16,), "w": (16, 16)}


def shapes(gradient):
    assert jax.tree.leaves(gradient["encoder"]) == []
    return jax.tree.map(jnp.shape, gradient["head"])


def test_under_jit_it_is_the_same_to_the_last_digits():
    fun = grad(loss, freeze="encoder")
    inside, outside = jax.jit(fun)(PARAMS, X), fun(PARAMS, X)
    assert shapes(inside) == HEAD_SHAPES
    # Fused by XLA, so not bit for bit.
    assert jnp.allclose(inside["head"]["w"], outside["head"]["w"], rtol=1e-5, atol=1e-7)


def test_frozen_arrays_are_inputs_of_jit_and_no_constants():
    jaxpr = jax.make_jaxpr(grad(loss, freeze="encoder"))(PARAMS, X)
    assert len(jaxpr.jaxpr.invars) == len(jax.tree.leaves(PARAMS)) + 1
    assert not [const for const in jaxpr.consts if np.ndim(const)]


def test_under_vmap_per_example_and_over_an_ensemble():
    fun = grad(loss, freeze="encoder")
    per_example = jax.vmap(fun, in_axes=(None, 0))(PARAMS, X[:3, None])
    assert shapes(per_example) == {"b": (3, 16), "w": (3, 16, 16)}
    ensemble = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), PARAMS)
    assert shapes(jax.vmap(fun, in_axes=(0, None))(ensemble, X)) == {"b": (2, 16), "w": (2, 16, 16)}


def test_under_scan_and_checkpoint():
    fun = value_and_grad(jax.checkpoint(loss), freeze="encoder")

    @jax.jit
    def run(params):
        def step(params, _):
            value, gradient = fun(params, X)
            return apply_updates(params, jax.tree.map(lambda g: -0.1 * g, gradient)), value

        return jax.lax.scan(step, params, length=3)

    new, values = run(PARAMS)
    assert all_bits(new["encoder"]) == all_bits(PARAMS["encoder"])
    assert float(values[2]) < float(values[0])


def test_hessian_vector_products():
    fun = grad(loss, freeze="encoder")
    direction = jax.tree.map(jnp.ones_like, PARAMS["head"])
    tangents = {"encoder": jax.tree.map(jnp.zeros_like, PARAMS["encoder"]), "head": direction}
    _, product = jax.jvp(lambda p: fun(p, X), (PARAMS,), (tangents,))
    _, expected = jax.jvp(
        jax.grad(lambda head: loss({**PARAMS, "head": head}, X)), (PARAMS["head"],), (direction,)
    )
    assert shapes(product) == HEAD_SHAPES
    assert jnp.allclose(product["head"]["w"], expected["w"], rtol=1e-6)


def test_an_outer_derivative_goes_through_frozen_leaves():
    fun = grad(lambda params: jnp.sum(params["a"] ** 2 * params["b"]), freeze="b")
    mixed = jax.jacobian(lambda params: fun(params)["a"])({
        "a": jnp.array(3.0),
        "b": jnp.array(2.0),
    })
    assert jax.tree.map(float, mixed) == {"a": 4.0, "b": 6.0}


def test_the_function_keeps_its_name():
    assert value_and_grad(loss).__name__ == grad(loss).__name__ == "loss"


WRONG = {
    "no function": (("encoder",), {}, TypeError, "a function is differentiated, not str"),
    "a position": ((loss, 0), {}, SpecError, "freeze is 0: to choose the argument, pass argnums=0"),
    "positions": ((loss, (0, 1)), {}, SpecError, r"freeze is \(0, 1\): .*pass argnums=\(0, 1\)"),
    "a boolean tree": ((loss, {"encoder": True}), {}, SpecError, "pass it as trainable="),
    "bools": ((loss, [True]), {}, SpecError, "pass it as trainable="),
    "a bool": ((loss, True), {}, SpecError, "pass it as trainable="),
    "a name": ((loss,), {"argnums": "params"}, TypeError, "argnums='params': give the position"),
    "names": ((loss,), {"argnums": (0, "x")}, TypeError, r"argnums=\(0, 'x'\): give the position"),
    "a half": ((loss,), {"argnums": 0.5}, TypeError, "an integer, or a tuple of them"),
}


@pytest.mark.parametrize("make", [grad, value_and_grad])
@pytest.mark.parametrize(("args", "kwargs", "error", "text"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_by_itself_raises_at_once(args, kwargs, error, text, make):
    with pytest.raises(error, match=text):
        make(*args, **kwargs)


CALLS = {
    "nothing": ({"trainable": []}, SpecError, "would train nothing"),
    "misspelt": ({"freeze": "encodr"}, SpecError, "'encodr': closest: 'encoder'"),
    "a mask that does not fit": ({"trainable": {"head": True}}, MaskError, "no bool for 'encoder'"),
    "too far": (
        {"argnums": 2},
        ValueError,
        "no argument 2 to differentiate by: .*with 2 positional",
    ),
    "too far back": (
        {"argnums": (0, -3)},
        ValueError,
        "no argument -3 .*must be passed by position",
    ),
    "twice": (
        {"argnums": (0, 0)},
        ValueError,
        r"argnums=\(0, 0\) means one of the 2 arguments twice",
    ),
    "twice, negative": ({"argnums": (1, -1)}, ValueError, "twice: name each once"),
}


@pytest.mark.parametrize(("kwargs", "error", "text"), CALLS.values(), ids=CALLS.keys())
def test_what_does_not_fit_the_call_raises_there(kwargs, error, text):
    fun = grad(loss, **kwargs)
    with pytest.raises(error, match=text):
        fun(PARAMS, X)


def test_the_argument_must_be_passed_by_position():
    fun = grad(loss)
    with pytest.raises(ValueError, match="called with 0 positional arguments"):
        fun(params=PARAMS, x=X)
