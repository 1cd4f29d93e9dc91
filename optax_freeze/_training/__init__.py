"""What moves: transformations, gradients, and the two halves of a split tree."""

from optax_freeze._training.declared import declared_starts
from optax_freeze._training.gradients import grad, value_and_grad
from optax_freeze._training.groups import param_groups
from optax_freeze._training.migration import migrate_state
from optax_freeze._training.routing import keep, read_transformation
from optax_freeze._training.split_merge import merge, split
from optax_freeze._training.transforms import frozen, trainable_only
from optax_freeze._training.unfreezing import unfreeze_at
from optax_freeze._training.updates import apply_updates

__all__ = [
    "apply_updates",
    "declared_starts",
    "frozen",
    "grad",
    "keep",
    "merge",
    "migrate_state",
    "param_groups",
    "read_transformation",
    "split",
    "trainable_only",
    "unfreeze_at",
    "value_and_grad",
]
