"""Specs that name: a path, a regex, a class; and what is common to all specs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from optax_freeze._specs.patterns import PatternError, Segment, beginning, match, parse
from optax_freeze._specs.spec import Found, Spec, SpecError, View
from optax_freeze._trees import Node, Tree, closest, hint_of_state, is_array


class Pattern(Spec):
    """A path, possibly with wildcards and subscripts."""

    may_mean_a_hole = False

    def __init__(self, label: str, text: str):
        super().__init__(label)
        self.text = text

    def find(self, view: View) -> Found:
        nodes = self._nodes(view.tree)
        _check_unique(self.label, nodes)
        return Found(nodes)

    def _nodes(self, tree: Tree) -> list[Node]:
        exact, places = tree.names.find(self.text)
        if exact:
            return exact
        try:
            segments = parse(self.text)
        except PatternError as error:
            if places:
                return places
            raise SpecError(f"{self.label} is not a path pattern: {error}") from None
        return places + _matched(tree, segments) or _matched_without_value(tree, segments)

    def why_missed(self, tree: Tree, refusal: str) -> str:
        if tree.leaf_names == [""]:
            return "the tree is one bare leaf, which has no name: '**' means it"
        if not tree.leaves:
            return "there is nothing to match"
        near = self._rows(tree) or self._anywhere(tree) or suggest(self.text, tree.subtree_names)
        return near + hint_of_state(tree)

    def _rows(self, tree: Tree) -> str:
        """Whether an index was asked of arrays, whose rows are no leaves."""
        before = [self.text[: bracket.start()] for bracket in re.finditer(r"\[", self.text)]
        names = [name for text in before if text for name in match(tree.names, parse(text))]
        nodes = [node for name in names for node in name.nodes]
        for node in sorted(nodes, key=lambda node: node.start):
            leaves = tree.leaves[node.start : node.stop]
            shapes = [leaf.shape for leaf in leaves if is_array(leaf) and leaf.ndim]
            is_numbered = any(key.isdigit() for key, _ in node.children())
            if len(shapes) == len(leaves) and len({s[0] for s in shapes}) == 1 and not is_numbered:
                what = "is one array" if node.is_leaf else "holds arrays only"
                return (
                    f"{node.name!r} {what}, and rows of arrays are no leaves: make leaves of them, "
                    f"cut_rows(params, {{{node.name!r}: ...}})"
                )
        return ""

    def _anywhere(self, tree: Tree) -> str:
        """Whether it was only written without the beginning of a path."""
        if "[" in self.text:
            return ""  # what an index selects cannot be told by names alone
        fits = beginning(parse(f"**.{self.text}")).match
        count = sum(map(bool, map(fits, tree.leaf_names)))
        if not count:
            return ""
        return f"a path begins at the root: '**.{self.text}' matches {count} of them"


class Regex(Spec):
    """A compiled regular expression for the whole path of a leaf."""

    def __init__(self, label: str, regex: re.Pattern[str]):
        super().__init__(label)
        self.regex = regex

    def find(self, view: View) -> Found:
        nodes = [node for node in view.tree.root.walk() if node.is_one_leaf or node.is_childless]
        found = [node for node in nodes if self.regex.fullmatch(node.name)]
        _check_unique(self.label, found)
        return Found(found)

    def why_missed(self, tree: Tree, refusal: str) -> str:
        partly = [name for name in tree.leaf_names if self.regex.search(name)]
        if not partly:
            return suggest(self.regex.pattern, tree.leaf_names)
        return (
            f"a regex must match the whole path; by `search` it would match {len(partly)} of them, "
            f"such as {partly[0]!r}: add '.*' where more may stand"
        )


class Class(Spec):
    """A class: every node and leaf that is an instance."""

    def __init__(self, label: str, cls: type):
        super().__init__(label)
        self.cls = cls

    def find(self, view: View) -> Found:
        return Found([node for node in view.tree.root.walk() if isinstance(node.value, self.cls)])

    def why_missed(self, tree: Tree, refusal: str) -> str:
        names = sorted({cls.__qualname__ for cls in tree.classes})
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        text = f"the classes in this tree are {', '.join(names[:12])}{more}"
        if not self.cls.__module__.startswith("flax.nnx"):
            return text
        return (
            f"{text} (nnx.Optimizer hands over values without their modules and Variables: name "
            "paths, or pass trainable=nnx.state(trainable_mask(model, ...), nnx.Param))"
        )


def suggest(text: str, names: list[str]) -> str:
    """The closest names there are, in words."""
    _, wildcard, end = text.rpartition("*.")
    if wildcard:  # compare what a pattern spells at its end with as much of the names
        size = end.count(".") + 1
        ends: dict[str, str] = {}
        for name in names:
            ends.setdefault(".".join(name.split(".")[-size:]), name)
        near = [ends[found] for found in closest(end, ends)]
    else:
        near = closest(text, names)
    if near:
        return f"closest: {', '.join(map(repr, near))}"
    return f"nothing is like it; the first paths are {', '.join(map(repr, names[:3]))}"


def _matched(tree: Tree, segments: list[Segment]) -> list[Node]:
    if not (tree.has_places or tree.root.is_leaf):
        fits = beginning(segments).match
        positions = [i for i, name in enumerate(tree.leaf_names) if fits(name)]
        by_name = positions and not any(segment.subscripts for segment in segments)
        if by_name or not (positions or tree.has_leafless_nodes):
            return [tree.leaf(i) for i in positions]
    return [node for name in match(tree.names, segments) for node in name.tops]


def _matched_without_value(tree: Tree, segments: list[Segment]) -> list[Node]:
    # `kernel.value` also means the leaf `kernel` of a tree without Variables. A bare wildcard
    # before `.value` does not: it would turn a name that is not there into everything.
    *segments, last = segments
    if last != Segment("value") or not segments or not segments[-1].names_something:
        return []
    return [name.leaf for name in match(tree.names, segments) if name.leaf]


def _check_unique(label: str, nodes: Sequence[Node]) -> None:
    positions: dict[str, int] = {}  # by which a leaf that was found twice is still one
    for node in nodes:
        for position, name in enumerate(node.leaf_names(), node.start):
            if positions.setdefault(name, position) != position:
                raise SpecError(
                    f"{label} meets two different leaves that are both called {name!r}: rename "
                    "one, or select with where(lambda path, leaf: ...)"
                )
