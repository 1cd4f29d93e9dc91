"""`cut_rows` and `join_rows`: a part of one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from optax_freeze._specs import Spec, SpecError, read_specs, select, view
from optax_freeze._training.cuts import Rows, read_rows
from optax_freeze._training.slicing import cut_array, join_arrays
from optax_freeze._trees import (
    Pieces,
    Place,
    Tree,
    is_array,
    is_float0,
    is_place,
    listing,
    quote,
)


def cut_rows(tree: Any, rows: Mapping[Any, Any], axis: int = 0) -> Any:
    """Cut arrays into pieces of which each trains or stays for itself.

    A leaf trains as a whole or not at all. So to train the new token rows of an embedding, or the
    last layers of a stack that `jax.lax.scan` runs over, cut it into leaves first::

        params = cut_rows(params, {"embed.weight": 32000})  # "embed.weight.0", "embed.weight.1"
        tx = trainable_only(optax.adamw(1e-3), trainable="embed.weight[1]")

    Specs, masks, counts, optimizer states, checkpoints and `summary` take the pieces for what they
    are, leaves. What needs the array calls `join_rows`, the loss above all::

        value_and_grad(lambda params, batch: loss(join_rows(params), batch), ...)

    - Cut once, before `init`, and keep params and states in pieces. A checkpoint that lost its
      classes (Orbax without a target) holds a list or dictionary for each array in pieces; its
      leaves are in the order of those of a template, `cut_rows` of fresh params. Flax's
      `serialization` knows no such nodes: train and save what `split` gives, a flat dictionary.
    - The pieces of an array of NumPy are copies of NumPy. Those of an array that is spread over
      devices are spread likewise; where the rows are, and do not come out even, they are not.
    - Single *elements* cannot be cut out. To keep these still, mask the updates, last in the chain.

    Args:
        tree: any pytree, of arrays, abstract or under a trace.
        rows: from a spec, or a tuple of specs, to where to cut the arrays that it matches: an
            integer or a list of integers, the first row of the second piece and so on (negative:
            from the end); or a one-dimensional *array* of integers, which picks rows: piece 0 holds
            the others, piece 1 these in this order.
        axis: the axis on which the rows are counted.

    Returns:
        `tree` with a node for every array that an entry matches. Its children are the pieces, which
        are also in its attribute `pieces`.

    Raises:
        TypeError: if `rows` is not a mapping, or `axis` no integer.
        SpecError: a key that is not a spec, or matches nothing.
        ValueError: rows that are none, or out of range, or leave a piece empty, or pick a row
            twice; a leaf that is no array, is a piece already, or is matched by two entries; all
            of them by path.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from optax_freeze import cut_rows, leaf_paths
        >>> params = {"embed": jnp.ones((10, 4)), "blocks": jnp.ones((12, 4, 4))}
        >>> cut = cut_rows(params, {"embed": np.array([7, 2]), "blocks": [4, -2]})
        >>> leaf_paths(cut)
        ['blocks.0', 'blocks.1', 'blocks.2', 'embed.0', 'embed.1']
        >>> cut["embed"], [piece.shape[0] for piece in cut["blocks"].pieces]
        (Pieces(float32[8, 4], float32[2, 4]), [4, 6, 2])
    """
    if not isinstance(rows, Mapping):
        kind = type(rows).__qualname__
        raise TypeError(f"cut_rows takes a mapping from specs to rows, not {kind}")
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"cut_rows: axis is an integer, not {axis!r}")
    entries = [_read_entry(key, value) for key, value in rows.items()]
    specs = [spec for entry, _ in entries for spec in entry]
    seen = Tree(tree)
    found = iter(select(specs, view(seen, specs, values=True), "cut_rows"))
    pieces = _positions_of_pieces(seen)
    leaves = list(seen.leaves)
    cut_by: dict[int, str] = {}
    problems = []
    for entry, at in entries:
        label = " or ".join(spec.label for spec in entry)
        for position in sorted(set().union(*(next(found).positions for _ in entry))):
            leaf = seen.leaves[position]
            name = seen.name_of(position)
            if position in cut_by:
                by = f"{cut_by[position]} and by {label}"
                problems.append(f"{name} is matched by {by}: cut it by one entry")
            elif position in pieces:
                problems.append(f"{name} is a piece already: join_rows first, then cut anew")
            elif not is_array(leaf):
                kind = type(leaf).__qualname__
                problems.append(f"{name} is no array ({kind}): name the arrays, one by one")
            else:
                try:
                    cut = at.cut(leaf.shape, axis)
                    leaves[position] = Pieces(cut_array(leaf, cut), cut)
                except ValueError as error:
                    problems.append(f"{name} {error}")
            cut_by[position] = label
    if problems:
        raise ValueError(f"cut_rows: {listing(problems)}")
    return seen.treedef.unflatten(leaves)


def _read_entry(key: Any, rows: Any) -> tuple[tuple[Spec, ...], Rows]:
    entry = read_specs(key, f"the key {key!r} of cut_rows")
    if not entry:
        raise SpecError(f"the key {key!r} of cut_rows names nothing: leave the entry out")
    try:
        return entry, read_rows(rows)
    except ValueError as error:
        raise ValueError(f"cut_rows, entry {key!r}: {error}") from None


def _positions_of_pieces(tree: Tree) -> set[int]:
    if Pieces not in tree.classes:
        return set()
    nodes = [node for node in tree.root.walk() if isinstance(node.value, Pieces)]
    return {i for node in nodes for i in range(node.start, node.stop)}


def join_rows(tree: Any) -> Any:
    """The whole arrays of what `cut_rows` cut, bit for bit.

    It belongs into the loss, `loss(join_rows(params), batch)`, under `jit`, `grad` and `vmap` as
    anywhere. The gradient of a piece is the rows of the whole array's gradient, and of a piece that
    does not train there is none.

    It costs a copy of the array in each step (two where rows were picked), and a backward pass
    through all that the array takes part in. For a stack of layers there is a cheaper way: run over
    the pieces one after the other, which copies nothing and ends the backward pass where the frozen
    layers begin. Of 12 layers with 10 frozen, one scan over the joined stack runs 36 products of
    matrices in a step, two scans over the pieces 16::

        def piece(tree, i):  # of a tree of which every array is in pieces
            return jax.tree.map(
                lambda cut: cut.pieces[i], tree, is_leaf=lambda node: hasattr(node, "pieces")
            )

        for i in range(2):
            x, _ = jax.lax.scan(layer, x, piece(params["blocks"], i))

    Args:
        tree: any pytree, of arrays, abstract or under a trace.

    Returns:
        `tree` with an array for each node of pieces: of NumPy if all of them are, abstract if one
        is. Where all pieces are left out (None or holes), what stands for the first of them. A tree
        without pieces comes back as it is.

    Raises:
        ValueError: pieces of which some are left out, as in the gradient of what trains; that are
            no arrays; or no longer have the shapes they were cut to or one dtype; all of them by
            path.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import cut_rows, grad, join_rows
        >>> params = {"embed": jnp.ones((10, 4)), "head": jnp.ones(4)}
        >>> cut = cut_rows(params, {"embed": 8})
        >>> join_rows(cut)["embed"].shape
        (10, 4)
        >>> def loss(params):
        ...     whole = join_rows(params)
        ...     return jnp.sum(whole["embed"] @ whole["head"])
        >>> grads = grad(loss, freeze=["embed[0]", "head"])(cut)
        >>> grads["embed"].pieces[1].shape
        (2, 4)
    """
    nodes, treedef = jax.tree.flatten(tree, is_leaf=_is_pieces)
    if not any(map(_is_pieces, nodes)):
        return tree
    if any(_is_pieces(node) and _why_not(node) for node in nodes):
        named, _ = tree_flatten_with_path(tree, is_leaf=_is_pieces)
        problems = [
            f"{quote(keystr(path, simple=True, separator='.'))} {_why_not(node)}"
            for path, node in named
            if _is_pieces(node) and _why_not(node)
        ]
        raise ValueError(f"join_rows: {listing(problems)}")
    return treedef.unflatten([_join(node) if _is_pieces(node) else node for node in nodes])


def _is_pieces(node: Any) -> bool:
    return isinstance(node, Pieces)


def _join(node: Pieces) -> Any:
    first = node.pieces[0]
    return first if _is_left_out(first) else join_arrays(node.pieces, node.cut)


def _is_left_out(piece: Any) -> bool:
    return is_place(piece) and not is_float0(piece)  # which is an array, of nothing


def _why_not(node: Pieces) -> str:
    """Why pieces cannot be joined, or `""`."""
    pieces, cut = node.pieces, node.cut
    left_out = list(map(_is_left_out, pieces))
    if any(isinstance(piece, Place) for piece in pieces):
        return "has hidden pieces: tree_unmask comes before join_rows"
    if all(left_out):
        return ""
    if any(left_out):
        return (
            f"lacks its piece {left_out.index(True)}: join the params, in the loss; what holds "
            "only some of them, such as gradients and states, stays in pieces"
        )
    for i, piece in enumerate(pieces):
        if not is_array(piece):
            return f"holds no array as piece {i} ({type(piece).__qualname__})"
    first = pieces[0].shape
    for i, size in enumerate(cut.sizes):
        before = len(first) + cut.axis  # the axes before that of the rows
        if before < 0 or pieces[i].shape != (*first[:before], size, *first[before + 1 :]):
            shape = pieces[i].shape
            return (
                f"has a piece {i} of shape {shape}, beside one of {first}, but it was cut to "
                f"{size} rows on axis {cut.axis}"
            )
    dtypes = list(dict.fromkeys(str(piece.dtype) for piece in pieces))
    if len(dtypes) > 1:
        return f"has pieces of {' and '.join(dtypes)}: cast them to one dtype"
    return ""
