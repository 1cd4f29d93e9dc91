"""`apply_updates`, which leaves alone what did not train."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_freeze._masks import is_differentiable
from optax_freeze._trees import Tree, is_place, refuse_ties, view_alongside


def apply_updates(params: Any, updates: Any) -> Any:
    """Like `optax.apply_updates`, but what did not train is left alone: the very same object.

    Args:
        params: any pytree.
        updates: a tree of the same structure; None, a hole (`optax.MaskedNode`) or `float0` leaves
            the param alone. One of the two may be another view of the model, such as its arrays
            with None for all else.

    Returns:
        `params` with the updates added and every dtype kept. Params that are not of a float or
        complex dtype (integers, bools, PRNG keys, strings, functions) stay as they are.

    Raises:
        ValueError: if the structures differ, or an update would change the shape of its param, or
            one NNX Variable stands under several paths.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import apply_updates
        >>> params = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
        >>> new = apply_updates(params, {"encoder": None, "head": -jnp.ones(2)})
        >>> new["encoder"] is params["encoder"], float(new["head"].sum())
        (True, 0.0)
    """
    tree = Tree(params)
    refuse_ties(tree, "apply_updates")
    found = view_alongside(tree, updates, "updates")
    return tree.treedef.unflatten([_apply(tree, i, update) for i, update in enumerate(found)])


def _apply(tree: Tree, position: int, update: Any) -> Any:
    param = tree.leaves[position]
    if is_place(update) or not is_differentiable(param):
        return param
    if isinstance(param, (float, complex)) and isinstance(update, (float, type(param))):
        return param + update  # of Python numbers, one of the kind of param
    if not _fits(np.shape(update), np.shape(param)):
        raise ValueError(
            f"the update of {tree.name_of(position)} has shape {np.shape(update)}, but the param "
            f"has {np.shape(param)}: an update must have the shape of its param"
        )
    return jnp.asarray(param + update).astype(jnp.asarray(param).dtype)


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether an array of one shape can be added to another without changing that one's shape."""
    try:
        return np.broadcast_shapes(shape, into) == into
    except ValueError:
        return False
