"""The demonstration: transfer learning on real digits, and what became of the frozen part."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from optax_freeze import SpecError, leaf_paths, trainable_mask
from optax_freeze import _demo as demo

COMMAND = "python -m optax_freeze"
PRETRAINING, WAYS = 400, 5
ABOUT = """\
Pretrain a small network on the handwritten digits 0-4, then learn 5-9 with a
part of it frozen, in five ways, and see what each did to the frozen part."""
SPECS = """\
A SPEC says which leaves (quote it: the shell has its own plans for * and [):
  encoder            a subtree; whole names only: 'enc' is not 'encoder'
  encoder.0.weight   one leaf, by its dotted path
  '*.weight'         * and ? stand for text inside one name: head.weight
  '**.bias'          ** stands for any number of names: every bias
  'encoder[-1]'      a child by its index; 'encoder[:-1]' all but the last one
Several mean whatever any of them matches, and what --freeze matches is carved
out of --train. A SPEC that matches nothing is an error. From Python it may also
be a regex, a class or a function. Leaves here: weight and bias of encoder.0,
encoder.1 and head. Default: --freeze encoder"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration.

    Args:
        argv: the arguments of the command line; by default those of the process.

    Returns:
        The exit code: 0 if the ways of this library left every frozen bit alone, 1 if one did not,
        2 if the arguments or the surroundings do not allow to find out.
    """
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # so that argparse answers with a code as everything here does
        return int(stop.code or 0)
    freeze = ["encoder"] if args.freeze is None and args.train is None else args.freeze
    rng = np.random.default_rng(args.seed)
    params = demo.new_params(rng)
    try:
        trains = trainable_mask(params, freeze=freeze, trainable=args.train)
        digits = demo.load()
    except SpecError as error:
        return _refuse(str(error))
    except ModuleNotFoundError:
        return _refuse("the digits need scikit-learn: pip install 'optax-freeze[demo]'")

    first, first_held_out = demo.five_from(0, digits, rng)
    then, held_out = demo.five_from(5, digits, rng)
    with _progress(PRETRAINING + WAYS * args.steps) as doing:
        everything = demo.Way("", is_ours=False, tx=optax.adam(demo.RATE), trained=params)
        batches = demo.draw(PRETRAINING, first, rng)
        pretrained = demo.learn(everything, first, batches, doing("pretraining")).params
        before = {**pretrained, "head": demo.new_params(rng)["head"]}
        batches = demo.draw(args.steps, then, rng)
        results = [
            (way, demo.learn(way, then, batches, doing(way.name)))
            for way in demo.ways(before, freeze, args.train)
        ]

    # No markup: a spec such as encoder[0] is not a style.
    console = Console(highlight=False, markup=False, emoji=False)
    right = demo.accuracy(pretrained, first_held_out)
    console.print(f"Pretrained on the digits 0-4: {right:.1%} of the held-out ones are right.")
    console.print(
        f"Then 5-9 with a new head, five ways (steps {args.steps}, rate {demo.RATE}, decay "
        f"{demo.DECAY}, seed {args.seed}):\n"
    )
    console.print(_parts(before, trains))
    console.print()
    return _report(console, results, before, trains, held_out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=ABOUT,
        epilog=SPECS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "metavar": "SPEC"}
    parser.add_argument("--freeze", help="what must not move", **many)
    parser.add_argument("--train", help="what may move, and nothing else", **many)
    steps = {"type": _whole(1, 10_000), "metavar": "N", "default": 600}
    parser.add_argument("--steps", help="training steps of each way (default: 600)", **steps)
    seed = {"type": _whole(0, 2**32 - 1), "metavar": "N", "default": 0}
    parser.add_argument("--seed", help="of the random numbers (default: 0)", **seed)
    return parser


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {low} to {high}")
        return number

    return read


def _refuse(problem: str) -> int:
    sys.stderr.write(f"{COMMAND}: {problem}\n")
    return 2


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
    results: Sequence[tuple[demo.Way, demo.Result]],
    before: Any,
    trains: Any,
    held_out: demo.Digits,
) -> int:
    """Print what the ways did; return 1 if one of this library moved what is frozen, else 0."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("frozen\nmoved by", "held-out\naccuracy", "state\nbytes", "FLOPs\na step"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("the frozen\npart")
    old = demo.frozen_leaves(before, trains)
    unchanged, changed = [], []
    for way, result in results:
        new = demo.frozen_leaves(result.params, trains)
        is_same = demo.same_bits(old, new)
        (unchanged if is_same else changed).append(way)
        table.add_row(
            way.name,
            _distance(demo.largest_change(old, new)) if old else "-",
            f"{demo.accuracy(result.params, held_out):.1%}",
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


if __name__ == "__main__":
    sys.exit(main())
