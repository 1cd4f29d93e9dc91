"""A pytree, its leaves, and their dotted names."""

from optax_freeze._trees.arrays import is_array, is_array_of_jit, passes_jit
from optax_freeze._trees.holes import HOLE, Hole, hole_of, is_hole, none_is_a_hole
from optax_freeze._trees.names import Name
from optax_freeze._trees.other_trees import alongside, view_alongside, view_alongside_or_none
from optax_freeze._trees.part import Part
from optax_freeze._trees.pieces import Cut, Pieces
from optax_freeze._trees.places import Place, is_float0, is_place, is_variable
from optax_freeze._trees.texts import SHOWN, array_text, closest, listing, quote
from optax_freeze._trees.ties import further_positions, hint_of_state, refuse_ties, shared, ties
from optax_freeze._trees.tree import Node, Tree, leaf_paths

__all__ = [
    "HOLE",
    "SHOWN",
    "Cut",
    "Hole",
    "Name",
    "Node",
    "Part",
    "Pieces",
    "Place",
    "Tree",
    "alongside",
    "array_text",
    "closest",
    "further_positions",
    "hint_of_state",
    "hole_of",
    "is_array",
    "is_array_of_jit",
    "is_float0",
    "is_hole",
    "is_place",
    "is_variable",
    "leaf_paths",
    "listing",
    "none_is_a_hole",
    "passes_jit",
    "quote",
    "refuse_ties",
    "shared",
    "ties",
    "view_alongside",
    "view_alongside_or_none",
]
