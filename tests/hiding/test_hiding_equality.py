"""Which hidden values are equal: which share a trace, and what a jitted function makes of each."""

import collections
import copy
import dataclasses
import datetime
import enum
import functools
import itertools
import math
import struct
from decimal import Decimal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from optax_freeze import tree_mask, tree_unmask


def hide(value):
    return tree_mask(value, lambda _: True, is_leaf=lambda node: node is value)


def nan(payload):
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0]


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object
    note: object = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass
class Unhashable:
    value: object


class Plain:
    """Equality and hash as Python numbers have them: Plain(1) == Plain(True)."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Plain) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


class Slots(Plain):
    __slots__ = ("more",)


class Raises:
    def __eq__(self, other):
        raise RuntimeError("compared")

    def __hash__(self):
        return 1


class ArrayAnswer(Raises):
    def __eq__(self, other):
        return np.ones(2, bool)

    __hash__ = Raises.__hash__


class HashRaises(Plain):
    def __hash__(self):
        raise RuntimeError("hashed")


class Meta(type):
    def __eq__(cls, other):
        raise RuntimeError("compared classes")

    __hash__ = type.__hash__


class OddClass(metaclass=Meta):
    pass


class Color(enum.Enum):
    RED = 1
    BLUE = True + 1


class Level(enum.IntEnum):
    LOW = 1


class Grade(enum.IntEnum):
    LOW = 1


class Meters(float):
    pass


Point = collections.namedtuple("Point", "x y")
Pair = collections.namedtuple("Pair", "x y")


def function(x):
    return x


BOUND, BOUND_TOO = Plain("owner"), Plain("owner")
RAISES, UNHASHABLE = Raises(), Unhashable(1)
ARRAY_ANSWER, HASH_RAISES, ODD, SELF = ArrayAnswer(), HashRaises(1), OddClass(), []
SELF.append(SELF)
LAMBDA, OTHER_LAMBDA = lambda: 0, lambda: 0

# Each line makes a value; made twice it must be equal to itself, and no two lines are equal.
MAKE = {
    "1": lambda: 1,
    "True": lambda: True,
    "1.0": lambda: 1.0,
    "1+0j": lambda: complex(1),
    "0": lambda: 0,
    "False": lambda: False,
    "0.0": lambda: float("0"),
    "-0.0": lambda: float("-0"),
    "nan": lambda: nan(0),
    "nan, another payload": lambda: nan(1),
    "0j": lambda: complex(0.0, 0.0),
    "-0j": lambda: complex(0.0, -0.0),
    "nan+0j": lambda: complex(nan(0), 0.0),
    "0+nanj": lambda: complex(0.0, nan(0)),
    "0+nanj, another payload": lambda: complex(0.0, nan(1)),
    "Meters(1.0)": lambda: Meters(1),
    "Meters(-0.0)": lambda: Meters(-0.0),
    "Meters(0.0)": lambda: Meters(0.0),
    "10**30": lambda: 10**30,
    "np.bool_": lambda: np.bool_(1),
    "np.int32": lambda: np.int32(1),
    "np.int64": lambda: np.int64(1),
    "np.float32": lambda: np.float32(1),
    "np.float64": lambda: np.float64(1),
    "np.float32 nan": lambda: np.float32("nan"),
    "bfloat16 scalar": lambda: ml_dtypes.bfloat16(1),
    "np.datetime64 D": lambda: np.datetime64(1, "D"),
    "np.datetime64 s": lambda: np.datetime64(1, "s"),
    "numpy f4": lambda: np.array(1, "f4"),
    "numpy f8": lambda: np.array(1, "f8"),
    "numpy f4 big endian": lambda: np.array(1, ">f4"),
    "numpy (1,)": lambda: np.ones(1, "f4"),
    "numpy 0.0": lambda: np.array([0.0, np.nan]),
    "numpy -0.0": lambda: np.array([-0.0, np.nan]),
    "numpy bf16": lambda: np.ones(2, jnp.bfloat16),
    "numpy empty": lambda: np.ones((0, 2)),
    "numpy empty of another shape": lambda: np.ones((2, 0)),
    "numpy text": lambda: np.array(["a"]),
    "numpy objects 1": lambda: np.array([1, float("1.5")], object),
    "numpy objects True": lambda: np.array([True, float("1.5")], object),
    "numpy masked": lambda: np.ma.masked_array([1, 2], [True, False]),
    "numpy masked elsewhere": lambda: np.ma.masked_array([1, 2], [False, True]),
    "jax f32": lambda: jnp.array(1, "f4"),
    "jax f32 weak": lambda: jnp.asarray(1.0) + 0,
    "jax i32": lambda: jnp.array(1, "i4"),
    "jax i32 weak": lambda: jnp.asarray(1),
    "jax bool": lambda: jnp.array(True),
    "jax bf16": lambda: jnp.ones(2, jnp.bfloat16),
    "jax f16": lambda: jnp.ones(2, jnp.float16),
    "jax float8": lambda: jnp.ones(2, jnp.float8_e4m3fn),
    "jax float8, another": lambda: jnp.ones(2, jnp.float8_e5m2),
    "jax int4": lambda: jnp.ones(2, jnp.int4),
    "jax uint4": lambda: jnp.ones(2, jnp.uint4),
    "jax nan, -0.0": lambda: jnp.array([jnp.nan, -0.0]),
    "jax nan, 0.0": lambda: jnp.array([jnp.nan, 0.0]),
    "jax empty": lambda: jnp.ones((0, 2)),
    "jax empty of another shape": lambda: jnp.ones((2, 0)),
    "key": lambda: jax.random.key(0),
    "another key": lambda: jax.random.key(1),
    "rbg key": lambda: jax.random.key(0, impl="rbg"),
    "raw key": lambda: jax.random.PRNGKey(0),
    "keys": lambda: jax.random.split(jax.random.key(0), 2),
    "'a'": lambda: "".join(["a"]),
    "b'a'": lambda: bytes([97]),
    "''": str,
    "b''": bytes,
    "None": lambda: None,
    "()": tuple,
    "[]": list,
    "{}": dict,
    "set()": set,
    "frozenset()": frozenset,
    "(1,)": lambda: (1,),
    "(True,)": lambda: (True,),
    "(1.0,)": lambda: (1.0,),
    "(nan,)": lambda: (nan(0),),
    "[1]": lambda: [1],
    "[True]": lambda: [True],
    "[[1.0]]": lambda: [[1.0]],
    "[array]": lambda: [np.arange(2), jnp.arange(2)],
    "Point": lambda: Point(1, nan(0)),
    "Point True": lambda: Point(True, nan(0)),
    "Pair": lambda: Pair(1, nan(0)),
    "{1}": lambda: {1},
    "{True}": lambda: {True},
    "{1, 'a', nan}": lambda: {1, "a", nan(0)},
    "frozenset({1})": lambda: frozenset({1}),
    "{1: 1}": lambda: {1: 1},
    "{True: 1}": lambda: {True: 1},
    "{'a': 1, 'b': 2}": lambda: {"a": 1, "b": 2},
    "{'b': 2, 'a': 1}": lambda: {"b": 2, "a": 1},
    "function": lambda: function,
    "lambda": lambda: LAMBDA,
    "another lambda": lambda: OTHER_LAMBDA,
    "jitted function": lambda: jnp.sin,
    "builtin": lambda: len,
    "bound method": lambda: BOUND.__eq__,
    "bound method of its equal": lambda: BOUND_TOO.__eq__,
    "another bound method": lambda: BOUND.__hash__,
    "class": lambda: int,
    "class with an odd metaclass": lambda: OddClass,
    "partial 1": lambda: functools.partial(function, 1, k=1),
    "partial True": lambda: functools.partial(function, True, k=1),
    "partial k": lambda: functools.partial(function, 1, k=1.0),
    "partial of a lambda": lambda: functools.partial(LAMBDA, 1, k=1),
    "frozen dataclass 1": lambda: Frozen(1),
    "frozen dataclass True": lambda: Frozen(True),
    "frozen dataclass nested": lambda: Frozen(Frozen((1,))),
    "frozen dataclass nested True": lambda: Frozen(Frozen((True,))),
    "frozen dataclass of an array": lambda: Frozen(np.arange(3)),
    "own equality 1": lambda: Plain(1),
    "own equality True": lambda: Plain(True),
    "own equality (1,)": lambda: Plain((1,)),
    "own equality (True,)": lambda: Plain((True,)),
    "own equality of a subclass": lambda: Slots(1),
    "dtype": lambda: np.dtype("f4"),
    "shape": lambda: jax.ShapeDtypeStruct((1,), "f4"),
    "Color.RED": lambda: Color.RED,
    "Color.BLUE": lambda: Color.BLUE,
    "Level.LOW": lambda: Level.LOW,
    "Grade.LOW": lambda: Grade.LOW,
    "equality raises": lambda: RAISES,
    "equality returns an array": lambda: ARRAY_ANSWER,
    "hash raises": lambda: HASH_RAISES,
    "instance of an odd class": lambda: ODD,
    "not hashable": lambda: UNHASHABLE,
    "list that contains itself": lambda: SELF,
}
FIRST = {name: hide(make()) for name, make in MAKE.items()}
AGAIN = {name: hide(make()) for name, make in MAKE.items()}


@pytest.mark.parametrize("name", MAKE)
def test_equal_to_its_like_and_to_nothing_else(name):
    hidden = FIRST[name]
    assert [other for other in MAKE if hidden == AGAIN[other]] == [name]
    assert [other for other in MAKE if AGAIN[other] == hidden] == [name]
    assert (hidden != AGAIN[name]) is False
    assert hash(hidden) == hash(AGAIN[name])
    structure = jax.tree.structure(hidden)
    assert [other for other in MAKE if structure == jax.tree.structure(AGAIN[other])] == [name]


def test_one_trace_for_each():
    traces = []
    call = jax.jit(lambda hidden: traces.append(hidden) or 0)
    for hidden, count in zip(FIRST.values(), itertools.count(1), strict=False):
        call(hidden)
        assert len(traces) == count
    for hidden in AGAIN.values():
        call(hidden)
    assert len(traces) == len(MAKE)


NUMBERS = {
    "1": ("int32", True),
    "True": ("bool", False),
    "1.0": ("float32", True),
    "1+0j": ("complex64", True),
    "-0.0": ("float32", True),
    "np.int32": ("int32", False),
    "np.float32": ("float32", False),
    "bfloat16 scalar": ("bfloat16", False),
    "numpy f4": ("float32", False),
    "jax f32": ("float32", False),
    "jax i32 weak": ("int32", True),
    "jax float8": ("float8_e4m3fn", False),
    "jax int4": ("int4", False),
    "key": ("key<fry>", False),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_jitted_function_returns(name):
    call = jax.jit(tree_unmask)
    for other in NUMBERS:  # none of them may be taken for another
        call(FIRST[other])
    result = call(AGAIN[name])
    assert (str(result.dtype), getattr(result, "weak_type", False)) == NUMBERS[name]
    assert math.copysign(1, float(call(FIRST["-0.0"]))) == -1


@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda: 0,
        lambda: Unhashable(1),
        object,
        Raises,
        ArrayAnswer,
        lambda: HashRaises(1),
        lambda: bytearray(b"a"),
        lambda: collections.OrderedDict(a=1),
    ],
    ids=["lambda", "dataclass", "object", "eq", "array", "hash", "bytearray", "OrderedDict"],
)
def test_equal_to_the_same_object_only(make):
    one = make()
    assert hide(one) == hide(one)
    assert hash(hide(one)) == hash(hide(one))
    assert hide(one) != hide(make())


def test_fields_that_a_dataclass_does_not_compare_do_not_matter():
    assert hide(Frozen(1, note="a")) == hide(Frozen(1, note="b"))


def test_attributes_that_one_object_has_not_yet_do_not_matter():
    one, two = Plain(1), Plain(1)
    two.cached = 3
    assert hide(one) == hide(two)
    one.cached = 3.0
    assert hide(one) != hide(two)


def test_hidden_tracers_are_equal_to_themselves_only():
    def check(x, y):
        assert hide(x) == hide(x)
        assert hide(x) != hide(y)
        assert hash(hide(x)) == hash(hide(x))
        return x

    jax.jit(check)(1.0, 1.0)
    jax.vmap(check)(jnp.ones(2), jnp.ones(2))


class Holder:
    """Equal by what it holds, like many a class of settings."""

    def __init__(self, held):
        self.held = held

    def __eq__(self, other):
        return isinstance(other, Holder) and self.held == other.held

    def __hash__(self):
        return hash(self.held)

    def __repr__(self):
        return f"Holder({self.held!r})"


LATER = datetime.timezone(datetime.timedelta(hours=1))
NOON = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal("0"), Decimal("-0")),
        (range(0, 3, 2), range(0, 4, 2)),
        (NOON, datetime.datetime(2020, 1, 1, 13, tzinfo=LATER)),
        (Holder(Holder(1)), Holder(Holder(True))),
        (Holder(frozenset({1})), Holder(frozenset({True}))),
    ],
    ids=repr,
)
def test_what_is_equal_by_its_own_words_is_not_mixed_up(one, other):
    assert one == other
    assert tree_mask([one]) != tree_mask([other])
    assert tree_mask([one]) == tree_mask([copy.deepcopy(one)])
