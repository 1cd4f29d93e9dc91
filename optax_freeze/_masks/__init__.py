"""What trains: the default, what a model declares, masks, and the one resolver of it all."""

from optax_freeze._masks.choice import describe, read_choice
from optax_freeze._masks.declared import Constant, frozen_field
from optax_freeze._masks.default import default_trainable, is_differentiable
from optax_freeze._masks.fitting import MaskError
from optax_freeze._masks.masks import count_trainable_params, freeze_mask, trainable_mask
from optax_freeze._masks.tied import check_assigned

__all__ = [
    "Constant",
    "MaskError",
    "check_assigned",
    "count_trainable_params",
    "default_trainable",
    "describe",
    "freeze_mask",
    "frozen_field",
    "is_differentiable",
    "read_choice",
    "trainable_mask",
]
