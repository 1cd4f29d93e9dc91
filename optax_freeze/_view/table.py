"""One table, as plain text, for rich and as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

HEAD = ("path", "class or array", "parameters", "bytes", "status")
WIDTH = 80
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_LEAST = 16  # columns for a path, unless only the most needful columns are left
# What to leave out in a narrow terminal: what is worth least comes first.
_WORTH = ((), HEAD[3:4], HEAD[1:2], (HEAD[1], HEAD[3]))
_BAR = " | "
_STYLES = {
    "trains": "green",
    "from": "green",
    "in stages": "green",
    "mixed": "bold",
    "frozen": "",
    "left out": "dim",
    "-": "dim",
}
_CSS = {"green": "color:#1a7f37", "bold": "font-weight:bold", "dim": "opacity:0.6", "": ""}


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        name: the path, below that of the line it is indented under.
        indent: how deep it stands.
        what: the class of a node; dtype and shape of an array.
        parameters: how many there are.
        trainable: how many of them train.
        bytes: how much memory they take.
        steps: from which steps they train.
        is_left_out: whether the line stands for what is not in the tree, such as a hole.
    """

    name: str
    indent: int
    what: str
    parameters: int
    trainable: int
    bytes: int
    steps: frozenset[int] = frozenset({0})
    is_left_out: bool = False

    @property
    def status(self) -> str:
        """How much of it trains, in a word or two."""
        if self.is_left_out:
            return "left out"
        if not self.parameters:
            return "-"
        if self.trainable == self.parameters:
            first, *others = sorted(self.steps)
            return "in stages" if others else f"from {first}" if first else "trains"
        if not self.trainable:
            return "frozen"
        share = 100 * self.trainable / self.parameters
        # What is mixed must not look like 0 or 100 percent.
        return f"mixed {min(max(share, 0.1), 99.9):.1f}%"

    @property
    def style(self) -> str:
        """The style in which rich shows the status."""
        return next(style for word, style in _STYLES.items() if self.status.startswith(word))

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """All columns but the first, as text."""
        count = f"{self.parameters:,}" if self.parameters else "-"
        return self.what, count, size(self.bytes) if self.bytes else "-", self.status


def size(count: int) -> str:
    """A number of bytes, for people."""
    if count < 1024:
        return f"{count} B"
    power = 1
    while count >= 999.95 * 1024**power and power < len(_UNITS):
        power += 1
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def layout(
    lines: Sequence[Line], width: int = WIDTH, left_out: Sequence[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """The table as text.

    Args:
        lines: the lines.
        width: how many columns of text there are. A path that is too long for its own reaches into
            the next one if that is empty, and stands on a line of its own if it is not.
        left_out: which columns of the table not to show.

    Yields:
        For the head and each line the text up to the status, the status, and its style.
    """
    names, rows = _names(lines), _rows(lines, left_out)
    widths = _widths(rows)
    least = _LEAST if left_out != _WORTH[-1] else 2
    column = min(max(map(len, names)), max(width - _needed(widths), least))
    aligns = ["<" if title == HEAD[1] else ">" for title in HEAD[1:-1] if title not in left_out]
    styles = ["bold", *(line.style for line in lines)]
    for name, row, style in zip(names, rows, styles, strict=True):
        first, room = "", column if row[0] else column + widths[0] + 2
        if len(name) > room:
            first, name = f"{name}\n", ""
        cells = [f"{name:{room}}"] + [
            f"{cell:{align}{size}}"
            for cell, align, size in zip(row[:-1], aligns, widths[:-1], strict=True)
            if cell
        ]
        yield f"{first}{'  '.join(cells)}  ", row[-1], style


def fitting(lines: Sequence[Line], width: int) -> Sequence[str]:
    """The columns to leave out, so that no number is broken where there is little room."""
    least = min(_LEAST, max(map(len, _names(lines))))
    fit = (it for it in _WORTH if _needed(_widths(_rows(lines, it))) + least <= width)
    return next(fit, _WORTH[-1])


def _names(lines: Sequence[Line]) -> list[str]:
    return [HEAD[0], *("  " * line.indent + line.name for line in lines)]


def _rows(lines: Sequence[Line], left_out: Sequence[str]) -> list[tuple[str, ...]]:
    """The cells of the head and of each line, without the path."""
    kept = [title not in left_out for title in HEAD[1:]]
    return [tuple(compress(cells, kept)) for cells in (HEAD[1:], *(line.cells for line in lines))]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _needed(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * len(widths)


def as_text(lines: Sequence[Line], foot: Iterable[str]) -> str:
    """The table as plain text."""
    body = [text + status for text, status, _ in layout(lines)]
    return "\n".join([*body, "", *foot])


def as_rich(lines: Sequence[Line], foot: Iterable[str], width: int) -> Any:
    """The table as a `rich.text.Text`: coloured where it helps, and readable without."""
    from rich.text import Text

    table, left_out = Text(), fitting(lines, width)
    for text, status, style in layout(lines, width, left_out):
        table.append(text, "bold" if style == "bold" and status == HEAD[-1] else "")
        table.append(f"{status}\n", style)
    below = [line for whole in foot for line in _broken(whole, width)]
    if left_out:
        below.append(f"left out in {width} columns: {', '.join(left_out)}")
    return table.append("\n" + "\n".join(below))


def _broken(line: str, width: int) -> list[str]:
    """A line in as many as it takes, broken at its bars."""
    broken = [""]
    for part in line.split(_BAR):
        longer = f"{broken[-1]}{_BAR}{part}" if broken[-1] else part
        broken[-1:] = [longer] if len(longer) <= width or not broken[-1] else [broken[-1], part]
    return broken


def as_html(lines: Sequence[Line], foot: Iterable[str]) -> str:
    """The table as HTML, on a light or a dark page."""
    left, right = (f"padding:0 0.6em;text-align:{side}" for side in ("left", "right"))
    aligns = (left, left, right, right, left)

    def row(tag: str, cells: Sequence[str], extras: Sequence[str]) -> str:
        styles = (";".join(filter(None, pair)) for pair in zip(aligns, extras, strict=True))
        pairs = zip(cells, styles, strict=True)
        return "".join(f'<{tag} style="{css}">{html.escape(cell)}</{tag}>' for cell, css in pairs)

    rows = [row("th", HEAD, [""] * 5)]
    for line in lines:
        indent = f"padding-left:{line.indent * 1.5 + 0.6:.1f}em"
        extras = (indent, "", "", "", _CSS[line.style])
        rows.append(row("td", (line.name, *line.cells), extras))
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    text = "<br>".join(map(html.escape, foot))
    return f'<div style="font-family:monospace"><table>{body}</table><p>{text}</p></div>'
