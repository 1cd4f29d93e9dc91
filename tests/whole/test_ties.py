"""One parameter under several paths: NNX Variables, `eqx.nn.Shared`, and mere equals."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hostile import all_bits

from optax_freeze import (
    MaskError,
    SpecError,
    apply_updates,
    assert_unchanged,
    check_frozen,
    count_trainable_params,
    freeze_mask,
    frozen,
    grad,
    leaf_paths,
    param_groups,
    scale_by_spec,
    split,
    summary,
    trainable_mask,
    trainable_only,
    value_and_grad,
    where,
)

X = jnp.ones(2)


class Tied(nnx.Module):
    """An embedding whose matrix is that of the last layer too; by path, `decode` comes first."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(3, 4, rngs=rngs)
        self.middle = nnx.Linear(4, 3, rngs=rngs)
        self.decode = nnx.Linear(3, 4, rngs=rngs)
        self.decode.kernel = self.embed.embedding

    def __call__(self, x):
        return self.decode(self.middle(self.embed(x)))


def loss(model):
    return jnp.sum(model(jnp.array([0, 1])) ** 2)


BOTH = ["embed.embedding", "decode.kernel"]
PARAMETERS = 12 + 4 + 15  # the matrix once


# NNX: the choice


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"freeze": "embed"}, SpecError),
        ({"freeze": "decode.kernel"}, SpecError),
        ({"freeze": nnx.Embed}, SpecError),
        ({"freeze": where(lambda path, leaf: "embed" in path)}, SpecError),
        ({"freeze": ["**", "!embed"]}, SpecError),
        ({"trainable": "embed"}, SpecError),
        ({"trainable": {"embed": True, "middle": True, "decode": False}}, MaskError),
        (
            {"trainable": {"embed": True, "middle": True, "decode": True}, "freeze": "embed"},
            SpecError,
        ),
    ],
)
def test_a_choice_that_says_two_things_names_both_paths(kwargs, error):
    text = (
        r"^'(decode.kernel|embed.embedding).value' and '(embed.embedding|decode.kernel).value' are "
        "one parameter, one Variable under two paths, but it would be frozen under the first and "
        "train under the second: say the same of both$"
    )
    model = Tied()
    for ask in (
        lambda: trainable_mask(model, **kwargs),
        lambda: summary(model, **kwargs),
        lambda: frozen(**kwargs).init(model),
        lambda: trainable_only(optax.sgd(1.0), **kwargs).init(model),
        lambda: assert_unchanged(model, model, **kwargs),
        lambda: check_frozen(trainable_only(optax.sgd(1.0), **kwargs), model, **kwargs),
    ):
        with pytest.raises(error, match=text):
            ask()


def test_a_declaration_of_one_of_the_two_paths_is_a_choice_too():
    model = {"a": nnx.Param(X), "b": X}
    model["fixed"] = Fixed(model["a"])
    with pytest.raises(SpecError, match=r"'fixed.held.value' and 'a.value' are one parameter"):
        trainable_mask(model, fixed=(Fixed,))


@jax.tree_util.register_pytree_with_keys_class
class Fixed:
    def __init__(self, held):
        self.held = held

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("held"), self.held)], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@pytest.mark.parametrize("freeze", [BOTH, ["embed", "decode"], nnx.Variable, "**"], ids=str)
def test_a_choice_that_says_one_thing(freeze):
    mask = trainable_mask(Tied(), freeze=freeze)
    assert jax.tree.leaves(mask.embed) == jax.tree.leaves(mask.decode.kernel) == [False]
    with pytest.raises(MaskError, match="are one parameter"):
        count_trainable_params(Tied(), mask={"embed": True, "middle": True, "decode": False})


@pytest.mark.parametrize(
    "make",
    [
        lambda entries: param_groups(entries, default=optax.sgd(1.0)),
        lambda entries: param_groups({**entries, "**": optax.sgd(1.0)}),
        lambda entries: scale_by_spec(dict.fromkeys(entries, 0.5)),
    ],
    ids=["default", "all", "scale_by_spec"],
)
def test_an_entry_that_has_one_of_the_two_paths(make):
    text = "'decode.kernel.value' and 'embed.embedding.value' are one parameter, .* one entry match"
    tx = make({"embed": optax.sgd(0.1)})
    with pytest.raises(SpecError, match=text):
        tx.init(Tied())
    make({tuple(BOTH): optax.sgd(0.1)}).init(Tied())


