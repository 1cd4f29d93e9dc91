"""`layer_decay`: what counts as a layer, in which order, and the factors."""

import contextlib

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import strategies
from flax import nnx
from hypothesis import assume, given
from hypothesis import strategies as st

from optax_freeze import SpecError, cut_rows, layer_decay, leaf_paths, scale_by_spec, where


def vector():
    return jnp.ones(2)


def tower(blocks):
    return {
        "embed": {"w": vector()},
        "blocks": [{"w": vector(), "b": vector()} for _ in range(blocks)],
        "norm": vector(),
        "head": vector(),
    }


def applied(factors, params):
    """The factor that every leaf gets; 1 where none."""
    updates = jax.tree.map(jnp.ones_like, params)
    scaled, _ = scale_by_spec(factors).update(updates, optax.EmptyState(), params)
    leaves = [float(jnp.ravel(leaf)[0]) for leaf in jax.tree.leaves(scaled)]
    return dict(zip(leaf_paths(params), leaves, strict=True))


def test_twelve_blocks_as_in_the_papers():
    factors = layer_decay(tower(12), ["embed", "blocks[:]", "head"], 0.75)
    assert list(factors) == ["embed", *(f"blocks.{i}" for i in range(12)), "head"]
    assert factors["embed"] == 0.75**13
    assert factors["head"] == 1.0
    assert list(factors.values()) == [0.75**i for i in range(13, -1, -1)]
    found = applied(factors, tower(12))
    assert found["blocks.0.b"] == found["blocks.0.w"] == np.float32(0.75**12)
    assert found["norm"] == 1.0, "what no layer matches"


def test_two_towers():
    params = {"image": tower(3), "text": tower(12)}
    factors = {
        **layer_decay(params, ["image.embed", "image.blocks[:]"], 0.5),
        **layer_decay(params, ["text.embed", "text.blocks[:]"], 0.75),
    }
    found = applied(factors, params)
    assert found["image.embed.w"] == 0.5**3
    assert found["image.blocks.2.w"] == found["text.blocks.11.w"] == 1.0
    assert found["text.embed.w"] == np.float32(0.75**12)


LAYERS = {
    "a bare spec": ("blocks[:]", {"blocks.0": 0.25, "blocks.1": 0.5, "blocks.2": 1.0}),
    "a tuple is one layer": (
        ["blocks[:]", ("head", "norm")],
        {"blocks.0": 0.125, "blocks.1": 0.25, "blocks.2": 0.5, "norm": 1.0, "head": 1.0},
    ),
    "of layers, too": ([("blocks[:]",), "head"], {
        "blocks.0": 0.5, "blocks.1": 0.5, "blocks.2": 0.5, "head": 1.0,
    }),
    "specs of one layer may overlap": ([("embed", "**.w"), "head"], {
        "embed": 0.5, "blocks.0.w": 0.5, "blocks.1.w": 0.5, "blocks.2.w": 0.5, "head": 1.0,
    }),
    "another slice is one layer": (["blocks[:2]", "blocks[2:]"], {
        "blocks.0": 0.5, "blocks.1": 0.5, "blocks.2": 1.0,
    }),
    "a wildcard": (["b*[:]"], {"blocks.0": 0.25, "blocks.1": 0.5, "blocks.2": 1.0}),
    "at any depth": (["**[:]"], {"blocks.0": 0.25, "blocks.1": 0.5, "blocks.2": 1.0}),
    "where": ([where(lambda path, leaf: path == "head"), "embed"], {"head": 0.5, "embed": 1.0}),
    "leaf by leaf": (["embed.**", "blocks[0].*"], {
        "embed.w": 0.5, "blocks.0.b": 1.0, "blocks.0.w": 1.0,
    }),
}  # fmt: skip


@pytest.mark.parametrize(("layers", "expected"), LAYERS.values(), ids=LAYERS)
def test_what_is_a_layer(layers, expected):
    factors = layer_decay(tower(3), layers, 0.5)
    assert factors == expected
    assert applied(factors, tower(3))


@pytest.mark.parametrize("decay", [1, 1.0, np.float32(1), np.int64(1)], ids=repr)
def test_a_decay_of_one(decay):
    factors = layer_decay(tower(2), ["blocks[:]"], decay)
    assert factors == {"blocks.0": 1.0, "blocks.1": 1.0}
    assert {type(factor) for factor in factors.values()} == {float}


# Names of frameworks


