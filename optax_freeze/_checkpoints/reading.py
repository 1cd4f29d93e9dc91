"""A checkpoint of any format as an abstract tree."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from optax_freeze import leaf_paths
from optax_freeze._checkpoints.errors import ENDINGS, CheckpointError, likeness
from optax_freeze._checkpoints.npz_file import read_npz
from optax_freeze._checkpoints.orbax_folder import read_orbax
from optax_freeze._checkpoints.safetensors_file import read_safetensors, read_shards

_READERS = dict(zip(ENDINGS, (read_safetensors, read_shards, read_npz), strict=True))
KINDS = ".safetensors, the .index.json of its shards, .npz, a folder of Orbax"


def read(path: Path) -> Any:
    """A checkpoint as a tree of dtypes and shapes.

    Args:
        path: a file whose name says its format, or a folder.

    Returns:
        A dictionary, or what a folder holds.

    Raises:
        CheckpointError: if there is no such file, or it cannot be read, or it is no checkpoint.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            tree = read_orbax(path)
        else:
            tree = _read_file(path, is_regular=stat.S_ISREG(mode))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    odd = [name for name in leaf_paths(tree) if not name.isprintable()]
    if odd:  # a terminal obeys control characters
        raise CheckpointError(f"{path}: a terminal cannot show a name as it is: {odd[0]!a}")
    return tree


def _read_file(path: Path, *, is_regular: bool) -> Any:
    reader = next((_READERS[end] for end in ENDINGS if path.name.endswith(end)), None)
    if reader is None or not is_regular:
        found = f"it has {path.stat().st_size:,} bytes{likeness(path)}" if is_regular else "no file"
        raise CheckpointError(f"{path}: {found}. What can be shown: {KINDS}")
    return reader(path)
