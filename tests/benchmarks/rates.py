"""What does a rate of its own for every layer cost?"""

import jax
import jax.numpy as jnp
import optax

from optax_freeze import layer_decay, param_groups, scale_by_spec
from tests.costs import size

from .measure import calls, seconds, table
from .tracing import tracing

BLOCKS, WIDTH = 12, 16


def model():
    """A transformer of 146 leaves, so small that a call costs more than the work in it."""
    vector, matrix = jnp.ones(WIDTH), jnp.ones((WIDTH, WIDTH))
    names = ("ln_1", "ln_2", "qkv", "out", "up", "down")
    block = {
        name: {"w": vector if name.startswith("ln") else matrix, "b": vector} for name in names
    }
    return {"embed": {"w": matrix}, "blocks": [block] * BLOCKS, "head": {"w": matrix}}


def ways(params):
    factors = layer_decay(params, ["embed", "blocks[:]", "head"], 0.75)
    adamw = optax.adamw(1e-3)
    groups = {path: optax.adamw(1e-3 * factor) for path, factor in factors.items()}
    tops = {"embed": "embed", "blocks": [f"blocks.{i}" for i in range(BLOCKS)], "head": "head"}
    labels = jax.tree.map(lambda top, below: jax.tree.map(lambda _: top, below), tops, params)
    schedules = {path: optax.constant_schedule(factor) for path, factor in factors.items()}
    return {
        "adamw, one rate": adamw,
        "adamw, scale_by_spec": optax.chain(adamw, scale_by_spec(factors)),
        "adamw, scale_by_spec, schedules": optax.chain(adamw, scale_by_spec(schedules)),
        "param_groups": param_groups(groups),
        "optax.partition": optax.partition(groups, labels),
    }


def stepping(tx, params):
    """A function that runs one more step, its arguments donated."""

    def step(params, state):
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    jitted = jax.jit(step, donate_argnums=(0, 1))
    held = [*jitted(jax.tree.map(jnp.copy, params), tx.init(params))]

    def run():
        held[:] = jitted(*held)
        jax.block_until_ready(held)

    return run


def operations(tx, params):
    """The instructions of the compiled update, those inside of fusions too, and its FLOPs."""
    compiled = jax.jit(tx.update).lower(params, tx.init(params), params).compile()
    return compiled.as_text().count(" = "), compiled.cost_analysis()["flops"]


def main():
    params = model()
    made = ways(params)
    times = seconds({name: stepping(tx, params) for name, tx in made.items()}, 30, 20)
    traces = {name: tracing(tx, params, params, optax.apply_updates) for name, tx in made.items()}
    traced = seconds(traces, 5)
    leaves = len(jax.tree.leaves(params))
    rows = []
    for name, tx in made.items():
        count, flops = operations(tx, params)
        rows.append([
            name,
            1e6 * times[name],
            times[name] / times["adamw, one rate"],
            size(tx.init(params)),
            str(count),
            str(int(flops)),
            1e3 * traced[name],
            calls(traces[name]) / leaves,
        ])
    heads = ["way", "us", "x one rate", "state, B", "HLO", "FLOPs", "tracing, ms", "calls a leaf"]
    table(f"A step of {leaves} leaves, {BLOCKS + 2} rates; params and state donated", heads, rows)


if __name__ == "__main__":
    main()
