"""`tree_mask`, `tree_unmask`, `unmasked`: what is hidden and revealed, and mistakes."""

import inspect
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_freeze import MaskError, SpecError, is_masked, is_nondiff, tree_mask, tree_unmask
from optax_freeze import unmasked as reveal_arguments


def everything(_):
    return True


def hide(value):
    return tree_mask(value, everything, is_leaf=lambda node: node is value)


# what is hidden


def test_hidden_leaves_are_no_leaves():
    hidden = tree_mask([1, 2, {"a": 3, "b": 4.0}])
    assert repr(hidden) == "[#1, #2, {'a': #3, 'b': 4.0}]"
    assert jax.tree.leaves(hidden) == [4.0]
    assert tree_unmask(hidden) == [1, 2, {"a": 3, "b": 4.0}]


@pytest.mark.parametrize(
    ("leaf", "nondiff"),
    [
        (1.0, False),
        (float("nan"), False),
        (1j, False),
        (np.float32(1), False),
        (np.float64(1), False),
        (np.complex64(1), False),
        (np.ones(2), False),
        (np.ones(2, jnp.bfloat16), False),
        (jnp.ones(2), False),
        (jnp.ones(2, jnp.float8_e4m3fn), False),
        (jnp.ones(2, jnp.complex64), False),
        (jax.ShapeDtypeStruct((2,), jnp.float32), False),
        (jax.ShapeDtypeStruct((2,), jnp.int32), True),
        (1, True),
        (True, True),
        (np.int32(1), True),
        (np.arange(2), True),
        (np.array(["a"]), True),
        (np.zeros((), jax.dtypes.float0), True),
        (jnp.arange(2), True),
        (jnp.ones(2, jnp.int4), True),
        (jnp.array([True]), True),
        (jax.random.key(0), True),
        ("1.0", True),
        (len, True),
        (object(), True),
    ],
    ids=itertools.count(),
)
def test_is_nondiff(leaf, nondiff):
    assert is_nondiff(leaf) is nondiff
    assert is_masked(tree_mask(leaf)) is nondiff


def test_none_stays_none():
    assert tree_mask({"a": None, "b": 1.0}, everything)["a"] is None


def test_cond_is_a_function_or_a_class():
    tree = {"a": 1, "b": True, "c": "x", "d": 2.0}
    assert (
        repr(tree_mask(tree, lambda leaf: leaf == 2.0))
        == "{'a': 1, 'b': True, 'c': 'x', 'd': #2.0}"
    )
    assert repr(tree_mask(tree, int)) == "{'a': #1, 'b': #True, 'c': 'x', 'd': 2.0}"
    assert repr(tree_mask(tree, lambda leaf: np.bool_(leaf == "x"))).count("#") == 1


def test_cond_may_be_a_callable_node():
    assert repr(tree_mask([1, 2.0], jax.tree_util.Partial(is_nondiff))) == "[#1, 2.0]"


def test_unmask_some():
    hidden = tree_mask({"a": 1, "b": "x", "c": 2.0})
    assert repr(tree_unmask(hidden, str)) == "{'a': #1, 'b': 'x', 'c': 2.0}"
    assert repr(tree_unmask(hidden, lambda value: value == 1)) == "{'a': 1, 'b': #'x', 'c': 2.0}"


def test_is_leaf_hides_in_one_piece_and_is_not_asked_about_hidden_leaves():
    asked = []

    def is_list(node):
        asked.append(type(node))
        return isinstance(node, list)

    tree = tree_mask({"a": 1, "b": [1, 2.0]})
    hidden = tree_mask(tree, list, is_leaf=is_list)
    assert repr(hidden) == "{'a': #1, 'b': #[#1, 2.0]}"
    assert tree_unmask(tree_unmask(hidden)) == {"a": 1, "b": [1, 2.0]}
    assert asked == [dict, list]


def test_trainable_hides_what_does_not_train():
    tree = {"enc": {"w": jnp.ones(2)}, "head": jnp.ones(3), "step": 3}
    by_spec = tree_mask(tree, trainable="head")
    assert repr(by_spec["enc"]) == "{'w': #f32[2]}"
    assert by_spec["head"] is tree["head"]
    assert repr(by_spec["step"]) == "#3"
    by_mask = tree_mask(tree, trainable={"enc": False, "head": True, "step": False})
    assert jax.tree.structure(by_mask) == jax.tree.structure(by_spec)
    assert jax.tree.structure(tree_mask(by_spec, trainable="head")) == jax.tree.structure(by_spec)


# mistakes


@pytest.mark.parametrize(
    ("cond", "message"),
    [
        ({"a": {"b": True}}, "it is a boolean tree .dict of 1.: pass it as trainable="),
        (np.True_, "it is a boolean tree .bool_* of 1.: pass it as trainable="),
        (
            "a.b",
            "a function of a leaf or a class, got 'a.b': paths and other specs go to trainable=",
        ),
        (1.5, "a function of a leaf or a class, got a float: paths"),
        (np.ones(3), r"a function of a leaf or a class, got f64\[3\].numpy.: paths"),
        ({"a": {"b": 1}}, "a function of a leaf or a class, got a dict: paths"),
    ],
)
def test_cond_of_another_kind(cond, message):
    with pytest.raises(TypeError, match=message):
        tree_mask({"a": {"b": 1}}, cond)
    with pytest.raises(TypeError, match=message):
        tree_unmask(tree_mask({"a": {"b": 1}}), cond)


