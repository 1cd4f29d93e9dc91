"""Numbered children and siblings, and what an index or a slice selects of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from optax_freeze._trees import Name, is_variable

_INTEGER = re.compile(r"-?\d+")
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)

Numbered = list[tuple[int, Name]]


def may_hold(name: Name, *, spelled: bool) -> bool:
    """Whether what a pattern says may have been below this name, before it was left out.

    A hole may have held anything. None and the like are a place only for those who spell it: a
    missing bias must not satisfy every misspelt `**.pattern`.

    Args:
        name: a name that a pattern reached before its end.
        spelled: whether it was reached without wildcards.

    Returns:
        True where the rest of the pattern may be taken as satisfied.
    """
    return name.is_hole or (spelled and name.is_place)


def numbered_siblings(parent: Name, fits: Callable[[str], bool]) -> list[Numbered]:
    """The names such as `Dense_0`, `Dense_1` below a parent, in a group for each beginning."""
    groups: dict[str, Numbered] = {}
    for key, child in parent.children.items():
        numbered = _NUMBERED.fullmatch(key)
        if numbered and fits(numbered[1]):
            groups.setdefault(numbered[1], []).append((int(numbered[2]), child))
    for beginning, group in groups.items():
        # Haiku calls the first of them `linear`, the second `linear_1`.
        first = parent.children.get(beginning[:-1]) if beginning.endswith("_") else None
        if first and all(number for number, _ in group):
            group.append((0, first))
    return list(groups.values())


def integer_children(name: Name) -> Numbered:
    """The names below a name whose last segments are integers; of an NNX Variable, its value's."""
    value = (
        name.children.get("value") if any(is_variable(node.value) for node in name.nodes) else None
    )
    name = value or name
    return [(int(key), child) for key, child in name.children.items() if _INTEGER.fullmatch(key)]


def pick(numbered: Numbered, subscript: int | slice) -> list[Name]:
    """An index that is not negative goes by the number itself, all else by position."""
    if isinstance(subscript, int) and subscript >= 0:
        return [name for number, name in numbered if number == subscript]
    ordered = [name for _, name in sorted(numbered, key=lambda item: item[0])]
    if isinstance(subscript, slice):
        return ordered[subscript]
    return ordered[subscript:][:1] if -subscript <= len(ordered) else []


def by_subscripts(names: list[Name], by: Sequence[int | slice], *, spelled: bool) -> list[Name]:
    """What indices and slices, one behind the other, select below some names; places are kept."""
    for subscript in by:
        places = [name.place for name in names if may_hold(name, spelled=spelled)]
        picked = [found for name in names for found in pick(integer_children(name), subscript)]
        names = places + picked
    return names
