"""What texts say of names and arrays: how they are shown, and which name may have been meant."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Iterable, Sequence
from typing import Any

_SHORTLIST = 60
_MEASURED = 200
SHOWN = 6  # texts in a list of problems


def quote(name: str) -> str:
    """A dotted name as error texts show it."""
    return "the tree itself" if name == "" else repr(name)


def array_text(dtype: Any, shape: Sequence[Any]) -> str:
    """A dtype and a shape as texts show them: `f32[2,3]`."""
    short = re.sub(r"^(b?f|i|u|c)[a-z]+(?=\d)", r"\1", str(dtype))
    return f"{short}[{','.join(map(str, shape))}]"


def listing(items: Sequence[str]) -> str:
    """The first few of some texts, and how many more there are."""
    more = len(items) - SHOWN
    return "; ".join(items[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def closest(text: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """The candidates most like a text.

    `difflib` over every path of a large tree takes minutes, so a cheap measure, how many pairs of
    neighbouring letters a candidate shares with the text, makes a short list first.

    Args:
        text: what was written.
        candidates: what there is.
        count: how many to return at most.

    Returns:
        The closest candidates, best first; none that is not close at all.
    """
    text = text[:_MEASURED]
    pairs = {text[i : i + 2] for i in range(len(text) - 1)} or {text}

    def shared(candidate: str) -> float:
        return sum(map(candidate.__contains__, pairs)) - 0.1 * abs(len(candidate) - len(text))

    shortlist = heapq.nlargest(_SHORTLIST, candidates, key=shared)
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(text)
    scored = []
    for candidate in shortlist:
        matcher.set_seq1(candidate[:_MEASURED])
        scored.append((matcher.ratio(), candidate))
    scored.sort(key=lambda pair: -pair[0])
    return [name for ratio, name in scored[:count] if ratio >= 0.5 or text in name]
