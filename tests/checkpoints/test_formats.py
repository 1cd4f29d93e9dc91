"""Checkpoints that the real libraries have written are shown as what they would load."""

import json
import pathlib
import re
import struct
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import safetensors.flax
import safetensors.numpy

from optax_freeze import leaf_paths, summary
from optax_freeze._checkpoints import safetensors_file
from optax_freeze._checkpoints.reading import read

ARRAYS = {
    "encoder.layer.0.weight": np.ones((3, 4), np.float32),
    "encoder.layer.1.weight": np.ones((3, 4), np.float32),
    "encoder.layer.1.weight.scale": np.ones((), np.float16),
    "head": np.ones((2, 0), np.float64),
    "ids": np.ones((1, 5), np.int64),
    "flags": np.ones(3, np.bool_),
}


def same(path, loaded, **choice):
    """The summary of a file, which must be that of what the library loads from it."""
    found = summary(read(path), tx=optax.adamw(1.0), **choice)
    assert found.as_dict() == summary(loaded, tx=optax.adamw(1.0), **choice).as_dict()
    assert str(found) == str(summary(loaded, tx=optax.adamw(1.0), **choice))
    return found


def test_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(ARRAYS, path, metadata={"format": "np"})
    found = same(path, safetensors.numpy.load_file(path), freeze="encoder.layer[0]")
    assert (found.trainable, found.parameters) == (13, 33)


def test_safetensors_with_dtypes_of_jax(tmp_path):
    path = tmp_path / "model.safetensors"
    arrays = {"w": jnp.ones((3, 4), jnp.bfloat16), "b": jnp.ones(4, jnp.float32)}
    safetensors.flax.save_file(arrays, path)
    assert same(path, safetensors.flax.load_file(path)).trainable == 16