# NNX: what would untie it


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda model: split(model), "split"),
        (lambda model: split(model, BOTH), "split"),
        (lambda model: value_and_grad(loss)(model), "value_and_grad"),
        (lambda model: grad(lambda x, m: loss(m), argnums=(0, 1))(X, model), "value_and_grad"),
        (lambda model: apply_updates(model, jax.tree.map(jnp.zeros_like, model)), "apply_updates"),
    ],
    ids=["split", "split, frozen", "value_and_grad", "grad", "apply_updates"],
)
def test_what_would_untie_it_raises(use, name):
    with pytest.raises(ValueError, match=f"^{name} would untie '.*decode.kernel.value' and") as got:
        use(Tied())
    assert "Use nnx.value_and_grad with nnx.Optimizer, which do, or take" in str(got.value)
    assert "nnx.split" in str(got.value)


def test_nnx_takes_it_apart_and_keeps_it_tied():
    graph, state = nnx.split(Tied())
    trainable, rest = split(state, "middle")
    assert list(trainable) == ["decode.bias.value", "decode.kernel.value"]
    again = nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(state)))
    assert again.decode.kernel is again.embed.embedding
    del rest


@pytest.mark.parametrize("freeze", ["decode.kernel", ["decode.kernel", "middle"], "**.bias"])
def test_the_optimizer_of_nnx(freeze):
    model = Tied()
    before = all_bits(nnx.state(model))
    tx = trainable_only(optax.adamw(0.1), freeze)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    mask = trainable_mask(nnx.state(model), freeze=freeze)
    for _ in range(2):
        optimizer.update(model, nnx.grad(loss)(model))
    assert model.decode.kernel is model.embed.embedding
    after = all_bits(nnx.state(model))
    assert [before[key] == after[key] for key in before] == [not f for f in jax.tree.leaves(mask)]
    by_mask = trainable_only(optax.adamw(0.1), trainable=mask)
    nnx.Optimizer(model, by_mask, wrt=nnx.Param)


def test_the_path_that_an_nnx_state_does_not_have():
    model = Tied()
    tx = trainable_only(optax.sgd(1.0), "embed.embedding")
    hint = "an nnx.State has a Variable that stands under several paths only under the first"
    with pytest.raises(SpecError, match=hint):
        nnx.Optimizer(model, tx, wrt=nnx.Param)
    with pytest.raises(MaskError, match=hint):
        freeze_mask(nnx.state(model), None, trainable_mask(model))
    with pytest.raises(SpecError) as caught:
        freeze_mask({"a": X}, "b")
    assert hint not in str(caught.value)


# counted once


def test_counts():
    model = Tied()
    assert count_trainable_params(model) == PARAMETERS
    assert count_trainable_params(model, mask=trainable_mask(model, freeze=BOTH)) == PARAMETERS - 12
    assert count_trainable_params({"one": model, "two": model}) == PARAMETERS


def test_summary():
    model = Tied()
    seen = summary(model, BOTH, tx=optax.adam(0.1))
    assert (seen.parameters, seen.trainable) == (PARAMETERS, PARAMETERS - 12)
    assert seen.bytes == 4 * PARAMETERS
    assert seen.state.as_given == 2 * 4 * PARAMETERS + 4
    assert seen.state.in_trainable_only == 2 * 4 * (PARAMETERS - 12) + 4
    assert seen.remarks == ("counted once: 'embed.embedding.value' is 'decode.kernel.value'",)
    assert seen.as_dict()["remarks"] == list(seen.remarks)
    assert str(seen).endswith(seen.remarks[0])
    assert re.search(r"embedding +Embed Param f32\[3,4\] tied +- +- +-\n", str(seen))
    assert summary(model).percent == 100.0
    assert summary(nnx.state(model)).remarks == summary({"a": X}).remarks == ()


# eqx.nn.Shared


class Model(eqx.Module):
    embed: eqx.nn.Embedding
    head: eqx.nn.Linear


