"""Hidden leaves: nodes without leaves that carry a value past `grad`, `jit` and `vmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from optax_freeze._hiding.hidden import describe, hide, is_hidden, is_masked, reveal
from optax_freeze._hiding.nondiff import is_nondiff
from optax_freeze._masks import MaskError, trainable_mask
from optax_freeze._specs import is_bool
from optax_freeze._trees import quote

F = TypeVar("F", bound=Callable[..., Any])


def tree_mask(
    tree: Any,
    cond: Callable[[Any], bool] | type = is_nondiff,
    *,
    trainable: Any = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Hide leaves of a pytree from `grad`, `jit`, `vmap`, ...: they stay in it, but not as leaves.

    A hidden leaf is part of the tree's *structure*: a jitted function is traced again when one
    changes, and not when it is equal by type, dtype, shape and bits (`1`, `1.0` and `True` differ,
    `0.0` and `-0.0` too, NaN equals itself). Objects that cannot be hashed or compared, and
    functions, are equal to themselves only: define a lambda once, not anew for every call. And
    `tree_mask(1) == 1` is False: what is not hidden is not equal to what is.

    Hide what cannot be differentiated or is no array. Do not hide a large frozen array: it becomes
    a constant of every compiled program that meets it, slow to compile and a second copy in memory.
    Freeze it with `value_and_grad` or `split`, where it stays an ordinary input.

    NumPy arrays are copied and made read-only, builtin containers (see `is_leaf`) are copied, other
    leaves carried as they are. Inside a transformed function tracers are hidden too, so that `grad`
    inside `jit` works on integer arrays. Reveal such a tree before it leaves that function (return
    `tree_unmask(tree)`), and before an inner `jit`, whose cache would keep the tracers alive.

    Idea and names: [sepes](https://sepes.readthedocs.io/en/latest/API/masking.html).

    Args:
        tree: any pytree; leaves that are hidden already stay hidden.
        cond: which leaves to hide: a function of the leaf that returns a bool, or a class.
        trainable: hides what does not train: specs of what may train, or a boolean tree, as in
            `trainable_mask`. Instead of `cond` and `is_leaf`. An integer does not train, so that
            True at one raises: to leave it visible (`jax.grad(..., allow_int=True)`), use `cond`.
        is_leaf: as in `jax.tree.map`: which nodes count as leaves, to be hidden in one piece.

    Returns:
        The tree with hidden leaves, which print as `#value`.

    Raises:
        TypeError: a `cond` that is neither a function nor a class, or does not return a bool;
            `trainable` together with `cond` or `is_leaf`.
        SpecError, MaskError: a `trainable` that does not fit the tree.

    Example:
        >>> import jax
        >>> from optax_freeze import tree_mask, tree_unmask
        >>> hidden = tree_mask([1, 2, {"a": 3, "b": 4.0}])
        >>> hidden
        [#1, #2, {'a': #3, 'b': 4.0}]
        >>> jax.tree.leaves(hidden)
        [4.0]
        >>> tree_unmask(hidden)
        [1, 2, {'a': 3, 'b': 4.0}]

        `grad` inside `jit`, of a tree with an integer array:

        >>> import jax.numpy as jnp
        >>> def loss(tree):
        ...     tree = tree_unmask(tree)
        ...     return jnp.sum(tree["w"][tree["index"]])
        >>> step = jax.jit(lambda tree: tree_unmask(jax.grad(loss)(tree_mask(tree))))
        >>> step({"w": jnp.zeros(3), "index": jnp.array([2, 2])})["w"].tolist()
        [0.0, 0.0, 2.0]
    """
    if trainable is None:
        # hidden leaves stay closed to the caller's is_leaf, which knows nothing of them
        stop = is_leaf and (lambda node: not is_hidden(node) and is_leaf(node))
        leaves, treedef = jax.tree.flatten(tree, is_leaf=stop)
        if cond is is_nondiff:
            return treedef.unflatten([hide(x) if is_nondiff(x) else x for x in leaves])
        flags = _answers(_question(cond), leaves, tree, stop)
    elif cond is not is_nondiff or is_leaf is not None:
        raise TypeError(
            "trainable= goes without cond and is_leaf: it says by itself which leaves to hide"
        )
    else:
        leaves, treedef = jax.tree.flatten(tree)
        flags = _does_not_train(tree, trainable)
    return treedef.unflatten(_each(hide, leaves, flags))


