"""What trains, how many parameters, how many bytes: `summary`."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Sequence
from typing import Any

import jax
import optax

from optax_freeze._masks import read_choice
from optax_freeze._training import declared_starts, keep, read_transformation
from optax_freeze._trees import Part, Tree, further_positions
from optax_freeze._view.folding import lines
from optax_freeze._view.outline import Group, Row, outline
from optax_freeze._view.remarks import remarks
from optax_freeze._view.table import as_html, as_rich, as_text, size


@dataclasses.dataclass(frozen=True)
class StateBytes:
    """How large an optimizer's state is.

    Attributes:
        as_given: the bytes that it holds of all that could train.
        in_trainable_only: the bytes that it holds of what trains, when it is in `trainable_only`.
    """

    as_given: int
    in_trainable_only: int


@dataclasses.dataclass(frozen=True, repr=False)
class Summary:
    """What trains; made by `summary`. Shows itself as text, in rich and as HTML in a notebook.

    Attributes:
        rows: what there is to say of each leaf, hidden leaf and hole, in leaf order.
        root: the whole tree as a node that holds nodes, each with its sums.
        depth: how many segments of a path are shown; None for all.
        state: the size of the optimizer state, if there is an optimizer.
        remarks: what there is to say of parameters that stand, or seem to stand, in two places.
    """

    rows: tuple[Row, ...]
    root: Group
    depth: int | None = None
    state: StateBytes | None = None
    remarks: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """The number of all parameters."""
        return self.root.parameters

    @property
    def trainable(self) -> int:
        """The number of parameters that train."""
        return self.root.trainable

    @property
    def percent(self) -> float:
        """How many of a hundred parameters train; 0.0 if there are none."""
        return 100 * self.trainable / self.parameters if self.parameters else 0.0

    @property
    def bytes(self) -> int:
        """The size of all arrays."""
        return self.root.bytes

    def as_dict(self) -> dict[str, Any]:
        """The totals and the rows, of plain Python types only: for logs, JSON or a data frame."""
        state = self.state and {
            "optimizer_bytes": self.state.as_given,
            "optimizer_bytes_in_trainable_only": self.state.in_trainable_only,
        }
        return {
            "trainable": self.trainable,
            "parameters": self.parameters,
            "percent": self.percent,
            "bytes": self.bytes,
            **(state or {}),
            "remarks": list(self.remarks),
            "rows": [{**dataclasses.asdict(row), "trains": row.trains} for row in self.rows],
        }

    def _foot(self) -> Iterator[str]:
        yield (
            f"trainable params: {self.trainable:,} | all params: {self.parameters:,} | "
            f"trainable: {self.percent:.4f}%"
        )
        if self.state:
            held, needed = self.state.as_given, self.state.in_trainable_only
            yield (
                f"optimizer state: {size(held)} | in trainable_only: {size(needed)} | "
                f"saved: {size(held - needed)}"
            )
        yield from self.remarks

    def __str__(self) -> str:
        return as_text(lines(self.root, self.depth), self._foot())

    __repr__ = __str__  # what an interactive session shows

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield as_rich(lines(self.root, self.depth), self._foot(), options.max_width)

    def _repr_html_(self) -> str:
        return as_html(lines(self.root, self.depth), self._foot())


def summary(
    tree: Any,
    freeze: Any = None,
    *,
    trainable: Any = None,
    tx: optax.GradientTransformation | None = None,
    depth: int | None = None,
) -> Summary:
    """Show what trains, before a run that costs a day.

    A line for each node and leaf: its class (of a node, if it is no plain container) or dtype and
    shape, its parameters, its bytes, and whether it trains, is frozen, or is mixed, and how much of
    it trains. A run of siblings that are alike in all of this is one line with the sums of all of
    them, `blocks[0:24]  x24`; the lines below it are sums over the run as well, so that each node
    is the sum of what is below it.

    - A *parameter* is an element of an array, of whatever dtype. A PRNG key has bytes and no
      parameters. A Python or NumPy scalar counts as one parameter if a mask lets it train, and as
      none otherwise; strings, functions and other objects count as none.
    - An array that stands in two places counts twice, as it does for Optax; a remark names the
      places if it trains in one of them only. But an NNX Variable is one parameter under however
      many paths, and so is a leaf of `eqx.nn.Shared`: it counts once, and a remark says so.
    - A hidden leaf (`tree_mask`) counts as what it hides, is frozen, and is marked: `#i32[3]`.
    - A hole (`optax.MaskedNode`) and `float0` are shown as left out, without parameters.
    - None, and containers and modules in which there is nothing of this, are not shown.
    - An NNX Variable is one line with its value: `Param f32[3,4]`.

    Args:
        tree: any pytree: concrete, sharded, abstract (`jax.eval_shape`) or of tracers.
        freeze: specs of what must not train, as in `trainable_mask`.
        trainable: what may train and nothing else: specs, or a mask. `freeze` is carved out of it.
        tx: the optimizer, as it goes into `trainable_only` or as it comes out: what a
            transformation of this library keeps frozen is shown as frozen, and what `unfreeze_at`
            releases with its step (not so if another one, such as `optax.chain`, is around it).
            Adds the bytes of its state, as given and as `trainable_only` would hold it. Nothing is
            allocated.
        depth: how many segments of a path to show; by default all.

    Returns:
        A `Summary`: `print` it, show it in a notebook or with rich, or use its `rows`, its totals
        (`trainable`, `parameters`, `percent`, `bytes`, `state`) and `as_dict()`.

    Raises:
        SpecError: an entry that is not a spec or matches nothing.
        MaskError: a mask that does not fit `tree`.
        TypeError: a `tx` that is no gradient transformation.
        ValueError: a `depth` that is not a whole number from 0 on.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_freeze import summary
        >>> block = {"w": jnp.ones((64, 64)), "b": jnp.ones(64)}
        >>> blocks = jax.tree.map(jnp.array, [block] * 6)
        >>> params = {"blocks": blocks, "head": jnp.ones((64, 10)), "steps": 3}
        >>> print(summary(params, "blocks[:4]", tx=optax.adam(1e-3)))
        path         class or array  parameters      bytes  status
        blocks                           24,960   97.5 KiB  mixed 33.3%
          [0:4]  x4                      16,640   65.0 KiB  frozen
            b        4x f32[64]             256    1.0 KiB  frozen
            w        4x f32[64,64]       16,384   64.0 KiB  frozen
          [4:6]  x2                       8,320   32.5 KiB  trains
            b        2x f32[64]             128      512 B  trains
            w        2x f32[64,64]        8,192   32.0 KiB  trains
        head         f32[64,10]             640    2.5 KiB  trains
        steps        int                      -          -  -
        <BLANKLINE>
        trainable params: 8,960 | all params: 25,600 | trainable: 35.0000%
        optimizer state: 200.0 KiB | in trainable_only: 70.0 KiB | saved: 130.0 KiB
    """
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 0):
        raise ValueError(f"summary: depth is a number of path segments from 0 on, not {depth!r}")
    seen = Tree(tree)
    flags = read_choice(freeze, trainable)(seen, values=True)
    tx = None if tx is None else read_transformation(tx, "summary")
    declared = None if tx is None else declared_starts(tx, seen)
    pairs = zip(flags, [0] * len(flags) if declared is None else declared, strict=True)
    starts = [start if flag else None for flag, start in pairs]
    further = further_positions(seen)
    root = outline(seen, starts, further)
    trains = [start is not None and i not in further for i, start in enumerate(starts)]
    state = None if tx is None else _state_bytes(tx, seen, trains, further)
    return Summary(tuple(root.rows), root, depth, state, tuple(remarks(seen, starts)))


def _state_bytes(tx: Any, tree: Tree, flags: Sequence[bool], further: Container[int]) -> StateBytes:
    could = read_choice()(tree, values=False)
    pairs = enumerate(zip(flags, could, strict=True))
    all_flags = [flag or (default and i not in further) for i, (flag, default) in pairs]
    needed = _bytes_for(tx, tree, flags)
    held = needed if all_flags == list(flags) else _bytes_for(tx, tree, all_flags)
    return StateBytes(held, needed)


def _bytes_for(tx: Any, tree: Tree, flags: Sequence[bool]) -> int:
    part = Part(tree, [i for i, flag in enumerate(flags) if flag])
    kept = keep(tx, lambda _: flags)

    def init(values: Sequence[Any]) -> Any:
        return kept.init(part.fill(values, tree.leaves))

    state = jax.eval_shape(init, [tree.leaves[position] for position in part.positions])
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
