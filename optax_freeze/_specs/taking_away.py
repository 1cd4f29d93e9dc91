"""`"!encoder.norm"`: an entry that takes away what those before it in its list selected."""

from __future__ import annotations

from collections.abc import Sequence

from optax_freeze._specs.naming import Pattern
from optax_freeze._specs.spec import Found, Spec, SpecError, View
from optax_freeze._trees import Tree, listing


class Without(Spec):
    """A path pattern behind an exclamation mark.

    Attributes:
        before: the entries that stand before it in its list.
    """

    may_mean_a_hole = False

    def __init__(self, text: str, before: Sequence[Spec]):
        super().__init__(repr(text))
        self.text = text
        self.before = before
        self.pattern = Pattern(self.label, text.removeprefix("!"))

    def find(self, view: View) -> Found:
        exact, _ = view.tree.names.find(self.text)
        if exact:  # a key that begins so: as everywhere, the exact text wins
            return Found(exact)
        if not self.before:
            raise SpecError(
                f"{self.label} comes first, and '!' takes away what the entries before it "
                f"selected: put it behind them, as in ['encoder', {self.label}]"
            )
        if not self.pattern.text:
            raise SpecError(f"{self.label} names nothing to take away: '!encoder.norm' would")
        return self.pattern.find(view)._replace(takes_away=True)

    def why_missed(self, tree: Tree, refusal: str) -> str:
        return self.pattern.why_missed(tree, refusal)


def take_away(specs: Sequence[Spec], found: list[Found], tree: Tree, argument: str) -> list[Found]:
    """Let the entries with an exclamation mark do their work.

    Args:
        specs: the entries, of one list or of several.
        found: what each entry means by itself.
        tree: where.
        argument: what the user calls them, for the error text.

    Returns:
        What each entry means in the end; nothing for those that take away.

    Raises:
        SpecError: an entry that takes nothing away, or all that there is.
    """
    place = {spec: i for i, spec in enumerate(specs)}
    for i, spec in enumerate(specs):
        if not (isinstance(spec, Without) and found[i].takes_away):
            continue
        before = [place[other] for other in spec.before]
        named = found[i].positions
        selected = {position for j in before for position in found[j].positions}
        if named and not tree.has_holes:  # of which the entries before it may have meant some
            _check_use(spec, tree, named, selected, argument)
        for j in before:
            found[j] = found[j]._replace(away=found[j].away | named)
        found[i] = Found(())
    return found


def _check_use(
    spec: Without, tree: Tree, named: set[int], selected: set[int], argument: str
) -> None:
    others = listing([other.label for other in spec.before])
    if not named & selected:
        raise SpecError(
            f"{argument}: {spec.label} takes nothing away: it matches {tree.name_of(min(named))}, "
            f"but the entries before it ({others}) do not"
        )
    if selected <= named:
        raise SpecError(
            f"{argument}: {spec.label} takes away all that the entries before it ({others}) "
            "selected: leave them out"
        )
