"""`param_groups`: an optimizer for every group of leaves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import optax

from optax_freeze._masks import describe, read_choice
from optax_freeze._specs import Spec, SpecError, read_specs, select, view
from optax_freeze._training.routing import read_transformation, route
from optax_freeze._trees import Tree, listing


class _Unset:
    def __repr__(self) -> str:
        return "<unset>"


_UNSET: Any = _Unset()
DEFAULT = "default"


class ParamGroupsState(NamedTuple):
    """The state of `param_groups`.

    Attributes:
        groups: from a group's label to the state of its optimizer. The label is the spec as it is
            written, `"head"`, or `"default"`; what freezes and what has no leaf has no entry.
    """

    groups: dict[str, Any]


def param_groups(
    groups: Mapping[Any, optax.GradientTransformation | None],
    *,
    trainable: Any = None,
    default: optax.GradientTransformation | None = _UNSET,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer for every group of leaves.

    For one global norm over all groups, compose it inside `trainable_only`::

        trainable_only(optax.chain(optax.clip_by_global_norm(1.0), param_groups(...)), freeze=...)

    Args:
        groups: from a spec, or a tuple of specs, to the optimizer of the leaves that it matches;
            None freezes them. Of several that match a leaf the first wins.
        trainable: what may move and nothing else: specs, or a mask, which may release a `Constant`
            or a Python float that does not train by default.
        default: the optimizer of the leaves that train and that no entry matches; None freezes
            them.

    Returns:
        An `optax.GradientTransformationExtraArgs`. The field `groups` of its state is a dictionary
        from a group's label to the state of its optimizer: `state.groups["head"]`; the label is the
        spec as it is written (several are joined by ", ", a class or function goes by its name), or
        `"default"`. What freezes or has no leaf has no entry (with a group that has no leaf,
        `optax.tree_map_params` cannot map over the state: leave the group out). `init` and `update`
        raise `SpecError` for a leaf that no entry matches (without `default`), an entry that
        matches nothing, and one whose leaves were all taken by earlier ones; `update` a
        `ValueError` for a state of other groups. For the updates of frozen leaves, extra arguments
        and `optax.tree_map_params` see `trainable_only`.

    Raises:
        TypeError: if `groups` is not a mapping from specs to transformations or None.
        SpecError: a key that is not a spec, or two groups of one label.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import param_groups
        >>> params = {"encoder": jnp.ones(2), "head": {"w": jnp.ones(2), "b": jnp.ones(2)}}
        >>> tx = param_groups({"encoder": None, "**.b": optax.sgd(0.1)}, default=optax.sgd(1.0))
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> print({"w": float(updates["head"]["w"][0]), "encoder": float(updates["encoder"][0])})
        {'w': -1.0, 'encoder': -0.0}
        >>> list(state.groups)
        ['**.b', 'default']
    """
    if not isinstance(groups, Mapping):
        raise TypeError(
            "param_groups takes a mapping from specs to gradient transformations, not "
            f"{type(groups).__qualname__}"
        )
    entries = [_read_key(key) for key in groups]
    labels = list(map(_label, groups, entries))
    if default is not _UNSET:
        labels.append(DEFAULT)
    members = [_read_member(tx, f"entry {key!r}") for key, tx in groups.items()]
    members.append(None if default is _UNSET else _read_member(default, "default"))
    # Without `default` there is no label for the last of the members, which is None.
    named = [(label, tx) for label, tx in zip(labels, members, strict=False) if tx is not None]
    _check_labels(label for label, _ in named)
    specs = [spec for entry in entries for spec in entry]
    choice = read_choice(trainable=trainable)

    def assign(tree: Tree) -> list[str | None]:
        flags = choice(tree, values=False)
        found = iter(select(specs, view(tree, specs, values=False), "param_groups"))
        can_train = {i for i, flag in enumerate(flags) if flag}
        free = set(can_train)
        assigned: list[str | None] = [None] * len(flags)
        for label, entry, member in zip(labels, entries, members, strict=False):
            taken: set[int] = set()
            for spec in entry:
                one = next(found)
                if not one.holds_hole:  # some of its leaves may be there
                    _check_used(tree, spec, one.positions, can_train, free, member)
                taken |= one.positions & free
            if member is not None:
                for position in taken:
                    assigned[position] = label
            free -= taken
        if free and default is _UNSET:
            names = listing([tree.name_of(i) for i in sorted(free)])
            raise SpecError(
                f"param_groups: no entry matches {names}: "
                "add one, or pass default= (None freezes them)"
            )
        if members[-1] is not None:
            for position in free:
                assigned[position] = DEFAULT
        return assigned

    return route(dict(named), assign, ParamGroupsState, lambda state: state.groups)


def _label(key: Any, entry: tuple[Spec, ...]) -> str:
    """What a group is called: its specs as they are written."""
    keys = key if isinstance(key, tuple) else (key,)
    return ", ".join(
        text if isinstance(text, str) else re.sub("^(class|function) ", "", spec.label)
        for text, spec in zip(keys, entry, strict=True)
    )


def _check_labels(labels: Iterable[str]) -> None:
    for label, count in Counter(labels).items():
        if count > 1:
            raise SpecError(
                f"param_groups: {count} groups would be called {label!r}, and their states are "
                "found by name: give a function a name of its own, or name paths"
            )


def _read_member(tx: Any, where: str) -> optax.GradientTransformation | None:
    return None if tx is None else read_transformation(tx, f"param_groups, {where}")


def _read_key(key: Any) -> tuple[Spec, ...]:
    entry = read_specs(key, f"the key {key!r} of param_groups")
    if not entry:
        raise SpecError(f"the key {key!r} of param_groups names nothing: leave the entry out")
    return entry


def _check_used(
    tree: Tree,
    spec: Spec,
    positions: set[int],
    can_train: set[int],
    free: set[int],
    tx: optax.GradientTransformation | None,
) -> None:
    if positions & can_train and not positions & free:
        raise SpecError(
            f"param_groups: all leaves that {spec.label} matches were taken by earlier entries: "
            "put it before them (the first match wins), or leave it out"
        )
    if tx is not None and positions and not positions & can_train:
        first = min(positions)
        raise SpecError(
            f"param_groups: {spec.label} matches nothing that can train: {tree.name_of(first)} is "
            f"{describe(tree, first)}"
        )