@pytest.mark.parametrize("name", ["layer_{}", "Dense_{}", "mlp/~/linear_{}", "l{}"])
def test_siblings_go_by_number(name):
    params = {name.format(i): vector() for i in range(12)}
    factors = layer_decay(params, [name.format("[:]")], 0.5)
    assert list(factors) == [name.format(i) for i in range(12)]
    assert factors[name.format(2)] == 0.5**9


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Embed(3, 2)(x)
        for _ in range(11):
            x = nn.Dense(2)(x)
        return nn.LayerNorm()(x)


def test_linen():
    params = Net().init(jax.random.key(0), jnp.arange(3))["params"]
    factors = layer_decay(params, ["Embed_0", "Dense_[:]", "LayerNorm_0"], 0.5)
    assert list(factors) == ["Embed_0", *(f"Dense_{i}" for i in range(11)), "LayerNorm_0"]
    assert applied(factors, params)["Dense_9.kernel"] == 0.25


def test_haiku_calls_the_first_one_differently():
    def net(x):
        for _ in range(11):
            x = hk.Linear(2)(x)
        return hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)

    params = hk.transform(net).init(jax.random.key(0), jnp.ones((1, 2)))
    factors = layer_decay(params, ["linear_[:]", "layer_norm"], 0.5)
    assert list(factors) == ["linear", *(f"linear_{i}" for i in range(1, 11)), "layer_norm"]
    assert factors["linear"] == 0.5**11


class Blocks(nnx.Module):
    def __init__(self, count, rngs):
        self.embed = nnx.Embed(3, 2, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(count)])


def test_nnx_lists_in_the_module_its_state_and_plain_dicts():
    model = Blocks(11, nnx.Rngs(0))
    state = nnx.state(model, nnx.Param)
    plain = nnx.to_pure_dict(state)
    layers = ["embed", "blocks[:]"]
    factors = layer_decay(model, layers, 0.5)
    assert list(factors) == ["embed", *(f"blocks.{i}" for i in range(11))]
    assert layer_decay(state, layers, 0.5) == layer_decay(plain, layers, 0.5) == factors
    assert applied(factors, state)["blocks.2.kernel.value"] == 0.5**8
    assert applied(factors, plain)["blocks.2.kernel"] == 0.5**8


def test_equinox_tuples_and_layers_without_params():
    keys = jax.random.split(jax.random.key(0), 2)
    first, second = (eqx.nn.Linear(2, 2, key=key) for key in keys)
    model = eqx.nn.Sequential((first, eqx.nn.Lambda(jax.nn.relu), second))
    layers = ["layers[:]"]
    assert layer_decay(model, layers, 0.5) == {"layers.0": 0.25, "layers.2": 1.0}
    arrays = eqx.filter(model, eqx.is_array)
    assert layer_decay(arrays, layers, 0.5) == {"layers.0": 0.25, "layers.2": 1.0}
    assert layer_decay(model, [eqx.nn.Linear, "layers[1]"][:1], 0.5) == {
        "layers.0": 1.0,
        "layers.2": 1.0,
    }
    tx = scale_by_spec(layer_decay(model, layers, 0.5))
    scaled, _ = tx.update(jax.tree.map(jnp.ones_like, arrays), tx.init(model), model)
    assert float(scaled.layers[0].weight[0, 0]) == 0.25


def test_a_flat_checkpoint_and_a_nested_one():
    flat = {f"encoder.layer.{i}.{name}": vector() for i in range(11) for name in ("w", "b")}
    nested = {"encoder": {"layer": {str(i): {"w": vector(), "b": vector()} for i in range(11)}}}
    factors = layer_decay(flat, ["encoder.layer[:]"], 0.5)
    assert list(factors) == [f"encoder.layer.{i}" for i in range(11)]
    assert layer_decay(nested, ["encoder.layer[:]"], 0.5) == factors
    assert applied(factors, flat) == applied(factors, nested)
    assert applied(factors, flat)["encoder.layer.2.b"] == 0.5**8


ODD = ["a.b[0]", "a*", "a?", "[", "a..b", "**", "blocks[:]", "!x", "x/y"]


def test_odd_keys_are_found_again():
    params = {key: {"w": vector()} for key in ODD} | {"ab": vector(), "blocks": [vector()]}
    for key in ODD:
        assert layer_decay(params, [key, "ab"], 0.5) == {key: 0.5, "ab": 1.0}
        found = applied({key: 0.5}, params)
        assert [path for path, factor in found.items() if factor == 0.5] == [f"{key}.w"]


