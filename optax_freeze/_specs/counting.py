"""Specs that count: `blocks[:]`, `Dense_[:]`, one numbered name after the other."""

from __future__ import annotations

from optax_freeze._specs.naming import Pattern
from optax_freeze._specs.numbered import Numbered, integer_children, numbered_siblings
from optax_freeze._specs.patterns import match, parse
from optax_freeze._specs.spec import Spec
from optax_freeze._trees import Name, Tree


def counted(spec: Spec, tree: Tree) -> list[list[Name]] | None:
    """The numbered names that a pattern with `[:]` at its end means, in numeric order.

    Args:
        spec: any spec.
        tree: the tree.

    Returns:
        A list for each node with numbered children, or for each beginning of numbered siblings;
        None for a spec that does not end so, or is the exact name of something.
    """
    if (
        not isinstance(spec, Pattern)
        or not spec.text.endswith("[:]")
        or tree.names.find(spec.text)[0]
    ):
        return None
    *front, last = parse(spec.text)
    names = tree.names
    holders = match(names, [*front, last._replace(subscripts=last.subscripts[:-1])])
    rows: list[Numbered] = [row for row in map(integer_children, holders) if row]
    if not rows and last.text and len(last.subscripts) == 1:
        parents = match(names, front)
        rows = [row for name in parents for row in numbered_siblings(name, last.fits)]
    return [[name for _, name in sorted(row, key=lambda item: item[0])] for row in rows]
