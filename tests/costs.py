"""Models whose training steps are compiled and counted, and the steps that freeze by hand."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_freeze import apply_updates, merge, split, trainable_only, value_and_grad


def dense(layers=12, width=99, batch=4):
    """A dense network, and a batch for it."""
    rng = np.random.default_rng(0)
    params = {
        f"layer{i:02}": {
            "b": np.zeros(width, np.float32),
            "w": rng.normal(size=(width, width)).astype(np.float32) / np.sqrt(width),
        }
        for i in range(layers)
    }
    return params, rng.normal(size=(batch, width)).astype(np.float32)


def dense_loss(params, x):
    for name in sorted(params):
        x = jnp.tanh(x @ params[name]["w"] + params[name]["b"][None, :])
    return jnp.mean(x**2)


def transformer(blocks=4, width=64, batch=2, length=4):
    """A stack of transformer blocks with a LoRA in each, and a batch for it."""
    rng = np.random.default_rng(0)

    def matrix(rows, columns):
        return rng.normal(size=(rows, columns)).astype(np.float32) / np.sqrt(rows)

    def block():
        return {
            "attention": {"out": matrix(width, width), "qkv": matrix(width, 3 * width)},
            "lora": {"a": matrix(width, 1), "b": np.zeros((1, 3 * width), np.float32)},
            "mlp": {
                "down": matrix(4 * width, width),
                "down_bias": np.zeros(width, np.float32),
                "up": matrix(width, 4 * width),
                "up_bias": np.zeros(4 * width, np.float32),
            },
            "norm": np.ones(width, np.float32),
        }

    params = {"blocks": [block() for _ in range(blocks)], "embedding": matrix(128, width)}
    return params, rng.integers(0, 128, (batch, length))


def _normalised(x, scale):
    return scale[None, None, :] * x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def transformer_loss(params, tokens):
    x = params["embedding"][tokens]
    for block in params["blocks"]:
        attention, lora, mlp = block["attention"], block["lora"], block["mlp"]
        y = _normalised(x, block["norm"])
        q, k, v = jnp.split(y @ attention["qkv"] + y @ lora["a"] @ lora["b"], 3, axis=-1)
        weights = jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2) / np.sqrt(x.shape[-1]), axis=-1)
        x = x + weights @ v @ attention["out"]
        y = jax.nn.gelu(x @ mlp["up"] + mlp["up_bias"][None, None, :])
        x = x + y @ mlp["down"] + mlp["down_bias"][None, None, :]
    return jnp.mean(x**2)


class Case(NamedTuple):
    """A model, and what of it is frozen.

    Attributes:
        model: makes params and a batch.
        loss: the loss, of params and a batch.
        freeze: specs of what does not train.
        trains: the same said by hand: whether the leaf of a dotted name trains.
        share: the part of the scalars that is frozen, in percent.
    """

    model: Any
    loss: Any
    freeze: Any
    trains: Any
    share: int


CASES = {
    "dense, 6 of 12 layers": Case(
        dense, dense_loss, [f"layer{i:02}" for i in range(6)], lambda name: name >= "layer06", 50
    ),
    "dense, 11 of 12 layers": Case(
        dense, dense_loss, "layer[:11]", lambda name: name >= "layer11", 92
    ),
    "dense, all but biases": Case(dense, dense_loss, "**.w", lambda name: name.endswith(".b"), 99),
    "transformer, early blocks": Case(
        transformer,
        transformer_loss,
        ["embedding", "blocks[:2]"],
        lambda name: name.startswith(("blocks.2", "blocks.3")),
        52,
    ),
    "transformer, all but a block's attention": Case(
        transformer,
        transformer_loss,
        ["embedding", "blocks[:3]", "**.lora", "**.mlp", "**.norm"],
        lambda name: name.startswith("blocks.3.attention"),
        92,
    ),
    "transformer, all but biases": Case(
        transformer,
        transformer_loss,
        ["embedding", "**.attention", "**.lora", "**.up", "**.down", "**.norm"],
        lambda name: name.endswith("_bias"),
        99,
    ),
    "transformer, LoRA only": Case(
        transformer,
        transformer_loss,
        ["embedding", "**.attention", "**.mlp", "**.norm"],
        lambda name: ".lora." in name,
        99,
    ),
}


class Way(NamedTuple):
    """A way to freeze, taken apart so that training steps of every kind can be made of it.

    Attributes:
        variables: what a step takes and returns.
        rest: what it only takes.
        gradient: of variables, rest and a batch, the loss and its gradient.
        tx: the optimizer.
        apply: adds updates to variables.
    """

    variables: Any
    rest: Any
    gradient: Any
    tx: Any
    apply: Any


def by_hand(case, tx):
    """The ideal: what trains and the rest are two arguments, and only the first is optimized."""
    params, _ = case.model()
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in flat]
    leaves = {name: leaf for name, (_, leaf) in zip(names, flat, strict=True)}
    variables = {name: leaf for name, leaf in leaves.items() if case.trains(name)}
    rest = {name: leaf for name, leaf in leaves.items() if name not in variables}

    def gradient(variables, rest, batch):
        def loss(variables):
            both = {**variables, **rest}
            return case.loss(treedef.unflatten([both[name] for name in names]), batch)

        return jax.value_and_grad(loss)(variables)

    return Way(variables, rest, gradient, tx, optax.apply_updates)


def by_trainable_only(case, tx):
    params, _ = case.model()

    def gradient(params, rest, batch):
        return value_and_grad(case.loss, case.freeze)(params, batch)

    return Way(params, (), gradient, trainable_only(tx, case.freeze), apply_updates)


def by_split(case, tx):
    params, _ = case.model()
    variables, rest = split(params, case.freeze)

    def gradient(variables, rest, batch):
        return jax.value_and_grad(lambda some: case.loss(merge(some, rest), batch))(variables)

    return Way(variables, rest, gradient, tx, optax.apply_updates)


class Costs(NamedTuple):
    """What XLA says of a compiled program: numbers that do not move.

    Attributes:
        flops: floating point operations.
        bytes_accessed: bytes that operations read and write.
        temp: bytes that are allocated besides arguments and results.
        peak: bytes that are alive at once at most, beyond the arguments, which are alive anyway.
    """

    flops: float
    bytes_accessed: float
    temp: int
    peak: int

    def __add__(self, other):
        return Costs(*(mine + its for mine, its in zip(self, other, strict=True)))


def costs(fun, *args, donate=()):
    """Compile a function and count."""
    lowered = jax.jit(fun, donate_argnums=donate).lower(*args)
    # Of the same program once only. The names of its results are no part of it.
    program = re.sub(r'jax.result_info = "[^"]*"', "", lowered.as_text())
    if program not in _counted:
        _counted[program] = _count(lowered)
    return _counted[program]


_counted: dict[str, Costs] = {}


def _count(lowered):
    # The counts are those of XLA's own passes; LLVM's, which come after them, would take longer.
    compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})
    analysis, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return Costs(
        analysis["flops"],
        analysis["bytes accessed"],
        memory.temp_size_in_bytes,
        memory.peak_memory_in_bytes - memory.argument_size_in_bytes,
    )


def size(tree):
    """The bytes of all arrays of a tree, which may be abstract."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