def test_a_subscript_behind_a_subscript():
    params = {"towers": [tower(2), tower(3)]}
    factors = layer_decay(params, ["towers[1].blocks[:]"], 0.5)
    assert list(factors) == [f"towers.1.blocks.{i}" for i in range(3)]
    grid = {"rows": [[vector(), vector()], [vector()]]}
    assert layer_decay(grid, ["rows[0][:]"], 0.5) == {"rows.0.0": 0.5, "rows.0.1": 1.0}
    assert layer_decay([vector(), vector()], ["[:]"], 0.5) == {"0": 0.5, "1": 1.0}


def test_a_layer_without_a_path_of_its_own():
    norm = eqx.nn.LayerNorm(2)
    params = {"a": norm, "a.b": vector()}  # "a" means both
    factors = layer_decay(params, [eqx.nn.LayerNorm, "a.b"], 0.5)
    assert factors == {"a.weight": 0.5, "a.bias": 0.5, "a.b": 1.0}
    assert applied(factors, params) == factors


@pytest.mark.parametrize(
    ("tree", "layer"), [(vector(), "**"), (eqx.nn.LayerNorm(2), eqx.nn.LayerNorm)], ids=["a", "b"]
)
def test_a_layer_that_is_the_whole_tree(tree, layer):
    assert layer_decay(tree, layer, 0.5) == {"**": 1.0}


def test_abstract_trees_and_tracers():
    layers = ["embed", "blocks[:]", where(lambda path, leaf: path == "head")]
    expected = layer_decay(tower(3), layers, 0.5)
    assert layer_decay(jax.eval_shape(lambda: tower(3)), layers, 0.5) == expected
    found = []
    jax.jit(lambda params: found.append(layer_decay(params, layers, 0.5)))(tower(3))
    assert found == [expected]


# Laws


@given(st.integers(1, 30), st.floats(0.01, 1.0), st.booleans(), st.booleans())
def test_each_layer_has_exactly_the_power_of_its_distance(blocks, decay, before, behind):
    layers = ["embed"] * before + ["blocks[:]"] + ["head"] * behind
    factors = list(layer_decay(tower(blocks), layers, decay).values())
    assert factors == [decay**i for i in reversed(range(blocks + before + behind))]


@given(strategies.trees_without_places, st.data())
def test_every_leaf_gets_the_factor_of_its_layer(tree, data):
    """The paths that come out mean the leaves that went in, whatever the keys are."""
    params = jax.tree.map(lambda _: np.ones(2, np.float32), tree)
    names = leaf_paths(params)
    assume(names)
    of = {name: data.draw(st.integers(0, 2), name) for name in names}
    present = sorted({*of.values()})
    layers = [where(lambda path, leaf, i=i: of[path] == i) for i in present]
    expected = {name: 0.5 ** (len(present) - 1 - present.index(i)) for name, i in of.items()}
    # A name that continues another one, or the same one twice, may be refused, by name.
    longer = [one for one in names for other in names if f"{other}.".startswith(f"{one}.")]
    is_ambiguous = len(longer) > len(names)
    with contextlib.suppress(SpecError) if is_ambiguous else contextlib.nullcontext():
        assert applied(layer_decay(params, layers, 0.5), params) == expected


# Errors


WRONG = {
    "a wrong name": (["embd", "blocks[:]", "hed"], r"2 entries match no leaf(.|\n)*'embd': clos"),
    "nothing numbered": (["norm[:]"], r"layer_decay: an entry matches no leaf(.|\n)*'norm\[:\]'"),
    "none": ([], "layers is empty: list them from the input to the output"),
    "an empty layer": (["embed", ()], r"layers\[1\] names nothing: leave it out"),
    "no spec": ({"embed": 1}, "layers: got a dict: put the entries into a list"),
    "an index": (["embed", 1], r"layers\[1\]: got 1, not a path"),
    "a leaf twice": (
        ["blocks[:]", "**.b"],
        r"'blocks\.0\.b' is in two layers, of 'blocks\[:\]' and of '\*\*\.b'",
    ),
    "a layer twice": (["head", "head"], "'head' is in two layers, of 'head' and of 'head'"),
    "what cannot train": (
        ["table", "head"],
        "'table' matches nothing that can train: 'table' is an array of int32",
    ),
    "counted, what cannot train": (
        ["tables[:]", "head"],
        r"'tables\[:\]' matches nothing that can train: 'tables\.0' is an array of int32",
    ),
    "several rows": (
        ["*.blocks[:]"],
        r"'\*\.blocks\[:\]' counts 2 rows of layers at once: .*'(image|text)\.blocks\.0'.* two "
        "towers merge the results of two calls",
    ),
    "several kinds of siblings": (
        ["*_[:]"],
        "counts 2 rows of layers at once: one begins with 'conv_0'; one begins with 'dense_0'",
    ),
    "what was left out": (
        ["gone[:]"],
        r"what 'gone\[:\]' counts was left out of this tree: pass the params as a whole",
    ),
}
PARAMS = {
    **tower(2),
    "table": jnp.arange(2),
    "tables": [jnp.arange(2)],
    "image": tower(2),
    "text": tower(2),
    "conv_0": vector(),
    "dense_0": vector(),
    "gone": optax.MaskedNode(),
}


