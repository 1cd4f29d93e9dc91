"""A pytree, its leaves, and their dotted names."""

from optax_freeze._trees.arrays import is_array, is_array_of_jit, passes_jit
from optax_freeze._trees.names import Name
from optax_freeze._trees.other_trees import alongside, alongside_or_none
from optax_freeze._trees.part import Part
from optax_freeze._trees.places import HOLE, Place, is_float0, is_hole, is_place, is_variable
from optax_freeze._trees.texts import SHOWN, closest, listing, quote
from optax_freeze._trees.tree import Node, Tree, leaf_paths

__all__ = [
    "HOLE",
    "SHOWN",
    "Name",
    "Node",
    "Part",
    "Place",
    "Tree",
    "alongside",
    "alongside_or_none",
    "closest",
    "is_array",
    "is_array_of_jit",
    "is_float0",
    "is_hole",
    "is_place",
    "is_variable",
    "leaf_paths",
    "listing",
    "passes_jit",
    "quote",
]
