"""`param_groups`: an optimizer for every group of leaves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import optax

from optax_freeze._masks import read_choice
from optax_freeze._specs import Spec, SpecError
from optax_freeze._training.first_match import assign_first, read_entries
from optax_freeze._training.routing import Packing, read_transformation, route
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
    entries = read_entries(groups, "param_groups")
    labels: list[str] = list(map(_label, groups, entries))
    members = [_read_member(tx, f"entry {key!r}") for key, tx in groups.items()]
    still = {i for i, tx in enumerate(members) if tx is None}
    named = [(label, tx) for label, tx in zip(labels, members, strict=True) if tx is not None]
    rest = None if default is _UNSET else _read_member(default, "default")
    if rest is not None:
        named.append((DEFAULT, rest))
    _check_labels(label for label, _ in named)
    choice = read_choice(trainable=trainable)

    def assign(tree: Tree) -> list[str | None]:
        can_train = [i for i, flag in enumerate(choice(tree, values=False)) if flag]
        assigned = assign_first(tree, entries, "param_groups", can_train, still)
        free = [i for i in can_train if assigned[i] is None]
        if free and default is _UNSET:
            raise SpecError(
                f"param_groups: no entry matches {listing([tree.name_of(i) for i in free])}: "
                "add one, or pass default= (None freezes them)"
            )
        found = [None if i is None or i in still else labels[i] for i in assigned]
        for position in free:
            found[position] = None if rest is None else DEFAULT
        return found

    packing = Packing(
        lambda states, _: ParamGroupsState(states), lambda state: state.groups, "group"
    )
    return route(dict(named), assign, packing)


_PACKING = Packing(lambda states, _: ParamGroupsState(states), lambda state: state.groups, "group")


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
