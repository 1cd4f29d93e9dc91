"""A hidden leaf: how it prints, what it refuses, how it is copied."""

import copy
import functools
import operator
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_freeze import tree_mask, tree_unmask


def everything(_):
    return True


def hide(value):
    return tree_mask(value, everything, is_leaf=lambda node: node is value)


class Opaque:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other):
        raise RuntimeError("compared")

    def __repr__(self):
        raise RuntimeError("printed")


# a hidden leaf


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "#3"),
        ("a", "#'a'"),
        (-0.0, "#-0.0"),
        (jnp.ones((64, 64)), "#f32[64,64]"),
        (jnp.ones((), jnp.bfloat16), "#bf16[]"),
        (jnp.ones(3, jnp.float8_e5m2), "#f8_e5m2[3]"),
        (jnp.ones(3, bool), "#bool[3]"),
        (jax.random.key(0), "#key<fry>[]"),
        (np.zeros(2, np.uint8), "#u8[2](numpy)"),
        ([1, (jnp.ones(2),), {"k": np.ones(1)}], "#[1, (f32[2],), {'k': f64[1](numpy)}]"),
    ],
    ids=str,
)
def test_printed(value, shown):
    assert repr(hide(value)) == shown


def test_printed_although_the_value_contains_itself():
    value = [1]
    value.append(value)
    assert repr(hide(value)) == "#[1, ...]"


def test_printed_although_the_value_refuses():
    assert "Opaque object at" in repr(hide(Opaque()))


@pytest.mark.parametrize(
    "value", [jnp.ones((2, 3), jnp.bfloat16), np.ones((2, 3)), np.float32(1), jax.random.key(0)]
)
@pytest.mark.parametrize("name", ["shape", "dtype", "ndim", "size"])
def test_what_can_be_read_of_a_hidden_array(value, name):
    assert getattr(hide(value), name) == getattr(value, name)


def test_nothing_else_can_be_read():
    with pytest.raises(AttributeError, match=r"a hidden leaf .'text'. has no shape"):
        _ = hide("text").shape
    with pytest.raises(AttributeError, match="'Hidden' object has no attribute 'T'"):
        _ = hide(jnp.ones(2)).T


def test_hidden_leaves_do_not_change():
    hidden = hide(3)
    with pytest.raises(AttributeError, match=r"cannot be changed .setting 'sealed'."):
        hidden.sealed = 4
    with pytest.raises(AttributeError, match=r"cannot be changed .deleting 'sealed'."):
        del hidden.sealed
    assert tree_unmask(hidden) == 3


WRONG_USES = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "round": round,
    "len": len,
    "iter": iter,
    "reversed": reversed,
    "in": lambda x: 1 in x,
    "x[0]": lambda x: x[0],
    "x[0] = 1": lambda x: operator.setitem(x, 0, 1),
    "del x[0]": lambda x: operator.delitem(x, 0),
    "x(1, k=2)": lambda x: x(1, k=2),
    "x < 1": lambda x: x < 1,
    "1 <= x": lambda x: 1 <= x,  # noqa: SIM300
    "x > y": lambda x: x > hide(1),
    "x >= 1": lambda x: x >= 1,
    "-x": operator.neg,
    "+x": operator.pos,
    "~x": operator.invert,
    "abs": abs,
    "divmod": lambda x: divmod(x, 2),
    "rdivmod": lambda x: divmod(2, x),
    "np.asarray": np.asarray,
    "np.array(float)": lambda x: np.array([x], float),
    "np.sin": np.sin,
    "np.sum": np.sum,
    "np.add": lambda x: np.add(np.ones(2), x),
    "np.concatenate": lambda x: np.concatenate([x, x]),
    "numpy array + x": lambda x: np.ones(2) + x,
    "numpy scalar * x": lambda x: np.float32(2) * x,
    "jax array + x": lambda x: jnp.ones(2) + x,
    "x @ jax array": lambda x: x @ jnp.ones(2),
    "jnp.sum": jnp.sum,
    "jnp.asarray": jnp.asarray,
    "jnp.array(float)": lambda x: jnp.array([x], float),
    "jnp.array(int)": lambda x: jnp.array([x], int),
    "jnp.array(complex)": lambda x: jnp.array([x], complex),
    "jnp.array(like)": lambda x: jnp.array([x, 1.0]),
    "jnp.full": lambda x: jnp.full(2, x),
    "jnp.stack": lambda x: jnp.stack([x]),
    "jnp.where": lambda x: jnp.where(True, x, 0),
    "jnp.equal": lambda x: jnp.equal(x, x),
    "np.less": lambda x: np.less(x, 1),
    "jnp.add": lambda x: jnp.add(x, 1),
    "jax.nn.relu": jax.nn.relu,
}
for _way in (
    operator.add, operator.sub, operator.mul, operator.matmul, operator.truediv, operator.floordiv,
    operator.mod, operator.pow, operator.lshift, operator.rshift, operator.and_, operator.or_,
    operator.xor,
):  # fmt: skip
    WRONG_USES[_way.__name__] = functools.partial(lambda way, x: way(x, 1), _way)
    WRONG_USES[f"r{_way.__name__}"] = functools.partial(lambda way, x: way(1, x), _way)


