"""State and params through Orbax, `flax.serialization` and Equinox, with and without a template."""

import jax
import jax.numpy as jnp
import optax
import pytest
from formats import through_flax, through_orbax
from hostile import all_bits

from optax_freeze import apply_updates, merge, param_groups, split, trainable_only

PARAMS = {"encoder": {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}, "head": {"w": jnp.ones(2)}}
ADAM = optax.adam(0.1)
TRANSFORMATIONS = {
    "trainable_only": trainable_only(ADAM, "encoder"),
    "param_groups": param_groups({"encoder.w": None, "**": ADAM}),
    "nested": trainable_only(optax.chain(optax.clip(1.0), param_groups({"**.w": ADAM})), "**.b"),
}
every = pytest.mark.parametrize("tx", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys())


def loss(params):
    x = jnp.ones((4, 3)) @ params["encoder"]["w"] + params["encoder"]["b"][None]
    return jnp.mean((x @ params["head"]["w"] - 1.0) ** 2)


def train(tx, params, state, steps=2):
    for _ in range(steps):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        params = apply_updates(params, updates)
    return params, state


def through_orbax_without_template(tree, like, folder):
    """All arrays by path, for a caller who knows the structure."""
    found = jax.tree.leaves(through_orbax(tree, None, folder))
    return jax.tree.unflatten(jax.tree.structure(like), found)


WAYS = [through_flax, through_orbax, through_orbax_without_template]
every_way = pytest.mark.parametrize("through", WAYS, ids=lambda way: way.__name__)


@every
@every_way
def test_training_goes_on_as_if_nothing_had_been(tx, through, tmp_path):
    params, state = train(tx, PARAMS, tx.init(PARAMS))
    restored = through(state, tx.init(PARAMS), tmp_path)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert all_bits(restored) == all_bits(state)
    assert all_bits(train(tx, params, restored)) == all_bits(train(tx, params, state))


@every_way
def test_what_trains_is_the_part_worth_saving(through, tmp_path):
    trainable, rest = split(PARAMS, "encoder")
    saved = {"params": trainable, "state": ADAM.init(trainable)}
    restored = through(saved, saved, tmp_path)
    assert all_bits(restored) == all_bits(saved)
    assert all_bits(merge(restored["params"], rest)) == all_bits(PARAMS)


def test_the_keys_of_a_split_tree_say_what_it_is(tmp_path):
    trainable, _ = split(PARAMS, "encoder")
    found = through_orbax(trainable, None, tmp_path)
    assert list(found) == ["head.w"]


@pytest.mark.parametrize("through", [through_flax, through_orbax], ids=lambda way: way.__name__)
def test_a_split_tree_is_not_restored_into_another_mask(through, tmp_path):
    trainable, _ = split(PARAMS, "encoder")
    other, rest = split(PARAMS, "head")
    with pytest.raises(ValueError, match=r"encoder\.b"):
        through(trainable, other, tmp_path)
    with pytest.raises(ValueError, match=r"nothing fills 'encoder\.b'"):
        merge(trainable, rest)
