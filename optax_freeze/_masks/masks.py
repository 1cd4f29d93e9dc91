"""Boolean trees that say what trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from optax_freeze._masks.choice import read_choice
from optax_freeze._masks.declared import Constant
from optax_freeze._masks.default import default_trainable
from optax_freeze._trees import Tree, further_positions


def trainable_mask(
    tree: Any,
    predicate: Callable[[Any], bool] = default_trainable,
    *,
    freeze: Any = None,
    trainable: Any = None,
    fixed: tuple[type, ...] = (Constant,),
) -> Any:
    """Say which leaves of a pytree train.

    Args:
        tree: any pytree: concrete, abstract (`jax.eval_shape`) or of tracers; it may contain
            holes (`optax.MaskedNode`), hidden leaves and None.
        predicate: called with each leaf: whether it trains if nothing else is said. What cannot be
            differentiated does not train whatever it says.
        freeze: specs of what must not train: a path or path pattern, a compiled regex, a class, a
            function of a module, `where(...)`, or a list of them. They see the values of arrays.
            In a list `"!path"` takes away what the entries before it selected, as in `.gitignore`;
            it takes a path or path pattern only. (The exact text of a key goes first: a key that
            begins with `!` is named as it is.)
        trainable: what may train and nothing else: specs, or a mask: a boolean pytree that meets
            `tree` by path and may be a prefix of it. `freeze` is carved out of it.
        fixed: classes whose instances do not train, nor anything below them, unless a mask has
            True at the very leaf. The same holds for a `frozen_field`.

    Returns:
        A pytree of plain `bool` with the structure of `tree`. True trains, False is frozen.

    Raises:
        SpecError: an entry that is not a spec, matches nothing, or, in `trainable`, nothing that
            can train or that `freeze` leaves; a `"!path"` that comes first or takes nothing away;
            entries that say two things about one parameter that stands under two paths.
        MaskError: a mask that does not fit `tree`, that has True at a leaf that cannot be
            differentiated, or that says two things about one parameter.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import trainable_mask
        >>> params = {"encoder": {"w": jnp.ones(2)}, "head": jnp.ones(2), "step": 3}
        >>> trainable_mask(params)
        {'encoder': {'w': True}, 'head': True, 'step': False}
        >>> trainable_mask(params, freeze="encoder")
        {'encoder': {'w': False}, 'head': True, 'step': False}
        >>> trainable_mask(params, freeze=["**", "!head"])
        {'encoder': {'w': False}, 'head': True, 'step': False}
        >>> trainable_mask(params, trainable={"encoder": True, "head": False, "step": False})
        {'encoder': {'w': True}, 'head': False, 'step': False}
    """
    seen = Tree(tree)
    choice = read_choice(freeze, trainable)
    flags = choice(seen, values=True, predicate=predicate, fixed=fixed)
    return seen.treedef.unflatten(flags)


def freeze_mask(tree: Any, freeze: Any, mask: Any = None) -> Any:
    """Lower a mask: set every leaf that `freeze` matches to False.

    This is a *trainability* mask: False is frozen. `optax.freeze(mask)` and
    `optax.selective_transform(tx, freeze_mask=mask)` mean the opposite by theirs, although the
    names fit: they want `jax.tree.map(operator.not_, mask)`.

    Args:
        tree: any pytree.
        freeze: specs of what must not train, as in `trainable_mask`.
        mask: a mask that meets `tree` by path; by default `trainable_mask(tree)`.

    Returns:
        A pytree of plain `bool` with the structure of `tree`; nowhere True where `mask` is False.

    Raises:
        SpecError: an entry that is not a spec or matches nothing.
        MaskError: a mask that does not fit `tree`.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import freeze_mask
        >>> params = {"encoder": {"w": jnp.ones(2), "b": jnp.ones(2)}, "head": jnp.ones(2)}
        >>> freeze_mask(params, "encoder.b")
        {'encoder': {'b': False, 'w': True}, 'head': True}
    """
    seen = Tree(tree)
    return seen.treedef.unflatten(read_choice(freeze, mask=mask)(seen, values=True))


def count_trainable_params(tree: Any, *, mask: Any = None) -> int:
    """Count the scalars that train.

    Args:
        tree: any pytree, concrete or abstract.
        mask: a mask that meets `tree` by path; by default `trainable_mask(tree)`.

    Returns:
        The number of scalars in the leaves that train; a complex number counts as one, and so does
        a parameter that stands under several paths (one NNX Variable, a leaf of `eqx.nn.Shared`).

    Raises:
        MaskError: a mask that does not fit `tree`.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import count_trainable_params, freeze_mask
        >>> params = {"encoder": jnp.ones((3, 4)), "head": jnp.ones(5), "step": 3}
        >>> count_trainable_params(params)
        17
        >>> count_trainable_params(params, mask=freeze_mask(params, "encoder"))
        5
    """
    seen = Tree(tree)
    flags = read_choice(mask=mask)(seen, values=True)
    counted = {i for i, flag in enumerate(flags) if flag} - further_positions(seen)
    return sum(np.size(seen.leaves[i]) for i in counted)
