"""Transformations that keep leaves still: `frozen` and `trainable_only`."""

from __future__ import annotations

from typing import Any

import optax

from optax_freeze._masks import read_choice
from optax_freeze._training.declared import declare_starts
from optax_freeze._training.routing import is_placeholder, keep, read_transformation
from optax_freeze._training.zeros import zero_like
from optax_freeze._trees import Tree, is_array, is_float0, is_place, view_alongside


def frozen(freeze: Any = None, *, trainable: Any = None) -> optax.GradientTransformationExtraArgs:
    """Zero updates for frozen leaves; the others pass untouched. Stateless.

    Where it stands in an `optax.chain` matters:

    - first, it keeps frozen gradients out of whatever follows: `chain(frozen("encoder"),
      clip_by_global_norm(1.0), adam(1e-3))` clips by the norm of what trains;
    - last, it is a guarantee: whatever came before, frozen leaves get zeros;
    - in front of weight decay or noise (`adamw`, `lion`, `add_decayed_weights`, `add_noise`) it is
      **not enough**: they make updates out of zeros. Use `trainable_only`, which also spares the
      optimizer state of what is frozen.

    None, holes (`optax.MaskedNode`) and `float0` in the place of a frozen array become zeros of
    its shape and dtype, so the gradients of `optax_freeze.value_and_grad` may be passed. A zero is
    minus zero where the dtype has one, which leaves even the sign of -0.0 alone.

    Args:
        freeze: specs of what must not move: a path or path pattern, a compiled regex, a class, a
            function of a module, `where(...)`, or a list of them.
        trainable: what may move and nothing else: specs, or a mask. `freeze` is carved out of it.

    Returns:
        An `optax.GradientTransformationExtraArgs`. `init` and `update` raise `SpecError` and
        `MaskError` as `trainable_mask` does, and `update` a `ValueError` for a hole when there are
        no params to tell how to fill it.

    Raises:
        SpecError: an entry that is not a spec.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import frozen
        >>> params = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
        >>> tx = optax.chain(frozen("encoder"), optax.sgd(1.0))
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> [float(u.sum()) for u in (updates["encoder"], updates["head"])]
        [0.0, -2.0]
    """
    choice = read_choice(freeze, trainable)

    def init(params: Any) -> optax.EmptyState:
        if not is_placeholder(params):
            choice(Tree(params), values=False)  # so that a wrong name raises before training
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None, **_: Any) -> tuple[Any, Any]:
        tree = Tree(updates if params is None else params)
        if params is None and (tree.has_holes or any(map(is_float0, tree.leaves))):
            raise ValueError(
                "frozen: the updates have holes, and without params there is nothing to tell "
                "their shapes: pass params to update"
            )
        flags = choice(tree, values=False)
        found = view_alongside(tree, updates, "updates")
        new = [
            slot if flag else _zero_or_place(leaf, slot)
            for leaf, slot, flag in zip(tree.leaves, found, flags, strict=True)
        ]
        return tree.treedef.unflatten(new), state

    return declare_starts(
        optax.GradientTransformationExtraArgs(init, update),
        lambda tree: [0 if flag else None for flag in choice(tree, values=False)],
    )


def _zero_or_place(leaf: Any, slot: Any) -> Any:
    if is_place(slot) and not is_array(leaf):
        return slot
    zero = zero_like(leaf)
    return slot if zero is None and is_place(slot) else zero


def trainable_only(
    tx: optax.GradientTransformation, freeze: Any = None, *, trainable: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Any optimizer, for what trains only: the safe way to freeze.

    `tx` sees the tree with None in the place of what is frozen: no state, no decay, no noise, no
    share in a global norm. Its state is the state of this transformation.

    It is the *outermost* wrapper; everything else goes inside::

        trainable_only(optax.MultiSteps(optax.chain(clip, adamw), 4), freeze="encoder")  # right
        optax.MultiSteps(trainable_only(optax.chain(clip, adamw), freeze="encoder"), 4)  # wrong

    Around it, `MultiSteps`, clipping, averaging or decay would meet None in the updates, hold state
    for what is frozen, or move it. (`optax.lookahead`, whose updates are not of the structure of
    its gradients, cannot go inside: use it on what `split` gives.)

    - The updates of frozen leaves mirror the gradient: zeros where an array came, None where None,
      a hole or `float0` came. `optax_freeze.apply_updates` takes both.
    - `init`, the gradients and the params may be different views of one model, such as the whole
      Equinox module and `eqx.filter(model, eqx.is_array)`.
    - Extra arguments with the structure and shapes of params (`grad`) are masked as well, and a
      function (`value_fn`) is called with the full params, so line searches and L-BFGS work. (Not
      so `optax.value_and_grad_from_state`, which mixes the gradient in the state with a full one:
      use it on what `split` gives.)
    - A state that was made for another choice or for other params raises before anything is
      computed, and names the leaves.
    - A Python float does not train by default, but inside `jit` one that came in as an argument is
      an array like any other: freeze it by name.
    - If nothing trains, `tx` is neither initialised nor run; the state is `optax.EmptyState()`.
    - `optax.tree_map_params` works over its state. With further trees of the structure of params,
      such as shardings, let it stop at None::

          optax.tree_map_params(
              tx, lambda leaf, sharding: jax.device_put(leaf, sharding), state, shardings,
              is_leaf=lambda node: node is None,
          )

      where the function must leave None as it is, as `jax.device_put` does.

    Args:
        tx: the optimizer, or an `optax.MultiSteps`.
        freeze: specs of what must not move: a path or path pattern, a compiled regex, a class, a
            function of a module, `where(...)`, or a list of them.
        trainable: what may move and nothing else: specs, or a mask. `freeze` is carved out of it.

    Returns:
        An `optax.GradientTransformationExtraArgs`. `init` and `update` raise `SpecError` and
        `MaskError` as `trainable_mask` does, and `update` a `ValueError` for a gradient that has
        nothing where a leaf trains, and for a state that does not fit.

    Raises:
        TypeError: if `tx` is not a gradient transformation.
        SpecError: an entry that is not a spec.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import apply_updates, trainable_only
        >>> params = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
        >>> tx = trainable_only(optax.adamw(1e-3), freeze="encoder")
        >>> state = tx.init(params)
        >>> [leaf.shape for leaf in jax.tree.leaves(state)]  # the count and the moments of "head"
        [(), (2,), (2,)]
        >>> updates, state = tx.update(params, state, params)
        >>> bool((apply_updates(params, updates)["encoder"] == params["encoder"]).all())
        True
    """
    tx = read_transformation(tx, "trainable_only")
    choice = read_choice(freeze, trainable)
    return keep(tx, lambda tree: choice(tree, values=False))
