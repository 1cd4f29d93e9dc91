"""Checkpoints as abstract trees, from their headers alone, and the summary of one."""

from optax_freeze._checkpoints.errors import CheckpointError
from optax_freeze._checkpoints.showing import optimizer, show

__all__ = ["CheckpointError", "optimizer", "show"]
