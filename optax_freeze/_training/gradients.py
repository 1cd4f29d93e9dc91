"""Gradients with respect to the part that trains."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from optax_freeze._masks import read_choice
from optax_freeze._specs import SpecError
from optax_freeze._trees import Part, Tree, refuse_ties


def value_and_grad(
    fun: Callable[..., Any],
    freeze: Any = None,
    *,
    trainable: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., tuple[Any, Any]]:
    """Like `jax.value_and_grad`, but with respect to the leaves that train only.

    `fun` stays as it is and is called with the full tree. Frozen leaves are not differentiated: no
    backward pass runs through them, and no zeros stand for them. Frozen arrays stay ordinary
    run-time inputs of an enclosing `jit`; whatever is not an array may be in the tree as well.

    With Flax NNX use `nnx.value_and_grad` and `trainable_only`: NNX updates batch statistics in
    place, and what `fun` does to the tree it is given here is lost.

    Inside `jit`, a Python float that came in as an argument is an array like any other, and trains
    unless it is frozen by name.

    Args:
        fun: a function whose value is a real scalar (or a pair of that and something more).
        freeze: specs of what must not train: a path or path pattern, a compiled regex, a class, a
            function of a module, `where(...)`, or a list of them.
        trainable: what may train and nothing else: specs, or a mask. `freeze` is carved out of it.
        argnums: the positional argument to differentiate by. Of several, the tree is the tuple of
            them, and paths begin with the place in that tuple: `"0.encoder"`.
        has_aux: whether `fun` returns a pair `(value, aux)`.

    Returns:
        A function of the same arguments that returns `(value, gradient)`, or `((value, aux),
        gradient)`. The gradient has the structure of the tree, with None at the leaves that do not
        train.

    Raises:
        TypeError: if `fun` is not callable, or `argnums` neither an integer nor several.
        SpecError: an entry that is not a spec; on the call, one that matches nothing.
        MaskError: on the call, a mask that does not fit the tree.
        ValueError: on the call, an argument that is not there, or one that is meant twice; an NNX
            module in which one Variable stands under several paths.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import value_and_grad
        >>> def loss(params, x):
        ...     return jnp.sum(params["head"] * params["encoder"] * x)
        >>> params = {"encoder": jnp.array(2.0), "head": jnp.array(3.0)}
        >>> value, grads = value_and_grad(loss, freeze="encoder")(params, 1.0)
        >>> float(value), float(grads["head"]), grads["encoder"]
        (6.0, 2.0, None)
    """
    if not callable(fun):
        raise TypeError(f"a function is differentiated, not {type(fun).__qualname__}")
    if _is_argnums(freeze):
        raise SpecError(f"freeze is {freeze!r}: to choose the argument, pass argnums={freeze!r}")
    choice = read_choice(freeze, trainable)
    wanted, is_one = _read_argnums(argnums)

    @functools.wraps(fun)
    def value_and_gradient(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        places = _places(wanted, len(args))
        picked = tuple(args[place] for place in places)
        tree = Tree(picked[0] if is_one else picked)
        refuse_ties(tree, "value_and_grad")
        flags = choice(tree, values=False)
        part = Part(tree, [i for i, flag in enumerate(flags) if flag])

        def of_trainable(values: list[Any]) -> Any:
            full = part.fill(values, tree.leaves)
            changed = list(args)
            for place, arg in zip(places, [full] if is_one else full, strict=True):
                changed[place] = arg
            return fun(*changed, **kwargs)

        values = [tree.leaves[i] for i in part.positions]
        value, gradient = jax.value_and_grad(of_trainable, has_aux=has_aux)(values)
        return value, part.fill(gradient)

    return value_and_gradient


def grad(
    fun: Callable[..., Any],
    freeze: Any = None,
    *,
    trainable: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Like `jax.grad`, but with respect to the leaves that train only: see `value_and_grad`.

    Args:
        fun: a function whose value is a real scalar (or a pair of that and something more).
        freeze: specs of what must not train.
        trainable: what may train and nothing else: specs, or a mask. `freeze` is carved out of it.
        argnums: the positional argument to differentiate by, or several.
        has_aux: whether `fun` returns a pair `(value, aux)`.

    Returns:
        A function of the same arguments that returns the gradient, or `(gradient, aux)`.

    Raises:
        TypeError: if `fun` is not callable, or `argnums` neither an integer nor several.
        SpecError: an entry that is not a spec; on the call, one that matches nothing.
        MaskError: on the call, a mask that does not fit the tree.
        ValueError: on the call, an argument that is not there, or one that is meant twice.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import grad
        >>> params = {"encoder": jnp.array(2.0), "head": jnp.array(3.0)}
        >>> grads = grad(lambda p: p["head"] * p["encoder"], trainable="head")(params)
        >>> float(grads["head"]), grads["encoder"]
        (2.0, None)
    """
    both = value_and_grad(fun, freeze, trainable=trainable, argnums=argnums, has_aux=has_aux)

    @functools.wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return gradient


def _is_argnums(freeze: Any) -> bool:
    """Whether someone took the second argument for that of `jax.grad`."""
    places = freeze if isinstance(freeze, (list, tuple)) else [freeze]
    return bool(places) and all(type(place) is int for place in places)


def _read_argnums(argnums: Any) -> tuple[list[int], bool]:
    """The positions that `argnums` means, and whether it was a single one."""
    is_many = isinstance(argnums, (list, tuple))
    try:
        return [operator.index(place) for place in (argnums if is_many else [argnums])], not is_many
    except TypeError:
        raise TypeError(
            f"argnums={argnums!r}: give the position of the argument to differentiate by, an "
            "integer, or a tuple of them"
        ) from None


def _places(wanted: Sequence[int], count: int) -> list[int]:
    for place in wanted:
        if not -count <= place < count:
            raise ValueError(
                f"there is no argument {place} to differentiate by: the function was called with "
                f"{count} positional arguments, and what argnums means must be passed by position"
            )
    places = [place % count for place in wanted]
    if len(set(places)) < len(places):
        raise ValueError(
            f"argnums={tuple(wanted)} means one of the {count} arguments twice: name each once"
        )
    return places
