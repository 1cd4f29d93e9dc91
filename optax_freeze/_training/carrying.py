"""What each leaf of a new optimizer state takes from an old one."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_freeze._training.counting import updates_so_far
from optax_freeze._training.state_leaves import (
    Path,
    StateLeaf,
    all_around,
    params_of,
    state_leaves,
)
from optax_freeze._training.unfreezing import UnfreezeAtState
from optax_freeze._training.ways_out import covering, ways_out
from optax_freeze._trees import Tree, listing, quote


class Carrying:
    """One old state on its way into the form of a new one.

    Args:
        state: the old state.
        fresh: the state that the new transformation starts with.
        tree: the params.
    """

    def __init__(self, state: Any, fresh: Tree, tree: Tree):
        self._tree = tree
        self._fresh = fresh
        self._new = state_leaves(fresh.value, tree)
        self._params = params_of(fresh, tree)
        self._old: dict[Path, list[StateLeaf]] = {}  # by address
        for leaf in state_leaves(state, tree):
            self._old.setdefault(leaf.address, []).append(leaf)
        self._places = {(leaf.owner, leaf.address) for leaf in self._new}
        self._members: dict[Path, list[int]] = {}  # by owner
        self._with_params: set[Path] = set()  # owners that have params, or others in them have
        for i, leaf in enumerate(self._new):
            self._members.setdefault(leaf.owner, []).append(i)
            if self._params[i] is not None:
                self._with_params.update(all_around(leaf.owner))
        self._steps = {  # the counts of `unfreeze_at`, by the path of its state
            self._new[node.start].path[:-1]: node.start
            for node in fresh.root.walk()
            if isinstance(node.value, UnfreezeAtState)
        }
        self._taken: dict[int, StateLeaf] = {}
        self._counted: dict[int, int] = {}  # counts of `unfreeze_at` that the old state has not
        self._sources: dict[Path, set[Path]] = {}  # by owner, the old owners of these params
        self._problems: list[str] = []

    def result(self) -> Any:
        """The new state.

        Returns:
            A state of the form of the fresh one.

        Raises:
            ValueError: if a leaf cannot go on with what there is.
        """
        for i, name in enumerate(self._params):
            if name is not None:
                self._take_of_param(i, name)
        if self._with_params and not self._taken:
            raise ValueError(self._nothing_shared())
        torn = {self._new[i].owner for i in range(len(self._new)) if self._is_mixed(i)}
        for i in set(self._steps.values()) - self._taken.keys():
            self._count_updates(i)
        torn.update([owner for owner in self._members if self._is_incomplete(owner)])
        if self._problems:
            raise ValueError(f"migrate_state: {listing(self._problems)}{self._instead(torn)}")
        if self._new and not self._taken and not self._counted:
            raise ValueError(self._nothing_shared())
        values = [leaf.value for leaf in self._new]
        for i, leaf in self._taken.items():
            values[i] = leaf.value
        for i, count in self._counted.items():
            values[i] = jnp.asarray(count, jnp.int32)
        return self._fresh.treedef.unflatten(values)

    def _take_of_param(self, i: int, name: str) -> None:
        found = self._old.get(self._new[i].address, [])
        if not found:
            return
        if len(found) > 1:
            places = listing([repr(leaf.name) for leaf in found])
            self._problems.append(f"the state holds {quote(name)} more than once: {places}")
        self._take(i, found[0], quote(name))
        for owner in all_around(self._new[i].owner):
            self._sources.setdefault(owner, set()).add(found[0].owner)

    def _take(self, i: int, leaf: StateLeaf, what: str) -> None:
        self._taken[i] = leaf
        held, needed = np.shape(leaf.value), np.shape(self._new[i].value)
        if held != needed:
            self._problems.append(
                f"the state holds an array of shape {held} for {what}, not {needed}"
            )

    def _is_mixed(self, i: int) -> bool:
        """Take what several params share, such as a count; whether there are several of it."""
        if self._params[i] is not None:
            return False
        leaf = self._new[i]
        found = self._candidates(leaf)
        if found:
            self._take(i, found[0], repr(leaf.name))
        if all(found[0].is_like(other) for other in found[1:]):
            return False
        values = [str(old.value) if old.is_marker else "another value" for old in found]
        pairs = zip(values, map(self._whose, found), strict=True)
        told = listing([f"{value} for {whose}" for value, whose in pairs])
        self._problems.append(f"{leaf.name!r} would have to be {told}")
        return True

    def _candidates(self, leaf: StateLeaf) -> list[StateLeaf]:
        found = self._old.get(leaf.address, [])
        if leaf.owner in self._with_params:  # from where the params come
            around = {
                owner
                for source in self._sources.get(leaf.owner, ())
                for owner in all_around(source)
            }
            return [old for old in found if old.owner in around]
        same = [old for old in found if old.owner == leaf.owner]
        if same or not leaf.owner:
            return same or found
        left = [old for old in found if (old.owner, old.address) not in self._places]
        if any(not old.is_like(leaf) for old in left):
            self._problems.append(
                f"{leaf.name!r} may be that of {listing([repr(old.name) for old in left])}, but "
                "the state does not say whose that is: set it by hand in tx.init(params), as "
                "optax.tree_utils.tree_set does it"
            )
        return []

    def _whose(self, old: StateLeaf) -> str:
        names = dict.fromkeys(
            name
            for i, name in enumerate(self._params)
            if name is not None and i in self._taken and self._taken[i].is_below(old.owner)
        )
        specs = listing(list(map(repr, covering(names, self._tree)))) or "what is not named"
        return f"{specs} in {'.'.join(old.owner)!r}" if old.owner else specs

    def _count_updates(self, i: int) -> None:
        """Find out how many updates there were, for `unfreeze_at`."""
        owner = self._new[i].owner
        if owner in self._with_params and owner not in self._sources:
            return  # it is new
        shared = ((self._new[j], old) for j, old in self._taken.items() if self._params[j] is None)
        count = updates_so_far(owner, shared)
        if count is not None:
            self._counted[i] = count
        else:
            self._problems.append(
                f"{self._new[i].name!r} counts updates, and the state does not say how many there "
                'were: pass their number n with it, as in migrate_state({"step": n, "cohorts": '
                '{"0": state}}, tx, params)'
            )

    def _parts(self, owner: Path) -> dict[Path | None, list[str]]:
        """The params of a group or cohort by the owner of their old state; None: they have none."""
        parts: dict[Path | None, dict[str, None]] = {}
        for i in self._members[owner]:
            if (name := self._params[i]) is not None:
                source = self._taken[i].owner if i in self._taken else None
                parts.setdefault(source, {})[name] = None
        found = {name for source, names in parts.items() if source is not None for name in names}
        return {
            source: [name for name in names if source is not None or name not in found]
            for source, names in parts.items()
        }

    def _is_incomplete(self, owner: Path) -> bool:
        """Report what would start under what has run, and what cannot be found at all.

        Args:
            owner: the path of a group or cohort.

        Returns:
            Whether it is the former.
        """
        members = [i for i in self._members[owner] if i not in self._steps.values()]
        if owner not in self._sources and not any(i in self._taken for i in members):
            return False  # it is new as a whole
        new = self._parts(owner).get(None, [])
        as_new = set(new)
        lacking = [i for i in members if i not in self._taken and self._params[i] not in as_new]
        for i in lacking:
            leaf, name = self._new[i], self._params[i]
            whose = "" if name is None else f" for {quote(name)}{self._elsewhere(leaf)}"
            self._problems.append(f"the state has no {leaf.name!r}{whose}")
        run = self._that_has_run(members) if new else None
        if run is not None:
            self._problems.append(
                f"{listing(list(map(quote, new)))} would start with fresh moments under "
                f"{run.name!r}, which has run ({run.value if run.is_marker else 'it is no count'})"
            )
        return run is not None

    def _that_has_run(self, members: list[int]) -> StateLeaf | None:
        """What shows that the params of a group go on: a count that is not that of a start."""
        shared = [i for i in members if i in self._taken and self._params[i] is None]
        markers = [i for i in shared if self._new[i].is_marker]
        run = (
            self._taken[i] for i in markers or shared if not self._new[i].is_like(self._taken[i])
        )
        return next(run, None)

    def _instead(self, torn: set[Path]) -> str:
        updates = {
            path: int(self._taken[i].value) if i in self._taken else self._counted.get(i)
            for path, i in self._steps.items()
        }
        parts = {owner: self._parts(owner) for owner in self._members}
        ways = ways_out(self._tree, parts, torn, updates)
        return f". Instead: {'; '.join(ways)}" if ways else ""

    def _nothing_shared(self) -> str:
        pairs = zip(self._new, self._params, strict=True)
        named = [leaf for leaf, name in pairs if name is not None]
        leaf = (named or self._new)[0]
        return (
            "migrate_state: the state shares nothing with that of tx, for these params: it has no "
            f"{leaf.name!r}{self._elsewhere(leaf)}. To start afresh: tx.init(params)"
        )

    def _elsewhere(self, leaf: StateLeaf) -> str:
        """A hint at what would be the same leaf at another position of a chain."""
        name = self._elsewhere_names.get(_without_position(leaf.address))
        return f", but {name!r}: elements of an optax.chain go by position" if name else ""

    @functools.cached_property
    def _elsewhere_names(self) -> dict[Path, str]:
        return {_without_position(at): found[0].name for at, found in self._old.items()}


def _without_position(address: Path) -> Path:
    return tuple(itertools.dropwhile(str.isdecimal, address))
