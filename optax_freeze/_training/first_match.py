"""Mappings from specs to what belongs to their leaves, of which the first match wins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from optax_freeze._masks import check_assigned, describe
from optax_freeze._specs import Spec, SpecError, read_specs, select, view
from optax_freeze._trees import Tree

Entry = tuple[Spec, ...]
TAKEN = "were taken by earlier entries: put it before them (the first match wins), or leave it out"


def read_entries(keys: Iterable[Any], argument: str) -> list[Entry]:
    """Check the keys of a mapping.

    Args:
        keys: each a spec or a tuple of specs.
        argument: what the user calls the mapping, for error texts.

    Returns:
        The specs of each key.

    Raises:
        SpecError: a key that is not a spec, or names nothing.
    """
    entries = []
    for key in keys:
        entries.append(read_specs(key, f"the key {key!r} of {argument}"))
        if not entries[-1]:
            raise SpecError(f"the key {key!r} of {argument} names nothing: leave the entry out")
    return entries


def assign_first(
    tree: Tree,
    entries: Sequence[Entry],
    argument: str,
    can_train: Collection[int],
    still: Collection[int] = (),
    taken_text: str = TAKEN,
) -> list[int | None]:
    """Say for every leaf that can train which entry is the first to match it.

    Args:
        tree: the tree.
        entries: the specs of each entry.
        argument: what the user calls the mapping, for error texts.
        can_train: the positions of the leaves that can train; others are not assigned.
        still: the entries that keep their leaves still, so that it is no mistake if none of these
            can train.
        taken_text: what error texts say of a spec whose leaves were all taken before.

    Returns:
        For every leaf the position of its entry, or None.

    Raises:
        SpecError: a spec that matches nothing, or nothing that can train, or whose leaves were all
            taken by earlier entries; one parameter under two paths, of which another entry has
            each.
    """
    specs = [spec for entry in entries for spec in entry]
    found = iter(select(specs, view(tree, specs, values=False), argument))
    can_train = set(can_train)
    free = set(can_train)
    assigned: list[int | None] = [None] * len(tree.leaves)
    meant: list[set[int]] = []
    for number, entry in enumerate(entries):
        taken: set[int] = set()
        meant.append(set())
        for spec in entry:
            one = next(found)
            positions = one.positions
            meant[-1] |= positions
            if positions and not one.holds_hole:  # else some of its leaves may be there
                if not positions & can_train and number not in still:
                    raise SpecError(
                        f"{argument}: {spec.label} matches nothing that can train: "
                        f"{tree.name_of(min(positions))} is {describe(tree, min(positions))}"
                    )
                if positions & can_train and not positions & free:
                    raise SpecError(
                        f"{argument}: all leaves that {spec.label} matches {taken_text}"
                    )
            taken |= positions & free
        for position in taken:
            assigned[position] = number
        free -= taken
    check_assigned(tree, assigned, meant, argument)
    return assigned
