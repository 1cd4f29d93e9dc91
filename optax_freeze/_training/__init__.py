"""What moves: transformations, gradients, rows, and the two halves of a split tree."""

from optax_freeze._training.declared import declared_starts
from optax_freeze._training.gradients import grad, value_and_grad
from optax_freeze._training.groups import param_groups
from optax_freeze._training.layers import layer_decay
from optax_freeze._training.migration import migrate_state
from optax_freeze._training.rates import scale_by_spec
from optax_freeze._training.routing import keep, read_transformation
from optax_freeze._training.rows import cut_rows, join_rows
from optax_freeze._training.split_merge import merge, split
from optax_freeze._training.transforms import frozen, trainable_only
from optax_freeze._training.unfreezing import unfreeze_at
from optax_freeze._training.updates import apply_updates

__all__ = [
    "apply_updates",
    "cut_rows",
    "declared_starts",
    "frozen",
    "grad",
    "join_rows",
    "keep",
    "layer_decay",
    "merge",
    "migrate_state",
    "param_groups",
    "read_transformation",
    "scale_by_spec",
    "split",
    "trainable_only",
    "unfreeze_at",
    "value_and_grad",
]
