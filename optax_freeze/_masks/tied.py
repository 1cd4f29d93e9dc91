"""One parameter under several paths is one choice."""

from __future__ import annotations

from collections.abc import Sequence, Set

from optax_freeze._specs import Found, Spec, SpecError
from optax_freeze._trees import Node, Tree, quote, shared, ties

Entries = Sequence[tuple[Spec, Found]]


def check_ties(tree: Tree, flags: Sequence[bool], error: type[ValueError]) -> None:
    """Raise if an NNX Variable trains under one path and is frozen under another.

    Args:
        tree: the tree.
        flags: for each leaf whether it trains.
        error: the class of the error.

    Raises:
        ValueError: of the class that is asked for; it names both paths.
    """
    for positions in ties(tree):
        trains = [tree.name_of(i) for i in positions if flags[i]]
        frozen = [tree.name_of(i) for i in positions if not flags[i]]
        if trains and frozen:
            raise error(
                f"{frozen[0]} and {trains[0]} are one parameter, one Variable under two paths, but "
                "it would be frozen under the first and train under the second: say the same of "
                "both"
            )


def check_shared(tree: Tree, flags: Sequence[bool], freeze: Entries, trainable: Entries) -> None:
    """Raise if an entry names the place of a shared leaf, and means something else by it.

    Args:
        tree: the tree.
        flags: for each leaf whether it trains.
        freeze: the entries of what must not train, with what they mean.
        trainable: the entries of what may train, with what they mean.

    Raises:
        SpecError: an entry that means the place of a leaf of which the other holds.
    """
    if not freeze and not trainable:
        return
    for place, values in shared(tree):
        for spec, found in freeze:
            _check_place(place, [v for v in values if flags[v.start]], spec, found, "freeze")
        for spec, found in trainable:
            left = [v for v in values if not any(v.start in one.positions for _, one in trainable)]
            _check_place(place, left, spec, found, "trainable")


def _check_place(
    place: Node, values: Sequence[Node], spec: Spec, found: Found, argument: str
) -> None:
    if not values or place.start not in found.positions:
        return
    does = "trains" if argument == "freeze" else "does not train"
    raise SpecError(
        f"{argument}: {spec.label} means {quote(place.name)}, which is only the place of a shared "
        f"leaf (eqx.nn.Shared): its value is at {quote(values[0].name)}, which {does}. Name that"
    )


def check_assigned(
    tree: Tree, assigned: Sequence[int | None], meant: Sequence[Set[int]], argument: str
) -> None:
    """Raise if one parameter under two paths is of two entries.

    Args:
        tree: the tree.
        assigned: for each leaf the number of its entry; None for one that has none.
        meant: for each entry the positions that it matches.
        argument: what the user calls the entries, for the error text.

    Raises:
        SpecError: for a tied NNX Variable, or the place of a shared leaf.
    """
    for positions in ties(tree):
        other = next((i for i in positions if assigned[i] != assigned[positions[0]]), None)
        if other is not None:
            raise SpecError(
                f"{argument}: {tree.name_of(positions[0])} and {tree.name_of(other)} are one "
                "parameter, one Variable under two paths: let one entry match both"
            )
    for place, values in shared(tree):
        first = next((n for n, m in enumerate(meant) if place.start in m), None)
        away = [value for value in values if assigned[value.start] != first]
        if first is not None and away:
            raise SpecError(
                f"{argument}: {quote(place.name)} is only the place of a shared leaf "
                f"(eqx.nn.Shared): its value is at {quote(away[0].name)}, which is not of the same "
                "entry: let one entry match both"
            )


def where_shared(tree: Tree, position: int) -> str:
    """Where the value is of which a leaf is only the place, in words; empty for all others."""
    names = [values[0].name for place, values in shared(tree) if place.start == position]
    if not names:
        return ""
    return f"the place of a shared leaf (eqx.nn.Shared), whose value is at {quote(names[0])}"
