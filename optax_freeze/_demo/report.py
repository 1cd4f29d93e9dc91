"""The demonstration from end to end, and the tables of what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from optax_freeze import leaf_paths, trainable_mask
from optax_freeze._demo.digits import (
    DECAY,
    RATE,
    Digits,
    Result,
    Way,
    accuracy,
    draw,
    five_from,
    frozen_leaves,
    largest_change,
    learn,
    load,
    new_params,
    same_bits,
    ways,
)

PRETRAINING, WAYS = 400, 5


def demonstrate(freeze: list[str] | None, train: list[str] | None, *, steps: int, seed: int) -> int:
    """Pretrain on the digits 0-4, learn 5-9 in five ways, and print what became of the frozen part.

    Args:
        freeze: path patterns of what must not move.
        train: path patterns of what may, and nothing else.
        steps: how many training steps each way takes.
        seed: of the random numbers.

    Returns:
        0 if the ways of this library left every frozen bit alone, else 1.

    Raises:
        SpecError: a pattern that matches nothing.
        ModuleNotFoundError: without scikit-learn.
    """
    rng = np.random.default_rng(seed)
    params = new_params(rng)
    trains = trainable_mask(params, freeze=freeze, trainable=train)
    digits = load()
    first, first_held_out = five_from(0, digits, rng)
    then, held_out = five_from(5, digits, rng)
    with _progress(PRETRAINING + WAYS * steps) as doing:
        everything = Way("", is_ours=False, tx=optax.adam(RATE), trained=params)
        batches = draw(PRETRAINING, first, rng)
        pretrained = learn(everything, first, batches, doing("pretraining")).params
        before = {**pretrained, "head": new_params(rng)["head"]}
        batches = draw(steps, then, rng)
        results = [
            (way, learn(way, then, batches, doing(way.name))) for way in ways(before, freeze, train)
        ]

    # No markup: a spec such as encoder[0] is not a style.
    console = Console(highlight=False, markup=False, emoji=False)
    right = accuracy(pretrained, first_held_out)
    console.print(f"Pretrained on the digits 0-4: {right:.1%} of the held-out ones are right.")
    console.print(
        f"Then 5-9 with a new head, five ways (steps {steps}, rate {RATE}, decay "
        f"{DECAY}, seed {seed}):\n"
    )
    console.print(_parts(before, trains))
    console.print()
    return _report(console, results, before, trains, held_out)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], Callable[[], None]]]:
    """A progress bar, where somebody watches; it yields what names the task and returns a tick."""
    console = Console(stderr=True)  # the results alone go into a pipe
    columns = (TextColumn("{task.description:22}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=total)

        def doing(name: str) -> Callable[[], None]:
            progress.update(task, description=name)
            return lambda: progress.advance(task)

        yield doing


def _parts(params: Any, trains: Any) -> Table:
    grid = Table.grid("title", Column(justify="right"), "names", padding=(0, 2, 0, 0))
    named = zip(leaf_paths(params), jax.tree.leaves(params), jax.tree.leaves(trains), strict=True)
    leaves = list(named)
    for title, flag in (("frozen", False), ("trains", True)):
        chosen = [(name, leaf.size) for name, leaf, its_flag in leaves if its_flag is flag]
        size = sum(size for _, size in chosen)
        grid.add_row(title, f"{size:,} weights", ", ".join(name for name, _ in chosen))
    return grid


def _distance(change: float) -> str:
    return f"{change:.2g}" if np.isfinite(change) else "diverged"


def _report(
    console: Console,
    results: Sequence[tuple[Way, Result]],
    before: Any,
    trains: Any,
    held_out: Digits,
) -> int:
    """Print what the ways did; return 1 if one of this library moved what is frozen, else 0."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("frozen\nmoved by", "held-out\naccuracy", "state\nbytes", "FLOPs\na step"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("the frozen\npart")
    old = frozen_leaves(before, trains)
    unchanged, changed = [], []
    for way, result in results:
        new = frozen_leaves(result.params, trains)
        is_same = same_bits(old, new)
        (unchanged if is_same else changed).append(way)
        table.add_row(
            way.name,
            _distance(largest_change(old, new)) if old else "-",
            f"{accuracy(result.params, held_out):.1%}",
            f"{result.state_bytes:,}",
            "?" if result.flops is None else f"{result.flops:,.0f}",
            Text(way.note if is_same else "MOVED", style="" if is_same else "red") if old else "",
        )
    console.print(table)
    console.print()
    if not any(jax.tree.leaves(trains)):
        console.print("Nothing trains with these SPECs: the accuracy is that of a random head.")
    if not old:
        console.print("Nothing is frozen with these SPECs: there are no frozen bits to compare.")
        return 0
    for way in changed:
        console.print(f"Frozen bits CHANGED by {way.name}: {way.culprit}.", style="red")
    if unchanged:
        names = ", ".join(way.name for way in unchanged)
        console.print(f"Frozen bits UNCHANGED by {names}.", style="bold green")
    return int(any(way.is_ours for way in changed))
