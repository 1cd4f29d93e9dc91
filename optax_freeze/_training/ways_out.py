"""Code that helps where a state cannot go on for all leaves: a group or cohort for each part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optax_freeze._masks import read_choice
from optax_freeze._training.state_leaves import COHORTS, Path
from optax_freeze._trees import SHOWN, Tree


def way_out(
    tree: Tree, owner: Path, parts: Mapping[Path | None, Iterable[str]], updates: int | None
) -> str:
    """What to write instead, so that every part keeps what it has.

    Args:
        tree: the params.
        owner: the path of the group or cohort of which the parts are; `()` for the whole state.
        parts: names of leaves by the owner that they have in the old state; None if they are new.
        updates: how many updates there were, as far as `unfreeze_at` knows.

    Returns:
        An expression.
    """
    keys = [_key(covering(names, tree)) for names in parts.values()]
    if owner[-2:-1] == (COHORTS,):
        now = "step" if updates is None else str(updates)
        starts = [
            now if source is None else source[-1] if source[-2:-1] == (COHORTS,) else owner[-1]
            for source in parts
        ]
        entries = [f"{key}: {start}" for key, start in zip(keys, starts, strict=True)]
        return f"unfreeze_at(tx, {{{', '.join(entries)}}})"
    entries = ", ".join(f"{key}: tx" for key in keys)
    grouped = {name for names in parts.values() for name in names}
    flags = zip(tree.leaf_names, read_choice()(tree, values=False), strict=True)
    rest = ", default=None" if any(flag and name not in grouped for name, flag in flags) else ""
    return f"param_groups({{{entries}}}{rest})"


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
