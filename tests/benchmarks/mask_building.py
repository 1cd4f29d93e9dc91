"""What does it cost to build a mask that freezes one subtree, by path?"""

import argparse
import contextlib
import functools

import jax
import numpy as np

import optax_freeze

from .measure import compare, peer, seconds, table

LEAF = np.ones(2, np.float32)


def model(leaves):
    return {
        f"layer{i:03}": {f"part{j}": {f"w{k}": LEAF for k in range(10)} for j in range(10)}
        for i in range(leaves // 100)
    }


def ways(leaves=10_000):
    flax, hybrid, maskx = peer("flax"), peer("jaxhybridmodels.trainable"), peer("maskx")
    tree = model(leaves)

    def floor():
        found, treedef = jax.tree.flatten(tree)
        treedef.unflatten(found)

    def floor_with_paths():
        found, treedef = jax.tree_util.tree_flatten_with_path(tree)
        treedef.unflatten([leaf for _, leaf in found])

    def by_flax():
        flax.traverse_util.path_aware_map(lambda path, _: path[:2] != ("layer003", "part4"), tree)

    def by_hybrid():
        paths = tuple(f"layer003.part4.w{k}" for k in range(10))
        hybrid.freeze_paths(hybrid.trainable_mask(tree), paths)

    def by_maskx():
        return (~maskx.select(tree, path_prefix="layer003/part4")).tree

    return {
        "floor": floor,
        "floor, with paths": floor_with_paths,
        "optax_freeze.freeze_mask": lambda: optax_freeze.freeze_mask(tree, "layer003.part4"),
        "the same, by a pattern": lambda: optax_freeze.freeze_mask(tree, "layer003.**.w?"),
        "flax path_aware_map": flax and by_flax,
        "maskx": maskx and by_maskx,
        "jaxhybridmodels": hybrid and by_hybrid,
    }


def miss(leaves):
    with contextlib.suppress(optax_freeze.SpecError):
        optax_freeze.freeze_mask(model(leaves), "layer003.prat4")


def main(*, instructions=False):
    for leaves in (10_000, 100_000):
        compare(
            f"A mask that freezes one subtree by path, {leaves:,} leaves",
            ways(leaves),
            "floor",
            unit="us a leaf",
            scale=1e6 / leaves,
            leaves=leaves,
            repeats=5,
            script=__name__ if instructions and leaves == 10_000 else "",
        )
    misses = {f"{leaves:,} leaves": functools.partial(miss, leaves) for leaves in (10_000, 100_000)}
    times = seconds(misses, repeats=3)
    table("A misspelt path, with its suggestions", ["tree", "s"], [[*row] for row in times.items()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", action="store_true")
    main(**vars(parser.parse_args()))
