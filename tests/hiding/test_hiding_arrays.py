"""Hidden arrays: when their bits are read, and what is remembered of them."""

import gc

import jax
import jax.numpy as jnp

from optax_freeze import tree_mask
from optax_freeze._hiding import equality


def hide(array):
    return tree_mask(array, lambda _: True)


def test_the_bits_of_an_equal_array_are_read_once(monkeypatch):
    reads = []
    digest = equality.hashlib.blake2b
    monkeypatch.setattr(
        equality.hashlib, "blake2b", lambda *a, **k: reads.append(1) or digest(*a, **k)
    )
    one, two = jnp.arange(5), jnp.arange(5)
    traces = []
    call = jax.jit(lambda hidden: traces.append(hidden) or 0)
    for _ in range(3):
        call(hide(one))
    assert reads == []
    for _ in range(3):
        call(hide(two))
    assert len(reads) == 2
    assert len(traces) == 1


def test_arrays_of_other_shape_or_dtype_are_told_apart_without_their_bits(monkeypatch):
    monkeypatch.setattr(equality.hashlib, "blake2b", None)
    assert hide(jnp.ones(2)) != hide(jnp.ones(3))
    assert hide(jnp.ones(2)) != hide(jnp.arange(2))


def test_digests_go_with_their_arrays():
    one, two = hide(jnp.arange(7)), hide(jnp.arange(7))
    before = len(equality._DIGESTS)
    assert one == two
    assert len(equality._DIGESTS) == before + 2
    del one, two
    gc.collect()
    assert len(equality._DIGESTS) == before


def test_the_digest_of_an_array_is_not_that_of_another_in_its_place():
    array = jnp.arange(3)
    other = jnp.arange(3) + 1
    hidden = hide(array)
    assert hidden != hide(other)
    equality._DIGESTS[id(array)] = equality._DIGESTS[id(other)]  # as if the id had been used before
    assert hidden != hide(other)


def test_deleted_arrays():
    array, known, other = jnp.arange(3), jnp.arange(3), jnp.arange(3)
    hidden, remembered = hide(array), hide(known)
    assert remembered == hide(other)
    array.delete()
    known.delete()
    assert remembered == hide(other)
    assert hidden == hide(array)
    assert hidden != hide(other)
    assert hash(hidden) == hash(hide(other))


def test_arrays_on_other_devices_are_equal():
    devices = jax.devices()
    array = jnp.arange(8)
    mesh = jax.sharding.Mesh(devices, ("x",))
    spec = jax.sharding.PartitionSpec("x")
    spread = jax.device_put(array, jax.sharding.NamedSharding(mesh, spec))
    assert len(devices) == 8
    assert hide(jax.device_put(array, devices[1])) == hide(array) == hide(spread)
