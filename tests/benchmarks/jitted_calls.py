"""What does it cost to call a jitted function on trees with frozen and with hidden leaves?"""

import jax
import jax.numpy as jnp
import optax

from optax_freeze import (
    apply_updates,
    merge,
    param_groups,
    split,
    trainable_only,
    tree_mask,
    tree_unmask,
)

from .measure import compare, peer

MANY = 1_000


class Thing:
    """A Python object without any equality of its own."""


def step_ways():
    """A step of a model of many frozen leaves and a few that train; the work itself is nothing."""
    params = {"encoder": {f"w{i:04}": jnp.ones(2) for i in range(MANY)}, "head": {"w": jnp.ones(2)}}
    frozen, head = params["encoder"], params["head"]
    adamw = optax.adamw(1e-3)
    only = trainable_only(adamw, "encoder")
    trainable, rest = split(params, "encoder")

    @jax.jit
    def by_hand(head, state, encoder):
        full = {"encoder": encoder, "head": head}
        updates, state = adamw.update(full["head"], state, head)
        return optax.apply_updates(head, updates), state

    @jax.jit
    def by_split(trainable, state, rest):
        merge(trainable, rest)
        updates, state = adamw.update(trainable, state, trainable)
        return optax.apply_updates(trainable, updates), state

    @jax.jit
    def by_trainable_only(params, state):
        gradient = {**params, "encoder": dict.fromkeys(params["encoder"])}
        updates, state = only.update(gradient, state, params)
        return apply_updates(params, updates), state

    def calling(step, *args):
        return lambda: jax.block_until_ready(step(*args))

    return {
        "by hand": calling(by_hand, head, adamw.init(head), frozen),
        "split + merge": calling(by_split, trainable, adamw.init(trainable), rest),
        "trainable_only, whole tree in and out": calling(
            by_trainable_only, params, only.init(params)
        ),
    }


def object_ways(anew):
    """Trees with hidden Python objects, hidden once or for every call."""
    eqx, sepes = peer("equinox"), peer("sepes")
    tree = {"w": jnp.ones(2), "objects": [Thing() for _ in range(MANY - 1)]}

    def passing(hide, reveal):
        step = jax.jit(lambda tree: reveal(tree)["w"] + 1)
        hidden = hide(tree)
        return lambda: step(hide(tree) if anew else hidden).block_until_ready()

    floor = jax.jit(lambda w: w + 1)
    by_eqx = eqx and eqx.filter_jit(lambda tree: tree["w"] + 1)
    return {
        "floor, only the array": lambda: floor(tree["w"]).block_until_ready(),
        "optax_freeze.tree_mask": passing(tree_mask, tree_unmask),
        "sepes.tree_mask": sepes and passing(sepes.tree_mask, sepes.tree_unmask),
        "equinox.filter_jit": eqx and (lambda: by_eqx(tree).block_until_ready()),
    }


def array_ways():
    """One array of 64 MB, hidden for every call."""
    sepes = peer("sepes")
    tree = {"w": jnp.ones(2), "big": jnp.zeros(16 * 2**20)}

    def is_big(leaf):
        return leaf.size > 2

    def passing(hide):
        step = jax.jit(lambda tree: tree["w"] + 1)
        return lambda: step(hide(tree)).block_until_ready()

    return {
        "a plain argument": passing(lambda tree: tree),
        "optax_freeze.tree_mask": passing(lambda tree: tree_mask(tree, is_big)),
        "sepes.tree_mask": sepes and passing(lambda tree: sepes.tree_mask(tree, is_big)),
    }


def group_ways():
    """The update of 146 small leaves, whose groups differ in their rate."""
    params = {
        f"layer{i}": {f"leaf{j}": jnp.ones(3) for j in range(11 if i < 6 else 10)}
        for i in range(14)
    }
    names = list(params)

    def updating(tx):
        state = tx.init(params)
        step = jax.jit(tx.update)
        return lambda: jax.block_until_ready(step(params, state, params))

    def groups(count):
        shares = [tuple(names[i::count]) for i in range(count)]
        return param_groups({share: optax.adamw(i * 1e-3) for i, share in enumerate(shares, 1)})

    labels = {name: jax.tree.map(lambda _, name=name: name, params[name]) for name in names}
    partition = optax.partition({name: optax.adamw(1e-3) for name in names}, labels)
    return {
        "one adamw": updating(optax.adamw(1e-3)),
        "trainable_only(adamw)": updating(trainable_only(optax.adamw(1e-3))),
        **{f"param_groups, {count}": updating(groups(count)) for count in (1, 4, 14)},
        "optax.partition, 14": updating(partition),
    }


def main():
    us = {"unit": "us", "scale": 1e6, "repeats": 30, "number": 20}
    compare(f"A step with {MANY:,} frozen leaves", step_ways(), "by hand", **us)
    compare("The update of 146 leaves in groups", group_ways(), "one adamw", **us)
    for anew in (False, True):
        compare(
            f"{MANY - 1} hidden Python objects, hidden {'anew for each call' if anew else 'once'}",
            object_ways(anew),
            "floor, only the array",
            **us,
        )
    compare(
        "A jax.Array of 64 MB, hidden anew for each call",
        array_ways(),
        "a plain argument",
        **us,
    )


if __name__ == "__main__":
    main()
