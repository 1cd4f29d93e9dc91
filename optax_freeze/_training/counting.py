"""How many updates there were, told by the counts of cohorts."""

from __future__ import annotations

from collections.abc import Iterable

from optax_freeze._training.state_leaves import COHORTS, Path, StateLeaf

# What a leaf is called that counts every update.
_EVERY_UPDATE = {"count", "step", "step_count"}


def updates_so_far(owner: Path, pairs: Iterable[tuple[StateLeaf, StateLeaf]]) -> int | None:
    """How many updates there were, if what cohorts take over says so.

    The leaves of cohort 0 train from the first update on, so that their count is the number. It is
    not if something else has run for longer, and not if an integer counts something else, as in
    `optax.MultiSteps`, under which a count does not grow with every update.

    Args:
        owner: the path of the group or cohort that the cohorts are in.
        pairs: a leaf that all of a cohort share, as it is in a fresh state and in the old one.

    Returns:
        The number, or None.
    """
    runs: dict[str, set[int]] = {}  # by cohort
    names = set()
    for fresh, old in pairs:
        inside = fresh.owner[len(owner) :]
        if fresh.is_below(owner) and COHORTS in inside and fresh.is_marker:
            label = inside[inside.index(COHORTS) + 1]
            runs.setdefault(label, set()).add(int(old.value) - int(fresh.value))
            names.add(fresh.path[-1])
    counts = {count for of_cohort in runs.values() for count in of_cohort}
    if counts == {0}:
        return 0
    is_known = names <= _EVERY_UPDATE and runs.get("0") == {max(counts, default=0)}
    return max(counts) if is_known else None
