"""Keep a part of any JAX model still while Optax trains the rest."""

from optax_freeze._checks import FrozenLeak, StateCost, assert_unchanged, check_frozen
from optax_freeze._choice import default_trainable
from optax_freeze._entries import SpecError
from optax_freeze._fixed import Constant, frozen_field
from optax_freeze._gradients import grad, value_and_grad
from optax_freeze._groups import param_groups
from optax_freeze._hiding import is_masked, is_nondiff, tree_mask, tree_unmask, unmasked
from optax_freeze._holes import merge, split
from optax_freeze._masks import count_trainable_params, freeze_mask, trainable_mask
from optax_freeze._meeting import MaskError
from optax_freeze._paths import leaf_paths
from optax_freeze._questions import where
from optax_freeze._summary import summary
from optax_freeze._transforms import frozen, trainable_only
from optax_freeze._updates import apply_updates

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
    "default_trainable",
    "freeze_mask",
    "frozen",
    "frozen_field",
    "grad",
    "is_masked",
    "is_nondiff",
    "leaf_paths",
    "merge",
    "param_groups",
    "split",
    "summary",
    "trainable_mask",
    "trainable_only",
    "tree_mask",
    "tree_unmask",
    "unmasked",
    "value_and_grad",
    "where",
]
