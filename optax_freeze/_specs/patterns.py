"""Path patterns: `encoder.*.bias`, `**.bias`, `blocks[:-2]`, `Dense_[0].kernel`."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from optax_freeze._specs.numbered import (
    by_subscripts,
    integer_children,
    may_hold,
    numbered_siblings,
    pick,
)
from optax_freeze._trees import Name

_SEGMENT = re.compile(r"([^\[\]]*)((?:\[[^\[\]]*\])*)")
_SUBSCRIPT = re.compile(r"\[([^\[\]]*)\]")
_INDEX = re.compile(r"[+-]?\d+")
_SLICE = re.compile(r"([+-]?\d+)?:([+-]?\d+)?(?::([+-]?\d+)?)?")


class PatternError(ValueError):
    """A text that is not a path pattern; the message says what is wrong with it."""


class Segment(NamedTuple):
    """What a pattern says about one segment of a path.

    Attributes:
        text: the segment's name, possibly with wildcards; `""` for a bare subscript; `"**"`.
        subscripts: indices and slices behind it, in order.
    """

    text: str
    subscripts: tuple[int | slice, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether this is `**`, which takes any number of segments."""
        return self.text == "**"

    @property
    def is_wild(self) -> bool:
        """Whether the name has wildcards."""
        return "*" in self.text or "?" in self.text

    @property
    def names_something(self) -> bool:
        """Whether it says more than that there is a segment."""
        return bool(self.text.strip("*?") or self.subscripts)

    def fits(self, segment: str) -> bool:
        """Whether a segment of a path has this name."""
        return bool(_glob(self.text).fullmatch(segment)) if self.is_wild else self.text == segment

    def select(self, parent: Name, *, spelled: bool) -> list[Name]:
        """The names that this segment means.

        Args:
            parent: the name that they continue.
            spelled: whether it was reached without wildcards.

        Returns:
            The names; among them places that an index or a slice was asked of.
        """
        if self.text == "":
            return by_subscripts([parent], self.subscripts, spelled=spelled)
        if self.is_wild:
            named = [child for key, child in parent.children.items() if self.fits(key)]
        else:
            child = parent.children.get(self.text)
            named = [child] if child else []
        if not self.subscripts:
            return named
        spelled = spelled and not self.is_wild
        places = [child.place for child in named if may_hold(child, spelled=spelled)]
        holders = [child for child in named if integer_children(child)]
        if holders or places:
            return places + by_subscripts(holders, self.subscripts, spelled=spelled)
        first, *others = self.subscripts
        groups = numbered_siblings(parent, self.fits)
        siblings = [name for group in groups for name in pick(group, first)]
        return by_subscripts(siblings, others, spelled=spelled)


@functools.lru_cache(maxsize=256)
def _glob(text: str) -> re.Pattern[str]:
    return re.compile(_regex(text), re.DOTALL)


def _regex(text: str) -> str:
    first, *others = (re.escape(piece).replace(r"\?", "[^.]") for piece in text.split("*"))
    if not others:
        return first
    *middle, last = others
    # The first fit of a piece is as good as any later one, so there is no going back over it:
    # going back takes minutes where many pieces nearly fit.
    return f"{first}{''.join(f'(?>[^.]*?{piece})' for piece in middle)}[^.]*{last}"


def _parse_subscript(text: str) -> int | slice:
    if _INDEX.fullmatch(text):
        return int(text)
    bounds = _SLICE.fullmatch(text)
    if bounds is None:
        raise PatternError(
            f"[{text}] is neither an index such as [0] nor a slice such as [:-2]; keys are joined "
            "by dots, and '*' stands for any of them: 'encoder.*.w'"
        )
    start, stop, step = (None if bound is None else int(bound) for bound in bounds.groups())
    if step == 0:
        raise PatternError(f"the step of the slice [{text}] is zero")
    return slice(start, stop, step)


def parse(pattern: str) -> list[Segment]:
    """Read a path pattern.

    Args:
        pattern: the text.

    Returns:
        Its segments, in order; of several `**` in a row only one.

    Raises:
        PatternError: an empty segment, or brackets that are not an index or a slice.
    """
    segments: list[Segment] = []
    for position, part in enumerate(pattern.split(".")):
        cut = _SEGMENT.fullmatch(part)
        if cut is None:
            raise PatternError(f"the brackets in {part!r} do not close, or text follows them")
        text, brackets = cut.groups()
        if not part:
            raise PatternError(
                "it has an empty segment: a dot too many (a regular expression is passed as "
                "re.compile(...))"
            )
        if not text and position:
            raise PatternError(f"write the brackets without a dot before them: {brackets!r}")
        subscripts = tuple(map(_parse_subscript, _SUBSCRIPT.findall(brackets)))
        if text != "**":
            segments.append(Segment(text, subscripts))
            continue
        if not (segments and segments[-1].is_any):
            segments.append(Segment("**"))
        if subscripts:  # of a node at any depth
            segments.append(Segment("", subscripts))
    return segments


def beginning(segments: Sequence[Segment]) -> re.Pattern[str]:
    """A quick look by names alone, which tells all unless there are subscripts or places.

    Args:
        segments: the parsed pattern.

    Returns:
        A regex for how the dotted name of a leaf begins that a pattern means, or may mean: what
        subscripts select depends on what there is, so that it says nothing from there on.
    """
    regex = ""
    for position, segment in enumerate(segments):
        if segment.is_any:
            regex += r"(?:.*\.)?"
            continue
        regex += _regex(segment.text)
        if segment.subscripts:
            break
        is_last = all(other.is_any for other in segments[position + 1 :])
        regex += r"(?:\.|\Z)" if is_last else r"\."
    return re.compile(regex, re.DOTALL)


def match(names: Name, segments: list[Segment]) -> list[Name]:
    """The names that a pattern means, searched from `names` downwards.

    Args:
        names: where to start; the name of the whole tree.
        segments: the parsed pattern.

    Returns:
        The names, without those that lie below another one through a final `**`. A place that is
        met before the pattern ends is among them: what the pattern means may have been there.
    """
    found: set[Name] = set()
    seen: set[tuple[Name, int]] = set()
    stack = [(names, 0, True)]
    while stack:
        name, position, spelled = stack.pop()
        if (name, position) in seen:
            continue
        seen.add((name, position))
        rest = segments[position:]
        if not rest or (rest[0].is_any and len(rest) == 1):
            found.add(name)
            continue
        if may_hold(name, spelled=spelled):
            found.add(name.place)
        if rest[0].is_any:
            below = name.children.values()
            stack.append((name, position + 1, spelled))
            stack.extend(
                (child, position, False) for child in below if child.is_hole or not child.is_end
            )
        else:
            below = rest[0].select(name, spelled=spelled)
            spelled = spelled and not rest[0].is_wild
            stack.extend((child, position + 1, spelled) for child in below)
    return list(found)
