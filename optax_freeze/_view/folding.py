"""The lines of a table: one for each node, or for a run of siblings that look the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from optax_freeze._view.outline import Group
from optax_freeze._view.table import Line

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)
Run = tuple[str, Group, int]


def lines(root: Group, depth: int | None) -> list[Line]:
    """The lines of a table.

    A run of siblings that look the same is one line, `blocks[0:24]  x24`, with the sums of all of
    them, and so is what is below it: `24x f32[8]` holds 192 parameters. The text is a spec.
    A chain of plain containers with one child each is one line, too, and so is an instance of a
    class that holds one leaf: `norm.scale`, an `RMSNorm f32[8]`.

    Args:
        root: the whole tree.
        depth: how many segments of a path to show; None shows all.

    Returns:
        The lines, top down.
    """
    made = []
    stack = [(root, "", 0, 0, 1, 1)]
    while stack:
        group, name, level, indent, count, times = stack.pop()
        runs = [] if level == depth else _runs(group.children)
        what = ""
        while len(runs) == 1 and (not group.what or (group is not root and _is_one_leaf(runs[0]))):
            what += f"{group.what} " if group.what else ""
            segment, group, more = runs[0]
            name, level = _joined(name, segment), level + 1
            count, times = count * more, times * more
            runs = [] if level == depth else _runs(group.children)
        if group is not root or group.what:
            label = ("(whole tree)" if group is root else name) + (
                f"  x{count}" if count > 1 else ""
            )
            made.append(_line(group, label, what + group.what, indent, times))
            indent += group is not root
        below = [(child, segment, level + 1, indent, n, times * n) for segment, child, n in runs]
        stack.extend(reversed(below))
    return made


def _is_one_leaf(run: Run) -> bool:
    _, group, count = run
    return group.row is not None and count == 1


def _line(group: Group, name: str, what: str, indent: int, times: int) -> Line:
    row = group.row
    return Line(
        name,
        indent,
        f"{times}x {what}" if row and times > 1 else what,
        group.parameters * times,
        group.trainable * times,
        group.bytes * times,
        group.steps,
        is_left_out=row is not None and (row.kind.endswith("hole") or row.dtype == "float0"),
    )


def _joined(name: str, segment: str) -> str:
    return f"{name}.{segment}" if name and not segment.startswith("[") else name + segment


def _runs(children: Iterable[Group]) -> list[Run]:
    """Siblings for a table: numbered ones in numeric order, and those that look the same as one."""
    keyed = [(_NUMBERED.fullmatch(child.name), child) for child in children]
    numbers: dict[str, list[int]] = {}
    for match, _ in keyed:
        if match:
            numbers.setdefault(match[1], []).append(int(match[2]))
    runs: list[Run] = []
    for stem, siblings in groupby(keyed, key=lambda pair: pair[0] and pair[0][1]):
        if stem is None:
            runs += [(child.name or "''", child, 1) for _, child in siblings]
            continue
        ordered = [(int(match[2]), child) for match, child in siblings if match]
        ordered.sort(key=lambda pair: pair[0])
        for _, equal in groupby(ordered, key=lambda pair: pair[1].form):
            run = list(equal)
            runs.append((_range(stem, run, sorted(numbers[stem])), run[0][1], len(run)))
    return runs


def _range(stem: str, run: list[tuple[int, Group]], numbers: list[int]) -> str:
    """The text for a run of numbered siblings: a spec, unless their numbers have gaps."""
    (first, group), (last, other) = run[0], run[-1]
    if len(run) == 1:
        return f"[{group.name}]" if not stem else group.name
    # An index of a spec goes by the number, a slice by the position: here both must agree.
    if numbers[first : last + 1] == [number for number, _ in run] == list(range(first, last + 1)):
        return f"{stem}[{first}:{last + 1}]"
    return f"{group.name}..{other.name}" if stem else f"[{first}..{last}]"
