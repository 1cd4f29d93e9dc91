"""A tree as seen from far: what there is to say of each leaf, and the sums of the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_freeze._hiding import Hidden, show, unseal
from optax_freeze._trees import (
    Hole,
    Name,
    Node,
    Pieces,
    Tree,
    is_array,
    is_float0,
    is_hole,
    is_variable,
)

Forms = dict[Any, int]  # a number for everything that looks different


@dataclasses.dataclass(frozen=True)
class Row:
    """What `summary` says of one leaf.

    Attributes:
        path: its dotted path.
        kind: its class: `array` for every array, concrete or not; the Variable's where an NNX
            Variable holds it; `hidden ...` for a hidden leaf; `hole` for a place left empty.
        shape: the shape of an array; None for what is none.
        dtype: the name of its dtype; None for what is no array.
        parameters: how many elements an array has, of whatever dtype; 0 for PRNG keys; 1 for a
            Python or NumPy scalar that a mask lets train; 0 where an NNX Variable stands that is
            counted already, under another path.
        bytes: how much memory the array takes.
        from_step: from which step it trains; None if it does not.
    """

    path: str
    kind: str
    shape: tuple[int, ...] | None
    dtype: str | None
    parameters: int
    bytes: int
    from_step: int | None

    @property
    def trains(self) -> bool:
        """Whether it trains, sooner or later."""
        return self.from_step is not None


@dataclasses.dataclass(frozen=True)
class Group:
    """A node with the sums of all that is in it, or a leaf.

    Attributes:
        name: the last segment of its path.
        what: its class, empty for a plain container; dtype and shape of an array.
        parameters: how many it holds.
        trainable: how many of them train.
        bytes: how much memory its arrays take.
        steps: from which steps they train.
        children: what is one level below.
        row: what there is to say of it if it is a leaf.
        start: the position of the leaf, or of the first leaf after it.
        form: equal for groups of one tree that look the same but for their names.
    """

    name: str
    what: str
    parameters: int = 0
    trainable: int = 0
    bytes: int = 0
    steps: frozenset[int] = frozenset()
    children: tuple[Group, ...] = ()
    row: Row | None = None
    start: int = 0
    form: int = 0

    @property
    def rows(self) -> list[Row]:
        """The rows of all leaves, in leaf order."""
        leaves = [group for group in self.walk() if group.row]
        return [group.row for group in sorted(leaves, key=lambda leaf: leaf.start) if group.row]

    def walk(self) -> Iterator[Group]:
        """This group and all below it."""
        stack: list[Group] = [self]
        while stack:
            group = stack.pop()
            yield group
            stack.extend(reversed(group.children))


def outline(
    tree: Tree, starts: Sequence[int | None], further: Container[int] = frozenset()
) -> Group:
    """Sum up a tree.

    Args:
        tree: the tree.
        starts: from which step each leaf trains; None for a frozen one.
        further: the positions of leaves that are counted already, under another path.

    Returns:
        The group that is the whole tree. What has no leaf, hidden leaf or hole is not in it.
    """
    built: dict[Name, Group] = {}
    forms: Forms = {}
    for name in reversed(list(_walk(tree.names))):  # children before their parents
        segment = name.text.rpartition(".")[2]
        below = [built.pop(child) for child in name.children.values()]
        below = [group for group in below if group.row or group.children]
        leaves = [
            _leaf(segment, node, forms, starts[node.start], again=node.start in further)
            if node.is_leaf
            else _leaf(segment, node, forms, None)
            for node in name.nodes
            if node.is_leaf or is_hole(node.value) or isinstance(node.value, Hidden)
        ]
        built[name] = _join(name, segment, leaves, below, forms)
    (root,) = built.values()
    return root


def _walk(root: Name) -> Iterator[Name]:
    stack = [root]
    while stack:
        name = stack.pop()
        yield name
        stack.extend(reversed(name.children.values()))


def _join(name: Name, segment: str, leaves: list[Group], below: list[Group], forms: Forms) -> Group:
    """What bears a name, as one group."""
    if len(leaves) == 1 and not below:
        return leaves[0]
    if len(name.nodes) == 1 == len(below) and is_variable(name.nodes[0].value) and below[0].row:
        (leaf,) = below  # a Variable and its value are one thing
        cls, row = _variable_class(name.nodes[0].value), below[0].row
        what, row = f"{cls} {leaf.what}", dataclasses.replace(row, kind=cls)
        form = forms.setdefault((what, leaf.form), len(forms))
        return dataclasses.replace(leaf, name=segment, what=what, row=row, form=form)
    if len(name.nodes) == 1 and isinstance(name.nodes[0].value, Pieces):
        below = [_piece(name.nodes[0].value, group, forms) for group in below]
    children = (*leaves, *below)
    what = "" if leaves else " ".join(filter(None, [_class(node.value) for node in name.nodes]))
    form = (what, *((child.name, child.form) for child in children))
    return Group(
        segment,
        what,
        sum(child.parameters for child in children),
        sum(child.trainable for child in children),
        sum(child.bytes for child in children),
        frozenset().union(*(child.steps for child in children)),
        children,
        form=forms.setdefault(form, len(forms)),
    )


def _piece(whole: Pieces, group: Group, forms: Forms) -> Group:
    """A piece of an array, which shows its rows."""
    if group.row is None or group.row.shape is None:
        return group
    what = f"{group.what} {whole.cut.describe(int(group.name), len(group.row.shape))}"
    return dataclasses.replace(
        group, what=what, form=forms.setdefault((what, group.form), len(forms))
    )


def _variable_class(variable: Any) -> str:
    # Flax before 0.12 puts into an `nnx.State` what only knows the class of the Variable.
    known = getattr(variable, "type", None)
    return (known if isinstance(known, type) else type(variable)).__name__


def _class(value: Any) -> str:
    """The class of a node, unless it is a plain container."""
    cls = type(value)
    is_plain = value is None or cls.__module__ in {"builtins", "collections"}
    return "" if is_plain else cls.__name__


def _leaf(
    segment: str, node: Node, forms: Forms, start: int | None, *, again: bool = False
) -> Group:
    """A leaf, a hidden leaf or a hole."""
    value, mark, kind = node.value, "", ""
    while isinstance(value, Hidden):  # `split` hides once more what was hidden before
        value, mark, kind = unseal(value.sealed), "#", "hidden "
    shape = dtype = None
    trains = start is not None
    count, memory = int(trains), 0
    if is_hole(value):
        kind_of = "hole"
        what = repr(value) if isinstance(value, Hole) else kind_of
    elif is_array(value):
        shape, kind_of = tuple(value.shape), "array"
        dtype = "float0" if is_float0(value) else str(value.dtype)
        what = show(jax.ShapeDtypeStruct(shape, value.dtype))
        if is_float0(value):
            what = f"float0{what[what.rindex('[') :]}"
        is_number = not (is_float0(value) or jnp.issubdtype(value.dtype, jax.dtypes.prng_key))
        count, memory = value.size * is_number, value.size * value.dtype.itemsize
    else:
        what = kind_of = type(value).__name__
    if again:
        what, count, memory = f"{what} tied", 0, 0
    row = Row(node.name, kind + kind_of, shape, dtype, count, memory, start)
    form = forms.setdefault((row.kind, what, start), len(forms))
    steps = frozenset() if start is None else frozenset({start})
    return Group(
        segment, mark + what, count, count * trains, memory, steps, (), row, node.start, form
    )
