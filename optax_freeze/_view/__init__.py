"""What trains, how many parameters and how many bytes, as a table."""

from optax_freeze._view.summaries import summary

__all__ = [
    "summary",
]
