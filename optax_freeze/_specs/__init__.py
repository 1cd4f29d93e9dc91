"""Which leaves of a tree an entry of `freeze` or `trainable` means."""

from optax_freeze._specs.asking import ask, where
from optax_freeze._specs.counting import counted
from optax_freeze._specs.naming import Pattern
from optax_freeze._specs.reading import holds_bool, is_bool, is_specs, read_specs
from optax_freeze._specs.selecting import select, view
from optax_freeze._specs.spec import Found, Spec, SpecError

__all__ = [
    "Found",
    "Pattern",
    "Spec",
    "SpecError",
    "ask",
    "counted",
    "holds_bool",
    "is_bool",
    "is_specs",
    "read_specs",
    "select",
    "view",
    "where",
]
