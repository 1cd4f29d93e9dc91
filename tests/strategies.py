"""Parameter trees as people have them, and as they do not expect them."""

import collections
import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

Pair = collections.namedtuple("Pair", ["first", "second"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    kernel: object
    bias: object


class Layer(eqx.Module):
    weight: object
    rate: object


KEYS = ["encoder", "head", "w", "b", "0", "10", "a.b", "a", "b.c", "x/y", "mlp/~/linear_1", "k[0]"]

arrays = st.sampled_from([
    jnp.ones(2),
    jnp.zeros((2, 3), jnp.bfloat16),
    jnp.ones((), jnp.complex64),
    np.ones(2, np.float32),
    jax.ShapeDtypeStruct((3,), jnp.float16),
])
still = st.sampled_from([
    jnp.arange(2),
    np.array([True]),
    jax.random.key(0),
    0.5,
    3,
    True,
    "name",
    len,
])
leaves = arrays | still
places = st.just(None) | st.just(optax.MaskedNode())


def nodes(children):
    """Strategies for one more level above the given children."""
    return st.one_of(
        st.dictionaries(st.sampled_from(KEYS), children, max_size=4),
        st.dictionaries(st.integers(0, 12), children, max_size=3),
        st.lists(children, max_size=4),
        st.lists(children, max_size=3).map(tuple),
        st.builds(Pair, children, children),
        st.builds(Block, children, children),
        st.builds(Layer, children, children),
    )


# `nodes` also gives empty containers.
trees = st.recursive(leaves | places, nodes, max_leaves=12)
trees_without_places = st.recursive(leaves, nodes, max_leaves=12)
