"""Sealed values: equal exactly when type and bits agree.

Python's own equality is the wrong one for a value that a compiled program was made for: `1`, `1.0`
and `True` are equal, so are `0.0` and `-0.0`, NaN is not equal to itself, two arrays have no one
answer. What is sealed has an equality and a hash that never raise. `_sealing` says what is sealed
how; a value whose own equality is exact needs no wrapping and is sealed as `(class, value)`.
"""

from __future__ import annotations

import hashlib
import reprlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from optax_freeze._trees import array_text


class Sealed:
    """A value that is equal to itself only; the classes below know of other equals."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def open(self) -> Any:
        """The value."""
        return self.value

    def _same(self, other: Any) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, its = self.value, other.value
        return mine is its or (type(mine) is type(its) and self._same(other))

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return show(self.value)


class Exact(Sealed):
    """A value together with the bits that it is compared by."""

    __slots__ = ("bits",)

    def __init__(self, value: Any, bits: Any):
        self.value = value
        self.bits = bits

    def _same(self, other: Any) -> bool:
        return self.bits == other.bits

    def __hash__(self) -> int:
        return hash((type(self.value), self.bits))


class Array(Sealed):
    """An array, whose bits are read only when it meets another one of its dtype and shape."""

    __slots__ = ()

    def _same(self, other: Any) -> bool:
        mine, its = self.value, other.value
        return _head(mine) == _head(its) and _digest(mine) == _digest(its)

    def __hash__(self) -> int:
        return hash(_head(self.value))


class Parts(Sealed):
    """A builtin container, kept as its sealed parts, so that nobody can change it in place."""

    __slots__ = ()

    def __init__(self, make: Callable[[Iterable[Any]], Any], parts: Any):
        self.value = make, parts

    def open(self) -> Any:
        """A new container of the same parts."""
        make, parts = self.value
        return make(map(unseal, parts))

    def _same(self, other: Any) -> bool:
        return self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return show(self.open())


class Own(Sealed):
    """An object with an equality of its own, which is asked but not trusted."""

    __slots__ = ("attributes",)

    def __init__(self, value: Any, attributes: dict[str, Any]):
        self.value = value
        self.attributes = attributes

    def _same(self, other: Any) -> bool:
        try:
            verdict = self.value == other.value
        except Exception:
            return False
        if not isinstance(verdict, (bool, np.bool_)) or not verdict:
            return False
        mine, its = self.attributes, other.attributes
        return all(mine[name] == its[name] for name in mine.keys() & its.keys())

    def __hash__(self) -> int:
        return hash(type(self.value))  # its own hash may raise, and need not fit this equality


def unseal(sealed: Any) -> Any:
    """The value that was sealed; a builtin container comes back as a new one."""
    return sealed[1] if type(sealed) is tuple else sealed.open()


@reprlib.recursive_repr("...")
def show(value: Any) -> str:
    """A short text for a value; of an array the dtype and the shape, never the contents."""
    if isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        library = "(numpy)" if isinstance(value, np.ndarray) else ""
        return f"{array_text(value.dtype, value.shape)}{library}"
    if type(value) is list:
        return f"[{', '.join(map(show, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(show, value))}{',' * (len(value) == 1)})"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {show(part)}' for key, part in value.items())}}}"
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


def _head(array: Any) -> tuple[Any, ...]:
    return getattr(array, "weak_type", False), array.dtype, array.shape


# A JAX array cannot change, so what was read of it once holds as long as it lives, even after its
# buffer was donated. By id, because it cannot be hashed; the weak reference guards the id.
_DIGESTS: dict[int, tuple[weakref.ref[Any], bytes]] = {}


def _digest(array: Any) -> Any:
    """A digest of the bits of an array; something that equals nothing if they are out of reach."""
    key = id(array)
    known = _DIGESTS.get(key)
    if known is not None and known[0]() is array:
        return known[1]
    try:
        is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
        data = np.asarray(jax.random.key_data(array) if is_key else array)
    except Exception:  # deleted, or on devices of another process
        return object()
    digest = hashlib.blake2b(data.tobytes(), digest_size=32).digest()

    def forget(reference: weakref.ref[Any]) -> None:
        # Not another array that got the same id since.
        if key in _DIGESTS and _DIGESTS[key][0] is reference:  # pragma: no branch
            del _DIGESTS[key]

    _DIGESTS[key] = weakref.ref(array, forget), digest
    return digest
