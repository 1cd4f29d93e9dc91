"""`summary`: what trains, how many, how big, and how it looks."""

import ast
import functools
import html.parser
import io
import json
import subprocess
import sys
from collections import namedtuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from rich.console import Console

from optax_freeze import (
    Constant,
    MaskError,
    SpecError,
    count_trainable_params,
    frozen,
    leaf_paths,
    param_groups,
    split,
    trainable_mask,
    trainable_only,
    tree_mask,
    unfreeze_at,
)
from optax_freeze._view import summary
from optax_freeze._view.folding import lines
from optax_freeze._view.table import size

SHAPE = jax.ShapeDtypeStruct
F32 = functools.partial(SHAPE, dtype=jnp.float32)
NARROW = 80


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
        return x + nn.Dense(x.shape[-1])(nn.relu(nn.Dense(32)(nn.LayerNorm()(x))))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(50, 16)(tokens)
        for _ in range(12):
            x = Block()(x)
        return nn.Dense(3)(x)


class Adapted(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.LoRALinear(16, 32, lora_rank=2, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.out = nnx.Linear(32, 3, rngs=rngs)


def mlp():
    return eqx.nn.MLP(4, 2, 32, 3, key=jax.random.key(0))


def adapted():
    return nnx.state(Adapted(nnx.Rngs(0)))


def transformer():
    init = functools.partial(Transformer().init, jax.random.key(0))
    return jax.eval_shape(init, SHAPE((1, 8), jnp.int32))


def checkpoint():
    """A flat dictionary as of a BERT, in the order in which JAX sorts its keys."""
    parts = {"attention.query.weight": (8, 8), "attention.query.bias": (8,), "norm.weight": (8,)}
    layers = {f"encoder.layer.{i}.{part}": F32(s) for i in range(12) for part, s in parts.items()}
    return {"embeddings.word.weight": F32((100, 8)), **layers, "pooler.weight": F32((8, 8))}


def huge():
    wide, narrow = SHAPE((5120, 13824), jnp.bfloat16), SHAPE((5120, 5120), jnp.bfloat16)
    block = {
        "attention": dict.fromkeys(("key", "out", "query", "value"), narrow),
        "mlp": {"down": wide, "up": wide},
        "norm": {"scale": F32((5120,))},
    }
    embedding = SHAPE((32000, 5120), jnp.bfloat16)
    return {"embedding": embedding, "layers": [block] * 40, "lm_head": embedding}


MODELS = {
    "mlp": (mlp, {"freeze": "layers[:2]"}),
    "adapted": (adapted, {"trainable": "**.lora_?"}),
    "transformer": (transformer, {"freeze": "params.Block_[:10]"}),
    "checkpoint": (checkpoint, {"freeze": ["embeddings", "encoder.layer[:10]"]}),
    "huge": (huge, {"freeze": "layers[:38]"}),
}
EVERY_MODEL = pytest.mark.parametrize(("make", "choice"), MODELS.values(), ids=MODELS)


def table(shown):
    """The first column, the second and the status of every line of a table, as text."""
    body = str(shown).partition("\n\n")[0].splitlines()
    middle, end = body[0].index("class or array"), body[0].index("status")
    return [(line[:middle].rstrip(), line[middle:].split("  ")[0], line[end:]) for line in body[1:]]


def names(shown):
    return [name for name, _, _ in table(shown)]


def statuses(shown):
    return [(name.strip(), status) for name, _, status in table(shown)]


# Rows


@EVERY_MODEL
def test_rows_are_the_leaves_in_leaf_order(make, choice):
    tree = make()
    shown = summary(tree, **choice)
    leaves, mask = jax.tree.leaves(tree), trainable_mask(tree, **choice)
    assert [row.path for row in shown.rows] == leaf_paths(tree)
    assert [row.trains for row in shown.rows] == jax.tree.leaves(mask)
    assert [row.shape for row in shown.rows] == [getattr(leaf, "shape", None) for leaf in leaves]
    assert shown.trainable == count_trainable_params(tree, mask=mask)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    assert shown.bytes == sum(leaf.size * leaf.dtype.itemsize for leaf in arrays)


@EVERY_MODEL
def test_every_node_is_the_sum_of_its_children(make, choice):
    shown = summary(make(), **choice)
    nodes = [group for group in shown.root.walk() if group.children]
    assert len(nodes) > 3
    for group in nodes:
        for count in ("parameters", "trainable", "bytes"):
            total = sum(getattr(child, count) for child in group.children)
            assert getattr(group, count) == total


@EVERY_MODEL
@pytest.mark.parametrize("depth", [None, 0, 1, 2, 3])
def test_every_depth_has_the_same_totals(make, choice, depth):
    tree = make()
    whole, folded = summary(tree, **choice), summary(tree, **choice, depth=depth)
    assert (folded.parameters, folded.trainable) == (whole.parameters, whole.trainable)
    assert str(folded).splitlines()[-1] == str(whole).splitlines()[-1]


Pair = namedtuple("Pair", "first second")
KEY = jax.eval_shape(jax.random.key, 0)
# leaf: (class, shape, dtype, parameters, bytes, trains), text of the class, status
LEAVES = {
    "array": (jnp.ones((2, 3)), ("array", (2, 3), "float32", 6, 24, True), "f32[2,3]", "trains"),
    "numpy": (np.ones(3), ("array", (3,), "float64", 3, 24, True), "f64[3]", "trains"),
    "abstract": (F32((4,)), ("array", (4,), "float32", 4, 16, True), "f32[4]", "trains"),
    "bfloat16": (
        SHAPE((2,), jnp.bfloat16),
        ("array", (2,), "bfloat16", 2, 4, True),
        "bf16[2]",
        "trains",
    ),
    "scalar": (F32(()), ("array", (), "float32", 1, 4, True), "f32[]", "trains"),
    "empty": (F32((0, 3)), ("array", (0, 3), "float32", 0, 0, True), "f32[0,3]", "-"),
    "int": (np.arange(3, dtype=np.int8), ("array", (3,), "int8", 3, 3, False), "i8[3]", "frozen"),
    "bool": (np.ones(2, bool), ("array", (2,), "bool", 2, 2, False), "bool[2]", "frozen"),
    "key": (KEY, ("array", (), "key<fry>", 0, 8, False), "key<fry>[]", "-"),
    "float0": (
        np.zeros(3, jax.dtypes.float0),
        ("array", (3,), "float0", 0, 0, False),
        "float0[3]",
        "left out",
    ),
    "python": (0.5, ("float", None, None, 0, 0, False), "float", "-"),
    "numpy scalar": (np.float32(0.5), ("float32", None, None, 0, 0, False), "float32", "-"),
    "string": ("relu", ("str", None, None, 0, 0, False), "str", "-"),
    "function": (len, ("builtin_function_or_method", None, None, 0, 0, False), None, "-"),
    "hole": (optax.MaskedNode(), ("hole", None, None, 0, 0, False), "hole", "left out"),
    "hidden array": (
        tree_mask(np.arange(3, dtype=np.int32)),
        ("hidden array", (3,), "int32", 3, 12, False),
        "#i32[3]",
        "frozen",
    ),
    "hidden int": (tree_mask(7), ("hidden int", None, None, 0, 0, False), "#int", "-"),
}


@pytest.mark.parametrize(("leaf", "row", "what", "status"), LEAVES.values(), ids=LEAVES)
def test_every_kind_of_leaf(leaf, row, what, status):
    shown = summary({"a": {"x": leaf}, "b": F32((5,))})
    first = shown.rows[0]
    assert first.path == "a.x"
    found = (first.kind, first.shape, first.dtype, first.parameters, first.bytes, first.trains)
    assert found == row
    assert table(shown)[0] == ("a.x", what or row[0], status)


@pytest.mark.parametrize("nothing", [None, {}, [], (None, {}), eqx.nn.Identity()])
def test_nothing_is_not_shown(nothing):
    shown = summary({"a": nothing, "b": F32((5,))})
    assert names(shown) == ["b"]
    assert len(shown.rows) == 1


def test_a_python_float_counts_where_a_mask_lets_it_train():
    tree = {"rate": 0.5, "w": F32((3,))}
    shown = summary(tree, trainable={"rate": True, "w": False})
    assert (shown.trainable, shown.parameters) == (1, 4)
    assert statuses(shown) == [("rate", "trains"), ("w", "frozen")]
    assert summary(tree).parameters == 3


def test_constants_are_frozen_and_released_by_a_mask():
    tree = {"mass": Constant(F32(())), "w": F32((3,))}
    assert table(summary(tree))[0] == ("mass.value", "Constant f32[]", "frozen")
    assert table(summary(tree))[1] == ("w", "f32[3]", "trains")
    assert summary(tree, trainable=trainable_mask(tree, fixed=())).percent == 100.0


def test_a_variable_and_its_value_are_one_line():
    shown = summary(adapted())
    (line,) = [line for line in table(shown) if line[0].strip().endswith("lora_a")]
    assert line[1:] == ("LoRAParam f32[16,2]", "trains")
    kinds = {row.path: row.kind for row in shown.rows}
    assert kinds["up.lora.lora_a.value"] == "LoRAParam"
    assert kinds["norm.mean.value"] == "BatchStat"


def test_an_nnx_module_looks_like_its_state():
    module = Adapted(nnx.Rngs(0))
    lines = table(summary(module, trainable=nnx.LoRAParam))
    assert lines[0] == ("(whole tree)", "Adapted", "mixed 11.1%")
    assert ("  lora", "LoRA", "trains") in lines
    leaves = [row for row in summary(module).rows if row.parameters]
    assert leaves == list(summary(nnx.state(module)).rows)


def test_the_rest_of_a_split():
    tree = {"w": F32((3,)), "name": "a", "table": np.arange(3, dtype=np.int32)}
    shown = summary(split(tree)[1])
    assert statuses(shown) == [("name", "-"), ("table", "frozen"), ("w", "left out")]


def test_the_rest_of_a_split_of_what_has_places():
    tree = {"a": tree_mask(7), "b": optax.MaskedNode(), "w": F32((3,))}
    assert table(summary(split(tree)[1])) == [
        ("a", "#int", "-"),
        ("b", "#hole", "left out"),
        ("w", "hole f32[3]", "left out"),
    ]


def test_two_leaves_of_one_name_are_both_counted():
    shown = summary({"a": {"b": F32((2,))}, "a.b": F32((3,)), "a.b.c": F32((4,))})
    assert [row.path for row in shown.rows] == ["a.b", "a.b", "a.b.c"]
    assert shown.parameters == 9
    assert [name.strip() for name in names(shown)] == ["a.b", "b", "b", "c"]


@pytest.mark.parametrize("leaf", [F32((3,)), jnp.ones(3)])
def test_one_bare_array(leaf):
    shown = summary(leaf)
    assert [row.path for row in shown.rows] == [""]
    assert table(shown) == [("(whole tree)", "f32[3]", "trains")]


@pytest.mark.parametrize("tree", [{}, None, [None]])
def test_an_empty_tree(tree):
    shown = summary(tree, tx=optax.adam(1e-3))
    assert str(shown).splitlines() == [
        "path  class or array  parameters  bytes  status",
        "",
        "trainable params: 0 | all params: 0 | trainable: 0.0000%",
        "optimizer state: 0 B | in trainable_only: 0 B | saved: 0 B",
    ]


def test_inside_jit():
    seen = []

    @jax.jit
    def step(params):
        seen.append(summary(params, "a"))
        return params

    step({"a": jnp.ones(2), "b": jnp.ones((2, 3))})
    assert (seen[0].trainable, seen[0].parameters, seen[0].bytes) == (6, 8, 32)


# Lines


def test_an_instance_of_one_leaf_is_one_line():
    norm = eqx.nn.RMSNorm(4, use_bias=False)
    assert table(summary({"a": norm, "b": [norm] * 3})) == [
        ("a.weight", "RMSNorm f32[4]", "trains"),
        ("b[0:3].weight  x3", "3x RMSNorm f32[4]", "trains"),
    ]
    assert names(summary(norm)) == ["(whole tree)", "weight"]
    assert names(summary({"a": norm, "c": F32(())}, depth=1)) == ["a", "c"]
    assert names(summary(eqx.nn.Sequential([norm] * 2))) == [
        "(whole tree)",
        "layers[0:2].weight  x2",
    ]


def test_a_dotted_dictionary_looks_like_a_nested_one():
    flat = {"a.b.0.w": F32((2,)), "a.b.1.w": F32((2,)), "a.c": F32((3,))}
    nested = {"a": {"b": [{"w": F32((2,))}, {"w": F32((2,))}], "c": F32((3,))}}
    assert str(summary(flat)) == str(summary(nested))


RUNS = {
    "a list": ({"blocks": [F32((2,))] * 24}, None, ["blocks[0:24]  x24"]),
    "more than ten": ({f"Dense_{i}": F32((2,)) for i in range(12)}, None, ["Dense_[0:12]  x12"]),
    "a part is frozen": (
        {"blocks": [F32((2,))] * 12},
        "blocks[:9]",
        ["blocks", "  [0:9]  x9", "  [9:12]  x3"],
    ),
    "one differs": (
        {"blocks": [F32((2,)), F32((2,)), F32((3,)), F32((2,))]},
        None,
        ["blocks", "  [0:2]  x2", "  [2]", "  [3]"],
    ),
    "gaps": ({"b": {"3": F32((2,)), "7": F32((2,))}}, None, ["b[3..7]  x2"]),
    "from one": ({"conv1": F32((2,)), "conv2": F32((2,))}, None, ["conv1..conv2  x2"]),
    "a gap before": (
        {"b": {"0": F32((3,)), "5": F32((2,)), "6": F32((2,))}},
        None,
        ["b", "  [0]", "  [5..6]  x2"],
    ),
    "apart": (
        {"a": {"x2": F32((2,)), "x3": F32((2,)), "xa": F32(()), "x0": F32(()), "x1": F32(())}},
        None,
        ["a", "  x[0:2]  x2", "  x[2:4]  x2", "  xa"],
    ),
    "nested": (
        {"a": [{"experts": [F32((2,))] * 8, "w": F32((3,))}] * 4},
        None,
        ["a[0:4]  x4", "  experts[0:8]  x8", "  w"],
    ),
    "a chain": (
        {"params": {"enc": {"w": F32((2,)), "b": F32(())}}},
        None,
        ["params.enc", "  b", "  w"],
    ),
    "a chain of runs": ({"a": [{"b": [F32((2,))] * 3}] * 2}, None, ["a[0:2].b[0:3]  x6"]),
    "a place between": ({"a": [F32((2,)), None, F32((2,))]}, None, ["a[0..2]  x2"]),
    "an empty key": ({"": F32((2,)), "b": F32(())}, None, ["''", "b"]),
    "no names of their own": ([F32((2,)), F32((3,))], None, ["[0]", "[1]"]),
}


@pytest.mark.parametrize(("tree", "freeze", "expected"), RUNS.values(), ids=RUNS)
def test_runs_of_equal_siblings_are_one_line(tree, freeze, expected):
    assert names(summary(tree, freeze)) == expected


def test_declared_order_is_kept_between_numbered_fields():
    class Net(eqx.Module):
        layer7: jax.ShapeDtypeStruct
        layer6: jax.ShapeDtypeStruct
        act: jax.ShapeDtypeStruct
        layer3: jax.ShapeDtypeStruct
        layer2: jax.ShapeDtypeStruct

    a, b = F32((2,)), F32((3,))
    found = names(summary(Net(a, a, b, b, b)))
    assert found == ["(whole tree)", "layer6..layer7  x2", "act", "layer2..layer3  x2"]


def test_a_run_is_a_spec_of_the_same_leaves():
    tree = {"blocks": [F32((2, 3))] * 3 + [F32((4,))] * 5, "head": F32((2,))}
    found = dict(statuses(summary(tree, "blocks[3:8]")))
    assert found["[3:8]  x5"] == "frozen"
    assert found["[0:3]  x3"] == "trains"


def test_a_run_shows_the_sums_of_all():
    shown = summary({"blocks": [{"w": F32((2, 3)), "b": F32((4,))}] * 5}, "**.b")
    assert [line.split()[-4:] for line in str(shown).splitlines()[1:4]] == [
        ["200", "B", "mixed", "60.0%"],
        ["20", "80", "B", "frozen"],
        ["30", "120", "B", "trains"],
    ]
    assert [what for _, what, _ in table(shown)] == ["", "5x f32[4]", "5x f32[2,3]"]


DEPTHS = {
    0: [],
    1: ["a", "b"],
    2: ["a", "  [0:2]  x2", "  [2]", "b.c"],
    3: ["a", "  [0:2]  x2", "    w", "  [2]", "b.c", "  d", "  e"],
}


@pytest.mark.parametrize(("depth", "expected"), DEPTHS.items())
def test_depth_folds(depth, expected):
    tree = {"a": [{"w": F32((2,))}] * 2 + [F32(())], "b": {"c": {"d": F32(()), "e": F32((2,))}}}
    tree["a"] = [Pair(F32((2,)), F32((3,)))] * 2 + [F32(())]
    expected = [name.replace("    w", "    first") for name in expected]
    if depth == 3:
        expected.insert(3, "    second")
    assert names(summary(tree, depth=depth)) == expected


MIXED = [(1, 999_999, "mixed 0.1%"), (999_999, 1, "mixed 99.9%"), (1, 2, "mixed 33.3%")]


@pytest.mark.parametrize(("train", "freeze", "status"), MIXED)
def test_mixed_never_looks_like_all_or_nothing(train, freeze, status):
    tree = {"a": {"x": F32((train,)), "y": F32((freeze,))}, "b": F32(())}
    assert statuses(summary(tree, "a.y"))[0] == ("a", status)


SIZES = [
    (0, "0 B"),
    (1023, "1023 B"),
    (1024, "1.0 KiB"),
    (1024**2 - 1, "1.0 MiB"),
    (90_852_864, "86.6 MiB"),
    (20 * 2**30, "20.0 GiB"),
    (5 * 2**50, "5120.0 TiB"),
]


@pytest.mark.parametrize(("count", "text"), SIZES)
def test_sizes(count, text):
    assert size(count) == text


# Optimizer state


@pytest.mark.parametrize(
    "tx",
    [optax.adamw(1e-3), optax.sgd(1e-2), optax.chain(optax.clip(1.0), optax.lion(1e-4))],
    ids=["adamw", "sgd", "chain"],
)
def test_state_bytes_are_those_of_a_real_state(tx):
    params = {"encoder": jnp.ones((8, 4)), "head": jnp.ones((4, 2)), "name": "net", "n": 3}
    shown = summary(params, "encoder", tx=tx)

    def real(freeze):
        state = trainable_only(tx, freeze).init(params)
        return sum(leaf.nbytes for leaf in jax.tree.leaves(state))

    assert shown.state.in_trainable_only == real("encoder")
    assert shown.state.as_given == real(None)


def test_state_of_a_factory_that_freezes_by_itself():
    params = {"encoder": F32((8, 4)), "head": F32((4, 2))}
    shown = summary(params, "encoder", tx=optax.chain(frozen("encoder"), optax.adam(1e-3)))
    assert (shown.state.in_trainable_only, shown.state.as_given) == (4 + 2 * 32, 4 + 2 * 160)


WRAPPED = {
    "trainable_only": trainable_only(optax.adam(1e-3), "encoder"),
    "param_groups": param_groups({"encoder": None}, default=optax.adam(1e-3)),
}


@pytest.mark.parametrize("tx", WRAPPED.values(), ids=WRAPPED.keys())
def test_what_a_transformation_of_ours_freezes_is_shown_as_frozen(tx):
    """Case 39: it used to say that everything trains and that nothing is saved."""
    params = {"encoder": F32((8, 4)), "head": F32((4, 2))}
    shown = summary(params, tx=tx)
    assert [row.trains for row in shown.rows] == [False, True]
    assert shown.trainable == 8
    assert (shown.state.in_trainable_only, shown.state.as_given) == (4 + 2 * 32, 4 + 2 * 32)
    assert str(shown).endswith("optimizer state: 68 B | in trainable_only: 68 B | saved: 0 B")


def test_stages_are_shown():
    params = {"body": [F32((4, 4)), F32((4, 4))], "embed": F32((8, 4)), "head": F32((4, 2))}
    tx = unfreeze_at(optax.adam(1e-3), {"head": 0, "body[1]": 1000, "body[0]": 2000})
    shown = summary(params, tx=tx)
    assert [row.from_step for row in shown.rows] == [2000, 1000, None, 0]
    assert [row["trains"] for row in shown.as_dict()["rows"]] == [True, True, False, True]
    assert table(shown) == [
        ("body", "", "in stages"),
        ("  [0]", "f32[4,4]", "from 2000"),
        ("  [1]", "f32[4,4]", "from 1000"),
        ("embed", "f32[8,4]", "frozen"),
        ("head", "f32[4,2]", "trains"),
    ]
    assert shown.state.as_given == 4 * 4 + 2 * 4 * (16 + 16 + 8)  # a step and three counts


def test_one_stage_folds_as_ever():
    params = {"body": [F32((4,)), F32((4,)), F32((4,))], "head": F32((4,))}
    shown = summary(params, tx=unfreeze_at(optax.sgd(0.1), {"head": 0, "body": 7}))
    assert table(shown)[:2] == [
        ("body[0:3]  x3", "3x f32[4]", "from 7"),
        ("head", "f32[4]", "trains"),
    ]


def test_frozen_shows_what_it_freezes():
    params = {"encoder": F32((8, 4)), "head": F32((4, 2))}
    assert [row.trains for row in summary(params, tx=frozen("encoder")).rows] == [False, True]


def test_the_figure_is_true_of_one_that_is_wrapped_once_more():
    """Then freeze= alone says what trains, but the state is what it is."""
    params = {"encoder": F32((8, 4)), "head": F32((4, 2))}
    shown = summary(params, tx=optax.chain(optax.clip(1.0), WRAPPED["trainable_only"]))
    assert shown.state.as_given == 4 + 2 * 32


def test_state_of_multi_steps():
    shown = summary({"a": F32((5,)), "b": F32((3,))}, "a", tx=optax.MultiSteps(optax.sgd(1.0), 2))
    assert shown.state.as_given - shown.state.in_trainable_only == 5 * 4


def test_all_frozen_has_no_state():
    shown = summary({"a": F32((5,))}, "a", tx=optax.adam(1e-3))
    assert (shown.state.in_trainable_only, shown.state.as_given) == (0, 4 + 2 * 20)


# Errors


ERRORS = {
    "depth below": ({"depth": -1}, ValueError, "from 0 on, not -1"),
    "depth bool": ({"depth": True}, ValueError, "from 0 on, not True"),
    "depth text": ({"depth": "a"}, ValueError, "from 0 on, not 'a'"),
    "no optimizer": ({"tx": optax.adam}, TypeError, "summary: .*call it first"),
    "misspelt": ({"freeze": "encodr"}, SpecError, "'encodr': closest: 'encoder'"),
    "bad mask": ({"trainable": {"encoder": True}}, MaskError, "head"),
}


@pytest.mark.parametrize(("arguments", "error", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(arguments, error, text):
    with pytest.raises(error, match=text):
        summary({"encoder": F32((2,)), "head": F32((2,))}, **arguments)


# Renderings


@EVERY_MODEL
def test_plain_text_fits_a_terminal(make, choice):
    shown = summary(make(), **choice, tx=optax.adamw(1e-3))
    texts = str(shown).splitlines()
    assert max(map(len, texts)) <= NARROW
    assert [text for text in texts if text != text.rstrip()] == []
    assert repr(shown) == str(shown)


def test_a_long_path_stands_on_a_line_of_its_own():
    long = "a_very_long_name" * 5
    tree = {f"{long}_a": F32((2,)), f"{long}_b": {"x": F32((2,)), "y": F32(())}, "c": F32((3,))}
    head, name, rest, node, sums, *_, short, _, _ = str(summary(tree)).splitlines()
    assert (name, node) == (f"{long}_a", f"{long}_b")
    assert rest.split() == ["f32[2]", "2", "8", "B", "trains"]
    assert sums.split() == ["3", "12", "B", "trains"]
    assert rest.index("f32[2]") == short.index("f32[3]") == head.index("class")
    assert rest.index("trains") == sums.index("trains") == head.index("status")


def test_a_long_path_reaches_into_an_empty_column():
    tree = {"a_long_name" * 3: [F32((2, 3, 4, 5, 6, 7, 8)), F32(())], "b": F32((3,))}
    _, first, second, *_ = str(summary(tree)).splitlines()
    assert first.split() == ["a_long_name" * 3, "40,321", "157.5", "KiB", "trains"]
    assert second.split()[:2] == ["[0]", "f32[2,3,4,5,6,7,8]"]
    assert len(first) == len(second)


def shown_by_rich(shown, **settings):
    stream = io.StringIO()
    Console(file=stream, **{"width": NARROW, **settings}).print(shown)
    return stream.getvalue()


@EVERY_MODEL
def test_rich_without_colour_is_the_plain_text(make, choice):
    shown = summary(make(), **choice, tx=optax.adamw(1e-3))
    assert shown_by_rich(shown).rstrip("\n") == str(shown)


def test_rich_colours_the_status_only():
    shown = summary({"[bold]a": F32((2,)), "a": "text", "b": {"x": F32((2,)), "y": F32(())}}, "b.x")
    text = shown_by_rich(shown, force_terminal=True, color_system="standard")
    assert "[bold]a" in text  # a path is no markup
    assert "\x1b[2m-" in text
    for status in ("\x1b[32mtrains", "frozen", "\x1b[1mmixed 33.3%"):
        assert status in text


class Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


@EVERY_MODEL
def test_html_says_the_same(make, choice):
    shown = summary(make(), **choice, tx=optax.adamw(1e-3))
    cells = Cells()
    cells.feed(shown._repr_html_())
    plain = str(shown)
    assert cells.tags.count("tr") == 1 + len(lines(shown.root, None))
    assert [text for text in cells.texts if text not in plain] == []


def test_html_escapes_names():
    evil = "<script>alert('a')</script>&"
    text = summary({evil: F32((2,)), "b": F32(())})._repr_html_()
    cells = Cells()
    cells.feed(text)
    assert "<script" not in text
    assert "script" not in cells.tags
    assert evil in cells.texts


def test_as_dict_is_plain_data():
    shown = summary({"a": F32((3,)), "b": np.arange(2, dtype=np.int8)}, tx=optax.sgd(1.0))
    found = shown.as_dict()
    assert json.loads(json.dumps(found, default=None))["rows"][1]["path"] == "b"
    assert found == {
        "trainable": 3,
        "parameters": 5,
        "percent": 60.0,
        "bytes": 14,
        "optimizer_bytes": 0,
        "optimizer_bytes_in_trainable_only": 0,
        "remarks": [],
        "rows": [
            {
                "path": "a",
                "kind": "array",
                "shape": (3,),
                "dtype": "float32",
                "parameters": 3,
                "bytes": 12,
                "from_step": 0,
                "trains": True,
            },
            {
                "path": "b",
                "kind": "array",
                "shape": (2,),
                "dtype": "int8",
                "parameters": 2,
                "bytes": 2,
                "from_step": None,
                "trains": False,
            },
        ],
    }
    assert "optimizer_bytes" not in summary({"a": F32((3,))}).as_dict()


def test_rich_is_imported_only_when_it_shows():
    code = """
import sys
import jax.numpy as jnp
from optax_freeze._view import summary
shown = summary({"a": jnp.ones(2)})
str(shown), shown._repr_html_(), shown.as_dict()
print([name for name in sys.modules if name.partition(".")[0] in {"rich", "flax", "equinox"}])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(run.stdout) == []


# Size


def test_ten_billion_parameters_without_an_allocation():
    tree = huge()
    held = len(jax.live_arrays())
    shown = summary(tree, "layers[:38]", tx=optax.adamw(1e-3))
    text = str(shown)
    assert len(jax.live_arrays()) == held
    assert shown.parameters == 10_184_499_200
    assert len(text.splitlines()) < NARROW


def test_twenty_thousand_leaves():
    tree = {f"layer.{i}.part{j}.w": 1.0 for i in range(200) for j in range(100)}
    text = str(summary(tree))
    assert len(text.splitlines()) < 10
