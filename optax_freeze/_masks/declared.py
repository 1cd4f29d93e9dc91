"""What a model declares as fixed in its own code: `Constant` and `frozen_field`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from optax_freeze._trees import Node, Tree

_MARK = "optax_freeze.frozen"
_CONVERTED = "optax_freeze.converted"
_ONLY_EQUINOX = "the converter of a field is called by an equinox.Module only"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constant:
    """A pytree node whose leaves are visible to `jit` and do not train by default.

    Args:
        value: any pytree: an array, a dictionary of arrays, a module.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import Constant, trainable_mask
        >>> trainable_mask({"mass": Constant(jnp.ones(())), "w": jnp.ones(2)})
        {'mass': Constant(value=False), 'w': True}

        To release the constants, build a mask without the rule and pass it as `trainable=`:

        >>> trainable_mask({"mass": Constant(jnp.ones(())), "w": jnp.ones(2)}, fixed=())
        {'mass': Constant(value=True), 'w': True}
    """

    value: Any


def frozen_field(
    *,
    converter: Callable[[Any], Any] | None = None,
    static: bool = False,
    pytree_node: bool = True,
    **kwargs: Any,
) -> Any:
    """A dataclass field that marks what it holds as fixed: it does not train by default.

    For the class body of any dataclass that is a pytree: `eqx.Module`, `flax.struct.dataclass`,
    `chex.dataclass`, `jax.tree_util.register_dataclass`.

    Args:
        converter: as in `equinox.field`: a function that makes the value of what is passed. For the
            fields of an `equinox.Module` only.
        static: as in `equinox.field`; only False makes sense here.
        pytree_node: as in `flax.struct.field`; only True makes sense here.
        **kwargs: passed on to `dataclasses.field`; `metadata` is kept.

    Returns:
        The field.

    Raises:
        ValueError: for a field that is not part of the tree, `static` or no `pytree_node`.
        TypeError: for a `converter` where there is no Equinox to call it.

    Example:
        >>> import dataclasses
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from optax_freeze import frozen_field, trainable_mask
        >>> @jax.tree_util.register_dataclass
        ... @dataclasses.dataclass
        ... class Pendulum:
        ...     friction: jax.Array
        ...     gravity: jax.Array = frozen_field(default_factory=lambda: jnp.array(9.81))
        >>> trainable_mask(Pendulum(jnp.array(0.1)))
        Pendulum(friction=True, gravity=False)
    """
    metadata = {**(kwargs.pop("metadata", None) or {}), _MARK: True}
    if not (pytree_node and metadata.get("pytree_node", True)):
        static = True
    if static or metadata.get("static"):
        raise ValueError(
            "frozen_field: a static field is no part of the tree, so that nothing in it trains "
            "anyway: leave out static=True or pytree_node=False, or declare it without frozen_field"
        )
    if converter is None:
        return dataclasses.field(metadata=metadata, **kwargs)
    equinox = sys.modules.get("equinox")  # not imported here: no Equinox, no module of its
    if equinox is None:
        raise TypeError(f"frozen_field: {_ONLY_EQUINOX}, and equinox has not been imported")
    metadata[_CONVERTED] = True
    return equinox.field(converter=converter, metadata=metadata, **kwargs)


def _frozen_fields(cls: type) -> list[str]:
    if not dataclasses.is_dataclass(cls):
        return []
    fields = [field for field in dataclasses.fields(cls) if _MARK in field.metadata]
    for field in fields:
        if _CONVERTED in field.metadata and not issubclass(cls, sys.modules["equinox"].Module):
            where = f"{cls.__qualname__}.{field.name}"
            raise TypeError(f"{where}: {_ONLY_EQUINOX}: convert it in __post_init__")
    return [field.name for field in fields]


def fixed_positions(tree: Tree, classes: tuple[type, ...]) -> set[int]:
    """The positions of the leaves that a model declares as fixed.

    Args:
        tree: the tree.
        classes: classes whose instances are fixed, apart from what fields say.

    Returns:
        Positions among all leaves.

    Raises:
        TypeError: if `classes` is no tuple of classes.
    """
    if not isinstance(classes, tuple) or not all(isinstance(cls, type) for cls in classes):
        raise TypeError(f"fixed takes a tuple of classes, such as (Constant,), not {classes!r}")
    fields = {cls: marked for cls in tree.classes if (marked := _frozen_fields(cls))}
    if not fields and not any(issubclass(cls, classes) for cls in tree.classes):
        return set()  # as in most trees: no walk
    fixed = _fixed_nodes(tree.root, classes, fields)
    return {i for node in fixed for i in range(node.start, node.stop)}


def _fixed_nodes(
    root: Node, classes: tuple[type, ...], fields: Mapping[type, list[str]]
) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node.value, classes):
            yield node
            continue
        marked = fields.get(type(node.value), [])
        for key, child in node.children():
            if _is_held(key, child, node, marked):
                yield child
            else:
                stack.append(child)


def _is_held(key: str, child: Node, owner: Node, fields: list[str]) -> bool:
    if key in fields:
        return True
    # A class registered without key paths numbers its children: go by what the fields hold.
    return key.isdecimal() and any(
        child.value is getattr(owner.value, field, None) for field in fields
    )
