"""Holes know shape and dtype: what does not belong there is refused by path (case 37)."""

import copy
import pickle
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import nnx
from hostile import bits
from jax.sharding import PartitionSpec

from optax_freeze import (
    freeze_mask,
    grad,
    is_masked,
    leaf_paths,
    merge,
    split,
    trainable_mask,
    tree_mask,
    tree_unmask,
    where,
)

PARAMS = {"head": {"w": jnp.arange(6.0).reshape(2, 3)}, "table": jnp.ones(4)}
X = PARAMS["head"]["w"]
REST = split(PARAMS, "table")[1]
HOLE = REST["head"]["w"]
ABSTRACT = jax.ShapeDtypeStruct((2, 3), jnp.float32)


class MyFloat(float):
    """A float of another class."""


class Point(NamedTuple):
    """A node that has the attributes of an array."""

    shape: Any
    dtype: Any


HOLES = {
    "float32": (X, "hole f32[2,3]"),
    "NumPy": (np.ones(3), "hole f64[3]"),
    "bfloat16": (jnp.ones((), jnp.bfloat16), "hole bf16[]"),
    "float8": (jnp.ones(2, jnp.float8_e4m3fn), "hole f8_e4m3fn[2]"),
    "complex": (jnp.ones(2, jnp.complex64), "hole c64[2]"),
    "abstract": (ABSTRACT, "hole f32[2,3]"),
    "Python float": (0.5, "hole f64[]"),
    "a subclass": (MyFloat(0.5), "hole f64[]"),
    "Python complex": (0.5j, "hole c128[]"),
    "NumPy scalar": (np.float16(0.5), "hole f16[]"),
}


@pytest.mark.parametrize(("leaf", "text"), HOLES.values(), ids=HOLES.keys())
def test_a_hole_says_what_belongs_there_and_is_filled_with_it(leaf, text):
    part, rest = split({"w": leaf}, trainable=trainable_mask({"w": leaf}, lambda _: True))
    assert repr(rest) == f"{{'w': {text}}}"
    assert merge(part, rest)["w"] is leaf


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e5m2])
def test_holes_are_copied_and_pickled(again, dtype):
    hole = split(jnp.ones((2, 3), dtype))[1]
    assert again(hole) == hole
    assert hash(again(hole)) == hash(hole)
    assert merge({"": jnp.ones((2, 3), dtype)}, again(hole)).dtype == dtype


def test_holes_are_equal_by_shape_and_dtype():
    holes = [split(jnp.ones(shape, dtype))[1] for shape in (2, (2, 1)) for dtype in ("f4", "f2")]
    assert len({*holes, *holes}) == 4
    assert holes[0] == split(np.zeros(2, np.float32))[1]
    assert holes[0] != optax.MaskedNode()
    with pytest.raises(AttributeError, match="cannot assign to field"):
        holes[0].shape = (3,)


def test_the_rest_retraces_for_another_shape_only():
    shapes = []

    @jax.jit
    def step(part, rest):
        shapes.append(merge(part, rest)["w"].shape)
        return rest

    for length in (2, 2, 3, 2):
        part, rest = split({"w": jnp.ones(length)})
        assert step(part, rest) == rest
    assert shapes == [(2,), (3,)]


def test_holes_are_places_for_specs_and_masks():
    assert leaf_paths(REST) == ["table"]
    assert trainable_mask(REST) == {"head": {"w": HOLE}, "table": True}
    # An entry for what was left out excuses itself.
    assert trainable_mask(REST, trainable=trainable_mask(PARAMS)) == trainable_mask(REST)
    is_matrix = where(lambda path, leaf: leaf.ndim == 2)
    assert freeze_mask(REST, ["head.w", re.compile("head.*"), is_matrix]) == trainable_mask(REST)
    assert grad(lambda rest: rest["table"].sum(), "head.w")(REST)["head"] == {"w": HOLE}
    assert tree_unmask(tree_mask(REST))["head"]["w"] == HOLE


