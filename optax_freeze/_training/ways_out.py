"""Code that helps where a state cannot go on for all leaves: a group or cohort for each part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optax_freeze._masks import read_choice
from optax_freeze._training.state_leaves import COHORTS, Path
from optax_freeze._trees import SHOWN, Tree


def ways_out(
    tree: Tree,
    parts: Mapping[Path, Mapping[Path | None, list[str]]],
    torn: Iterable[Path],
    updates: Mapping[Path, int | None],
) -> list[str]:
    """Groups and cohorts like those that there are, but each of one part only.

    Args:
        tree: the params.
        parts: by the path of a group or cohort, the names of its leaves by the path of the group or
            cohort where the old state has them; None if it has them nowhere.
        torn: the paths of those whose parts cannot go together.
        updates: how many updates there were, by the path of a state of `unfreeze_at`; None if that
            is not known.

    Returns:
        Expressions, in which `tx` stands for the optimizer.
    """
    torn = {owner for owner in torn if parts[owner]}
    texts = []
    for around in sorted({owner[:-1] for owner in torn}):
        entries: list[tuple[Path, Path | None, list[str]]] = []
        for owner, of_owner in parts.items():
            if owner[:-1] != around:
                continue
            if owner in torn:
                entries.extend((owner, source, names) for source, names in of_owner.items())
            else:
                names = [name for names in of_owner.values() for name in names]
                entries.append((owner, owner, names))
        entries = [entry for entry in entries if entry[-1]]
        keys = [_key(covering(names, tree)) for *_, names in entries]
        if around[-1:] == (COHORTS,):
            now = updates.get(around[:-1])
            values = [_start(owner, source, now) for owner, source, _ in entries]
        else:
            values = ["tx"] * len(keys)
        items = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
        if around[-1:] == (COHORTS,):
            texts.append(f"unfreeze_at(tx, {{{items}}})")
        else:
            grouped = {name for *_, names in entries for name in names}
            texts.append(f"param_groups({{{items}}}{_rest(tree, grouped)})")
    return texts


def _start(owner: Path, source: Path | None, now: int | None) -> str:
    """At which step the cohort of a part starts."""
    if source is None:
        return "step" if now is None else str(now)
    return source[-1] if source[-2:-1] == (COHORTS,) else owner[-1]


def _rest(tree: Tree, grouped: set[str]) -> str:
    """What `param_groups` is to be told of leaves that no group has."""
    flags = zip(tree.leaf_names, read_choice()(tree, values=False), strict=True)
    return ", default=None" if any(flag and name not in grouped for name, flag in flags) else ""


def _key(specs: list[str]) -> str:
    if len(specs) == 1:
        return repr(specs[0])
    more = ", ..." if len(specs) > SHOWN else ""
    return f"({', '.join(map(repr, specs[:SHOWN]))}{more})"


def covering(names: Iterable[str], tree: Tree) -> list[str]:
    """The shortest paths that name these leaves of a tree and no others."""
    names = list(names)
    others = {
        prefix for name in set(tree.leaf_names).difference(names) for prefix in _prefixes(name)
    }
    return list(
        dict.fromkeys(
            next((prefix for prefix in _prefixes(name) if prefix not in others), name)
            for name in names
        )
    )


def _prefixes(name: str) -> list[str]:
    """The paths that a leaf lies below, the shortest first, and its own."""
    stops = [stop for stop, letter in enumerate(name) if letter == "."]
    return [*(name[:stop] for stop in stops), name]
