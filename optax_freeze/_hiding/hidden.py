"""The hidden leaf: a node of a pytree that has no leaves and carries a value."""

from __future__ import annotations

import reprlib
from typing import Any, NoReturn

import jax
import jax.core
import numpy as np

from optax_freeze._hiding.equality import Sealed, show, unseal
from optax_freeze._hiding.sealing import PLAIN, seal
from optax_freeze._trees import Place, is_array

_WRONG_USES = """
    bool int float complex index round trunc floor ceil len iter reversed contains getitem setitem
    delitem call array array_function lt le gt ge neg pos abs invert add sub mul matmul truediv
    floordiv mod divmod pow lshift rshift and or xor radd rsub rmul rmatmul
    rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand ror rxor
"""


def _of_arrays(name: str) -> property:
    def read(hidden: Hidden) -> Any:
        value = unseal(hidden.sealed)
        if not hasattr(value, "dtype"):
            raise AttributeError(f"a hidden leaf ({describe(value)}) has no {name}")
        return getattr(value, name)

    return property(read, doc=f"The {name} of a hidden array.")


class Hidden(Place):
    """A hidden leaf: a node without leaves that carries a value. Made by `tree_mask`."""

    # no __getattr__ here: with it, JAX takes a tenth longer to read `sealed`
    __slots__ = ("sealed",)
    shape, dtype, ndim, size = map(_of_arrays, ("shape", "dtype", "ndim", "size"))

    def __init__(self, sealed: Any):
        _set_sealed(self, sealed)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a hidden leaf cannot be changed (setting {name!r})")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a hidden leaf cannot be changed (deleting {name!r})")

    def __eq__(self, other: object) -> bool:
        # False rather than a refusal for what is not hidden: JAX compares whatever stands in
        # static fields when it looks into its caches.
        return isinstance(other, Hidden) and self.sealed == other.sealed

    def __hash__(self) -> int:
        return hash(self.sealed)

    def __repr__(self) -> str:
        return f"#{show(unseal(self.sealed))}"

    def __copy__(self) -> Hidden:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return hide, (unseal(self.sealed),)


def _refusal(hidden: Hidden) -> str:
    what = describe(unseal(hidden.sealed))
    return f"a hidden leaf ({what}) is not a value: call tree_unmask before using it"


def _refuse(hidden: Hidden, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(_refusal(hidden))


_set_sealed = Hidden.sealed.__set__  # type: ignore[attr-defined]
for _name in _WRONG_USES.split():
    setattr(Hidden, f"__{_name}__", _refuse)


def _array_ufunc(hidden: Hidden, ufunc: Any, *_: Any, **__: Any) -> bool:
    if ufunc in {np.equal, np.not_equal}:  # a NumPy array or scalar on the left of `==` asks so
        return ufunc is np.not_equal
    _refuse(hidden)


class _NoArray:
    """What JAX gets for a hidden leaf when it asks for an array.

    Nothing that JAX takes, so that it leaves `==` and the operators to the hidden leaf.
    """

    def __init__(self, hidden: Hidden):
        self.hidden = hidden

    def __repr__(self) -> str:  # JAX shows it in its own refusals
        return _refusal(self.hidden)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        _refuse(self.hidden)

    dtype = shape = property(_refuse)
    __array__ = __float__ = __int__ = __complex__ = _refuse


Hidden.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
Hidden.__jax_array__ = lambda hidden: _NoArray(hidden)  # type: ignore[attr-defined]

# A "dataclass" without data fields is taken apart by JAX in C++, without a call of Python: that is
# what a jitted function does with every node on every call.
jax.tree_util.register_dataclass(Hidden, data_fields=[], meta_fields=["sealed"])
is_hidden = Hidden.__instancecheck__  # isinstance, as one call in C


def hide(leaf: Any) -> Hidden:
    """The hidden leaf that carries a value."""
    cls = type(leaf)
    return Hidden((cls, leaf) if cls in PLAIN else seal(leaf))


def reveal(hidden: Hidden) -> Any:
    """The value that a hidden leaf carries.

    Args:
        hidden: a hidden leaf.

    Returns:
        The value.

    Raises:
        UnexpectedTracerError: if it is a tracer and no trace is running.
    """
    sealed = hidden.sealed
    if type(sealed) is tuple:
        return sealed[1]
    value = sealed.open()
    if type(sealed) is Sealed and isinstance(value, jax.core.Tracer) and _is_outside_traces():
        raise jax.errors.UnexpectedTracerError(
            f"a hidden leaf carries {describe(value)}, a value of a trace (of jit, grad, ...) "
            "that is over. A tree that was hidden inside a transformed function must be revealed "
            "there too: return tree_unmask(tree)"
        )
    return value


def is_masked(value: Any) -> bool:
    """Whether a value is a hidden leaf.

    Args:
        value: anything; a tree that merely contains hidden leaves is not one.

    Returns:
        True for a hidden leaf.

    Example:
        >>> from optax_freeze import is_masked, tree_mask
        >>> [is_masked(node) for node in tree_mask([1, 2.0])]
        [True, False]
    """
    return isinstance(value, Hidden)


def _is_outside_traces() -> bool:
    # Imported where it is needed, which is seldom: `jax.extend` brings Pallas along.
    try:
        from jax.extend.core import get_opaque_trace_state
    except ImportError:  # pragma: no cover - before JAX 0.8 it is in another public module
        from jax.core import get_opaque_trace_state  # pyright: ignore

    here = get_opaque_trace_state(convention="optax_freeze")
    with jax.core.eval_context():
        return here == get_opaque_trace_state(convention="optax_freeze")


def describe(value: Any) -> str:
    """What an error says of a value: enough to know it again, and no contents of an array."""
    if is_array(value):
        return show(value)
    return reprlib.repr(value) if type(value) in PLAIN else f"a {type(value).__qualname__}"
