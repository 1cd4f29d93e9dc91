"""Checks for a test suite: that nothing frozen has moved, and that nothing would."""

from optax_freeze._proof.leaks import FrozenLeak, StateCost, check_frozen
from optax_freeze._proof.unchanged import assert_unchanged

__all__ = [
    "FrozenLeak",
    "StateCost",
    "assert_unchanged",
    "check_frozen",
]
