"""Specs that ask: a function of every module, `where` of every leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar

import numpy as np

from optax_freeze._specs.spec import Found, Spec, SpecError, View
from optax_freeze._specs.without_values import READS_VALUES, ReadsValue
from optax_freeze._trees import Node, Pieces, Tree, is_place, is_variable, quote


@dataclass(frozen=True)
class where:
    """A spec that asks a function about every leaf.

    Mind stacked leaves, over whose first axis `scan` or `vmap` runs: they have one axis more than
    the layers that they are made of, so that a rule by `ndim` takes a stack of biases for a matrix.
    Ask for the path as well, or name the leaves.

    Args:
        predicate: called with the dotted path and the leaf; True where it means the leaf.

    Raises:
        SpecError: if `predicate` is not callable.

    Example:
        >>> import jax.numpy as jnp
        >>> from optax_freeze import freeze_mask, where
        >>> params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
        >>> freeze_mask(params, where(lambda path, leaf: leaf.ndim < 2))
        {'b': False, 'w': True}

        The same model with its layers stacked; the norm is not, so that the rule finds it alone:

        >>> blocks = {"w": jnp.ones((12, 2, 2)), "b": jnp.ones((12, 2))}
        >>> stacked = {"blocks": blocks, "norm": jnp.ones(2)}
        >>> freeze_mask(stacked, where(lambda path, leaf: leaf.ndim < 2))
        {'blocks': {'b': True, 'w': True}, 'norm': False}
        >>> def one_axis(path, leaf):
        ...     return leaf.ndim - path.startswith("blocks.") < 2
        >>> freeze_mask(stacked, where(one_axis))
        {'blocks': {'b': False, 'w': True}, 'norm': False}
    """

    predicate: Callable[[str, Any], bool]

    def __post_init__(self):
        if not callable(self.predicate):
            raise SpecError(
                "where() takes a function of a path and a leaf, not "
                f"{type(self.predicate).__qualname__}"
            )


class Question(Spec):
    """A function of the user's that is asked about parts of the tree."""

    subject: ClassVar[str]

    def __init__(self, label: str, predicate: Callable[..., bool]):
        super().__init__(label)
        self.predicate = predicate

    def subjects(self, tree: Tree) -> Iterator[tuple[Node, tuple[Any, ...]]]:
        """What to ask about, and the arguments to ask with."""
        raise NotImplementedError

    def find(self, view: View) -> Found:
        found, refusals = [], []
        hint = f" ({READS_VALUES})" if view.is_abstract else ""
        for node, args in self.subjects(view.shown):
            path = quote(node.name)
            try:
                if ask(self.predicate, args, f"{self.label}, at {path},", hint):
                    found.append(node)
            except AttributeError as error:
                refusals.append(f"{error}, at {path}")
        return Found(found, *refusals[:1])

    def why_missed(self, tree: Tree, refusal: str) -> str:
        quoted = f" (AttributeError: {refusal})" if refusal else ""
        return f"it was False for every {self.subject}{quoted}"


def ask(predicate: Callable[..., bool], args: tuple[Any, ...], label: str, hint: str = "") -> bool:
    """Call a function of the user's that must answer with a bool.

    Args:
        predicate: the function.
        args: what to ask about.
        label: what error texts call the function and where it was asked.
        hint: what they say besides.

    Returns:
        The answer.

    Raises:
        AttributeError: whatever was asked about lacks an attribute, which may mean no.
        SpecError: any other error of the function, or an answer that is not a bool.
    """
    try:
        answer = predicate(*args)
    except AttributeError:
        raise
    except ReadsValue:
        raise SpecError(f"{label} reads the value of an array: {READS_VALUES}") from None
    except Exception as error:
        first_line = str(error).partition("\n")[0]  # the whole of it follows by `from`
        text = f"{label} raised {type(error).__name__}: {first_line}{hint}"
        raise SpecError(text) from error
    if not isinstance(answer, (bool, np.bool_)):
        raise SpecError(
            f"{label} must return a bool, but returned {type(answer).__name__}: True for what it "
            f"means, False for all else{hint}"
        )
    return bool(answer)


class Module(Question):
    """A function that is asked about every module."""

    subject = "module"

    def subjects(self, tree: Tree) -> Iterator[tuple[Node, tuple[Any, ...]]]:
        return ((node, (node.value,)) for node in tree.root.walk() if is_module(node))

    def why_missed(self, tree: Tree, refusal: str) -> str:
        if any(self.subjects(tree)):
            return super().why_missed(tree, refusal)
        return (
            "a function is asked about modules, and this tree has none: to ask about leaves, "
            "use where(lambda path, leaf: ...)"
        )


class Where(Question):
    """A function that is asked about every leaf."""

    subject = "leaf"

    def subjects(self, tree: Tree) -> Iterator[tuple[Node, tuple[Any, ...]]]:
        leaves = (node for node in tree.root.leaves() if not is_place(node.value))
        return ((node, (node.name, node.value)) for node in leaves)


def is_module(node: Node) -> bool:
    """Whether a node is of a registered class: no mapping, list, tuple, NNX Variable or leaf."""
    value = node.value
    # A `chex.dataclass` is a mapping as well, but one that somebody wrote as a class.
    is_container = isinstance(value, (Mapping, list, tuple, Pieces)) and not is_dataclass(value)
    return not (is_container or node.is_leaf or is_place(value) or is_variable(value))