@pytest.mark.parametrize("use", WRONG_USES.values(), ids=WRONG_USES)
@pytest.mark.parametrize("value", [3, jnp.ones(2)], ids=["int", "array"])
def test_wrong_use(use, value):
    with pytest.raises(TypeError, match=r"a hidden leaf .* is not a value: call tree_unmask"):
        use(hide(value))


def test_errors_show_no_contents():
    for value in (jnp.full(2, 77), [77, 77], "7" * 1000):
        with pytest.raises(TypeError) as caught:
            hide(value) + 1
        assert str(caught.value).count("7") < 30
        assert "77, 77" not in str(caught.value)


NOT_HIDDEN = [
    1, True, "a", None, (1,), [1], object(), Ellipsis, np.float32(1), np.bool_(1), np.ones(2),
    np.datetime64(1, "D"), np.array([None, 1]), jnp.bfloat16(1), np.ones(2, jnp.bfloat16),
    jnp.ones(2), jax.random.key(0), jax.ShapeDtypeStruct((2,), "f4"), optax.MaskedNode(),
]  # fmt: skip


@pytest.mark.parametrize("other", NOT_HIDDEN, ids=[f"{x!r:.20}" for x in NOT_HIDDEN])
@pytest.mark.parametrize("value", [1, jnp.ones(2)], ids=["int", "array"])
def test_equal_to_nothing_that_is_not_hidden(value, other):
    hidden = hide(value)
    assert (hidden == other) is False
    assert (other == hidden) is False
    assert (hidden != other) is True
    assert (other != hidden) is True


def test_a_tracer_is_not_equal_to_a_hidden_leaf():
    @jax.jit
    def check(x):
        assert (hide(1) == x) is (x == hide(1)) is (hide(x) == x) is False
        return x

    check(jnp.ones(2))


def test_containers_are_searched_and_compared():
    hidden = hide(1)
    assert 1 not in [hidden]
    assert hidden not in [1, jnp.ones(2), np.ones(2)]
    assert hidden in [1, hide(1)]
    assert [jnp.ones(2), hidden].index(hide(1)) == 1
    assert {"a": hidden} != {"a": 1}


# copies


def test_numpy_arrays_are_copied_and_read_only():
    array = np.arange(3)
    hidden = tree_mask({"a": array})
    array[0] = 7
    revealed = tree_unmask(hidden)["a"]
    assert revealed.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        revealed[0] = 1


def test_masked_numpy_arrays_keep_their_class_and_mask():
    array = np.ma.masked_array([1, 2], [True, False])
    revealed = tree_unmask(hide(array))
    assert isinstance(revealed, np.ma.MaskedArray)
    assert revealed.mask.tolist() == [True, False]


def test_containers_are_copied_when_hidden_and_when_revealed():
    inner = np.zeros(1)
    value = {"a": [1, (2, inner)], "b": {3}}
    hidden = hide(value)
    value["a"].append(4)
    inner[0] = 9
    first = tree_unmask(hidden)
    first["b"].add(5)
    assert repr(tree_unmask(hidden)) == "{'a': [1, (2, array([0.]))], 'b': {3}}"


def test_other_leaves_are_carried_as_they_are():
    leaves = ["text", len, lambda: 0, Opaque(), jnp.arange(3), 10**20, float("nan"), np.int8(1)]
    leaves.append(functools.partial(max, 1))
    revealed = tree_unmask(tree_mask(leaves, everything))
    assert [x is y for x, y in zip(leaves, revealed, strict=True)] == [True] * 9


VALUES = {
    "key": jax.random.key(3),
    "bf16": jnp.ones(2, jnp.bfloat16),
    "numpy": np.arange(3),
    "nan": float("nan"),
    "list": [1, {"a": (2.0, True)}],
    "function": copy.copy,
    "text": "x",
}


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_are_equal(again):
    hidden = {name: hide(value) for name, value in VALUES.items()}
    assert again(hidden) == hidden
    assert jax.tree.structure(again(hidden)) == jax.tree.structure(hidden)
    assert all(again(hidden[name]) == hidden[name] for name in hidden)
    assert not tree_unmask(again(hidden["numpy"])).flags.writeable


def test_pickle_across_processes():
    hidden = {name: hide(value) for name, value in VALUES.items()}
    code = (
        "import pickle, sys, optax_freeze\n"
        "hidden = pickle.load(sys.stdin.buffer)\n"
        "assert optax_freeze.tree_unmask(hidden)['text'] == 'x'\n"
        "sys.stdout.buffer.write(pickle.dumps(hidden))\n"
    )
    run = [sys.executable, "-c", code]
    output = subprocess.run(run, input=pickle.dumps(hidden), capture_output=True, check=True).stdout
    assert pickle.loads(output) == hidden