def test_a_hole_in_what_is_split_again_is_filled_from_the_outside_in():
    part, inner = split(REST)
    assert is_masked(inner["head"]["w"])
    assert repr(inner["table"]) == "hole f32[4]"
    again = merge(part, jax.jit(lambda rest: rest)(inner))
    assert again["head"]["w"] == HOLE
    assert merge({"head.w": X}, again)["head"]["w"] is X


FITTING = {
    "the same": X,
    "NumPy": np.zeros((2, 3), np.float32),
    "big-endian": np.zeros((2, 3), ">f4"),
    "bfloat16": jnp.zeros((2, 3), jnp.bfloat16),
    "float64": np.zeros((2, 3)),
    "float8": jnp.zeros((2, 3), jnp.float8_e5m2),
    "weak": jnp.broadcast_to(jnp.asarray(1.0), (2, 3)),
    "abstract": ABSTRACT,
}


@pytest.mark.parametrize("value", FITTING.values(), ids=FITTING.keys())
def test_every_float_is_taken_as_it_is(value):
    assert merge({"head.w": value}, REST)["head"]["w"] is value


@pytest.mark.parametrize("value", [1.5, np.float32(1.5), np.array(1.5), jnp.ones((), jnp.bfloat16)])
def test_a_python_float_that_trains_is_filled_with_any_scalar(value):
    rest = split({"rate": 0.5}, trainable={"rate": True})[1]
    assert merge({"rate": value}, rest)["rate"] is value


MISFITS = {
    "transposed": (X.T, r"f32\[3,2\], where f32\[2,3\] belongs$"),
    "longer": (jnp.ones((2, 4)), r"f32\[2,4\], where f32\[2,3\] belongs$"),
    "shorter": (jnp.ones((1, 3)), r"f32\[1,3\], where f32\[2,3\] belongs$"),
    "of another rank": (jnp.ones(2), r"f32\[2\], where f32\[2,3\] belongs$"),
    "a row": (X[0], r"f32\[3\], where f32\[2,3\] belongs: of a stack, take one after the merge$"),
    "a stack": (
        jnp.ones((5, 2, 3)),
        r"f32\[5,2,3\], where f32\[2,3\] belongs: a stack of them is merged inside jax.vmap$",
    ),
    "abstract": (jax.ShapeDtypeStruct((3, 2), jnp.bfloat16), r"bf16\[3,2\], where f32\[2,3\]"),
    "Python float": (0.5, r"f64\[\], where f32\[2,3\] belongs$"),
    "int": (jnp.ones((2, 3), int), r"i32\[2,3\], where f32\[2,3\] belongs$"),
    "bool": (np.ones((2, 3), bool), r"bool\[2,3\], where f32\[2,3\] belongs$"),
    "int4": (jnp.ones((2, 3), jnp.int4), r"i4\[2,3\], where f32\[2,3\] belongs$"),
    "complex": (X + 0j, r"c64\[2,3\], where f32\[2,3\] belongs$"),
    "objects": (np.full((2, 3), None), r"object\[2,3\], where f32\[2,3\] belongs$"),
    "text": (np.full((2, 3), "x"), r"<U1\[2,3\], where f32\[2,3\] belongs$"),
    "records": (np.zeros((2, 3), [("n", "i2")]), r".*\[2,3\], where f32\[2,3\] belongs$"),
    "keys": (jax.random.split(jax.random.key(0), (2, 3)), r"a PRNGKeyArray, where f32\[2,3\]"),
    "str": ("new", r"a str, where f32\[2,3\] belongs$"),
    "Python int": (3, r"a int, where f32\[2,3\] belongs$"),
    "function": (len, r"a builtin_function_or_method, where f32\[2,3\] belongs$"),
    "list": ([X], "a list, which is no leaf$"),
    "a node like an array": (Point((2, 3), np.dtype("f4")), "a Point, which is no leaf$"),
    "raw": (
        np.zeros((2, 3), "V2"),
        r"\|V2\[2,3\], where f32\[2,3\] belongs: NumPy did not know the dtype it was saved from; "
        r"say value.view\(dtype\)$",
    ),
    "raw of another shape": (np.zeros((3, 2), "V2"), r"\|V2\[3,2\], where f32\[2,3\] belongs$"),
}


