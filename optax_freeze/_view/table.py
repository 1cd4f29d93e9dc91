"""One table, as plain text, for rich and as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

HEAD = ("path", "class or array", "parameters", "bytes", "status")
WIDTH = 80
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_LEAST = 16  # columns for a path, however narrow the terminal
_STYLES = {"trains": "green", "mixed": "bold", "frozen": "", "left out": "dim", "-": "dim"}
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
        is_left_out: whether the line stands for what is not in the tree, such as a hole.
    """

    name: str
    indent: int
    what: str
    parameters: int
    trainable: int
    bytes: int
    is_left_out: bool = False

    @property
    def status(self) -> str:
        """How much of it trains, in a word or two."""
        if self.is_left_out:
            return "left out"
        if not self.parameters:
            return "-"
        if self.trainable in {0, self.parameters}:
            return "trains" if self.trainable else "frozen"
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


def layout(lines: Sequence[Line], width: int = WIDTH) -> Iterator[tuple[str, str, str]]:
    """The table as text.

    Args:
        lines: the lines.
        width: how many columns there are. A path that is too long for its column reaches into the
            next one if that is empty, and stands on a line of its own if it is not.

    Yields:
        For the head and each line the text up to the status, the status, and its style.
    """
    cells = [HEAD[1:], *(line.cells for line in lines)]
    what, count, memory, _ = (max(map(len, column)) for column in zip(*cells, strict=True))
    names = [HEAD[0], *("  " * line.indent + line.name for line in lines)]
    status = max(len(row[-1]) for row in cells)
    room = max(width - (what + count + memory + status + 8), _LEAST)
    column = min(max(map(len, names)), room)
    styles = ["bold", *(line.style for line in lines)]
    for name, row, style in zip(names, cells, styles, strict=True):
        first = ""
        if len(name) > (column if row[0] else column + what + 2):
            first, name = f"{name}\n", ""
        left = f"{name:{column}}  {row[0]:{what}}" if row[0] else f"{name:{column + what + 2}}"
        yield f"{first}{left}  {row[1]:>{count}}  {row[2]:>{memory}}  ", row[3], style


def as_text(lines: Sequence[Line], foot: Iterable[str]) -> str:
    """The table as plain text."""
    body = [text + status for text, status, _ in layout(lines)]
    return "\n".join([*body, "", *foot])


def as_rich(lines: Sequence[Line], foot: Iterable[str], width: int) -> Any:
    """The table as a `rich.text.Text`: coloured where it helps, and readable without."""
    from rich.text import Text

    table = Text()
    for text, status, style in layout(lines, width):
        table.append(text, "bold" if style == "bold" and status == HEAD[-1] else "")
        table.append(f"{status}\n", style)
    return table.append("\n" + "\n".join(foot))


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
