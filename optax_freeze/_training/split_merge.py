"""`split` and `merge`: the part that trains as a flat dictionary, and the rest with holes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from optax_freeze._hiding import Hidden, hide, reveal
from optax_freeze._masks import read_choice
from optax_freeze._training.filling import filling, misfit
from optax_freeze._trees import (
    Tree,
    hole_of,
    is_array_of_jit,
    is_hole,
    is_place,
    listing,
    quote,
    refuse_ties,
)

_ANOTHER_FREEZE = (
    ". A part that was saved under another freeze= goes into split(params, trainable=list(part))[1]"
)


def split(tree: Any, freeze: Any = None, *, trainable: Any = None) -> tuple[dict[str, Any], Any]:
    """Take apart what trains and the rest.

    The first goes straight into plain `jax.grad`, plain Optax and any checkpointer; the second is
    one more argument of the step, so that nothing frozen is returned from `jit`. For models of
    many leaves this is the cheapest way to freeze.

    Args:
        tree: any pytree.
        freeze: specs of what must not train: a path or path pattern, a compiled regex, a class, a
            function of a module, `where(...)`, or a list of them. They see the values of arrays.
        trainable: what may train and nothing else: specs, or a mask. `freeze` is carved out of it.

    Returns:
        A flat dictionary from dotted path to leaf with all that trains, and `tree` with holes in
        its places, which know the shape and the dtype of what belongs there. Leaves of the rest
        that are not arrays are hidden, as by `tree_mask`, so that it passes through `jit` as it is;
        so are the holes and hidden leaves that were there before.

    Raises:
        SpecError: an entry that is not a spec or matches nothing.
        MaskError: a mask that does not fit `tree`.
        ValueError: two leaves of one dotted path; one NNX Variable under several paths.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import merge, split
        >>> params = {"encoder": {"w": 1.5, "name": "enc"}, "head": {"w": jnp.ones(2)}}
        >>> trainable, rest = split(params)
        >>> list(trainable), rest
        (['head.w'], {'encoder': {'name': #'enc', 'w': #1.5}, 'head': {'w': hole f32[2]}})
        >>> merge(trainable, rest)["head"]["w"] is params["head"]["w"]
        True
    """
    seen = Tree(tree)
    refuse_ties(seen, "split")
    flags = read_choice(freeze, trainable)(seen, values=True)
    twice = [name for name, count in Counter(seen.leaf_names).items() if count > 1]
    if twice:
        raise ValueError(
            f"two different leaves are both called {quote(twice[0])}, and a flat dictionary has "
            "room for one: rename one of them"
        )
    named = zip(seen.leaf_names, seen.leaves, flags, strict=True)
    taken = {name: leaf for name, leaf, flag in named if flag}
    nodes, treedef = jax.tree.flatten(tree, is_leaf=_is_left_out)
    flag = iter(flags)
    # What was left out before is hidden as well (a hidden leaf twice), to come back as it was.
    rest = [hide(node) if _is_left_out(node) else _rest(node, trains=next(flag)) for node in nodes]
    return taken, treedef.unflatten(rest)


def merge(trainable: Mapping[str, Any], rest: Any) -> Any:
    """Put together again what `split` took apart.

    Also over another model of the same shapes: what trained on one base, over another one. Where
    `vmap`, `scan` or `shard_map` shows a part of each array, that part is taken.

    Args:
        trainable: a dictionary from dotted path to leaf, as of `split`: new values, or what was
            saved. A float of another precision is taken as it is. What NumPy loads from `.npz` as
            mere bytes (`V2`, which was bfloat16) comes back bit for bit in the dtype of the hole.
        rest: the tree with holes in these places, as of `split`.

    Returns:
        The tree: every hole filled, what `split` hid revealed.

    Raises:
        TypeError: if `trainable` is not a mapping.
        ValueError: a hole that nothing fills, a path that is not there, or one that is filled
            already; a value of another shape or another kind than what belongs there; all of
            them, by path. To load a part that was saved under another `freeze=`, take
            `split(params, trainable=list(part))[1]` for the rest.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import merge, split
        >>> trainable, rest = split({"a": jnp.zeros(2), "b": "name"})
        >>> merge({"a": jnp.ones(2)}, rest)["b"]
        'name'
        >>> merge({"a": jnp.ones(3)}, rest)
        Traceback (most recent call last):
        ValueError: merge: 'a' is filled with f32[3], where f32[2] belongs
    """
    if not isinstance(trainable, Mapping):
        kind = type(trainable).__qualname__
        raise TypeError(f"merge takes the dictionary of split first, then the rest, not a {kind}")
    nodes, treedef = tree_flatten_with_path(rest, is_leaf=_is_left_out)
    values = [reveal(node) if isinstance(node, Hidden) else node for _, node in nodes]
    at_holes = [(_name(path), i) for i, (path, node) in enumerate(nodes) if is_hole(node)]
    holes = dict(at_holes)
    missing = [name for name in holes if is_place(trainable.get(name))]
    problems = [f"nothing fills {quote(name)}" for name in missing]
    twice = [name for name, count in Counter(name for name, _ in at_holes).items() if count > 1]
    problems += [f"two holes are both called {quote(name)}" for name in twice]
    for name, value in trainable.items():
        if name in holes and not is_place(value):
            hole = nodes[holes[name]][1]
            problem = misfit(value, hole)
            problems += [f"{quote(name)} is filled with {problem}"] if problem else []
            values[holes[name]] = value if problem else filling(value, hole)
    extra = [name for name in trainable if name not in holes]
    is_known = True
    if extra:
        filled = {_name(path) for path, _ in nodes}
        is_known = filled.issuperset(extra)
        problems += [
            f"{quote(name)} is filled already" if name in filled else f"there is no {quote(name)}"
            for name in extra
        ]
    if problems:
        is_other = trainable and is_known and (extra or not trainable.keys() >= set(missing))
        raise ValueError(f"merge: {listing(problems)}{_ANOTHER_FREEZE if is_other else ''}")
    return treedef.unflatten(values)


def _name(path: Any) -> str:
    return keystr(path, simple=True, separator=".")


def _is_left_out(node: Any) -> bool:
    return is_hole(node) or isinstance(node, Hidden)


def _rest(leaf: Any, *, trains: bool) -> Any:
    if trains:
        return hole_of(leaf)
    return leaf if is_array_of_jit(leaf) else hide(leaf)
