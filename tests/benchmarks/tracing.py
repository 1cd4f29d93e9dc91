"""What does it cost to trace update and apply, and to run init, on trees of many leaves?"""

import time

import jax
import numpy as np
import optax

from optax_freeze import apply_updates, freeze_mask, param_groups, split, trainable_only

from .measure import compare, peer

SUBTREES = 100


def tracing(tx, params, grads, apply):
    """A function that traces update and apply, and returns the seconds inside the two."""
    state = tx.init(params)

    def trace():
        taken = 0.0

        def step(grads, state, params):
            nonlocal taken
            start = time.perf_counter()
            updates, state = tx.update(grads, state, params)
            new = apply(params, updates)
            taken = time.perf_counter() - start
            return new, state

        jax.make_jaxpr(step)(grads, state, params)
        return taken

    return trace


def make_case(leaves, frozen):
    """Params, what of them is frozen, gradients with None and the part that trains."""
    leaf = np.ones(2, np.float32)
    params = {
        f"g{i:02}": {f"l{j}": leaf for j in range(leaves // SUBTREES)} for i in range(SUBTREES)
    }
    names = sorted(params)[:frozen]
    holes = {
        name: jax.tree.map(lambda _: None, part) if name in names else part
        for name, part in params.items()
    }
    part = {name: below for name, below in params.items() if name not in names}
    return params, f"g[:{frozen}]", holes, part


def groups_of(count, freeze, make):
    if count == 1:
        return {freeze: None, "**": make()}
    return {freeze: None, **{f"*.l*{digit}": make() for digit in range(count)}}


def trace_ways(leaves, frozen):
    eqx = peer("equinox")
    params, freeze, holes, part = make_case(leaves, frozen)
    adamw = optax.adamw(1e-3)
    trains = freeze_mask(params, freeze)
    freezes = jax.tree.map(lambda flag: not flag, trains)
    labels = {
        name: {key: "frozen" if flag is False else key[-1] for key, flag in below.items()}
        for name, below in trains.items()
    }
    by_label = {**{str(digit): adamw for digit in range(10)}, "frozen": optax.set_to_zero()}
    trainable, _ = split(params, freeze)
    some = eqx and eqx.partition(params, trains)[0]
    theirs = optax.apply_updates
    return {
        "by hand": tracing(adamw, part, part, theirs),
        "split": tracing(adamw, trainable, trainable, theirs),
        "trainable_only": tracing(trainable_only(adamw, freeze), params, holes, apply_updates),
        "trainable_only, a dense gradient": tracing(
            trainable_only(adamw, freeze), params, params, apply_updates
        ),
        "param_groups, 1 group": tracing(
            param_groups(groups_of(1, freeze, lambda: adamw)), params, holes, apply_updates
        ),
        "param_groups, 10 groups": tracing(
            param_groups(groups_of(10, freeze, lambda: adamw)), params, holes, apply_updates
        ),
        "plain adamw on a tree with holes": tracing(adamw, holes, holes, theirs),
        "optax.selective_transform": tracing(
            optax.selective_transform(adamw, freeze_mask=freezes), params, params, theirs
        ),
        "optax.partition, 10 groups": tracing(
            optax.partition(by_label, labels), params, params, theirs
        ),
        "chain(optax.freeze, adamw)": tracing(
            optax.chain(optax.freeze(freezes), adamw), params, params, theirs
        ),
        "equinox.partition outside": eqx and tracing(adamw, some, some, eqx.apply_updates),
    }


def init_ways(leaves, frozen):
    params, freeze, _, part = make_case(leaves, frozen)
    adamw = optax.adamw(1e-3)
    freezes = jax.tree.map(lambda flag: not flag, freeze_mask(params, freeze))
    groups = param_groups(groups_of(10, freeze, lambda: adamw))
    selective = optax.selective_transform(adamw, freeze_mask=freezes)

    def by_split():
        trainable, _ = split(params, freeze)
        adamw.init(trainable)

    return {
        "by hand": lambda: adamw.init(part),
        "split": by_split,
        "trainable_only": lambda: trainable_only(adamw, freeze).init(params),
        "param_groups, 10 groups": lambda: groups.init(params),
        "optax.selective_transform": lambda: selective.init(params),
    }


# At 100,000 leaves the others take minutes each.
LARGE = ("by hand", "split", "trainable_only")


def main():
    for leaves, frozen, repeats in ((10_000, 99, 3), (10_000, 50, 1), (100_000, 99, 1)):
        title = f"{leaves:,} leaves, {frozen} % frozen, adamw"
        ways = trace_ways(leaves, frozen)
        if leaves > 10_000:
            ways = {name: ways[name] for name in LARGE}
        compare(f"Tracing update and apply, {title}", ways, "by hand", repeats=repeats)
        compare(f"init, {title}", init_ways(leaves, frozen), "by hand", repeats=repeats)


if __name__ == "__main__":
    main()