def shared_model(key=0):
    one, two = jax.random.split(jax.random.key(key))
    model = Model(eqx.nn.Embedding(5, 3, key=one), eqx.nn.Linear(3, 5, key=two))
    return eqx.nn.Shared(model, lambda m: m.head.weight, lambda m: m.embed.weight)


SHARED = shared_model()
PLACE = "'pytree.head.weight', which is only the place of a shared leaf .eqx.nn.Shared.: its value "


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            {"freeze": "pytree.head.weight"},
            f"freeze: .* means {PLACE}is at 'pytree.embed.weight', w",
        ),
        ({"freeze": "pytree.head"}, f"{PLACE}is at 'pytree.embed.weight', which trains. Name that"),
        ({"freeze": eqx.nn.Linear}, f"freeze: class Linear means {PLACE}"),
        ({"freeze": re.compile(".*head.*")}, PLACE),
        ({"trainable": "pytree.head"}, f"trainable: .*{PLACE}.*, which does not train. Name that"),
        (
            {"trainable": "pytree.head.weight"},
            "matches nothing that can train: 'pytree.head.weight' is the place of a shared leaf",
        ),
        ({"trainable": "pytree.head.weight"}, "whose value is at 'pytree.embed.weight'"),
    ],
)
def test_the_place_of_a_shared_leaf_says_where_the_value_is(kwargs, text):
    for ask in (trainable_mask, summary, split):
        with pytest.raises(SpecError, match=text):
            ask(SHARED, **kwargs)


def test_a_mask_with_true_at_the_place():
    mask = jax.tree.map(lambda leaf: not callable(leaf), SHARED)
    with pytest.raises(
        MaskError, match=r"'pytree.head.weight', the place of a shared leaf .*set it"
    ):
        trainable_mask(SHARED, trainable=mask)


@pytest.mark.parametrize(
    ("kwargs", "trains"),
    [
        ({}, ["embed.weight", "head.bias"]),
        ({"freeze": "pytree.embed"}, ["head.bias"]),
        ({"freeze": ["pytree.embed", "pytree.head.weight"]}, ["head.bias"]),
        ({"freeze": "**"}, []),
        ({"trainable": "pytree"}, ["embed.weight", "head.bias"]),
        ({"trainable": "pytree", "freeze": "pytree.embed"}, ["head.bias"]),
        ({"trainable": "pytree.embed"}, ["embed.weight"]),
    ],
)
def test_a_shared_leaf_goes_by_its_value(kwargs, trains):
    mask = trainable_mask(SHARED, **kwargs)
    flags = zip(leaf_paths(SHARED), jax.tree.leaves(mask), strict=True)
    assert [path.removeprefix("pytree.") for path, flag in flags if flag] == trains
    assert jax.tree.leaves(trainable_mask(SHARED, trainable=mask)) == jax.tree.leaves(mask)


def test_groups_of_a_shared_leaf():
    sgd = optax.sgd(1.0)
    tx = param_groups({"pytree.head": sgd}, default=sgd)
    text = "its value is at 'pytree.embed.weight', which is not of the same entry: let one entry"
    with pytest.raises(SpecError, match=f"^param_groups: 'pytree.head.weight' is .*{text}"):
        tx.init(SHARED)
    state = param_groups({("pytree.head", "pytree.embed"): sgd}, default=sgd).init(SHARED)
    assert list(state.groups) == ["pytree.head, pytree.embed"]
    assert list(param_groups({"pytree.embed": sgd}, default=sgd).init(SHARED).groups) == [
        "pytree.embed",
        "default",
    ]


def test_a_shared_leaf_counts_once():
    assert count_trainable_params(SHARED) == summary(SHARED).parameters == 20
    text = "counted once: 'pytree.head.weight' is 'pytree.embed.weight'"
    assert summary(SHARED).remarks == (text,)


