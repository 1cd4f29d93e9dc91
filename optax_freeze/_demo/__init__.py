"""The demonstration: transfer learning on real digits, five ways side by side."""

from optax_freeze._demo.report import demonstrate

__all__ = ["demonstrate"]
