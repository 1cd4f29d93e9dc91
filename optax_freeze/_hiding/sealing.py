"""How a value is sealed, so that it is equal to another exactly when type and bits agree.

* Numbers, NumPy scalars and arrays: by type, dtype, shape and bits, JAX arrays also by weak type.
* Builtin lists, tuples (named ones too), dicts (in order) and sets, `functools.partial`, and
  dataclasses that can be hashed (the fields that they compare): by type and part by part.
* Other objects that can be hashed: by type, by their own `==`, and by the bits of the numbers,
  strings, tuples and such objects among their attributes (of a class of C, by what it is pickled
  by), because `==` alone mixes up `Config(1)` and `Config(True)`.
* Tracers, functions, and what cannot be hashed or compared: by identity.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.core
import numpy as np

from optax_freeze._hiding.equality import Array, Exact, Own, Parts, Sealed

# For values of these classes `(class, value)` will do: their own equality is exact, never raises,
# and runs in C, where JAX compares every node of a tree on every call of a jitted function.
PLAIN = frozenset({
    bool, int, str, bytes, type, types.NoneType, types.FunctionType, types.BuiltinFunctionType,
})  # fmt: skip
_ATOMS = (bool, int, float, complex, str, bytes, tuple, frozenset, np.generic)


def seal(value: Any) -> Any:
    """The value in a wrapping whose equality is by type and bits; NumPy arrays are copied."""
    try:
        return _way(type(value))(value)
    except Exception:  # a stranger that raises when looked at, a list that contains itself
        return Sealed(value)


def _seal(value: Any) -> Any:
    """A part sealed: as `seal`, but a list that contains itself is the affair of the whole."""
    cls = type(value)
    if cls in PLAIN:
        return cls, value
    try:
        return _way(cls)(value)
    except RecursionError:
        raise
    except Exception:  # pragma: no cover - covered, but coverage is blind after a RecursionError
        return Sealed(value)


@functools.lru_cache(maxsize=512)
def _way(cls: type) -> Callable[[Any], Any]:
    """How the values of a class are sealed."""
    if cls in PLAIN:
        return lambda value: (cls, value)
    if cls in _BUILTINS:
        return _BUILTINS[cls]
    for known, way in _WAYS.items():
        if issubclass(cls, known):
            return way
    if issubclass(cls, tuple):
        return lambda value: Exact(value, (tuple(map(_seal, value)), _attributes(value)))
    if all(kind.__eq__ is object.__eq__ for kind in (cls, type(cls))) and (
        cls.__hash__ is object.__hash__
    ):
        return lambda value: (cls, value)
    if cls.__eq__ is object.__eq__ or cls.__hash__ is None:
        return Sealed
    if "__dataclass_fields__" in vars(cls):
        return _seal_dataclass
    return _seal_own


def _seal_float(value: float) -> Any:
    if value and value == value:
        return float, value  # neither a zero, which has two signs, nor NaN: plain equality will do
    return Exact(value, struct.pack("<d", value))


def _seal_ndarray(value: np.ndarray) -> Sealed:
    copy = value.copy()
    copy.setflags(write=False)
    if type(copy) is np.ndarray and not copy.dtype.hasobject:
        return Array(copy)
    plain = np.asarray(copy)
    bits = _seal(plain.tolist()) if plain.dtype.hasobject else plain.tobytes()
    rest = _seal(getattr(copy, "__dict__", {}))  # of a masked array, its mask
    return Exact(copy, (plain.dtype, plain.shape, bits, rest))


def _seal_dataclass(value: Any) -> Sealed:
    fields = [field.name for field in dataclasses.fields(value) if field.compare]
    return Exact(value, tuple(_seal(getattr(value, name)) for name in fields))


def _seal_own(value: Any) -> Sealed:
    hash(value)  # raises if a part of it cannot be hashed, and then it is equal to itself only
    return Own(value, _atoms(value))


def _dict_of(keys_and_values: Iterable[Any]) -> dict[Any, Any]:
    flat = iter(keys_and_values)
    return dict(zip(flat, flat, strict=True))


_WAYS: dict[type, Callable[[Any], Any]] = {
    jax.core.Tracer: Sealed,
    jax.Array: Array,
    np.ndarray: _seal_ndarray,
    np.generic: lambda x: Exact(x, (x.dtype, x.tobytes())),
    float: lambda x: Exact(x, (struct.pack("<d", x), _attributes(x))),
    complex: lambda x: Exact(x, (struct.pack("<dd", x.real, x.imag), _attributes(x))),
    functools.partial: lambda x: Exact(
        x, (_seal(x.func), _seal(x.args), _seal(x.keywords), _attributes(x))
    ),
}
_BUILTINS: dict[type, Callable[[Any], Any]] = {
    float: _seal_float,
    list: lambda x: Parts(list, tuple(map(_seal, x))),
    tuple: lambda x: Parts(tuple, tuple(map(_seal, x))),
    dict: lambda x: Parts(_dict_of, tuple(_seal(part) for item in x.items() for part in item)),
    set: lambda x: Parts(set, frozenset(map(_seal, x))),
    frozenset: lambda x: Parts(frozenset, frozenset(map(_seal, x))),
}


def _atoms(value: Any) -> dict[str, Any]:
    """The attributes of an object that an equality of its own may mix up, sealed."""
    state = object.__getstate__(value)
    if state is None:  # a class of C, such as a date: what it is pickled by
        return {"": _seal(value.__reduce_ex__(4)[1])}
    pieces = state if isinstance(state, tuple) else (state,)
    return {
        name: _seal(part)
        for piece in pieces
        if isinstance(piece, dict)
        for name, part in piece.items()
        if isinstance(part, _ATOMS) or _way(type(part)) is _seal_own
    }


def _attributes(value: Any) -> frozenset[Any]:
    return frozenset(_atoms(value).items())
