"""The experiment of `python -m optax_freeze`: data, a network, and five ways to freeze a part."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_freeze import apply_updates, frozen, grad, merge, split, trainable_mask, trainable_only

SIZES = (64, 128, 64, 5)
BATCH, RATE, DECAY = 64, 3e-3, 1e-2


class Digits(NamedTuple):
    """Images as rows of 64 pixels between 0 and 1, and the class of each."""

    images: np.ndarray
    labels: np.ndarray


class Way(NamedTuple):
    """One way to train a part of the params; `step` makes the training step out of it.

    Attributes:
        name: what the user reads.
        is_ours: whether it is a way of this library, which promises that nothing frozen moves.
        tx: the optimizer.
        trained: what the step takes and returns.
        rest: what the step only reads.
        join: makes the params of `trained` and `rest`.
        grad: the function that differentiates.
        apply: the function that adds the updates.
        note: what to say if its frozen leaves stay still.
        culprit: what moves them, if they do not.
    """

    name: str
    is_ours: bool
    tx: optax.GradientTransformation
    trained: Any
    rest: Any = None
    join: Callable[[Any, Any], Any] = lambda trained, _: trained
    grad: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] = jax.grad
    apply: Callable[[Any, Any], Any] = optax.apply_updates
    note: str = "still"
    culprit: str = "a bug of this library"


class Result(NamedTuple):
    """The params that a way came to, and what a step of it costs.

    Attributes:
        params: the whole network.
        state_bytes: the size of the optimizer state.
        flops: of one compiled step; None where the backend does not count them.
    """

    params: Any
    state_bytes: int
    flops: float | None


def load() -> Digits:
    """All 1,797 digits, which come with scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return Digits((images / 16).astype(np.float32), labels.astype(np.int32))


def five_from(first: int, digits: Digits, rng: np.random.Generator) -> tuple[Digits, Digits]:
    """Five digits from `first` on, as classes 0-4: three quarters to learn, the rest held out."""
    chosen = np.flatnonzero((digits.labels >= first) & (digits.labels < first + 5))
    rng.shuffle(chosen)
    images, labels = digits.images[chosen], digits.labels[chosen] - first
    cut = len(chosen) * 3 // 4
    return Digits(images[:cut], labels[:cut]), Digits(images[cut:], labels[cut:])


def draw(steps: int, digits: Digits, rng: np.random.Generator) -> np.ndarray:
    """The indices of a random batch for every step."""
    return rng.integers(0, len(digits.labels), (steps, BATCH))


def new_params(rng: np.random.Generator) -> dict[str, Any]:
    """A random network: an encoder of two layers, and a head."""

    def layer(inputs: int, outputs: int) -> dict[str, jax.Array]:
        weight = rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)
        return {"weight": jnp.asarray(weight), "bias": jnp.zeros(outputs)}

    *encoder, head = map(layer, SIZES, SIZES[1:])
    return {"encoder": encoder, "head": head}


def logits(params: Any, images: Any) -> jax.Array:
    """What the network makes of images: a number for each of them and each class."""
    for layer in params["encoder"]:
        images = jax.nn.relu(images @ layer["weight"] + layer["bias"][None])
    return images @ params["head"]["weight"] + params["head"]["bias"][None]


def loss(params: Any, images: Any, labels: Any) -> jax.Array:
    """The mean cross-entropy."""
    guesses = logits(params, images)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(guesses, labels))


def accuracy(params: Any, digits: Digits) -> float:
    """The share of the digits that the network gets right; NaN is never right."""
    guesses = np.asarray(logits(params, digits.images))
    right = (guesses.argmax(axis=1) == digits.labels) & np.isfinite(guesses).all(axis=1)
    return float(right.mean())


def ways(params: Any, freeze: list[str] | None, train: list[str] | None) -> list[Way]:
    """The five ways to compare; all of them mean the same leaves."""
    trains = trainable_mask(params, freeze=freeze, trainable=train)
    zero = optax.freeze(jax.tree.map(operator.not_, trains))  # its masks mean the opposite
    adamw = optax.adamw(RATE, weight_decay=DECAY)
    uphill = "it adds the raw gradient (uphill)"
    decay = "weight decay follows the zeros"
    choice = {"freeze": freeze, "trainable": train}
    gradient = functools.partial(grad, **choice)
    ours = functools.partial(Way, is_ours=True, grad=gradient, apply=apply_updates, trained=params)
    plain = functools.partial(Way, is_ours=False, trained=params)
    trained, rest = split(params, **choice)
    return [
        plain("optax.masked(adamw)", tx=optax.masked(adamw, trains), culprit=uphill),
        plain("optax.freeze + adamw", tx=optax.chain(zero, adamw), culprit=decay),
        ours(
            "frozen + adam",
            tx=optax.chain(frozen(**choice), optax.adam(RATE)),
            note="still, has state",
        ),
        ours(
            "trainable_only(adamw)",
            tx=trainable_only(adamw, **choice),
            note="still, no state",
        ),
        Way(
            "split + adamw",
            is_ours=True,
            tx=adamw,
            trained=trained,
            rest=rest,
            join=merge,
            note="still, no state",
        ),
    ]


def learn(way: Way, digits: Digits, batches: np.ndarray, tick: Callable[[], None]) -> Result:
    """Train in one way, one step for every batch.

    Args:
        way: the way.
        digits: what to learn.
        batches: the indices of the digits of every step.
        tick: called after every step.

    Returns:
        What came of it.
    """

    def step(trained: Any, state: Any, rest: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        slopes = way.grad(lambda values: loss(way.join(values, rest), images, labels))(trained)
        updates, state = way.tx.update(slopes, state, trained)
        return way.apply(trained, updates), state

    def batch(picked: np.ndarray) -> Digits:
        return Digits(digits.images[picked], digits.labels[picked])

    trained, state = way.trained, way.tx.init(way.trained)
    compiled = jax.jit(step).lower(trained, state, way.rest, *batch(batches[0])).compile()
    for picked in batches:
        trained, state = compiled(trained, state, way.rest, *batch(picked))
        tick()
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    cost = compiled.cost_analysis()  # None where the backend does not count
    flops = None if cost is None else cost.get("flops", 0)
    return Result(way.join(trained, way.rest), state_bytes, flops)


def frozen_leaves(params: Any, trains: Any) -> list[np.ndarray]:
    """The leaves of params where a mask is False."""
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(trains), strict=True)
    return [np.asarray(leaf) for leaf, flag in pairs if not flag]


def same_bits(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> bool:
    """Whether arrays agree in dtype, shape and every bit."""
    return all(
        (old.dtype, old.shape, old.tobytes()) == (new.dtype, new.shape, new.tobytes())
        for old, new in zip(before, after, strict=True)
    )


def largest_change(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> float:
    """The largest absolute difference of two numbers; NaN if one of them is NaN."""
    pairs = zip(before, after, strict=True)
    return float(np.max([np.abs(new.astype(np.float64) - old).max() for old, new in pairs]))
