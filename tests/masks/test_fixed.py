"""What a model declares as fixed in its own code."""

import dataclasses
import functools

import chex
import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import pytest
from strategies import Block, Layer

from optax_freeze import Constant, frozen_field, leaf_paths, trainable_mask

X = jnp.ones(2)


def test_constant():
    tree = {"g": Constant({"x": X, "y": [X]}), "w": X}
    assert trainable_mask(tree) == {"g": Constant({"x": False, "y": [False]}), "w": True}
    released = {"g": Constant({"x": True, "y": [True]}), "w": True}
    assert trainable_mask(tree, fixed=()) == released
    assert trainable_mask(tree, trainable=released) == released  # True at the very leaves
    assert trainable_mask(tree, trainable={"g": True, "w": True}) == trainable_mask(tree)
    assert leaf_paths(tree) == ["g.value.x", "g.value.y.0", "w"]
    assert jax.jit(lambda c: c.value + 1)(Constant(X)).shape == (2,)


def test_fixed_classes():
    tree = {"a": Layer(X, 0.5), "b": {"c": Block(X, Constant(X))}, "d": X}
    mask = trainable_mask(tree, fixed=(Layer, Block))
    assert jax.tree.leaves(mask) == [False, False, False, False, True]
    assert jax.tree.leaves(trainable_mask(tree)) == [True, False, True, False, True]


def with_keys(cls):
    return jax.tree_util.register_dataclass(dataclasses.dataclass(cls))


def without_keys(cls):
    cls = dataclasses.dataclass(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    jax.tree_util.register_pytree_node(
        cls,
        lambda node: ([getattr(node, name) for name in names], None),
        lambda _, children: cls(*children),
    )
    return cls


def namespace(cls):
    return {
        name: value for name, value in vars(cls).items() if name not in {"__dict__", "__weakref__"}
    }


@pytest.mark.parametrize(
    "make",
    [
        chex.dataclass,
        functools.partial(chex.dataclass, mappable_dataclass=False),
        flax.struct.dataclass,
        with_keys,
        without_keys,
        lambda cls: type(eqx.Module)(cls.__name__, (eqx.Module,), namespace(cls)),
    ],
    ids=["chex", "chex, not a mapping", "flax", "jax", "jax without keys", "equinox"],
)
def test_frozen_field(make):
    class Model:
        w: object
        table: object = frozen_field(default_factory=lambda: jnp.ones(3))
        rate: object = frozen_field(default=0.5, metadata={"unit": "1/s"})

    Model.__module__ = __name__
    cls = make(Model)
    tree = {"outer": [cls(w=Block(X, cls(w=X)))], "z": X}
    names = [field.name for field in dataclasses.fields(cls)]
    assert names == ["w", "table", "rate"]
    assert dataclasses.fields(cls)[2].metadata["unit"] == "1/s"
    mask = trainable_mask(tree)
    outer, inner = mask["outer"][0], mask["outer"][0].w.bias
    assert (outer.w.kernel, outer.table, outer.rate) == (True, False, False)
    assert (inner.w, inner.table, inner.rate) == (True, False, False)
    assert mask["z"] is True
    everything = jax.tree.map(lambda _: True, tree)
    assert all(jax.tree.leaves(trainable_mask(tree, trainable=everything)))


def test_frozen_field_of_a_base_class():
    class Base(eqx.Module):
        table: jax.Array = frozen_field()

    class Derived(Base):
        w: jax.Array

    mask = trainable_mask(Derived(table=X, w=X))
    assert (mask.table, mask.w) == (False, True)


def test_frozen_field_passes_on_what_a_field_takes():
    field = frozen_field(default=3, repr=False, metadata=None)
    assert (field.default, field.repr) == (3, False)
