"""`.safetensors` files, alone or as the shards of an index."""

from __future__ import annotations

import json
from pathlib import Path

import jax

from optax_freeze._checkpoints.errors import CheckpointError, broken, listed, missing_extra

KIND = ".safetensors file"
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    # Packed in the file; in memory an element of these takes a byte.
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
    "F4": "float4_e2m1fn",
}
Leaves = dict[str, jax.ShapeDtypeStruct]


def read_safetensors(path: Path) -> Leaves:
    """The tensors of a file, by name.

    The library maps the file into memory and reads its header, which it checks against the size.

    Args:
        path: the file.

    Returns:
        For each name the dtype and shape.

    Raises:
        CheckpointError: without the library, or if the file is not a whole one.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise CheckpointError(missing_extra(path, "safetensors")) from None
    path.open("rb").close()  # the library says of a file it may not read that it is not there
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            forms = {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except SafetensorError as error:
        raise CheckpointError(broken(path, KIND, error)) from None
    unknown = sorted({dtype for dtype, _ in forms.values()} - DTYPES.keys())
    if unknown:
        raise CheckpointError(f"{path}: no dtype of JAX for {listed(unknown)}")
    return {
        name: jax.ShapeDtypeStruct(shape, DTYPES[dtype]) for name, (dtype, shape) in forms.items()
    }


def read_shards(index: Path) -> Leaves:
    """The tensors of all files that an index names.

    Args:
        index: a JSON file with a `weight_map` from the names of tensors to files beside it.

    Returns:
        For each name the dtype and shape.

    Raises:
        CheckpointError: if a file is not there or not a whole one, or holds other tensors than the
            index says.
    """
    try:
        found = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(broken(index, "index of shards", error)) from None
    shard_of = found.get("weight_map") if isinstance(found, dict) else None
    is_map = isinstance(shard_of, dict) and all(isinstance(to, str) for to in shard_of.values())
    if not is_map or not shard_of:
        raise CheckpointError(
            f"{index}: no index of shards: it has no 'weight_map' from names to files. "
            f"Name a .safetensors file itself"
        )
    shards = sorted(set(shard_of.values()))
    missing = [shard for shard in shards if not (index.parent / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{index}: {len(missing)} of {len(shards)} shards not found: {listed(missing)}. "
            f"Download them into {index.parent}"
        )
    leaves: Leaves = {}
    for shard in shards:
        held = read_safetensors(index.parent / shard)
        expected = {name for name, where in shard_of.items() if where == shard}
        _compare(index, shard, expected, held)
        leaves |= held
    return leaves


def _compare(index: Path, shard: str, expected: set[str], held: Leaves) -> None:
    for names, problem in (
        (expected - held.keys(), "is to hold, and does not,"),
        (held.keys() - expected, "holds what the index does not say:"),
    ):
        if names:
            raise CheckpointError(
                f"{index}: {shard!r} {problem} {listed(sorted(names))}. "
                f"Index and shards are of different checkpoints: download them again"
            )
