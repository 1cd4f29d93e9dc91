"""How many updates there were, told by the counts of cohorts."""

from __future__ import annotations

from collections.abc import Iterable

from optax_freeze._training.state_leaves import COHORTS, Path, StateLeaf


def updates_so_far(owner: Path, pairs: Iterable[tuple[StateLeaf, StateLeaf]]) -> int | None:
    """How many updates there were, if what cohorts take over says so.

    The leaves of cohort 0 train from the first update on, so that their count is the number; it is
    not if something else has run for longer, or if they have several counts that differ.

    Args:
        owner: the path of the group or cohort that the cohorts are in.
        pairs: a leaf that all of a cohort share, as it is in a fresh state and in the old one.

    Returns:
        The number, or None.
    """
    runs: dict[str, set[int]] = {}
    for fresh, old in pairs:
        inside = fresh.owner[len(owner) :]
        if fresh.is_below(owner) and COHORTS in inside and fresh.is_marker:
            label = inside[inside.index(COHORTS) + 1]
            runs.setdefault(label, set()).add(int(old.value) - int(fresh.value))
    counts = {count for of_cohort in runs.values() for count in of_cohort}
    if counts == {0} or (counts and runs.get("0") == {max(counts)}):
        return max(counts)
    return None