def write_safetensors(path, header, data_bytes, length=None):
    """A file of given header, with zeros for data that take no space on the disk."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw) if length is None else length) + raw)
        file.truncate(8 + len(raw) + data_bytes)


@pytest.mark.parametrize("name", safetensors_file.DTYPES)
def test_every_dtype_of_safetensors(name, tmp_path):
    expected = np.dtype(safetensors_file.DTYPES[name])
    bits = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}.get(name, 8 * expected.itemsize)
    header = {"w": {"dtype": name, "shape": [8, 2], "data_offsets": [0, 2 * bits]}}
    write_safetensors(tmp_path / "a.safetensors", header, 2 * bits)
    (row,) = summary(read(tmp_path / "a.safetensors")).rows
    assert (row.shape, row.dtype, row.parameters) == ((8, 2), expected.name, 16)
    assert row.bytes == 16 * expected.itemsize
    assert row.trains == (name[0] in {"F", "B", "C"} and name != "BOOL")


@pytest.mark.parametrize(("name", "dtype"), safetensors_file.DTYPES.items())
def test_a_dtype_of_safetensors_is_what_its_name_says(name, dtype):
    if exponent := re.search(r"E\dM\d(FNUZ)?$", name):  # the bits of exponent and mantissa
        assert re.fullmatch(rf"float\d_{exponent[0].lower()}(fnu?|)", dtype)
    elif name in {"BOOL", "BF16", "F4"}:
        assert dtype == {"BOOL": "bool", "BF16": "bfloat16", "F4": "float4_e2m1fn"}[name]
    else:
        kind = {"U": "uint", "I": "int", "F": "float", "C": "complex"}
        assert dtype == kind[name[0]] + name[1:]


def write_shards(folder):
    names = ["a.safetensors", "b.safetensors"]
    for name, keys in zip(names, (list(ARRAYS)[:2], list(ARRAYS)[2:]), strict=True):
        safetensors.numpy.save_file({key: ARRAYS[key] for key in keys}, folder / name)
    where = {key: names[position > 1] for position, key in enumerate(ARRAYS)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


def test_shards(tmp_path):
    found = same(write_shards(tmp_path), ARRAYS, freeze="encoder")
    assert leaf_paths(read(write_shards(tmp_path))) == sorted(ARRAYS)
    assert (found.trainable, found.parameters) == (0, 33)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save, tmp_path):
    path = tmp_path / "params.npz"
    others = {
        "a/b": np.asfortranarray(np.ones((3, 4), np.complex64)),
        "text": np.array(["a", "bcd"]),
        "day": np.array(["2020-01-01"], "datetime64[D]"),
        "record": np.zeros(2, [("x", "f4"), ("y", "i2")]),
        "record of beta": np.zeros(2, [("\u03b2", "f4")]),
        "big endian": np.ones(3, ">f4"),
        "bfloat16": np.ones(3, ml_dtypes.bfloat16),  # which NumPy saves as bytes of no meaning
    }
    with pytest.warns(UserWarning, match="Stored array in format 3.0"):
        save(path, **ARRAYS, **others)
    with np.load(path) as loaded:
        expected = {
            **loaded,
            "record of beta": np.zeros(2, [("\xce\xb2", "f4")]),
            "big endian": np.ones(3, np.float32),  # JAX takes no other order of bytes
        }
    assert same(path, expected, freeze="encoder").trainable == 12 + 3


TREE = {
    "encoder": {"w": jnp.ones((3, 4), jnp.bfloat16), "b": np.ones(3)},
    "layers": [jnp.ones(2), jnp.ones((2, 1), jnp.float8_e4m3fn)],
    "c.d": jnp.ones(1, jnp.int8),
    "rate": 0.5,
    "steps": 3,
    "none": None,
    "state": optax.adam(1.0).init({"w": jnp.ones(2)}),
}


def save_orbax(folder, tree, **options):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(folder, tree)
    return folder


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
@pytest.mark.parametrize("options", [{}, {"use_ocdbt": False}, {"use_zarr3": True}], ids=str)
def test_orbax(options, tmp_path):
    folder = save_orbax(tmp_path / "saved", TREE, **options)
    with ocp.PyTreeCheckpointer() as checkpointer:
        loaded = checkpointer.restore(folder)
    assert same(folder, loaded, freeze="encoder").trainable == 4 + 4
    assert leaf_paths(read(folder)) == leaf_paths(TREE)


def test_orbax_as_the_standard_checkpointer_writes_it(tmp_path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", TREE)
        checkpointer.wait_until_finished()
        same(tmp_path / "saved", checkpointer.restore(tmp_path / "saved"), freeze="state[0].count")


def test_orbax_keeps_text_and_the_integers_of_a_key(tmp_path):
    tree = {"text": "abc", "key": jax.random.key(0)}
    rows = summary(read(save_orbax(tmp_path / "saved", tree))).rows
    assert [(row.path, row.kind, row.shape) for row in rows] == [
        ("key", "array", (2,)),
        ("text", "str", None),
    ]


def test_an_orbax_folder_by_a_relative_path(tmp_path, monkeypatch):
    save_orbax(tmp_path / "saved", {"w": jnp.ones(2)})
    monkeypatch.chdir(tmp_path)
    assert leaf_paths(read(pathlib.Path("saved"))) == ["w"]


def test_a_checkpoint_without_arrays(tmp_path):
    safetensors.numpy.save_file({}, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz")
    for name in ("a.safetensors", "a.npz"):
        assert summary(read(tmp_path / name)).parameters == 0


# Size

TEN_GIB = 10 * 2**30


def write_large_safetensors(path):
    half = TEN_GIB // 2
    header = {
        "encoder.w": {"dtype": "F32", "shape": [half // 4], "data_offsets": [0, half]},
        "head.w": {"dtype": "F32", "shape": [half // 4], "data_offsets": [half, 2 * half]},
    }
    write_safetensors(path, header, TEN_GIB)


def write_large_npz(path):
    """Ten members of 1 GiB each, of which only the first is whole on the disk, as a hole."""
    header = path.with_suffix(".npy")
    with header.open("wb") as file:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (TEN_GIB // 4,)}
        np.lib.format.write_array_header_1_0(file, shape)
    head, name = header.read_bytes(), b"w.npy"
    size = len(head) + TEN_GIB
    extra = struct.pack("<HHQQ", 1, 16, size, size)  # the sizes as zip64 has them
    common = struct.pack("<HHHHHIIIHH", 45, 0, 0, 0, 33, 0, 2**32 - 1, 2**32 - 1, 5, len(extra))
    with path.open("wb") as file:
        file.write(b"PK\3\4" + common + name + extra + head)
        file.seek(TEN_GIB, 1)
        start = file.tell()
        file.write(b"PK\1\2" + struct.pack("<H", 45) + common + struct.pack("<HHHII", *[0] * 5))
        file.write(name + extra)
        length = file.tell() - start
        record = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, length, start)
        file.write(b"PK\6\6" + record)
        file.write(b"PK\6\7" + struct.pack("<IQI", 0, start + length, 1))
        file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, length, 2**32 - 1, 0))


def bytes_read():
    """How much this process has asked the system for, so far."""
    lines = pathlib.Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts what a process reads and maps")
@pytest.mark.parametrize(
    ("name", "write"),
    [("a.safetensors", write_large_safetensors), ("a.npz", write_large_npz)],
)
def test_ten_gibibytes_of_which_only_the_header_is_read(name, write, tmp_path):
    import resource

    write(tmp_path / name)
    assert (tmp_path / name).stat().st_size > TEN_GIB
    read_before, memory_before = bytes_read(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = summary(read(tmp_path / name))
    assert found.parameters == TEN_GIB // 4
    assert bytes_read() - read_before < 2**20
    # Pages of a mapped file count as memory once they are touched.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before
    assert memory < 2**18  # KiB


def test_orbax_is_asked_for_no_data(tmp_path):
    folder = save_orbax(tmp_path / "saved", {"w": jnp.ones((64, 64))}, use_ocdbt=False)
    data = [path for path in (folder / "w").iterdir() if path.name != ".zarray"]
    assert [path.name for path in data] == ["0.0"]
    data[0].unlink()
    assert summary(read(folder)).parameters == 64 * 64