def _does_not_train(tree: Any, trainable: Any) -> list[bool]:
    try:
        mask = trainable_mask(tree, trainable=trainable)
    except MaskError as error:
        raise MaskError(
            f"{error} (only what trains stays visible here: to say of any leaf whether it is "
            "hidden, such as an integer, pass a function or a class as cond=)"
        ) from None
    return [not trains for trains in jax.tree.leaves(mask)]


def _always(_: Any) -> bool:
    return True


def tree_unmask(tree: Any, cond: Callable[[Any], bool] | type = _always) -> Any:
    """Reveal the hidden leaves of a pytree.

    Args:
        tree: any pytree.
        cond: which hidden leaves to reveal: a function of the value that is hidden, or a class.
            By default all.

    Returns:
        The tree with the values in their places.

    Raises:
        TypeError: a `cond` that is neither a function nor a class, or does not return a bool.
        UnexpectedTracerError: a hidden tracer, outside of all traces: the tree should have been
            revealed inside the transformed function that hid it.

    Example:
        >>> from optax_freeze import tree_mask, tree_unmask
        >>> hidden = tree_mask({"name": "a", "size": 3, "w": 0.5})
        >>> tree_unmask(hidden)
        {'name': 'a', 'size': 3, 'w': 0.5}
        >>> tree_unmask(hidden, str)
        {'name': 'a', 'size': #3, 'w': 0.5}
    """
    nodes, treedef = jax.tree.flatten(tree, is_leaf=is_hidden)
    if cond is _always:
        return treedef.unflatten([reveal(x) if is_hidden(x) else x for x in nodes])
    ask = _question(cond)
    flags = _answers(lambda x: is_hidden(x) and ask(reveal(x)), nodes, tree, is_hidden)
    return treedef.unflatten(_each(reveal, nodes, flags))


def unmasked(fun: F) -> F:
    """Let a function take trees with hidden leaves: all arguments are revealed before the call.

    Args:
        fun: a function or method. It may be jitted or differentiated itself, and what comes back
            may be jitted, differentiated and mapped.

    Returns:
        A function with the same signature and docstring.

    Example:
        >>> import jax
        >>> from optax_freeze import tree_mask, unmasked
        >>> @unmasked
        ... def loss(model, x):
        ...     return model["w"] ** model["power"] * x
        >>> jax.grad(loss)(tree_mask({"w": 3.0, "power": 2}), 1.0)
        {'power': #2, 'w': Array(6., dtype=float32, weak_type=True)}
    """

    @functools.wraps(fun)
    def revealing(*args: Any, **kwargs: Any) -> Any:
        revealed = {name: _revealed(value) for name, value in kwargs.items()}
        return fun(*map(_revealed, args), **revealed)

    return revealing  # type: ignore[return-value]


def _revealed(argument: Any) -> Any:
    """The argument revealed, or the very same object if nothing in it is hidden."""
    nodes = jax.tree.leaves(argument, is_leaf=is_hidden)
    return tree_unmask(argument) if any(map(is_masked, nodes)) else argument


def _each(change: Callable[[Any], Any], nodes: list[Any], flags: list[bool]) -> list[Any]:
    return [change(node) if flag else node for node, flag in zip(nodes, flags, strict=True)]


def _answers(ask: Any, leaves: list[Any], tree: Any, is_leaf: Any) -> list[bool]:
    """What a condition says of each leaf; `tree` and `is_leaf` only serve to name a bad one."""

    def name() -> str:
        path = tree_flatten_with_path(tree, is_leaf=is_leaf)[0][len(flags)][0]
        return quote(keystr(path, simple=True, separator="."))

    flags = []
    for leaf in leaves:
        try:
            flag = ask(leaf)
        except Exception as error:
            error.add_note(f"raised by cond for the leaf {name()}")
            raise
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(
                f"cond must return a bool, but for the leaf {name()} it returned {describe(flag)}: "
                "nothing is decided by truthiness"
            )
        flags.append(bool(flag))
    return flags


def _question(cond: Any) -> Callable[[Any], Any]:
    if isinstance(cond, type):
        return lambda leaf: isinstance(leaf, cond)
    below = jax.tree.leaves(cond)
    if below and all(map(is_bool, below)):
        raise TypeError(
            "cond must be a function of a leaf or a class, but it is a boolean tree "
            f"({type(cond).__qualname__} of {len(below)}): pass it as trainable=, where True "
            "trains and False is hidden"
        )
    if not callable(cond):
        raise TypeError(
            f"cond must be a function of a leaf or a class, got {describe(cond)}: paths and other "
            "specs go to trainable="
        )
    return cond
