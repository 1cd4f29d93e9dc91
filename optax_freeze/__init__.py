"""Keep a part of any JAX model still while Optax trains the rest."""

from optax_freeze._hiding import is_masked, is_nondiff, tree_mask, tree_unmask, unmasked
from optax_freeze._masks import (
    Constant,
    MaskError,
    count_trainable_params,
    default_trainable,
    freeze_mask,
    frozen_field,
    trainable_mask,
)
from optax_freeze._proof import FrozenLeak, StateCost, assert_unchanged, check_frozen
from optax_freeze._specs import SpecError, where
from optax_freeze._training import (
    apply_updates,
    cut_rows,
    frozen,
    grad,
    join_rows,
    layer_decay,
    merge,
    migrate_state,
    param_groups,
    scale_by_spec,
    split,
    trainable_only,
    unfreeze_at,
    value_and_grad,
)
from optax_freeze._trees import leaf_paths
from optax_freeze._view import summary

__all__ = [
    "Constant",
    "FrozenLeak",
    "MaskError",
    "SpecError",
    "StateCost",
    "apply_updates",
    "assert_unchanged",
    "check_frozen",
    "count_trainable_params",
    "cut_rows",
    "default_trainable",
    "freeze_mask",
    "frozen",
    "frozen_field",
    "grad",
    "is_masked",
    "is_nondiff",
    "join_rows",
    "layer_decay",
    "leaf_paths",
    "merge",
    "migrate_state",
    "param_groups",
    "scale_by_spec",
    "split",
    "summary",
    "trainable_mask",
    "trainable_only",
    "tree_mask",
    "tree_unmask",
    "unfreeze_at",
    "unmasked",
    "value_and_grad",
    "where",
]
