"""`assert_unchanged`: that nothing frozen has moved."""

from __future__ import annotations

from typing import Any

from optax_freeze._masks import read_choice
from optax_freeze._proof.drift import drift
from optax_freeze._trees import Tree, alongside, is_array, listing


def assert_unchanged(before: Any, after: Any, freeze: Any = None, *, trainable: Any = None) -> None:
    """Assert that no frozen leaf has changed, bit for bit.

    Args:
        before: the params before training.
        after: the params after it, of the same structure.
        freeze: specs of what must not have moved.
        trainable: what may have moved and nothing else: specs, or a mask. `freeze` is carved out of
            it. If neither is given, what does not train by default must not have moved, and there
            must be an array or a number among it.

    Raises:
        AssertionError: names each frozen leaf that is not the same, and how far it went.
        ValueError: if the structures differ, or nothing is frozen.
        SpecError: an entry that is not a spec or matches nothing.
        MaskError: a mask that does not fit `before`.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import assert_unchanged
        >>> before = {"encoder": jnp.ones(2), "head": jnp.ones(2)}
        >>> assert_unchanged(before, {**before, "head": jnp.zeros(2)}, freeze="encoder")
        >>> assert_unchanged(before, {**before, "encoder": jnp.zeros(2)}, freeze="encoder")
        Traceback (most recent call last):
        AssertionError: 1 of 1 frozen leaves changed: 'encoder' in 2 of 2 elements, by up to 1
    """
    tree = Tree(before)
    found = alongside(tree, after, "after")
    flags = read_choice(freeze, trainable)(tree, values=True)
    frozen = [i for i, flag in enumerate(flags) if not flag]
    is_said = freeze is not None or trainable is not None
    if not frozen or not (is_said or any(_is_of_numbers(tree.leaves[i]) for i in frozen)):
        raise ValueError(
            "assert_unchanged: nothing is frozen, so there is nothing to compare: pass the freeze= "
            "or trainable= of the run"
        )
    drifts = [(i, drift(tree.leaves[i], found[i])) for i in frozen]
    changed = [f"{tree.name_of(i)} {text}" for i, text in drifts if text]
    if changed:
        raise AssertionError(
            f"{len(changed)} of {len(frozen)} frozen leaves changed: {listing(changed)}"
        )


def _is_of_numbers(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, (int, float, complex))
