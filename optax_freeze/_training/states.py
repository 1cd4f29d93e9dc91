"""Whether a state belongs to these params and this choice, and words for where it does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

from optax_freeze._trees import Part, Tree, is_hole, listing, quote

_REMEMBERED = 16
# What comes of a structure with static fields that cannot be hashed or compared, such as arrays.
_INCOMPARABLE = (TypeError, ValueError)


class Form(NamedTuple):
    """What two states have in common that one transformation made for the same params."""

    treedef: Any
    shapes: list[tuple[int, ...]]

    @classmethod
    def of(cls, state: Any) -> Form:
        """The form of a state."""
        leaves, treedef = jax.tree.flatten(state)
        return cls(treedef, list(map(np.shape, leaves)))


class StateForms:
    """Which form of state belongs to which parts of params.

    Args:
        init: makes the state out of what each group sees, by the group's label.
        noun: what error texts call a group; `""` if there is only one.
    """

    def __init__(self, init: Callable[[dict[str, Any]], Any], noun: str):
        self._init = init
        self._noun = noun
        # Nothing depends on this memory: it saves `update` a trace of `init`.
        self._known: dict[Any, Form] = {}

    def learn(self, parts: Mapping[str, Part], state: Any) -> None:
        """Remember what a state that was just made looks like."""
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        with contextlib.suppress(*_INCOMPARABLE):
            self._known[_key(parts)] = Form.of(state)

    def check(self, tree: Tree, parts: Mapping[str, Part], state: Any) -> Any:
        """A state that is known to belong to these params.

        Args:
            tree: the params.
            parts: what each group gets of them, by its label.
            state: a state; it may have holes (`optax.MaskedNode`) where it should have None.

        Returns:
            The state, without such holes.

        Raises:
            ValueError: if it belongs to other params or to another choice.
        """
        form = self._wanted(parts)
        if _is_same(Form.of(state), form):
            return state
        bare = jax.tree.map(lambda node: None if is_hole(node) else node, state, is_leaf=is_hole)
        if _is_same(Form.of(bare), form):
            return bare
        wanted = Tree(self._abstract(parts))
        problems = list(_problems(tree, parts, Tree(state), wanted, self._noun))
        if problems:
            raise ValueError(
                f"{listing(problems)}. The state was made, or restored, for another freeze= or "
                "trainable=, for other groups or other "
                "params: migrate_state(state, tx, params) carries over what fits"
            )
        return state  # of a transformation whose state takes another form with the first update

    def _wanted(self, parts: Mapping[str, Part]) -> Form:
        known = None
        with contextlib.suppress(*_INCOMPARABLE):
            known = self._known.get(_key(parts))
        if known is None:
            state = self._abstract(parts)
            self.learn(parts, state)
            known = Form.of(state)
        return known

    def _abstract(self, parts: Mapping[str, Part]) -> Any:
        return jax.eval_shape(self._init, {label: part.abstract() for label, part in parts.items()})


def _key(parts: Mapping[str, Part]) -> Any:
    """What the form of a state depends on."""
    return tuple(
        (label, part.treedef, tuple(map(np.shape, part.leaves))) for label, part in parts.items()
    )


def _is_same(form: Form, other: Form) -> bool:
    return form.shapes == other.shapes and _is_same_structure(form.treedef, other.treedef)


def _is_same_structure(treedef: Any, other: Any) -> bool:
    try:
        return treedef == other
    except _INCOMPARABLE:
        return str(treedef) == str(other)


def _problems(
    tree: Tree, parts: Mapping[str, Part], state: Tree, wanted: Tree, noun: str
) -> Iterator[str]:
    labels = {tree.leaf_names[i]: label for label, part in parts.items() for i in part.positions}
    has, wants = (dict(zip(each.leaf_names, each.leaves, strict=True)) for each in (state, wanted))
    names = set(tree.leaf_names)
    lacking, spare = (
        {path: _param_of(path, names) for path in paths if path not in others}
        for paths, others in ((wants, has), (has, wants))
    )
    for name in dict.fromkeys(filter(None, lacking.values())):
        group = f" in the {noun} {labels[name]!r}" if noun else ""
        yield f"{quote(name)} trains, but the state holds nothing for it{group}{_hint(tree, name)}"
    for name in dict.fromkeys(filter(None, spare.values())):
        if name not in labels:
            yield f"the state holds moments of {quote(name)}, which is frozen"
    for path in wants.keys() & has.keys():
        held, needed = np.shape(has[path]), np.shape(wants[path])
        if held != needed:
            name = _param_of(path, names) or path
            yield f"the state holds an array of shape {held} for {quote(name)}, not {needed}"
    if has.keys() == wants.keys() and not _is_same_structure(state.treedef, wanted.treedef):
        yield (
            "the state has the right paths, but other containers (a dict or list for a named "
            "tuple), as if it had been restored without a target"
        )


def _param_of(path: str, names: set[str]) -> str | None:
    """The param that a leaf of the state belongs to: its path ends in that of the param."""
    while path and path not in names:
        path = path.partition(".")[2]
    return path or None


def _hint(tree: Tree, name: str) -> str:
    """Name what `jit` may have turned from a frozen Python float into an array that trains."""
    leaf = tree.leaves[tree.leaf_names.index(name)]
    if not (isinstance(leaf, jax.core.Tracer) and getattr(leaf.aval, "weak_type", False)):
        return ""
    return " (a Python float that goes through jit is an array inside: freeze it by name)"
