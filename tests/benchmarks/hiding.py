"""What does it cost to hide half of the leaves, and to reveal them?"""

import argparse

import jax
import jax.numpy as jnp

from optax_freeze import tree_mask, tree_unmask

from .measure import compare, peer

LEAVES = 10_000


class Wrapper:
    """The least that hides a leaf: a node without leaves that carries a value."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


jax.tree_util.register_pytree_node(
    Wrapper, lambda node: ((), node.value), lambda value, _: Wrapper(value)
)


def is_wrapper(node):
    return isinstance(node, Wrapper)


def ways(hide=None):
    eqx, sepes = peer("equinox"), peer("sepes")
    leaf = jnp.ones(2)
    tree = [{"w": leaf, "size": i} for i in range(LEAVES // 2)]
    mask = [{"w": True, "size": False} for _ in tree]

    def floor(of):
        leaves, treedef = jax.tree.flatten(of)
        treedef.unflatten(leaves)

    def wrap():
        return jax.tree.map(lambda x: Wrapper(x) if type(x) is int else x, tree)

    wrapped = wrap()
    hiding = {
        "floor": lambda: floor(tree),
        "optax_freeze.tree_mask": lambda: tree_mask(tree),
        "a bare wrapper": wrap,
        "sepes.tree_mask": sepes and (lambda: sepes.tree_mask(tree)),
        "equinox.partition, a function": eqx
        and (lambda: eqx.partition(tree, eqx.is_inexact_array_like)),
        "equinox.partition, a mask": eqx and (lambda: eqx.partition(tree, mask)),
    }
    hidden = tree_mask(tree)
    by_sepes = sepes and sepes.tree_mask(tree)
    parts = eqx and eqx.partition(tree, mask)
    revealing = {
        "floor": lambda: floor(tree),
        "optax_freeze.tree_unmask": lambda: tree_unmask(hidden),
        "a bare wrapper": lambda: jax.tree.map(
            lambda x: x.value if is_wrapper(x) else x, wrapped, is_leaf=is_wrapper
        ),
        "sepes.tree_unmask": sepes and (lambda: sepes.tree_unmask(by_sepes)),
        "equinox.combine": eqx and (lambda: eqx.combine(*parts)),
    }
    if hide is None:
        return {**hiding, **revealing}
    return hiding if hide else revealing


def main(*, instructions=False):
    for hide in (True, False):
        compare(
            f"{'Hiding' if hide else 'Revealing'} half of {LEAVES:,} leaves",
            ways(hide),
            "floor",
            unit="us a leaf",
            scale=1e6 / LEAVES,
            leaves=LEAVES,
            script=__name__ if instructions else "",
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", action="store_true")
    main(**vars(parser.parse_args()))
