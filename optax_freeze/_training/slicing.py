"""Arrays in pieces, bit for bit: of JAX, of NumPy, and abstract ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from optax_freeze._trees import Cut


def cut_array(array: Any, cut: Cut) -> list[Any]:
    """The pieces of an array.

    Args:
        array: of JAX, of NumPy (whose pieces are copies), a tracer or a `jax.ShapeDtypeStruct`.
        cut: how to cut it.

    Returns:
        The pieces, of the same kind, and with the sharding of the array as far as it fits.
    """
    axis = cut.axis + array.ndim
    pieces = []
    for piece, size in enumerate(cut.sizes):
        rows = _rows(cut, piece)
        shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
        if isinstance(array, np.ndarray):
            pieces.append(np.array(array[_at(axis, rows)]))
        elif isinstance(array, jax.ShapeDtypeStruct):
            sharding = _sharding(array, shape, axis)
            pieces.append(array.update(shape=shape, sharding=sharding))
        else:
            take = _taker(axis, rows)
            # Bits cannot be differentiated, and a tracer may have to be.
            if not isinstance(array, jax.core.Tracer) and _bits_of(array.dtype):
                take = functools.partial(_by_bits, take)
            pieces.append(_placed(take, [array], shape, axis))
    return pieces


def join_arrays(pieces: Sequence[Any], cut: Cut) -> Any:
    """The array that was cut.

    Args:
        pieces: its pieces, of one dtype and of the shapes that they were cut to.
        cut: how it was cut.

    Returns:
        An array of NumPy if all pieces are, abstract if one is, else of JAX.
    """
    first = pieces[0]
    axis = cut.axis + first.ndim
    shape = (*first.shape[:axis], cut.size, *first.shape[axis + 1 :])
    if any(isinstance(piece, jax.ShapeDtypeStruct) for piece in pieces):
        is_weak = all(piece.weak_type for piece in pieces)
        sharding = _sharding(first, shape, axis)
        return jax.ShapeDtypeStruct(shape, first.dtype, sharding=sharding, weak_type=is_weak)
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        whole = np.empty(shape, first.dtype)
        for piece, part in enumerate(pieces):
            whole[_at(axis, _rows(cut, piece))] = part
        return whole

    join = _join if jnp.issubdtype(first.dtype, jnp.inexact) else _put_together
    return _placed(functools.partial(join, cut, axis), pieces, shape, axis)


def _put_together(cut: Cut, axis: int, *pieces: Any) -> jax.Array:
    dtype = pieces[0].dtype
    bits = _bits_of(dtype)
    if bits:  # on a CPU, XLA goes by way of a wider float, in which a NaN loses its bits
        pieces = tuple(jax.lax.bitcast_convert_type(piece, bits) for piece in pieces)
    whole = jnp.concatenate(pieces, axis)
    if cut.picked:
        inverse = np.argsort(np.concatenate([cut.other_rows, cut.picked_rows]))
        whole = _taker(axis, inverse)(whole)
    return jax.lax.bitcast_convert_type(whole, dtype) if bits else whole


def _by_bits(take: Callable[[Any], Any], array: Any) -> Any:
    bits = jax.lax.bitcast_convert_type(array, _bits_of(array.dtype))
    return jax.lax.bitcast_convert_type(take(bits), array.dtype)


def _bits_of(dtype: Any) -> Any:
    """The unsigned integers with the bits of a narrow float, for others None."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    return {8: jnp.uint8, 16: jnp.uint16}.get(jnp.finfo(dtype).bits)


# With a derivative of its own, whose transpose takes the rows out of the gradient again: that keeps
# their bits, and there is none for a frozen piece. The one that JAX would find adds into zeros.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _join(cut: Cut, axis: int, *pieces: Any) -> jax.Array:
    return _put_together(cut, axis, *pieces)


@_join.defjvp
def _join_jvp(cut: Cut, axis: int, pieces: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    whole = _join(cut, axis, *pieces)
    if not cut.picked:
        return whole, jnp.concatenate(tangents, axis)
    tangent = jnp.zeros_like(whole)
    for piece, part in enumerate(tangents):
        place = tangent.at[_at(axis, _rows(cut, piece))]
        tangent = place.set(part, unique_indices=True, mode="promise_in_bounds")
    return whole, tangent


def _rows(cut: Cut, piece: int) -> Any:
    """Which rows a piece has, as an index."""
    if cut.picked:
        return cut.picked_rows if piece else cut.other_rows
    return slice(cut.bounds[piece], cut.bounds[piece + 1])


def _at(axis: int, rows: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, rows)


def _taker(axis: int, rows: Any) -> Callable[[Any], Any]:
    if isinstance(rows, slice):
        return lambda array: jax.lax.slice_in_dim(array, rows.start, rows.stop, axis=axis)
    return lambda array: jnp.take(array, rows, axis=axis, mode="clip", unique_indices=True)


def _placed(fun: Callable[..., Any], arrays: Sequence[Any], shape: Any, axis: int) -> Any:
    """Call a function on arrays, the first of which says how its result is spread over devices."""
    first = arrays[0]
    are_spread = all(
        isinstance(array, jax.Array)
        and not isinstance(array, jax.core.Tracer)
        and len(array.sharding.device_set) > 1
        for array in arrays
    )
    if not are_spread:  # also under a trace, where the compiler decides
        return fun(*arrays)
    return jax.jit(fun, out_shardings=_sharding(first, shape, axis))(*arrays)


def _sharding(array: Any, shape: tuple[int, ...], axis: int) -> Any:
    """The sharding of an array, for another number of rows."""
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding) or _fits(sharding, shape):
        return sharding
    axes = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))]
    axes[axis] = None
    return sharding.update(spec=PartitionSpec(*axes))


def _fits(sharding: Any, shape: tuple[int, ...]) -> bool:
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return False
    return True
