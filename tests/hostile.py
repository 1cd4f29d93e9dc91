"""Frozen leaves on which every careless operation shows, and a comparison by bits."""

import jax
import jax.numpy as jnp
import numpy as np


def _float32(*bits):
    return jnp.asarray(np.array(bits, np.uint32).view(np.float32))


def frozen_leaves():
    """Leaves of all kinds of dtypes, with the values that additions and copies spoil."""
    signed_zeros_subnormals_nans = _float32(
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x7FA00000, 0xFFC00001, 0x7F800000
    )
    return {
        "bfloat16": jnp.asarray(np.array([0x8000, 0x0001, 0x7FA0], np.uint16).view(jnp.bfloat16)),
        "bool": jnp.array([True, False]),
        "complex64": jnp.array([complex(-0.0, 1.0), complex(2.5, -0.0)], jnp.complex64),
        "float16": jnp.asarray(np.array([0x8000, 0x0001, 0x7D00], np.uint16).view(np.float16)),
        "float32": signed_zeros_subnormals_nans,
        "float8": jnp.asarray(np.array([0x80, 0x01, 0x7F], np.uint8).view(jnp.float8_e4m3fn)),
        "int32": jnp.array([2**24 + 1, -(2**31)], jnp.int32),
        "key": jax.random.key(7),
        "plain": jnp.array([[1.5, -2.5], [3.5, 0.1]]),
        "uint8": jnp.array([0, 255], jnp.uint8),
    }


def bits(leaf):
    """Class, dtype, shape and bytes of a leaf: equal for two leaves if nothing has changed."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf.dtype, leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()
    return type(leaf), leaf


def all_bits(tree):
    """The bits of every leaf, by its path."""
    return {
        jax.tree_util.keystr(path): bits(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def without_weak_types(state):
    """A fresh state with the types that it has after a step, so that `jit` compiles one step."""
    return jax.tree.map(
        lambda leaf: leaf.astype(leaf.dtype) if getattr(leaf, "weak_type", False) else leaf, state
    )


@jax.custom_vjp
def poison(leaf):
    """Zero, with a gradient of NaN and inf."""
    return jnp.zeros(())


def _backward(leaf, cotangent):
    pattern = jnp.asarray(np.resize([np.nan, np.inf, -np.inf], leaf.shape), jnp.float32)
    return (pattern.astype(leaf.dtype),)


poison.defvjp(lambda leaf: (poison(leaf), leaf), _backward)


def poisoned(tree):
    """Zero, with gradients of NaN and inf at all floats of a tree."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return sum(map(poison, leaves), jnp.zeros(()))
