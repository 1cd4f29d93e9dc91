"""What a model declares as fixed in its own code."""

import dataclasses
import functools
import sys

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


class Converted(eqx.Module):
    given: jax.Array = frozen_field(converter=jnp.asarray)
    default: jax.Array = frozen_field(converter=jnp.asarray, default=0.5)
    made: jax.Array = frozen_field(converter=jnp.asarray, default_factory=lambda: [1.0, 2.0])
    w: jax.Array = eqx.field(converter=jnp.asarray, default=1.0)
    shown: float = frozen_field(converter=float, default=1, metadata={"unit": "m"}, repr=False)
    plain: object = frozen_field(converter=None, static=False, pytree_node=True, default=2)


class Further(Converted):
    more: jax.Array = frozen_field(converter=jnp.asarray, default=0.25, kw_only=True)


class WithInit(Converted):
    def __init__(self, value):
        self.given = value
        self.made = [1.0, 2.0]


@pytest.mark.parametrize("cls", [Converted, Further, WithInit])
def test_the_converter_of_equinox(cls):
    model = cls(3.0)
    converted = [model.given, model.default, model.made, model.w]
    assert all(isinstance(value, jax.Array) for value in converted)
    assert (float(model.given), float(model.default), model.made.tolist()) == (3.0, 0.5, [1.0, 2.0])
    assert type(model.shown) is float
    assert "shown" not in repr(model)
    assert "converter" not in Converted.__dataclass_fields__["plain"].metadata
    assert Converted.__dataclass_fields__["shown"].metadata["unit"] == "m"
    mask = trainable_mask({"model": model})["model"]
    names = [field.name for field in dataclasses.fields(cls)]
    assert [name for name in names if getattr(mask, name) is True] == ["w"]


def test_a_converter_that_nobody_calls_raises():
    text = "the converter of a field is called by an equinox.Module only"

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Model:
        g: object = frozen_field(converter=jnp.asarray, default=9.81)

    with pytest.raises(TypeError, match=rf"Model\.g: {text}: convert it in __post_init__"):
        trainable_mask([Model()])


@pytest.mark.parametrize("field", [frozen_field, lambda **kwargs: frozen_field(metadata=kwargs)])
@pytest.mark.parametrize("kwargs", [{"static": True}, {"pytree_node": False}], ids=str)
def test_a_static_field_is_not_frozen(field, kwargs):
    with pytest.raises(ValueError, match="a static field is no part of the tree, so that nothing"):
        field(**kwargs)


def test_a_converter_without_equinox(monkeypatch):
    monkeypatch.delitem(sys.modules, "equinox")
    with pytest.raises(TypeError, match="Module only, and equinox has not been imported"):
        frozen_field(converter=jnp.asarray)


def test_options_that_say_what_is_so_anyway():
    @flax.struct.dataclass
    class Model:
        w: object
        table: object = frozen_field(static=False, pytree_node=True, metadata={"pytree_node": True})
        note: object = flax.struct.field(pytree_node=False, default="a")

    assert trainable_mask(Model(X, X)) == Model(True, False)


def test_frozen_field_passes_on_what_a_field_takes():
    field = frozen_field(default=3, repr=False, metadata=None)
    assert (field.default, field.repr) == (3, False)
