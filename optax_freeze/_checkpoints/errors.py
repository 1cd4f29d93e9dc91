"""What is wrong with a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

ENDINGS = (".safetensors", ".index.json", ".npz")  # of files that can be shown

# What people have at hand under a name that says otherwise.
_BEGINNINGS = {
    rb"\Z": "is empty",
    rb"version \S*git-lfs": "is a Git LFS pointer (git lfs pull fetches the file itself)",
    rb"\x80[\x02-\x05][^\x00]": "begins like a pickle, which is never loaded: that runs its code",
    rb"PK": "begins like a zip archive",
    rb"\x93NUMPY": "begins like a .npy file, which is one array",
    rb"\x89HDF": "begins like an HDF5 file",
    rb"\s*[{<]": "begins like text",
}


class CheckpointError(ValueError):
    """A file or folder is no checkpoint that can be shown, or not a whole one."""


def broken(path: Path, kind: str, problem: object) -> str:
    """What to say of a file that is not what its name says.

    Args:
        path: the file.
        kind: what it should be.
        problem: what the library that reads it says.

    Returns:
        A text, which also says what the file looks like.
    """
    return (
        f"{path}: not a whole {kind}: {problem}. The file has {path.stat().st_size:,} bytes"
        f"{likeness(path)}. Download or save it again."
    )


def likeness(path: Path) -> str:
    """What the first bytes of a file say it is, if they say anything."""
    with path.open("rb") as file:
        start = file.read(64)
    found = (what for pattern, what in _BEGINNINGS.items() if re.match(pattern, start))
    return "".join(f" and {what}" for what in list(found)[:1])


def missing_extra(path: Path, extra: str) -> str:
    """What to say where a library is not installed."""
    return f"{path}: to read it, install {extra}: pip install 'optax-freeze[{extra}]'"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest
