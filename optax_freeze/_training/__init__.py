"""What moves: transformations, gradients, rows, and the two halves of a split tree."""

from optax_freeze._training.gradients import grad, value_and_grad
from optax_freeze._training.groups import param_groups
from optax_freeze._training.routing import read_transformation, route
from optax_freeze._training.rows import cut_rows, join_rows
from optax_freeze._training.split_merge import merge, split
from optax_freeze._training.transforms import frozen, trainable_only
from optax_freeze._training.updates import apply_updates

__all__ = [
    "apply_updates",
    "cut_rows",
    "frozen",
    "grad",
    "join_rows",
    "merge",
    "param_groups",
    "read_transformation",
    "route",
    "split",
    "trainable_only",
    "value_and_grad",
]
