"""Folders that Orbax has written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from optax_freeze._checkpoints.errors import ENDINGS, CheckpointError, listed, missing_extra

_MARK = "_METADATA"  # lies in every folder that holds one tree


def read_orbax(folder: Path) -> Any:
    """The tree of a folder.

    A PRNG key is shown as the integers that Orbax keeps of it.

    Args:
        folder: where Orbax has saved one tree.

    Returns:
        The tree as Orbax describes it, of dictionaries and lists, with dtypes and shapes for
        arrays.

    Raises:
        CheckpointError: without Orbax, or if the folder is none of its, not a whole one, or one
            of several trees.
    """
    if not (folder / _MARK).is_file():
        raise CheckpointError(f"{folder}: {_not_one_tree(folder)}")
    try:
        import orbax.checkpoint as ocp
    except ModuleNotFoundError:
        raise CheckpointError(missing_extra(folder, "orbax")) from None
    try:  # the handler itself: a checkpointer keeps to itself what is wrong
        handler: Any = ocp.PyTreeCheckpointHandler()
        tree = handler.metadata(folder.absolute()).tree
    except Exception as error:  # of Orbax, of TensorStore, of JSON, of the system
        problem = re.split(r"\n| \[tensorstore_spec", str(error))[0]
        raise CheckpointError(
            f"{folder}: Orbax cannot read what it says of its arrays ({type(error).__name__}: "
            f"{problem}). Copy the whole folder, or save it again"
        ) from None
    return jax.tree.map(_leaf, tree)


def _leaf(described: Any) -> Any:
    from orbax.checkpoint.metadata import ScalarMetadata, StringMetadata

    if isinstance(described, StringMetadata):
        return ""
    if isinstance(described, ScalarMetadata):
        return np.dtype(described.dtype).type(0).item()  # Orbax gives a Python number back
    return jax.ShapeDtypeStruct(described.shape, described.dtype)


def _not_one_tree(folder: Path) -> str:
    """What to say of a folder that does not hold one tree."""
    marks = [*folder.glob(f"*/{_MARK}"), *folder.glob(f"*/*/{_MARK}")]
    trees = sorted(str(mark.parent) for mark in marks)
    if trees:
        return f"a folder with trees of Orbax. Name one of them: {listed(trees)}"
    files = sorted(str(path) for path in folder.iterdir() if path.name.endswith(ENDINGS))
    advice = f"It holds {listed(files)}" if files else "Name one that holds a whole checkpoint"
    return f"no folder of Orbax: there is no {_MARK} in it. {advice}"
