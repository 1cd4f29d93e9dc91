"""`python -m optax_freeze show`: the summary of a checkpoint."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optax
from rich.console import Console

from optax_freeze import summary
from optax_freeze._checkpoints.reading import read

PATIENCE = 1.0  # seconds without a word


def show(
    file: Path,
    freeze: list[str] | None,
    trainable: list[str] | None,
    *,
    tx: optax.GradientTransformation | None,
    depth: int | None,
    as_json: bool,
) -> None:
    """Print what trains in a checkpoint.

    Args:
        file: a file or a folder.
        freeze: path patterns of what must not move.
        trainable: path patterns of what may, and nothing else.
        tx: an optimizer whose state to count.
        depth: how many segments of a path to show.
        as_json: print the totals and a row for each leaf as data.

    Raises:
        CheckpointError: a file that cannot be shown.
        SpecError: a pattern that matches nothing.
    """
    with _patience(f"reading {file}"):
        shown = summary(read(file), freeze, trainable=trainable, tx=tx, depth=depth)
    console = Console()
    if as_json:
        print(json.dumps(shown.as_dict(), indent=2), flush=True)
    elif console.is_terminal:
        console.print(shown)
    else:  # what goes into a file or a pipe leaves no column out
        print(shown, flush=True)


def optimizer(name: str) -> optax.GradientTransformation:
    """An optimizer of Optax, by its name.

    Args:
        name: such as `adamw`.

    Returns:
        The optimizer, with a learning rate of 1: the size of its state does not depend on it.

    Raises:
        ArgumentTypeError: if Optax has none of that name, or one that wants more than a rate.
    """
    known = _optimizers()
    if name not in known:
        close = difflib.get_close_matches(name, known) or known
        raise argparse.ArgumentTypeError(
            f"{name!r} is no optimizer of Optax that needs only a learning rate; "
            f"closest: {', '.join(close)}"
        )
    return known[name](learning_rate=1.0)


def _optimizers() -> dict[str, Callable[..., Any]]:
    import optax.contrib

    public = {**vars(optax.contrib), **vars(optax)}
    return {
        name: function
        for name, function in sorted(public.items())
        if inspect.isfunction(function)
        and not name.startswith(("_", "scale_by"))
        and _wants_only_a_rate(function)
    }


def _wants_only_a_rate(function: Callable[..., Any]) -> bool:
    rest = dict(inspect.signature(function).parameters)
    rate = rest.pop("learning_rate", None)
    return rate is not None and all(
        parameter.default is not parameter.empty for parameter in rest.values()
    )


@contextlib.contextmanager
def _patience(what: str) -> Iterator[None]:
    """Say what takes so long, where somebody watches."""
    console = Console(stderr=True, markup=False)  # the summary alone goes into a pipe
    if not console.is_terminal:
        yield
        return
    status = console.status(what)
    timer = threading.Timer(PATIENCE, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
