"""`.npz` files: the headers of their members, without the data and without any pickle."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path

import jax
from numpy.lib import format as npy

from optax_freeze._checkpoints.errors import CheckpointError, broken

KIND = ".npz file"
_HEAD = 2**14  # NumPy takes no longer header without being told to trust it


class Pickled:
    """Stands for an array of Python objects, which a file holds as a pickle: it stays unread."""


def read_npz(path: Path) -> dict[str, jax.ShapeDtypeStruct | Pickled]:
    """The arrays of a file, by name.

    Args:
        path: the file.

    Returns:
        For each name the dtype and shape, or `Pickled`.

    Raises:
        CheckpointError: if the file is not a whole one or holds what is no array.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _members(path, archive)
        except CheckpointError:
            raise
        except Exception as error:  # of zipfile, of what unpacks a member, of NumPy's own parser
            raise CheckpointError(broken(path, KIND, error)) from None


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, jax.ShapeDtypeStruct | Pickled]:
    leaves: dict[str, jax.ShapeDtypeStruct | Pickled] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename or name in leaves:
            what = "is there twice" if name in leaves else "is no array"
            raise CheckpointError(f"{path}: {member.filename!r} {what}. Save with numpy.savez")
        with archive.open(member) as file:
            leaves[name] = _leaf(path, member, io.BytesIO(file.read(_HEAD)))
    return leaves


def _leaf(path: Path, member: zipfile.ZipInfo, head: io.BytesIO) -> jax.ShapeDtypeStruct | Pickled:
    try:
        # The third version differs from the second in how the fields of records are spelt.
        is_first = npy.read_magic(head) == (1, 0)
        read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, _, dtype = read(head)
    except ValueError as error:
        raise CheckpointError(broken(path, KIND, f"{member.filename!r}: {error}")) from None
    if dtype.hasobject:
        return Pickled()
    needed = head.tell() + math.prod(shape) * dtype.itemsize
    if needed != member.file_size or min(shape, default=0) < 0:
        problem = (
            f"{member.filename!r} of shape {shape} has {member.file_size:,} bytes and needs "
            f"{needed:,}"
        )
        raise CheckpointError(broken(path, KIND, problem))
    return jax.ShapeDtypeStruct(shape, dtype.newbyteorder("="))  # JAX knows no other order
