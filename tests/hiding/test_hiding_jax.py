"""Hidden leaves under JAX's transformations, and hidden tracers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from optax_freeze import tree_mask, tree_unmask


def everything(_):
    return True


def hide(value):
    return tree_mask(value, everything, is_leaf=lambda node: node is value)


MODEL = {"w": jnp.array([1.0, 2.0, 3.0]), "index": jnp.array([0, 2, 2]), "name": "m", "rate": 0.5}


def loss(model):
    model = tree_unmask(model)
    return jnp.sum(model["w"][model["index"]] ** 2) * model["rate"]


# JAX around it


def test_grad_returns_the_hidden_leaves():
    gradient = jax.grad(lambda tree: tree_unmask(tree)[0] ** 2)(tree_mask((1.0, 2)))
    assert repr(gradient) == "(Array(2., dtype=float32, weak_type=True), #2)"


GRADIENT = [1.0, 0.0, 6.0]
WITHOUT_JIT = {
    "grad": lambda hidden: jax.grad(loss)(hidden),
    "jit": lambda hidden: jax.jit(jax.grad(loss))(hidden),
    "jit inside": lambda hidden: jax.grad(jax.jit(loss))(hidden),
    "checkpoint": lambda hidden: jax.grad(jax.checkpoint(loss))(hidden),
    "vjp": lambda hidden: jax.vjp(loss, hidden)[1](jnp.ones(()))[0],
    "jacrev": lambda hidden: jax.jacrev(loss)(hidden),
    "jacfwd": lambda hidden: jax.jacfwd(loss)(hidden),
    "scan": lambda hidden: jax.lax.scan(lambda c, _: (jax.grad(loss)(c), None), hidden, None, 1)[0],
    "cond": lambda hidden: jax.lax.cond(True, jax.grad(loss), lambda tree: tree, hidden),
    "while_loop": lambda hidden: jax.lax.while_loop(
        lambda carry: carry[0] < 1,
        lambda carry: (carry[0] + 1, jax.grad(loss)(carry[1])),
        (0, hidden),
    )[1],
    "tree.map": lambda hidden: jax.tree.map(lambda x, y: x * y / x, hidden, jax.grad(loss)(hidden)),
    "device_put": lambda hidden: jax.device_put(jax.grad(loss)(hidden)),
}


@pytest.mark.parametrize("way", WITHOUT_JIT.values(), ids=WITHOUT_JIT)
def test_transformations(way):
    model = {**MODEL, "rate": jnp.float32(0.5)}
    hidden = tree_mask(model)
    result = way(hidden)
    assert result["w"].tolist() == [1.0, 0.0, 12.0 / 2 * 1.0]
    assert result["index"] == hidden["index"]
    assert tree_unmask(result)["name"] == "m"


def test_hessian():
    hidden = tree_mask({"w": jnp.array([1.0, 2.0]), "power": 3})
    hessian = jax.hessian(lambda t: jnp.sum(tree_unmask(t)["w"] ** tree_unmask(t)["power"]))(hidden)
    assert hessian["w"]["w"].tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert repr(hessian["power"]) == "#3"


def test_vmap_eval_shape_and_donation():
    hidden = tree_mask({"w": jnp.ones((2, 3)), "n": 2})
    rows = jax.vmap(lambda tree: tree["w"].sum() * tree_unmask(tree)["n"])(hidden)
    assert rows.tolist() == [6.0, 6.0]
    assert repr(jax.eval_shape(lambda tree: tree, hidden)["n"]) == "#2"
    moved = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(hidden)
    assert hidden["w"].is_deleted()
    assert tree_unmask(moved)["n"] == 2


def test_custom_vjp():
    @jax.custom_vjp
    def scaled(model):
        return tree_unmask(model)["w"] * 2.0

    scaled.defvjp(
        lambda model: (scaled(model), model),
        lambda model, g: (jax.tree.map(lambda _: 7.0 * g, model),),
    )
    gradient = jax.grad(scaled)(tree_mask({"w": 1.0, "name": "m"}))
    assert gradient["w"] == 7.0
    assert repr(gradient["name"]) == "#'m'"


def test_structures_with_different_hidden_values_do_not_fit():
    trees = tree_mask((1.0, jnp.arange(2))), tree_mask((1.0, jnp.arange(3)))
    with pytest.raises(ValueError, match=r"\(i32\[2\],\)[^$]*\(i32\[3\],\)"):
        jax.tree.map(lambda x, y: x, *trees)
    assert jax.tree.structure(hide(1)) != jax.tree.structure(())
    assert jax.tree.structure([hide(1)]) != jax.tree.structure([jax.tree_util.Partial(len)])
    assert jax.tree.structure(hide(1)) != jax.tree.structure(hide("1"))
    assert jax.tree.structure(hide(1)) != jax.tree.structure(hide([1]))


# tracers


def test_grad_inside_jit_of_a_tree_with_integers():
    arrays = {name: value for name, value in MODEL.items() if name != "name"}
    step = jax.jit(lambda tree: tree_unmask(jax.grad(loss)(tree_mask(tree))))
    with jax.checking_leaks():
        gradient = step(arrays)
    assert gradient["w"].tolist() == GRADIENT
    assert gradient["index"].tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    "outer", [jax.jit, jax.checkpoint, lambda f: lambda x: jax.jvp(f, (x,), (x,))[0]]
)
def test_hidden_tracers_in_other_traces(outer):
    def total(x):
        hidden = tree_mask({"x": x, "i": (x * 0).astype(int)}, everything)
        assert jax.tree.leaves(hidden) == []
        assert hidden["i"].shape == (3,)
        return tree_unmask(hidden)["x"].sum() + tree_unmask(hidden)["i"].sum().astype(float)

    with jax.checking_leaks():
        assert outer(total)(jnp.ones(3)) == 3.0


def test_hidden_tracers_under_vmap_and_scan():
    def picked(index):
        tree = tree_mask({"w": MODEL["w"], "index": index, "rate": 1.0})
        body = lambda carry, _: (carry + jax.grad(loss)(tree)["w"], None)  # noqa: E731
        return jax.lax.scan(body, jnp.zeros(3), None, length=2)[0]

    with jax.checking_leaks():
        assert jax.vmap(picked)(jnp.array([0, 1])).tolist() == [[4.0, 0.0, 0.0], [0.0, 8.0, 0.0]]


def test_hidden_tracers_through_an_inner_jit():
    inner = jax.jit(lambda tree: tree_unmask(tree)["i"] + 1)
    outer = jax.jit(lambda i: inner(tree_mask({"i": i})))
    assert [int(outer(jnp.int32(i))) for i in (1, 5)] == [2, 6]
    assert jax.vmap(lambda i: inner(tree_mask({"i": i})))(jnp.arange(2)).tolist() == [1, 2]


ESCAPES = {
    "jit": lambda: jax.jit(tree_mask)({"i": jnp.arange(3)}),
    "vmap": lambda: jax.vmap(lambda x: (x, kept.append(tree_mask({"i": x}))))(jnp.arange(3)),
    "grad": lambda: jax.grad(lambda x: (kept.append(tree_mask({"i": x}, everything)), x)[1])(1.0),
}
kept = []


@pytest.mark.parametrize("way", ESCAPES)
def test_a_hidden_tracer_that_got_out_says_so(way):
    kept.clear()
    tree = ESCAPES[way]()
    tree = kept[-1] if kept else tree
    assert repr(tree["i"]) in {"#i32[3]", "#i32[]", "#f32[]"}
    assert tree["i"].ndim == len(tree["i"].shape)
    with pytest.raises(
        jax.errors.UnexpectedTracerError,
        match=r"hidden leaf carries .32\[3?\], a value of a trace .* over.* return tree_unmask",
    ):
        tree_unmask(tree)


def test_jax_says_it_of_a_hidden_tracer_that_got_into_another_trace():
    tree = jax.jit(tree_mask)({"i": jnp.arange(3)})
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda hidden: tree_unmask(hidden)["i"] + 1)(tree)


# in static fields


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Static:
    w: jax.Array
    note: Any = dataclasses.field(metadata={"static": True})


@pytest.mark.parametrize("other", [1, "a", None, (1,)], ids=str)
def test_jit_tells_a_hidden_leaf_in_a_static_field_from_what_is_not_hidden(other):
    traces = []
    call = jax.jit(lambda model: traces.append(model.note) or model.w + 1)
    hidden, again = tree_mask(1), tree_mask(1)
    for note in (hidden, other, again, other, tree_mask(2)):
        call(Static(jnp.ones(2), note))
    assert [repr(note) for note in traces] == ["#1", repr(other), "#2"]
    one, two = (jax.tree.structure(Static(0.0, note)) for note in (hidden, other))
    assert one != two
    assert two != one
