"""The command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from optax_freeze import SpecError
from optax_freeze._checkpoints import CheckpointError, optimizer, show
from optax_freeze._demo import demonstrate

COMMAND = "python -m optax_freeze"
ABOUT = """\
Pretrain a small network on the handwritten digits 0-4, then learn 5-9 with a
part of it frozen, in five ways, and see what each did to the frozen part.

To see what would freeze in a checkpoint: python -m optax_freeze show --help"""
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


SHOW = "show"
ABOUT_SHOW = """\
Show what trains in a checkpoint, how many parameters and bytes: from the
headers alone, so in seconds whatever its size. FILE is a .safetensors file, the
.index.json of its shards, an .npz file, or a folder of Orbax."""
EXAMPLES = """\
examples:
  python -m optax_freeze show model.safetensors
  python -m optax_freeze show model.safetensors.index.json --depth 3 \\
      --freeze embeddings --freeze 'encoder.layer[:-2]' --optimizer adamw
  python -m optax_freeze show params.npz --trainable '**.bias' --json

A SPEC is one as in python -m optax_freeze --help; one that matches nothing is
an error. What --freeze matches is carved out of --trainable."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration, or show a checkpoint.

    Args:
        argv: the arguments of the command line; by default those of the process.

    Returns:
        The exit code: 0 if the ways of this library left every frozen bit alone, or the checkpoint
        is shown; 1 if one of them did not; 2 if the arguments or the surroundings do not allow to
        find out.
    """
    words = sys.argv[1:] if argv is None else argv
    run, parser = (_show, _show_parser()) if words[:1] == [SHOW] else (_demonstrate, _parser())
    try:
        args = parser.parse_args(words[words[:1] == [SHOW] :])
    except SystemExit as stop:  # so that argparse answers with a code as everything here does
        return int(stop.code or 0)
    return run(args)


def _show(args: argparse.Namespace) -> int:
    choice = {"tx": args.optimizer, "depth": args.depth, "as_json": args.json}
    try:
        show(args.file, args.freeze, args.trainable, **choice)
    except (SpecError, CheckpointError) as error:
        return _refuse(str(error))
    except BrokenPipeError:  # of `show FILE | head`: nobody reads the rest, which Python still has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _demonstrate(args: argparse.Namespace) -> int:
    freeze = ["encoder"] if args.freeze is None and args.train is None else args.freeze
    try:
        return demonstrate(freeze, args.train, steps=args.steps, seed=args.seed)
    except SpecError as error:
        return _refuse(str(error))
    except ModuleNotFoundError:
        return _refuse("the digits need scikit-learn: pip install 'optax-freeze[demo]'")


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


def _show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{COMMAND} {SHOW}",
        description=ABOUT_SHOW,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the checkpoint")
    several: dict[str, Any] = {"action": "append", "metavar": "SPEC"}
    parser.add_argument("--freeze", help="what must not move; may be given again", **several)
    parser.add_argument("--trainable", help="what may, and nothing else; likewise", **several)
    about = "count the bytes of its state, too: adamw, sgd, lion, ..."
    parser.add_argument("--optimizer", type=optimizer, metavar="NAME", help=about)
    depth = {"type": _whole(0, 1_000), "metavar": "N"}
    parser.add_argument("--depth", help="how many segments of a path the table shows", **depth)
    parser.add_argument("--json", action="store_true", help="print rows as data, no table")
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


if __name__ == "__main__":
    sys.exit(main())
