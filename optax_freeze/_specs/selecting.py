"""What specs mean in a tree."""

from __future__ import annotations

from collections.abc import Sequence

from optax_freeze._specs.asking import Question
from optax_freeze._specs.spec import Found, Spec, SpecError, View
from optax_freeze._specs.taking_away import take_away
from optax_freeze._specs.without_values import ReadsValue, abstract
from optax_freeze._trees import Tree


def view(tree: Tree, specs: Sequence[Spec], *, values: bool) -> View:
    """The tree as specs are to see it.

    Args:
        tree: the tree.
        specs: the specs that will look.
        values: whether functions may see the values of arrays.

    Returns:
        The tree, with a copy without values where a function needs one.

    Raises:
        SpecError: if a class in the tree cannot be without values.
    """
    asks = any(isinstance(spec, Question) for spec in specs)
    if not asks or values:
        return View(tree, tree)
    try:
        return View(tree, Tree(abstract(tree.value)))
    except ReadsValue:
        text = "a class in this tree reads the values of its arrays when it is put together"
        raise SpecError(f"{text}, and rules are shown arrays without values: name paths") from None


def select(specs: Sequence[Spec], view: View, argument: str) -> list[Found]:
    """What each entry means.

    Args:
        specs: the entries.
        view: the tree as they see it.
        argument: what the user calls them, for the error text.

    Returns:
        For each entry what it means: at least one leaf, the place of one that was left out, or a
        module that has none; nothing if entries with "!" took it away, or it is such an entry.

    Raises:
        SpecError: if an entry matches nothing: all that do, each with the closest real names. Or
            if one with "!" takes nothing away.
    """
    found = [spec.find(view) for spec in specs]
    tree = view.tree
    misses = [
        f"  {spec.label}: {spec.why_missed(tree, one.refusal)}"
        for spec, one in zip(specs, found, strict=True)
        if not one.nodes and not (spec.may_mean_a_hole and tree.has_holes)
    ]
    if misses:
        count = "1 leaf" if len(tree.leaves) == 1 else f"{len(tree.leaves)} leaves"
        entries = "an entry matches" if len(misses) == 1 else f"{len(misses)} entries match"
        text = f"{argument}: {entries} no leaf of a tree of {count}:"
        raise SpecError("\n".join([text, *misses]))
    return take_away(specs, found, tree, argument)