def test_shared_leaves_of_several_and_of_none():
    both = eqx.nn.Shared(
        (X, [X, 2 * X], {"a": X, "b": X}),
        lambda m: (m[0], m[2]["a"]),
        lambda m: (m[1][1], m[2]["b"]),
    )
    assert summary(both).remarks == (
        "counted once: 'pytree.0' is 'pytree.1.1'; 'pytree.2.a' is 'pytree.2.b'",
    )
    with pytest.raises(
        SpecError, match=r"'pytree.2.a' is the place .*, whose value is at 'pytree.2.b"
    ):
        trainable_mask(both, trainable="pytree.2.a")
    with pytest.raises(SpecError, match=r"'pytree.2.a', which is only the place .* 'pytree.2.b'"):
        trainable_mask(both, freeze="pytree.2.a")
    layer = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    layers = eqx.nn.Shared([layer, layer], lambda m: m[1], lambda m: m[0])
    assert summary(layers).remarks == ("counted once: 'pytree.1' is 'pytree.0.weight'",)


@pytest.mark.parametrize(
    "part",
    [
        lambda m: m.pytree.embed.weight,
        lambda m: m.pytree.embed,
        lambda m: m.pytree.head,
        lambda m: m.pytree,
        lambda m: m.get,
    ],
    ids=["value", "module of the value", "module of the place", "all", "get"],
)
@pytest.mark.parametrize("left", [None, optax.MaskedNode()], ids=repr)
def test_a_shared_leaf_of_which_a_part_was_left_out(part, left):
    cut = eqx.tree_at(part, SHARED, left)
    assert summary(cut).remarks == ()
    trainable_mask(cut)


def test_a_view_does_not_say_what_is_shared():
    cut = trainable_only(optax.sgd(1.0), "pytree.embed")
    cut.init(eqx.filter(SHARED, eqx.is_array))  # without the functions that say what is shared


@pytest.mark.parametrize(
    "get",
    [
        lambda m: jnp.transpose(m[1]),
        lambda m: m[1].T,
        lambda m: 2 * m[1].reshape(2, 3),
        lambda m: m[1].mT * 2,
        lambda m: -m[1] @ jnp.ones((2, 2)) @ jnp.ones((2, 3)) if m[1].ndim == 3 else m[1].T,
        lambda m: jax.lax.transpose(m[1], (1, 0)),
        lambda m: (m[1] / 2).T,
    ],
    ids=["transpose", "T", "reshape", "mT", "ndim", "lax", "/"],
)
def test_a_shared_leaf_that_is_transformed(get):
    model = eqx.nn.Shared((jnp.ones((2, 3)), jnp.ones((3, 2))), lambda m: m[0], get)
    with pytest.raises(SpecError, match=r"its value is at 'pytree.1', which trains"):
        trainable_mask(model, freeze="pytree.0")
    assert summary(model).remarks == ("counted once: 'pytree.0' is 'pytree.1'",)


def test_a_shared_leaf_trains_and_is_frozen_by_its_value():
    def mean(shared, x):
        model = shared()
        return jnp.mean(model.head(model.embed(x)) ** 2)

    moved = {}
    for freeze in ([], "pytree.embed"):
        grads = value_and_grad(mean, freeze)(SHARED, 1)[1]
        tx = trainable_only(optax.sgd(0.1), freeze)
        updates, _ = tx.update(grads, tx.init(SHARED), SHARED)
        new = apply_updates(SHARED, updates)()
        moved[str(freeze)] = not np.array_equal(new.head.weight, SHARED().head.weight)
        assert np.array_equal(new.head.weight, new.embed.weight)
    assert moved == {"[]": True, "pytree.embed": False}


# the same array


def test_the_same_array_in_two_places_is_no_tie():
    tree = {"a": X, "b": {"c": X, "d": 2 * X}, "e": X}
    assert count_trainable_params(tree) == 8
    seen = summary(tree, "b")
    assert (seen.parameters, seen.trainable) == (8, 4)
    assert seen.remarks == (
        "the same array now, but only one of them trains, so they part: 'a' and 'b.c'",
    )
    assert str(seen).endswith(seen.remarks[0])
    assert summary(tree).remarks == summary(tree, "**").remarks == ()
    assert summary(tree, ["a", "e", "b.c"]).remarks == ()


def test_plain_trees_are_not_searched(monkeypatch):
    def walk(_):
        raise AssertionError

    from optax_freeze._trees import Node

    monkeypatch.setattr(Node, "walk", walk)
    assert split({"a": X})[0] == {"a": X}
    assert count_trainable_params({"a": X}) == 2
