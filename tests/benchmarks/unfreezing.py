"""What do stages cost: a call, a trace, and the work before a cohort is released?"""

import jax
import jax.numpy as jnp
import optax

from optax_freeze import unfreeze_at

from .measure import compare

LATE = 1_000_000
ADAMW = optax.adamw(1e-3)


def stages(count, first=0):
    """The layers of `params`, last to first, in so many cohorts."""
    shares = [tuple(f"layer{i}" for i in range(14))[part::count] for part in range(count)]
    return {share: first if part == 0 else LATE + part for part, share in enumerate(shares)}


def transformations():
    return {
        "one adamw": ADAMW,
        **{f"unfreeze_at, {n}": unfreeze_at(ADAMW, stages(n)) for n in (1, 3, 6)},
    }


def small():
    """146 small leaves, whose arithmetic is nothing."""
    return {
        f"layer{i}": {f"leaf{j}": jnp.ones(3) for j in range(11 if i < 6 else 10)}
        for i in range(14)
    }


def call_ways():
    params = small()

    def updating(tx):
        state, step = tx.init(params), jax.jit(tx.update)
        return lambda: jax.block_until_ready(step(params, state, params))

    return {name: updating(tx) for name, tx in transformations().items()}


def trace_ways():
    params = small()

    def tracing(tx):
        state = tx.init(params)
        # a new function each time, or JAX remembers the trace
        return lambda: jax.jit(lambda *args: tx.update(*args)).trace(params, state, params)

    return {name: tracing(tx) for name, tx in transformations().items()}


def work_ways():
    """A large cohort before and after its release."""
    params = {"body": jnp.ones((4096, 4096)), "head": jnp.ones(2)}
    tx = unfreeze_at(ADAMW, {"head": 0, "body": 10})
    gradient = {**params, "body": None}  # as `value_and_grad` gives it before the release

    def updating(step, gradient):
        begun = jnp.asarray(step, jnp.int32)
        state = [tx.init(params)._replace(step=begun)]
        run = jax.jit(tx.update, donate_argnums=1)

        def call():
            updates, new = run(gradient, state.pop()._replace(step=jnp.copy(begun)), params)
            state.append(jax.block_until_ready(new))
            return updates

        return call

    return {
        "after": updating(10, params),
        "before, dense gradients": updating(0, params),
        "before, left out": updating(0, gradient),
    }


def main():
    us = {"unit": "us", "scale": 1e6}
    compare("The update of 146 leaves in stages", call_ways(), "one adamw", **us, number=20)
    compare("Tracing the same", trace_ways(), "one adamw", repeats=5)
    compare("A cohort of 67 MB before and after its step", work_ways(), "after", repeats=10)


if __name__ == "__main__":
    main()
