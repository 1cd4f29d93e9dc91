"""Timing, counting and one table: what the benchmarks have in common."""

from __future__ import annotations

import gc
import importlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import rich.box
import rich.console
import rich.table

ABSENT = "not installed"


def peer(name: str) -> Any:
    """A library to compare with, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def seconds(ways: dict[str, Any], repeats: int = 15, number: int = 1) -> dict[str, float]:
    """The median seconds of each function, all of them called in turns.

    Args:
        ways: functions without arguments, by name. One that returns a float has measured itself.
        repeats: how often each is measured, after a first time that does not count.
        number: how many calls are measured together.

    Returns:
        Seconds of one call, by name.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            gc.collect()
            gc.disable()
            start = time.perf_counter()
            for _ in range(number):
                result = way()
            end = time.perf_counter()
            gc.enable()
            if turn:
                taken[name].append(result if isinstance(result, float) else (end - start) / number)
            del result
    return {name: statistics.median(times) for name, times in taken.items()}


def calls(way: Any) -> int:
    """How many calls of functions, in Python and in C, one call makes."""
    count = 0

    def see(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    way()
    gc.disable()
    sys.setprofile(see)
    try:
        way()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def instructions(script: str, way: str) -> float | None:
    """How many machine instructions one call of a way of a script takes, by valgrind.

    Args:
        script: the module, which has a function `ways()`.
        way: the name of the way.

    Returns:
        The difference that a call makes; None without valgrind.
    """
    if shutil.which("valgrind") is None:
        return None
    counts = [_instructions(script, way, times) for times in (2, 7)]
    return (counts[1] - counts[0]) / 5


def _instructions(script: str, way: str, times: int) -> int:
    code = (
        f"import gc, {script} as script\n"
        f"way = script.ways()[{way!r}]\n"
        f"gc.collect(); gc.disable()\n"
        f"for _ in range({times}): way()"
    )
    with tempfile.NamedTemporaryFile() as out:
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}"]
        done = subprocess.run(
            [*valgrind, sys.executable, "-c", code], capture_output=True, text=True
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise RuntimeError(done.stderr[-2000:])
    return int(found[1])


def table(title: str, heads: list[str], rows: list[list[Any]]) -> None:
    """Print rows of texts and numbers."""
    shown = rich.table.Table(
        title=title, title_justify="left", title_style="bold", box=rich.box.MARKDOWN
    )
    for place, head in enumerate(heads):
        shown.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*map(_text, row))
    rich.console.Console(width=160).print(shown, "")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"
    return str(value)


def compare(
    title: str,
    ways: dict[str, Any],
    ideal: str,
    *,
    unit: str = "ms",
    scale: float = 1e3,
    leaves: int | None = None,
    repeats: int = 15,
    number: int = 1,
    script: str = "",
) -> None:
    """Time some ways, count their calls, and print them beside the ideal.

    Args:
        title: above the table.
        ways: functions without arguments, by name; None for a peer that is not installed.
        ideal: the name of the way that the others are compared with.
        unit: of the times, for the head of their column.
        scale: how many of it make a second.
        leaves: calls and instructions are said for each of so many leaves; not at all if None.
        repeats: how often each way is timed.
        number: how many calls are timed together.
        script: the module whose `ways()` these are, to count instructions with valgrind.
    """
    found = {name: way for name, way in ways.items() if way is not None}
    times = seconds(found, repeats, number)
    heads = ["way", unit, f"x {ideal}"]
    if leaves:
        heads.append("calls a leaf")
    if script:
        heads.append("instructions a leaf")
    rows: list[list[Any]] = []
    for name, way in ways.items():
        if way is None:
            rows.append([name, ABSENT, *[None] * (len(heads) - 2)])
            continue
        row: list[Any] = [name, times[name] * scale, times[name] / times[ideal]]
        if leaves:
            row.append(calls(way) / leaves)
        if script:
            count = instructions(script, name)
            row.append(count and leaves and count / leaves)
        rows.append(row)
    table(title, heads, rows)
