"""Leaves hidden from `grad` and `jit`, and the equality of what is hidden."""

from optax_freeze._hiding.equality import show, unseal
from optax_freeze._hiding.hidden import Hidden, hide, is_masked, reveal
from optax_freeze._hiding.nondiff import is_nondiff
from optax_freeze._hiding.sealing import seal
from optax_freeze._hiding.trees import tree_mask, tree_unmask, unmasked

__all__ = [
    "Hidden",
    "hide",
    "is_masked",
    "is_nondiff",
    "reveal",
    "seal",
    "show",
    "tree_mask",
    "tree_unmask",
    "unmasked",
    "unseal",
]
