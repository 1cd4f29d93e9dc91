"""Cut and joined: bit for bit, whatever it is, wherever it happens."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hostile import all_bits, bits, frozen_leaves
from hypothesis import given, settings
from hypothesis import strategies as st

from optax_freeze import (
    assert_unchanged,
    count_trainable_params,
    cut_rows,
    freeze_mask,
    join_rows,
    leaf_paths,
    merge,
    param_groups,
    split,
    tree_mask,
    tree_unmask,
    where,
)

X = jnp.arange(48.0).reshape(12, 4)
DTYPES = [
    "bool",
    "int4",
    "uint8",
    "int32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "bfloat16",
    "float16",
    "float32",
    "complex64",
]


@st.composite
def shapes_and_axes(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    shape[axis] = draw(st.integers(2, 9))
    return tuple(shape), axis


@st.composite
def rows_of(draw, size):
    """Boundaries or a pick for so many rows, some of them counted from the end."""
    some = st.lists(st.integers(1, size - 1), min_size=1, max_size=4, unique=True)
    numbers = draw(some)
    from_end = draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))
    numbers = sorted(numbers) if draw(st.booleans()) else np.array(numbers) - 1
    counted = [n - size if end else n for n, end in zip(numbers, from_end, strict=True)]
    if isinstance(numbers, np.ndarray):
        return draw(st.sampled_from([np.asarray, jnp.asarray]))(counted)
    return counted[0] if len(counted) == 1 and draw(st.booleans()) else counted


@st.composite
def cuts(draw):
    shape, axis = draw(shapes_and_axes())
    return shape, axis, draw(rows_of(shape[axis]))


def array_of(dtype, shape, seed=0):
    """An array of random bits, so of NaN, infinities and subnormals too."""
    rng = np.random.default_rng(seed)
    dtype = jnp.dtype(dtype)
    if dtype.name in {"bool", "int4"}:
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]


def by_hand(array, rows, axis):
    """The pieces as one would take them without us."""
    array = np.asarray(array)
    if isinstance(rows, (np.ndarray, jax.Array)):
        picked = np.asarray(rows) % array.shape[axis]
        others = [i for i in range(array.shape[axis]) if i not in picked]
        return [np.take(array, others, axis), np.take(array, picked, axis)]
    return np.split(array, np.atleast_1d(rows) % array.shape[axis], axis)


# Every example compiles programs of its own, so there are few of each.
few = settings(max_examples=12)


@few
@pytest.mark.parametrize("dtype", DTYPES)
@given(cut=cuts(), seed=st.integers(0, 100))
def test_join_after_cut_is_the_identity_bit_for_bit(dtype, cut, seed):
    shape, axis, rows = cut
    array = array_of(dtype, shape, seed)
    for whole in (array, jnp.asarray(array)):
        tree = cut_rows({"w": whole}, {"w": rows}, axis)
        expected = by_hand(array, rows, axis)
        assert list(map(bits, tree["w"].pieces)) == list(map(bits, expected))
        joined = join_rows(tree)["w"]
        assert isinstance(joined, np.ndarray) == isinstance(whole, np.ndarray)
        assert bits(joined) == bits(whole)


@few
@given(cut=cuts())
def test_the_gradient_of_a_piece_is_its_rows_of_the_whole_gradient(cut):
    shape, axis, rows = cut
    array = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    weights = jnp.asarray(np.where(np.indices(shape).sum(0) % 3, -0.0, np.nan), jnp.float32)

    def loss(tree):
        return jnp.sum(jnp.sin(join_rows(tree)["w"]) * weights)

    whole = jax.grad(loss)({"w": array})
    pieces = jax.grad(loss)(cut_rows({"w": array}, {"w": rows}, axis))
    expected = by_hand(whole["w"], rows, axis)
    assert list(map(bits, pieces["w"].pieces)) == list(map(bits, expected))


@few
@given(cut=cuts())
def test_abstract_arrays_are_cut_and_joined_like_others(cut):
    shape, axis, rows = cut
    whole = {"w": jax.ShapeDtypeStruct(shape, jnp.bfloat16, weak_type=True)}
    real = cut_rows({"w": jnp.zeros(shape, jnp.bfloat16)}, {"w": rows}, axis)
    cut = cut_rows(whole, {"w": rows}, axis)
    assert jax.tree.structure(cut) == jax.tree.structure(real)
    assert [leaf.shape for leaf in jax.tree.leaves(cut)] == [
        leaf.shape for leaf in jax.tree.leaves(real)
    ]
    assert join_rows(cut) == whole


@pytest.mark.parametrize("rows", [1, np.array([1])], ids=["boundary", "pick"])
@pytest.mark.parametrize("name", [n for n, x in frozen_leaves().items() if x.ndim])
def test_what_is_spoilt_by_careless_copies_is_not(name, rows):
    leaf = frozen_leaves()[name]
    assert bits(join_rows(cut_rows({"w": leaf}, {"w": rows}))["w"]) == bits(leaf)
    cut = jax.jit(lambda tree: cut_rows(tree, {"w": rows}))({"w": leaf})
    assert bits(jax.jit(join_rows)(cut)["w"]) == bits(leaf)


@pytest.mark.parametrize("rows", [1, np.array([1])], ids=["boundary", "pick"])
def test_prng_keys_and_weak_types_too(rows):
    keys = jax.random.split(jax.random.key(0), 3)
    weak = jnp.broadcast_to(jnp.asarray(2.0), (3,))
    tree = join_rows(cut_rows({"keys": keys, "weak": weak}, {"**": rows}))
    assert bits(tree["keys"]) == bits(keys)
    assert tree["weak"].weak_type
    assert bits(tree["weak"]) == bits(weak)


def test_the_pieces_of_numpy_are_copies():
    whole = np.zeros((4, 2))
    cut = cut_rows({"w": whole}, {"w": 2}, axis=0)
    joined = join_rows(cut)["w"]
    whole[:] = 1.0
    assert not any(np.any(piece) for piece in cut["w"].pieces)
    cut["w"].pieces[0][:] = 2.0
    assert not np.any(joined)


def test_pieces_of_numpy_and_of_jax_join_to_an_array_of_jax():
    cut = cut_rows({"w": np.asarray(X)}, {"w": 8})
    cut["w"].pieces = (cut["w"].pieces[0], jnp.asarray(cut["w"].pieces[1]))
    assert bits(join_rows(cut)["w"]) == bits(X)
    assert isinstance(join_rows(cut)["w"], jax.Array)


def test_an_abstract_piece_makes_an_abstract_whole():
    cut = cut_rows({"w": X}, {"w": 8})
    cut["w"].pieces = (jax.ShapeDtypeStruct((8, 4), X.dtype), cut["w"].pieces[1])
    assert join_rows(cut)["w"] == jax.ShapeDtypeStruct((12, 4), X.dtype)


def test_under_vmap_the_axis_stays_the_same_one():
    many = jnp.arange(96.0).reshape(2, 12, 4)
    expected = cut_rows({"w": many}, {"w": [3, 8]}, axis=1)
    cut = jax.vmap(lambda w: cut_rows({"w": w}, {"w": [3, 8]}))(many)
    assert jax.tree.structure(cut) == jax.tree.structure(expected)
    assert all_bits(cut) == all_bits(expected)
    assert bits(join_rows(cut)["w"]) == bits(many)
    assert bits(jax.vmap(join_rows)(cut)["w"]) == bits(many)


def test_a_gradient_for_each_example():
    picked = cut_rows({"w": X}, {"w": np.array([11, 0])})

    def loss(tree, x):
        return jnp.sum(join_rows(tree)["w"] @ x)

    grads = jax.vmap(jax.grad(loss), in_axes=(None, 0))(picked, jnp.ones((5, 4)))
    assert [piece.shape for piece in grads["w"].pieces] == [(5, 10, 4), (5, 2, 4)]


def test_forward_mode_and_second_derivatives():
    cut = cut_rows({"w": X}, {"w": np.array([3])})
    tangents = jax.tree.map(jnp.ones_like, cut)
    value, tangent = jax.jvp(lambda tree: jnp.sum(join_rows(tree)["w"] ** 2), (cut,), (tangents,))
    assert (float(value), float(tangent)) == (float(jnp.sum(X**2)), 2 * float(jnp.sum(X)))
    second = jax.hessian(lambda x: jnp.sum(join_rows(_with_piece(cut, x))["w"] ** 3))(
        cut["w"].pieces[1]
    )
    assert second.shape == (1, 4, 1, 4)
    assert float(second[0, 1, 0, 1]) == 6 * float(X[3, 1])


def _with_piece(cut, x):
    flat, treedef = jax.tree.flatten(cut)
    return treedef.unflatten([flat[0], x])


def test_jit_knows_a_tree_that_was_cut_alike():
    traces = []

    @jax.jit
    def run(tree):
        traces.append(tree)
        return join_rows(tree)

    for _ in range(2):
        run(cut_rows({"w": X}, {"w": np.array([3, 1])}))
    run(cut_rows({"w": X}, {"w": jnp.array([3, -11])}))
    assert len(traces) == 1
    run(cut_rows({"w": X}, {"w": np.array([1, 3])}))
    assert len(traces) == 2
    run(cut_rows({"w": X}, {"w": 10}))
    run(cut_rows({"w": X}, {"w": np.int64(-2)}))
    assert len(traces) == 3


def test_a_tree_without_pieces_comes_back_as_it_is():
    for tree in ({"w": X, "b": None}, X, None, optax.MaskedNode(), {"name": "w"}):
        assert join_rows(tree) is tree


def test_leaves_that_are_not_cut_stay_the_same_objects():
    tree = {"w": X, "b": X, "name": "net", "hole": optax.MaskedNode()}
    cut = cut_rows(tree, {"w": 4})
    assert cut["b"] is X
    assert (cut["name"], cut["hole"]) == ("net", optax.MaskedNode())
    assert join_rows(cut)["b"] is X
    assert cut_rows(tree, {}) == tree


def test_a_bare_array():
    cut = cut_rows(X, {"**": 8})
    assert leaf_paths(cut) == ["0", "1"]
    assert bits(join_rows(cut)) == bits(X)


@pytest.mark.parametrize("left_out", [None, optax.MaskedNode()])
def test_pieces_that_are_all_left_out_join_to_what_stands_for_them(left_out):
    cut = jax.tree.map(lambda _: left_out, cut_rows({"w": X, "b": X}, {"w": 8}))
    assert join_rows(cut) == {"w": left_out, "b": left_out}


def test_the_gradients_of_integers_join_too():
    cut = cut_rows({"w": jnp.arange(6)}, {"w": 4})
    grads = jax.grad(lambda tree: jnp.sum(join_rows(tree)["w"] * 1.0), allow_int=True)(cut)
    assert join_rows(grads)["w"].dtype == jax.dtypes.float0
    assert join_rows(grads)["w"].shape == (6,)


def test_several_entries_and_what_an_entry_may_be():
    tree = {"a": {"w": X, "b": X}, "c": [X, X], "d": X}
    cut = cut_rows(
        tree, {("a.w", "d"): 4, "c[:]": -1, where(lambda path, _: path == "a.b"): [2, 3]}
    )
    assert leaf_paths(cut) == [
        *("a.b.0", "a.b.1", "a.b.2", "a.w.0", "a.w.1"),
        *("c.0.0", "c.0.1", "c.1.0", "c.1.1", "d.0", "d.1"),
    ]


def test_an_entry_that_meets_a_hole_cuts_nothing():
    tree = {"w": optax.MaskedNode(), "b": X}
    assert leaf_paths(cut_rows(tree, {"w": 4})) == ["b"]


@pytest.mark.parametrize("spec", ["w[0]", "w.0", "w[:1]", "w[-2]", "*[0]"])
def test_specs_name_pieces(spec):
    cut = cut_rows({"w": X, "b": X}, {"w": 8})
    mask = freeze_mask(cut, spec)
    assert (mask["w"].pieces, mask["b"]) == ((False, True), True)
    assert count_trainable_params(cut, mask=mask) == 48 + 16


def test_a_name_or_a_class_means_all_pieces():
    cut = cut_rows({"w": X, "b": X}, {"w": 8})
    assert freeze_mask(cut, "w")["w"].pieces == (False, False)
    assert jax.tree.leaves(freeze_mask(cut, jax.Array)) == [False] * 3


def test_pieces_are_no_module_that_functions_are_asked_about():
    asked = []
    with pytest.raises(ValueError, match="this tree has none"):
        freeze_mask(cut_rows({"w": X}, {"w": 8}), asked.append)
    assert not asked


def test_split_names_pieces_and_merge_takes_them():
    cut = cut_rows({"w": X, "b": X}, {"w": 8})
    trainable, rest = split(cut, trainable="w[1]")
    assert list(trainable) == ["w.1"]
    assert all_bits(join_rows(merge(trainable, rest))) == all_bits({"w": X, "b": X})


def test_assert_unchanged_names_a_piece():
    cut = cut_rows({"w": X}, {"w": 8})
    assert_unchanged(cut, cut, "w[0]")
    moved = jax.tree.map(lambda leaf: leaf + 1.0, cut)
    with pytest.raises(AssertionError, match=r"w\.0"):
        assert_unchanged(cut, moved, "w[0]")


def test_groups_of_pieces():
    cut = cut_rows({"w": X}, {"w": [4, 8]})
    tx = param_groups({"w[0]": None, "w[1]": optax.sgd(1.0), "w[2]": optax.sgd(2.0)})
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, cut), tx.init(cut), cut)
    assert [float(piece[0, 0]) for piece in updates["w"].pieces] == [0.0, -1.0, -2.0]


def test_hidden_pieces_come_back():
    cut = cut_rows({"w": jnp.arange(6)}, {"w": np.array([1, 5])})
    hidden = tree_mask(cut)
    assert not jax.tree.leaves(hidden)
    assert bits(join_rows(tree_unmask(hidden))["w"]) == bits(jnp.arange(6))


@pytest.mark.parametrize(
    "copied",
    [lambda tree: pickle.loads(pickle.dumps(tree)), copy.deepcopy, copy.copy],
    ids=["pickle", "deepcopy", "copy"],
)
@pytest.mark.parametrize("rows", [[2, 8], np.array([11, 3])], ids=["boundaries", "pick"])
def test_copies_are_the_same(copied, rows):
    cut = cut_rows({"w": X}, {"w": rows})
    new = copied(cut)
    assert jax.tree.structure(new) == jax.tree.structure(cut)
    assert bits(join_rows(new)["w"]) == bits(X)
    assert all_bits(copied(cut["w"])) == all_bits(cut["w"])


def test_shown_without_numbers():
    cut = cut_rows({"w": X}, {"w": 8})
    assert repr(cut) == "{'w': Pieces(float32[8, 4], float32[4, 4])}"
    assert repr(freeze_mask(cut, "w.0")) == "{'w': Pieces(False, True)}"
