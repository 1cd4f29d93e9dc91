"""`layer_decay`: rates that fall from the last layer to the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from optax_freeze._masks import describe, is_differentiable
from optax_freeze._specs import Found, Spec, SpecError, counted, read_specs, select, view
from optax_freeze._trees import Node, Tree, listing, quote

Layer = list[tuple[str, Node]]  # what is in it, by the names under which it was found


def layer_decay(tree: Any, layers: Any, decay: float) -> dict[str, float]:
    """Factors for `scale_by_spec`: 1 for the last layer, `decay` times the next one for the others.

    The fine-tuning of ELECTRA (https://arxiv.org/abs/2003.10555) and BEiT
    (https://arxiv.org/abs/2106.08254) does it so, and the option `layer_decay` of timm
    (https://github.com/huggingface/pytorch-image-models)::

        factors = layer_decay(params, ["embed", "blocks[:]", "head"], 0.75)
        tx = optax.chain(optax.adamw(1e-3), scale_by_spec(factors))

    What no layer matches, such as a norm between the blocks and the head, is not in the result, and
    `scale_by_spec` gives it its `default`, 1: put it into a layer, `("head", "norm")`.

    Two towers are two calls: `scale_by_spec({**layer_decay(params, ["image.blocks[:]"], 0.8),
    **layer_decay(params, ["text.blocks[:]"], 0.75)})`.

    The rows of one stacked array are no leaves. Give `scale_by_spec` an array of factors for it, as
    its docstring shows, or cut it by `cut_rows`.

    Args:
        tree: the params, whole; may be abstract (`jax.eval_shape`).
        layers: specs, from the input to the output. One that ends in `[:]` counts: every numbered
            child (`blocks[:]`, `encoder.layer[:]`) or sibling (`Dense_[:]`, Haiku's `linear_[:]`)
            is a layer, in numeric order, with or without params of its own. Any other spec is one
            layer, and so is a tuple of specs, whatever they end in.
        decay: above 0 and at most 1.

    Returns:
        The factors by dotted path, from the input to the output: exactly `decay ** distance`, where
        the distance is the number of layers that follow. Layers of which nothing can train count,
        but are left out.

    Raises:
        TypeError: if `decay` is not a number.
        ValueError: if `decay` is out of range.
        SpecError: an entry that is not a spec, or matches nothing, or nothing that can train;
            one with `[:]` that counts in several places at once; a leaf in two layers; no layers.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import layer_decay
        >>> params = {"embed": jnp.ones(2), "blocks": [jnp.ones(2)] * 2, "head": jnp.ones(2)}
        >>> layer_decay(params, ["embed", "blocks[:]", "head"], 0.5)
        {'embed': 0.125, 'blocks.0': 0.25, 'blocks.1': 0.5, 'head': 1.0}
    """
    decay = _read_decay(decay)
    entries = _read_layers(layers)
    seen = Tree(tree)
    specs = [spec for entry, _ in entries for spec in entry]
    found = iter(select(specs, view(seen, specs, values=True), "layer_decay"))
    stack: list[Layer] = []
    taken: dict[int, str] = {}
    for entry, is_tuple in entries:
        label = ", ".join(spec.label for spec in entry)
        nodes = [node for _ in entry for node in _nodes(seen, next(found))]
        made = [_layer(nodes)] if is_tuple else _counted(seen, entry[0]) or [_layer(nodes)]
        for layer in made:
            _take(seen, layer, label, taken)
        _check_trains(seen, label, _positions(node for layer in made for _, node in layer))
        stack += made
    return {
        path: decay**distance
        for distance, layer in zip(reversed(range(len(stack))), stack, strict=True)
        for name in dict.fromkeys(name for name, _ in layer)
        for path in _paths(seen, name, _positions(node for other, node in layer if other == name))
    }


def _read_decay(decay: Any) -> float:
    if isinstance(decay, bool) or not isinstance(decay, (int, float, np.integer, np.floating)):
        raise TypeError(f"layer_decay: decay is a number, not {type(decay).__qualname__}")
    if not 0 < decay <= 1:
        raise ValueError(
            f"layer_decay: decay is {decay}, but must be above 0 and at most 1: each layer has "
            "that much of the rate of the next, and the last one has all of it"
        )
    return float(decay)


def _read_layers(layers: Any) -> list[tuple[tuple[Spec, ...], bool]]:
    """The specs of every entry, and whether it is a tuple or list, and so one layer."""
    listed = layers if _is_many(layers) else [layers]
    if not listed:
        raise SpecError("layers is empty: list them from the input to the output")
    entries = []
    for i, entry in enumerate(listed):
        specs = read_specs(entry, f"layers[{i}]" if listed is layers else "layers")
        if not specs:
            raise SpecError(f"layers[{i}] names nothing: leave it out")
        entries.append((specs, _is_many(entry)))
    return entries


def _is_many(value: Any) -> bool:
    return type(value) in {list, tuple}


def _counted(tree: Tree, spec: Spec) -> list[Layer] | None:
    """The layers that an entry counts, or None if it does not count."""
    rows = counted(spec, tree)
    if rows is None:
        return None
    if not rows:
        raise SpecError(
            f"layer_decay: what {spec.label} counts was left out of this tree: pass the params as "
            "a whole"
        )
    if len(rows) > 1:
        firsts = listing([f"one begins with {quote(row[0].text)}" for row in rows])
        raise SpecError(
            f"layer_decay: {spec.label} counts {len(rows)} rows of layers at once: {firsts}. Name "
            "one; for two towers merge the results of two calls"
        )
    return [[(name.text, node) for node in name.tops] for name in rows[0]]


def _nodes(tree: Tree, found: Found) -> Sequence[Node]:
    if not found.away:
        return found.nodes
    return [tree.leaf(position) for position in sorted(found.positions)]  # what "!" left of them


def _layer(nodes: Iterable[Node]) -> Layer:
    return [(node.name, node) for node in _uppermost(nodes)]


def _uppermost(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes that hold a leaf and do not lie in another one."""
    end = 0
    for node in sorted(nodes, key=lambda node: (node.start, -node.stop)):
        if node.stop > end:
            yield node
            end = node.stop


def _positions(nodes: Iterable[Node]) -> list[int]:
    return [i for node in nodes for i in range(node.start, node.stop)]


def _take(tree: Tree, layer: Layer, label: str, taken: dict[int, str]) -> None:
    positions = _positions(node for _, node in layer)
    for i in positions:
        if i in taken:
            raise SpecError(
                f"layer_decay: {tree.name_of(i)} is in two layers, of {taken[i]} and of {label}"
            )
    taken.update(dict.fromkeys(positions, label))


def _check_trains(tree: Tree, label: str, positions: list[int]) -> None:
    if positions and not _train(tree, positions):
        raise SpecError(
            f"layer_decay: {label} matches nothing that can train: {tree.name_of(positions[0])} is "
            f"{describe(tree, positions[0])}"
        )


def _train(tree: Tree, positions: list[int]) -> list[int]:
    return [i for i in positions if is_differentiable(tree.leaves[i])]


def _paths(tree: Tree, name: str, positions: list[int]) -> list[str]:
    """Paths by which just these leaves are found again: their common name, or those of each."""
    train = _train(tree, positions)
    if not train:
        return []
    if _means(tree, name, positions):
        return [name or "**"]
    for i in train:
        if not _means(tree, tree.leaf_names[i], [i]):
            raise SpecError(
                f"layer_decay: the path {tree.name_of(i)} means another leaf as well, so that it "
                "cannot have a factor of its own: rename one"
            )
    return [tree.leaf_names[i] for i in train]


def _means(tree: Tree, name: str, positions: list[int]) -> bool:
    if name == "":
        return len(positions) == len(tree.leaves)
    return sorted(_positions(tree.names.find(name)[0])) == sorted(positions)