def test_a_boolean_module_is_a_boolean_tree_although_it_can_be_called():
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"boolean tree .Linear of 2.: pass it as trainable="):
        tree_mask(linear, jax.tree.map(eqx.is_array, linear))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [(None, "None"), (1, "1"), ("", "''"), (np.ones(3), r"f64\[3\].numpy."), ([0], "a list")],
)
def test_cond_must_return_a_bool(answer, shown):
    with pytest.raises(TypeError, match=rf"for the leaf 'b.1' it returned {shown}: nothing is dec"):
        tree_mask({"a": 1, "b": [2, 3]}, lambda leaf: answer if leaf == 3 else True)
    hidden = tree_mask({"a": 1.0, "b": [2.0, 3]})
    with pytest.raises(TypeError, match=rf"for the leaf 'b.1' it returned {shown}: nothing is dec"):
        tree_unmask(hidden, lambda _: answer)


def test_an_error_in_cond_is_named():
    with pytest.raises(ZeroDivisionError) as caught:
        tree_mask({"a": 1, "b": [2, 0]}, lambda leaf: 1 / leaf > 0)
    assert caught.value.__notes__ == ["raised by cond for the leaf 'b.1'"]
    with pytest.raises(ZeroDivisionError) as caught:
        tree_mask(0, lambda leaf: 1 / leaf > 0)
    assert caught.value.__notes__ == ["raised by cond for the leaf the tree itself"]


@pytest.mark.parametrize("other", [{"cond": everything}, {"is_leaf": everything}])
def test_trainable_goes_alone(other):
    with pytest.raises(TypeError, match="trainable= goes without cond and is_leaf"):
        tree_mask({"a": jnp.ones(1)}, trainable="a", **other)


def test_trainable_must_fit():
    with pytest.raises(SpecError, match="haed"):
        tree_mask({"head": jnp.ones(1)}, trainable="haed")
    with pytest.raises(MaskError, match="head"):
        tree_mask({"head": jnp.ones(1)}, trainable={"head": 1})


def test_an_integer_stays_visible_by_cond_and_not_by_a_mask():
    tree = {"n": jnp.array([2]), "w": jnp.ones(1), "name": "a"}
    mask = {"n": True, "w": True, "name": False}
    text = "the mask has True at 'n', an array of int32, .*set it to False .only what trains"
    with pytest.raises(MaskError, match=text) as caught:
        tree_mask(tree, trainable=mask)
    assert "pass a function or a class as cond=" in str(caught.value)
    hidden = tree_mask(tree, str)
    assert repr(hidden["name"]) == "#'a'"
    gradient = jax.grad(lambda t: (t["w"] * 3.0).sum(), allow_int=True)(hidden)
    assert gradient["n"].dtype == jax.dtypes.float0


# unmasked


@reveal_arguments
def energy(model, x, *, scale=1.0):
    """The energy."""
    return model["w"] ** model["power"] * x * scale["s"]


def test_unmasked_reveals_all_arguments():
    hidden = tree_mask({"w": 3.0, "power": 2})
    scale = tree_mask({"s": 2.0, "name": "a"})
    assert energy(hidden, 1.0, scale=scale) == 18.0
    assert energy(tree_unmask(hidden), 1.0, scale={"s": 2.0}) == 18.0
    assert inspect.signature(energy) == inspect.signature(energy.__wrapped__)
    assert energy.__doc__ == "The energy."
    assert energy.__name__ == "energy"


ORDERS = {
    "grad": jax.grad(energy),
    "jit grad": jax.jit(jax.grad(energy)),
    "grad jit": jax.grad(jax.jit(energy)),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_unmasked_under_jit_and_grad(order):
    gradient = order(tree_mask({"w": 3.0, "power": 2}), 1.0, scale=tree_mask({"s": 2.0}))
    assert gradient["w"] == 12.0
    assert repr(gradient["power"]) == "#2"


def test_unmasked_over_jit_grad_and_vmap():
    plain = lambda w, n: w**2 * n  # noqa: E731
    hidden = (3.0, hide(2))
    assert reveal_arguments(jax.jit(plain))(*hidden) == 18.0
    assert reveal_arguments(jax.grad(plain))(*hidden) == 12.0
    rows = reveal_arguments(jax.vmap(plain, in_axes=(0, None)))(jnp.ones(2), hide(2))
    assert rows.tolist() == [2.0, 2.0]
    both = jax.vmap(jax.grad(reveal_arguments(jax.jit(plain))), in_axes=(0, None))
    assert both(jnp.ones(2), hide(2)).tolist() == [4.0, 4.0]


def test_unmasked_on_methods():
    class Model:
        def __init__(self):
            self.scale = 3.0

        @reveal_arguments
        def loss(self, params):
            """The loss."""
            return params["w"] ** params["n"] * self.scale

        @classmethod
        @reveal_arguments
        def name(cls, params):
            return cls.__name__ + params["n"]

    hidden = tree_mask({"w": 2.0, "n": 2})
    assert Model().loss(hidden) == 12.0
    assert jax.jit(jax.grad(Model().loss))(hidden)["w"] == 12.0
    assert Model().loss.__doc__ == "The loss."
    assert Model.name(tree_mask({"n": "1"})) == "Model1"


def test_unmasked_hands_on_what_is_not_hidden_and_the_order_of_keywords():
    seen = []
    log = []
    reveal_arguments(lambda out, **rest: seen.extend([out, *rest]))(log, z=hide(1), a=2)
    assert seen[0] is log
    assert seen[1:] == ["z", "a"]


def test_the_default_condition_of_tree_unmask_means_all():
    assert inspect.signature(tree_unmask).parameters["cond"].default(3) is True


def test_the_structure_of_a_hidden_container_prints_the_container():
    hidden = tree_mask([[1, 2.0]], list, is_leaf=lambda node: node == [1, 2.0])
    assert "[1, 2.0]" in str(jax.tree.structure(hidden))