@pytest.mark.parametrize(("layers", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_layers(layers, text):
    with pytest.raises(SpecError, match=text):
        layer_decay(PARAMS, layers, 0.5)


def test_leaves_that_no_path_tells_apart():
    params = {"a": vector(), "a.b": vector()}
    layers = [where(lambda path, leaf: path == "a"), "a.b"]
    with pytest.raises(SpecError, match=r"the path 'a' means another leaf as well, .* rename one"):
        layer_decay(params, layers, 0.5)


DECAYS = {
    "bool": (True, TypeError, "decay is a number, not bool"),
    "text": ("0.5", TypeError, "decay is a number, not str"),
    "array": (np.ones(2), TypeError, "decay is a number, not ndarray"),
    "zero": (0, ValueError, "decay is 0, but must be above 0 and at most 1"),
    "negative": (-0.5, ValueError, "decay is -0.5, but must be above 0"),
    "percent": (75, ValueError, "decay is 75, but must be above 0 and at most 1: each layer has"),
    "NaN": (float("nan"), ValueError, "decay is nan, but"),
    "infinity": (float("inf"), ValueError, "decay is inf, but"),
}


@pytest.mark.parametrize(("decay", "error", "text"), DECAYS.values(), ids=DECAYS)
def test_what_is_wrong_with_decay(decay, error, text):
    with pytest.raises(error, match=f"layer_decay: {text}"):
        layer_decay(tower(1), ["head"], decay)


def test_a_factor_that_underflows_is_refused_where_it_is_used():
    factors = layer_decay(tower(100), ["embed", "blocks[:]"], 0.1)
    with pytest.raises(ValueError, match=r"entry 'embed': .* float32\) keeps nothing still"):
        scale_by_spec(factors)


# A stack of layers in one array


def test_rows_of_a_stack_are_no_layers_until_they_are_cut():
    params = {"embed": vector(), "blocks": {"w": jnp.ones((4, 2)), "b": jnp.ones((4,))}}
    text = (
        r"'blocks\[:\]': 'blocks' holds arrays only, and rows of arrays are no leaves: .*cut_rows"
    )
    with pytest.raises(SpecError, match=text):
        layer_decay(params, ["embed", "blocks[:]"], 0.5)
    cut = cut_rows(params, {"blocks.w": [1, 2, 3]})
    factors = layer_decay(cut, ["embed", "blocks.w[:]"], 0.5)
    assert factors == {"embed": 0.5**4, **{f"blocks.w.{i}": 0.5 ** (3 - i) for i in range(4)}}
    pieces = applied(factors, cut)
    rows = scale_by_spec({"blocks": 0.5 ** np.arange(3, -1, -1)})
    scaled, _ = rows.update(params, optax.EmptyState(), params)
    assert scaled["blocks"]["w"][:, 0].tolist() == [pieces[f"blocks.w.{i}"] for i in range(4)]


def test_what_an_exclamation_mark_takes_away_is_in_no_layer():
    layers = ["embed", ("blocks", "!blocks[0]", "!**.b"), ("head", "norm")]
    factors = layer_decay(tower(2), layers, 0.5)
    assert factors == {"embed": 0.25, "blocks.1.w": 0.5, "norm": 1.0, "head": 1.0}
    assert layer_decay(tower(2), ["blocks[0]", ("blocks", "!blocks[0]")], 0.5) == {
        "blocks.0": 0.5,
        "blocks.1.b": 1.0,
        "blocks.1.w": 1.0,
    }
    with pytest.raises(SpecError, match=r"'!blocks\[0\]' comes first, .* put it behind them"):
        layer_decay(tower(2), ["blocks[:]", "!blocks[0]"], 0.5)
