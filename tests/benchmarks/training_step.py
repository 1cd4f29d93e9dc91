"""What does a training step cost, in one jit, 90 % frozen?"""

import jax
import optax

import optax_freeze
from tests.costs import (
    Case,
    Way,
    by_hand,
    by_split,
    by_trainable_only,
    costs,
    dense,
    dense_loss,
    size,
)

from .measure import ABSENT, peer, seconds, table

CASE = Case(
    lambda: dense(layers=13, width=256, batch=64),
    dense_loss,
    [f"layer{i:02}" for i in range(12)],
    lambda name: name >= "layer12",
    92,
)
ADAMW = optax.adamw(1e-3)
CLIP = optax.clip_by_global_norm(1.0)


def whole_tree(tx):
    params, _ = CASE.model()

    def gradient(params, rest, batch):
        return jax.value_and_grad(CASE.loss)(params, batch)

    return Way(params, (), gradient, tx, optax.apply_updates)


def by_equinox(tx):
    eqx = peer("equinox")
    if eqx is None:
        return None
    params, _ = CASE.model()
    variables, rest = eqx.partition(params, optax_freeze.freeze_mask(params, CASE.freeze))

    def gradient(variables, rest, batch):
        return jax.value_and_grad(lambda some: CASE.loss(eqx.combine(some, rest), batch))(variables)

    return Way(variables, rest, gradient, tx, eqx.apply_updates)


def ways(clip=False):
    params, _ = CASE.model()
    trains = optax_freeze.freeze_mask(params, CASE.freeze)
    freezes = jax.tree.map(lambda flag: not flag, trains)
    labels = jax.tree.map(lambda flag: "trains" if flag else "frozen", trains)

    def chain(*links):
        return optax.chain(CLIP, *links) if clip else optax.chain(*links)

    return {
        "by hand": by_hand(CASE, chain(ADAMW)),
        "value_and_grad + trainable_only": by_trainable_only(CASE, chain(ADAMW)),
        "split + merge": by_split(CASE, chain(ADAMW)),
        "trainable_only alone": whole_tree(optax_freeze.trainable_only(chain(ADAMW), CASE.freeze)),
        "optax.selective_transform": whole_tree(
            chain(optax.selective_transform(ADAMW, freeze_mask=freezes))
        ),
        "optax.partition": whole_tree(
            chain(optax.partition({"trains": ADAMW, "frozen": optax.set_to_zero()}, labels))
        ),
        "chain(optax.freeze, adamw), not frozen": whole_tree(chain(optax.freeze(freezes), ADAMW)),
        "chain(adamw, optax.freeze)": whole_tree(chain(ADAMW, optax.freeze(freezes))),
        "equinox.partition + combine": by_equinox(chain(ADAMW)),
    }


def step_of(way, norm=False):
    def step(variables, state, rest, batch):
        loss, grads = way.gradient(variables, rest, batch)
        updates, state = way.tx.update(grads, state, variables)
        logged = optax.tree.norm(grads) if norm else loss
        return way.apply(variables, updates), state, loss, logged

    return step


def running(way, batch, norm):
    """A function that runs one more step."""
    step = jax.jit(step_of(way, norm), donate_argnums=(0, 1))
    variables, rest, batch = jax.device_put((way.variables, way.rest, batch))
    held = [variables, way.tx.init(variables)]

    def run():
        *held[:], loss, _ = step(*held, rest, batch)
        jax.block_until_ready((held, loss))

    return run


def main():
    _, batch = CASE.model()
    kinds = {
        "": {},
        ", clipping in front": {"clip": True},
        ", logging the norm of the gradient": {"norm": True},
    }
    for kind, options in kinds.items():
        norm = options.get("norm", False)
        found = ways(options.get("clip", False))
        there = {name: way for name, way in found.items() if way}
        times = seconds({name: running(way, batch, norm) for name, way in there.items()}, 30)
        counts = {}
        for name, way in there.items():
            state = jax.eval_shape(way.tx.init, way.variables)
            program = costs(
                step_of(way, norm), way.variables, state, way.rest, batch, donate=(0, 1)
            )
            arguments = size((way.variables, state, way.rest, batch))
            counts[name] = *program, arguments, size(state)
        ideal = counts["by hand"]
        rows = []
        for name in found:
            if name not in there:
                rows.append([name, ABSENT, *[None] * 7])
                continue
            flops, bytes_accessed, temp, peak, arguments, state = counts[name]
            rows.append([
                name,
                1e3 * times[name],
                times[name] / times["by hand"],
                f"{flops / ideal[0]:.3f}",
                f"{bytes_accessed / ideal[1]:.3f}",
                f"{temp / ideal[2]:.3f}",
                temp / 1e6,
                (arguments + peak) / 1e6,
                state / 1e6,
            ])
        table(
            f"A step of a dense network, 12 of 13 layers frozen{kind}; params and state donated",
            [
                "way",
                "ms",
                "x by hand",
                "FLOPs x",
                "bytes x",
                "temp x",
                "temp MB",
                "peak MB",
                "state MB",
            ],
            rows,
        )


if __name__ == "__main__":
    main()
