"""What is said when rows cannot be cut or joined."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_freeze import SpecError, cut_rows, freeze_mask, grad, join_rows, tree_mask

X = jnp.ones((12, 4))
TREE = {"w": X, "scale": 1.5, "zero": jnp.ones(()), "empty": jnp.ones((0, 4)), "name": "net"}
KINDS = "rows are an integer or a list of integers (where to cut), or an array of integers"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (13, "'w' has 12 rows: there is no boundary 13"),
        (-13, "'w' has 12 rows: there is no boundary -13"),
        ([4, 99], "'w' has 12 rows: there is no boundary 99"),
        (0, "'w' has 12 rows: a cut at [0] leaves a piece without rows"),
        (12, "'w' has 12 rows: a cut at [12] leaves a piece without rows"),
        (-12, "'w' has 12 rows: a cut at [-12] leaves a piece without rows"),
        ([8, 4], "'w' has 12 rows: boundaries must increase, but [8, 4] means [8, 4]"),
        ([10, -2], "'w' has 12 rows: boundaries must increase, but [10, -2] means [10, 10]"),
        ([4, 4], "'w' has 12 rows: boundaries must increase, but [4, 4] means [4, 4]"),
        (np.array([3, 12]), "'w' has 12 rows: there is no row 12"),
        (np.array([-13]), "'w' has 12 rows: there is no row -13"),
        (np.array([3, 1, 3]), "'w' has 12 rows: row 3 is picked twice"),
        (np.array([3, -9]), "'w' has 12 rows: row 3 is picked twice"),
        (np.arange(12), "'w' has 12 rows: 12 of them are picked, which leaves a piece without ro"),
        (np.array([], int), "'w' has 12 rows: 0 of them are picked, which leaves a piece without"),
    ],
)
def test_rows_that_do_not_fit(rows, text):
    with pytest.raises(ValueError, match=f"^cut_rows: {re.escape(text)}"):
        cut_rows(TREE, {"w": rows})


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (0.5, f"{KINDS} (which rows to pick), not 0.5"),
        (True, f"{KINDS} (which rows to pick), not True"),
        ([4, 8.0], f"{KINDS} (which rows to pick), not 8.0"),
        ([True, False], f"{KINDS} (which rows to pick), not True"),
        ([np.True_], f"{KINDS} (which rows to pick), not bool"),
        ("4", f"{KINDS} (which rows to pick), not str"),
        (None, f"{KINDS} (which rows to pick), not NoneType"),
        (slice(4), f"{KINDS} (which rows to pick), not slice"),
        (range(4), f"{KINDS} (which rows to pick), not range"),
        ([jnp.array(4)], f"{KINDS} (which rows to pick), not ArrayImpl"),
        ([], "there is no boundary in the list: leave the entry out"),
        (np.array(4), "got an array of int64 with 0 axes, but an array picks rows by their numb"),
        (np.ones((2, 2), int), "got an array of int64 with 2 axes, but an array picks rows"),
        (jnp.ones(2), "got an array of float32 with 1 axes, but an array picks rows by their"),
        (np.ones(12, bool), "got an array of bools: np.flatnonzero(mask) gives the numbers of ro"),
        (np.ones((12, 4), bool), "got an array of bools: rows are cut, not single elements."),
        (jnp.ones((12, 4), bool), "mask the updates, last in the chain: jnp.where(mask, update, -"),
    ],
)
def test_what_is_no_rows(rows, text):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        cut_rows(TREE, {"w": rows})
    assert str(caught.value).startswith("cut_rows, entry 'w': ")


def test_rows_that_are_traced():
    def cut(rows):
        return cut_rows(TREE, {"w": rows})

    for rows in (4, np.array([1, 2])):
        with pytest.raises(ValueError, match="rows are known only at run time here, but where to"):
            jax.jit(cut)(rows)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("scale", "'scale' is no array (float): name the arrays, one by one"),
        ("name", "'name' is no array (str)"),
        ("zero", "'zero' has 0 axes, so that there is no axis 0 to cut"),
        ("empty", "'empty' has 0 rows: there is no boundary 4"),
        ("**", "cut_rows: 'empty' has 0 rows: there is no boundary 4; 'name' is no array (str): "),
    ],
)
def test_leaves_that_cannot_be_cut(spec, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        cut_rows(TREE, {spec: 4})


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_is_not_there(axis):
    text = f"cut_rows: 'w' has 2 axes, so that there is no axis {axis} to cut"
    with pytest.raises(ValueError, match=text):
        cut_rows(TREE, {"w": 2}, axis=axis)


@pytest.mark.parametrize("axis", [True, 0.0, None, (0,)])
def test_an_axis_that_is_none(axis):
    with pytest.raises(TypeError, match="cut_rows: axis is an integer, not "):
        cut_rows(TREE, {"w": 2}, axis=axis)


@pytest.mark.parametrize("rows", ["w", 4, [("w", 4)], None])
def test_entries_come_in_a_mapping(rows):
    with pytest.raises(TypeError, match="cut_rows takes a mapping from specs to rows, not "):
        cut_rows(TREE, rows)


def test_keys_are_specs_that_match_something():
    with pytest.raises(SpecError, match=r"^the key 3 of cut_rows: got 3, not a path"):
        cut_rows(TREE, {3: 4})
    with pytest.raises(SpecError, match=r"^the key \(\) of cut_rows names nothing: leave the ent"):
        cut_rows(TREE, {(): 4})
    with pytest.raises(
        SpecError, match=r"^cut_rows: an entry matches no leaf of a tree of 5 leave"
    ):
        cut_rows(TREE, {"w": 4, "wv": 4})


def test_two_entries_for_one_leaf():
    text = "cut_rows: 'w' is matched by 'w' and by '*w' or 'w': cut it by one entry"
    with pytest.raises(ValueError, match=re.escape(text)):
        cut_rows(TREE, {"w": 4, ("*w", "w"): 8})


def test_cut_already():
    text = "cut_rows: 'w.0' is a piece already: join_rows first, then cut anew; 'w.1' is"
    with pytest.raises(ValueError, match=re.escape(text)):
        cut_rows(cut_rows(TREE, {"w": 4}), {"w": 2})


def with_pieces(*pieces):
    cut = cut_rows({"a": [X], "b": X}, {"a": 8})
    cut["a"][0].pieces = pieces
    return cut


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((None, X), "'a.0' lacks its piece 0: join the params, in the loss; what holds only some"),
        ((X[:8], optax.MaskedNode()), "'a.0' lacks its piece 1: join the params, in the loss; wh"),
        ((X[:8], 1.5), "'a.0' holds no array as piece 1 (float)"),
        ((False, True), "'a.0' holds no array as piece 0 (bool)"),
        ((X[:8], X), "'a.0' has a piece 1 of shape (12, 4), beside one of (8, 4), but it was cut"),
        ((X[:8], X[:4, :3]), "'a.0' has a piece 1 of shape (4, 3), beside one of (8, 4), but it"),
        ((X[:8], X[0]), "'a.0' has a piece 1 of shape (4,), beside one of (8, 4), but it was"),
        (
            (X[0, 0], X[8:]),
            "'a.0' has a piece 0 of shape (), beside one of (), but it was cut to 8",
        ),
        ((X[:8], X[:4].astype(jnp.bfloat16)), "'a.0' has pieces of float32 and bfloat16: cast"),
        (tuple(tree_mask([3, 4])), "'a.0' has hidden pieces: tree_unmask comes before join_rows"),
    ],
)
def test_pieces_that_do_not_join(pieces, text):
    with pytest.raises(ValueError, match=f"^join_rows: {re.escape(text)}"):
        join_rows(with_pieces(*pieces))


def test_gradients_of_what_trains_are_not_whole():
    grads = grad(lambda tree: jnp.sum(join_rows(tree)["w"]), "w[0]")(cut_rows({"w": X}, {"w": 8}))
    with pytest.raises(ValueError, match="'w' lacks its piece 0: join the params, in the loss"):
        join_rows(grads)


STACKS = {
    "blocks": X,
    "scanned": {"w": X, "b": X[:, 0]},
    "list": [{"w": X}, {"w": X}],
    "mixed": {"w": X, "b": jnp.ones(3)},
    "named": {"w": X, "name": "net"},
}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("blocks[:-2]", "'blocks' is one array, and rows of arrays are no leaves: make leaves of"),
        ("blocks[3]", "make leaves of them, cut_rows(params, {'blocks': ...})"),
        ("scanned.w[3]", "'scanned.w' is one array, and rows of arrays are no leaves"),
        ("**.b[3]", "'mixed.b' is one array"),
        ("scanned[:-2]", "'scanned' holds arrays only, and rows of arrays are no leaves: make"),
        ("list[1].w[0]", "'list.1.w' is one array, and rows of arrays are no leaves"),
        ("list[7]", "'list[7]': closest: 'list'"),
        ("mixed[0]", "'mixed[0]': closest: 'mixed'"),
        ("named[0]", "'named[0]': closest: 'named'"),
        ("[0]", "'[0]': nothing is like it"),
    ],
)
def test_an_index_of_rows_names_cut_rows(spec, text):
    with pytest.raises(SpecError) as caught:
        freeze_mask(STACKS, spec)
    assert text in str(caught.value)


def test_an_index_of_a_piece_that_is_not_there_does_not():
    with pytest.raises(SpecError, match=r"'blocks\[2\]': closest: 'blocks"):
        freeze_mask(cut_rows(STACKS, {"blocks": 6}), "blocks[2]")