@pytest.mark.parametrize(("value", "text"), MISFITS.values(), ids=MISFITS.keys())
def test_what_does_not_belong_there_is_refused(value, text):
    with pytest.raises(ValueError, match=rf"^merge: 'head\.w' is filled with {text}"):
        merge({"head.w": value}, REST)


def test_all_misfits_are_named_at_once():
    rest = split({"a": jnp.ones(2), "b": jnp.ones(3), "c": 1j * jnp.ones(1)})[1]
    with pytest.raises(
        ValueError, match=r"^merge: nothing fills 'c'; 'a' is .*; 'b' is [^;]*\. A p"
    ):
        merge({"a": jnp.ones(3), "b": jnp.ones(2)}, rest)


def test_a_float_is_no_complex_number():
    rest = split({"w": jnp.ones(2, jnp.complex64)})[1]
    assert merge({"w": np.ones(2, complex)}, rest)["w"].dtype == complex
    with pytest.raises(ValueError, match=r"'w' is filled with f32\[2\], where c64\[2\] belongs$"):
        merge({"w": jnp.ones(2)}, rest)


@pytest.mark.parametrize("value", [jnp.ones(7), 3, "x", np.zeros(2, "V2")], ids=repr)
def test_a_hole_of_optax_knows_nothing(value):
    assert merge({"w": value}, {"w": optax.MaskedNode()})["w"] is value


CUSTOM = [
    np.dtype(getattr(ml_dtypes, name))
    for name in sorted(vars(ml_dtypes))
    if name.startswith(("bfloat", "float")) and hasattr(jnp, name)
]


@pytest.mark.parametrize("dtype", CUSTOM, ids=str)
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_bytes_that_lost_their_dtype_come_back_as_that_of_the_hole(dtype, shape):
    raw = np.random.default_rng(0).bytes(6 * dtype.itemsize)
    lost = np.frombuffer(raw, f"V{dtype.itemsize}").reshape(2, 3)
    lost = lost if shape else lost[1, 2]
    rest = split({"w": jax.ShapeDtypeStruct(shape, dtype)})[1]
    found = merge({"w": lost}, rest)["w"]
    assert (found.dtype, found.shape, found.tobytes()) == (dtype, shape, lost.tobytes())


@pytest.mark.parametrize(("raw", "dtype"), [("V2", "float16"), ("V1", "bfloat16"), ("V8", "c8")])
def test_bytes_of_another_dtype_are_not_guessed_at(raw, dtype):
    rest = split({"w": np.ones(2, dtype)})[1]
    with pytest.raises(ValueError, match=rf"\|{raw}\[2\], where .* say value.view\(dtype\)$"):
        merge({"w": np.zeros(2, raw)}, rest)


# Inside a trace, a map shows a part of each array.

ONE = {"w": jnp.arange(6.0).reshape(2, 3), "frozen": jnp.ones(3)}
MANY = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), ONE)
MESH = jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def product(tree):
    return tree["w"] @ tree["frozen"]


def by_merge(part, rest):
    return product(merge(part, rest))


def test_an_ensemble_of_parts_over_one_model():
    part, rest = split(ONE, "frozen")
    stacked = {"w": MANY["w"]}
    found = jax.jit(jax.vmap(by_merge, in_axes=(0, None)))(stacked, rest)
    assert found.tolist() == [product({**ONE, "w": w}).tolist() for w in MANY["w"]]
    with pytest.raises(ValueError, match=r"a stack of them is merged inside jax.vmap$"):
        merge(stacked, rest)
    with pytest.raises(ValueError, match=r"f32\[2,2,3\], where f32\[2,3\] belongs(\n|$)"):
        jax.jit(by_merge)(stacked, rest)
    assert list(part) == ["w"]


def by_scan(part, rest):
    return jax.lax.scan(lambda _, pair: (None, by_merge(*pair)), None, (part, rest))[1]


def without_jit(part, rest):
    with jax.disable_jit():
        return by_scan(part, rest)


