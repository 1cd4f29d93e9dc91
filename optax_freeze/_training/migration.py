"""`migrate_state`: the state of another choice, grouping or stages, carried over."""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import optax

from optax_freeze._training.carrying import Carrying
from optax_freeze._training.routing import read_transformation
from optax_freeze._trees import Tree


def migrate_state(state: Any, tx: optax.GradientTransformation, params: Any) -> Any:
    """The optimizer state of another `freeze=`, grouping or stages, carried over.

    By path: what both have is kept, the very same arrays (moments, counts, averages); what only the
    old state has is dropped; a group or cohort of which the old state knows nothing is fresh. It is
    never silent: what would start with fresh moments under a count that has already run raises.

    - A leaf is found again in whichever group or cohort it was, with the optimizer of either of
      the same form: elements of an `optax.chain` carry over position by position. A group that was
      split leaves its counts to each part.
    - Where nothing counts (momentum, RMSProp), or nothing has run yet, a leaf that is new may join
      the others: that is how a fresh optimizer starts it.
    - The state may be one that was restored without a target, of dictionaries and lists, or have
      holes (`optax.MaskedNode`).
    - `unfreeze_at` goes on with the number of updates that the old state has; from a state of
      anything else, with the count of what is in its cohort 0 now. If that is not clear, say it, as
      the error shows.
    - Where a state does not say whose it is (`optax.sgd` with a schedule, `optax.flatten`, params
      that are one bare array), it is kept by the label of the group alone.

    Args:
        state: the old state.
        tx: the transformation that goes on with it.
        params: the params now.

    Returns:
        A state of the form of `tx.init(params)`, which is called and so takes the memory of a
        fresh state for a moment.

    Raises:
        TypeError: inside `jit`, or for an abstract state: counts must be known. If `tx` is not a
            gradient transformation.
        ValueError: for a leaf that would start with fresh moments under a count that has run, or
            that has another shape; for counts that differ and would become one; for a part of the
            state that the old one lacks, and if it shares nothing with the new one. The text names
            the leaves, and shows groups or cohorts that keep all there is.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import migrate_state, param_groups, trainable_only
        >>> params = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
        >>> before = trainable_only(optax.adam(0.1), freeze="encoder")
        >>> _, state = before.update(params, before.init(params), params)
        >>> after = param_groups({"encoder": optax.adam(0.1), "head": optax.adam(0.1)})
        >>> new_state = migrate_state(state, after, params)
        >>> {label: int(adam[0].count) for label, adam in new_state.groups.items()}
        {'encoder': 0, 'head': 1}
        >>> new_state.groups["head"][0].mu["head"] is state[0].mu["head"]
        True
    """
    tx = read_transformation(tx, "migrate_state")
    kinds = (jax.core.Tracer, jax.ShapeDtypeStruct)
    if any(isinstance(leaf, kinds) for leaf in jax.tree.leaves((state, params))):
        raise TypeError(
            "migrate_state reads the counts of a state: call it outside of jit, on arrays"
        )
    return Carrying(state, Tree(tx.init(params)), Tree(params)).result()
