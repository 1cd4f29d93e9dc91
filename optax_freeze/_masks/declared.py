"""What a model declares as fixed in its own code: `Constant` and `frozen_field`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from optax_freeze._trees import Node, Tree

_MARK = "optax_freeze.frozen"


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


def frozen_field(**kwargs: Any) -> Any:
    """A dataclass field that marks what it holds as fixed: it does not train by default.

    For the class body of any dataclass that is a pytree: `eqx.Module`, `flax.struct.dataclass`,
    `chex.dataclass`, `jax.tree_util.register_dataclass`.

    Args:
        **kwargs: passed on to `dataclasses.field`; `metadata` is kept.

    Returns:
        The field.

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
    return dataclasses.field(metadata=metadata, **kwargs)


def _frozen_fields(cls: type) -> list[str]:
    if not dataclasses.is_dataclass(cls):
        return []
    return [field.name for field in dataclasses.fields(cls) if _MARK in field.metadata]


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