def by_last_axis(part, rest):
    part, rest = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), (part, rest))
    return jax.vmap(by_merge, in_axes=-1)(part, rest)


MAPS = [jax.vmap(by_merge), by_scan, without_jit, by_last_axis, jax.pmap(by_merge)]


@pytest.mark.parametrize("map_", MAPS, ids=["vmap", "scan", "no jit", "last axis", "pmap"])
def test_a_stack_that_was_split_as_a_whole(map_):
    part, rest = split(MANY, "frozen")
    expected = jax.vmap(product)(MANY)
    np.testing.assert_array_equal(map_(part, rest), expected)
    with pytest.raises(ValueError, match=r"of a stack, take one after the merge$"):
        merge({"w": part["w"][0]}, rest)


def test_a_stack_of_another_size_is_refused_inside_the_map_too():
    part, rest = split(MANY, "frozen")
    with pytest.raises(ValueError, match=r"f32\[3,2\], where f32\[2,2,3\] belongs(\n|$)"):
        jax.vmap(by_merge)({"w": jnp.swapaxes(part["w"], 1, 2)}, rest)


@pytest.mark.parametrize("value", [X.T, X[:1], jnp.ones((2, 6)), X.astype(int)])
def test_a_trace_alone_excuses_nothing(value):
    """A part of a smaller rank would be half of what belongs there, were it sharded."""
    with pytest.raises(ValueError, match=r"where f32\[2,3\] belongs(\n|$)"):
        jax.jit(merge)({"head.w": value}, REST)


def sharded(fun, *specs):
    return jax.shard_map(fun, mesh=MESH, in_specs=specs, out_specs=PartitionSpec("data"))


def test_shard_map_cuts_into_equal_pieces():
    rows, whole = PartitionSpec("data"), PartitionSpec()
    tree = {"w": jnp.arange(48.0).reshape(16, 3), "frozen": jnp.ones(3)}
    part, rest = split(tree, "frozen")
    found = jax.jit(sharded(by_merge, rows, whole))(part, rest)
    np.testing.assert_array_equal(found, product(tree))

    def gathered(part, rest):
        part = jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, "data", tiled=True), part)
        return merge(part, rest)["w"][:2]

    sharded(gathered, rows, whole)(part, rest)

    def mapped(part, rest):
        return jax.vmap(merge, in_axes=({"w": 1}, None))(part, rest)["w"].T

    np.testing.assert_array_equal(sharded(mapped, rows, whole)(part, rest), tree["w"])


@pytest.mark.parametrize("copies", [3, 16, 32])
def test_shard_map_excuses_no_other_shape(copies):
    rest = split({"w": jnp.ones((16, 3))})[1]

    def local(row):
        return merge({"w": jnp.concatenate([row] * copies)}, rest)["w"]

    fun = sharded(local, PartitionSpec("data"))
    if copies == 16:  # gathered by hand: the whole
        fun(jnp.ones((8, 3)))
        return
    with pytest.raises(ValueError, match=rf"f32\[{copies},3\], where f32\[16,3\] belongs(\n|$)"):
        fun(jnp.ones((8, 3)))


def test_an_abstract_model_checks_a_part_before_anything_is_allocated():
    abstract = jax.eval_shape(lambda: PARAMS)
    part, rest = split(abstract, "table")
    assert rest["head"]["w"] == HOLE
    assert merge(part, rest) == abstract
    assert bits(merge({"head.w": X}, rest)["head"]["w"]) == bits(X)
    with pytest.raises(ValueError, match=r"f32\[3,2\], where f32\[2,3\] belongs(\n|$)"):
        merge({"head.w": X.T}, rest)
    assert jax.eval_shape(merge, part, REST)["head"]["w"].shape == (2, 3)


def test_variables_of_nnx():
    params = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param)
    part, rest = split(params, "bias")
    (name,) = part
    new = merge({name: part[name] + 1}, rest)
    assert bits(new["kernel"][...]) == bits(params["kernel"][...] + 1)
    with pytest.raises(ValueError, match=rf"'{name}' .* f32\[3,2\], where f32\[2,3\]"):
        merge({name: part[name].T}, rest)
