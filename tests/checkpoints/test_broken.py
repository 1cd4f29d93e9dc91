"""What is no checkpoint, or not a whole one, is refused by a text that says what to do."""

import contextlib
import io
import json
import os
import pathlib
import pickle
import shutil
import sys
import zipfile

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from optax_freeze import __main__ as command
from optax_freeze import summary
from optax_freeze._checkpoints import CheckpointError
from optax_freeze._checkpoints.reading import read
from optax_freeze._checkpoints.safetensors_file import DTYPES

F32 = {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}


def tensors(header, size=32, length=None):
    raw = json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(size)


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def zipped(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def npy(shape="(8,)", descr="'<f4'", size=32):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(size)


def refused(path, capsys):
    """The text of a refusal, which is all that there is."""
    assert command.main(["show", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    start = f"python -m optax_freeze: {path}: "
    assert err.startswith(start)
    return err.removeprefix(start).removesuffix("\n")


AGAIN = "Download or save it again."
WHOLE = zipped(("w.npy", npy()))


CASES = [
    # .safetensors
    ("a.safetensors", b"", ["not a whole .safetensors file", "0 bytes and is empty", AGAIN]),
    ("a.safetensors", b"abc", ["header too small", "has 3 bytes."]),
    ("a.safetensors", tensors({"w": F32}, length=10**6), ["invalid header length", AGAIN]),
    ("a.safetensors", tensors({"w": F32}, length=2**63), ["header too large"]),
    ("a.safetensors", tensors({"w": F32})[:40], ["invalid header length", "40 bytes"]),
    ("a.safetensors", tensors({"w": F32}, size=31), ["file not fully covered"]),
    ("a.safetensors", tensors({"w": F32}, size=33), ["file not fully covered"]),
    ("a.safetensors", tensors({"w": {**F32, "shape": [9]}}), ["invalid shape"]),
    ("a.safetensors", tensors({"w": {**F32, "dtype": "I4"}}), ["unknown variant `I4`"]),
    ("a.safetensors", tensors({"a\x1b[2J": F32}), ["a terminal cannot", r"'a\x1b[2J'"]),
    (
        "a.safetensors",
        b"version https://git-lfs.example/spec/v1\noid sha256:12\nsize 90868376\n",
        ["is a Git LFS pointer (git lfs pull"],
    ),
    # shards
    ("m.index.json", b"", ["not a whole index of shards", "is empty"]),
    ("m.index.json", b'{"weight_map": {"a"', ["Expecting ':' delimiter", "begins like text"]),
    ("m.index.json", b"\xff\xfe\xfd", ["not a whole index of shards"]),
    ("m.index.json", b"[" * 100_000, ["not a whole index of shards"]),
    ("m.index.json", b"[]", ["no 'weight_map' from names to files. Name a .safetensors file"]),
    ("m.index.json", b'{"weight_map": {"a": 1}}', ["no 'weight_map'"]),
    # .npz
    ("a.npz", b"", ["not a whole .npz file: File is not a zip file", "is empty"]),
    ("a.npz", WHOLE[:-1], ["File is not a zip file", "begins like a zip archive", AGAIN]),
    ("a.npz", WHOLE[:40] + WHOLE[50:], ["not a whole .npz file"]),
    ("a.npz", npy(), ["begins like a .npy file, which is one array"]),
    ("a.npz", zipped(("w.npy", b"")), ["'w.npy': EOF", AGAIN]),
    ("a.npz", zipped(("w.npy", npy()[:30])), ["'w.npy': EOF"]),
    ("a.npz", zipped(("w.npy", npy(size=31))), ["'w.npy' of shape (8,) has 97 bytes and needs 98"]),
    ("a.npz", zipped(("w.npy", npy(size=33))), ["'w.npy' of shape (8,) has 99 bytes and needs 98"]),
    ("a.npz", zipped(("w.npy", npy("(-2,-4)"))), ["of shape (-2, -4) has 101 bytes"]),
    ("a.npz", zipped(("w.npy", npy(descr="'<q9'"))), ["'w.npy': descr is not a valid dtype"]),
    ("a.npz", zipped(("w.npy", b"\x93NUMPY\1\0\xff\xffzzz")), ["'w.npy': EOF"]),
    ("a.npz", zipped(("w.npy", npy("(" * 9_000))), ["not a whole .npz file"]),
    ("a.npz", zipped(("a/data.pkl", b"abc")), ["'a/data.pkl' is no array. Save with numpy"]),
    # others
    (
        "a.pt",
        zipped(("a/data.pkl", b"")),
        ["begins like a zip archive. What can be shown: .sa"],
    ),
    ("a.h5", b"\x89HDF\r\n\x1a\n", ["it has 8 bytes and begins like an HDF5 file"]),
    ("config.json", b"{}", ["begins like text. What can be shown: .safetensors, the .index"]),
    ("a", b"\0\0", ["it has 2 bytes. What can be shown"]),
]


@pytest.mark.parametrize(
    ("name", "data", "texts"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_a_file_that_is_no_whole_checkpoint(name, data, texts, tmp_path, capsys):
    (tmp_path / name).write_bytes(data)
    found = refused(tmp_path / name, capsys)
    assert [text for text in texts if text not in found] == []


def test_a_dtype_that_the_library_knows_and_we_do_not(tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(DTYPES, "F32")
    safetensors.numpy.save_file({"w": np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    assert refused(tmp_path / "a.safetensors", capsys) == "no dtype of JAX for 'F32'"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice(tmp_path, capsys):
    (tmp_path / "a.npz").write_bytes(zipped(("w.npy", npy()), ("w.npy", npy())))
    assert refused(tmp_path / "a.npz", capsys).startswith("'w.npy' is there twice.")


def test_there_is_no_such_file(tmp_path, capsys):
    assert refused(tmp_path / "a.npz", capsys) == "No such file or directory"
    (tmp_path / "a").touch()
    assert refused(tmp_path / "a" / "b.npz", capsys) == "Not a directory"


def test_what_is_no_file_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "a.npz")
    assert refused(tmp_path / "a.npz", capsys).startswith("no file. What can be shown: .safe")


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.index.json", "a.pt"])
def test_a_file_that_must_not_be_read(name, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(b"abc")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # who may read everything
        tmp_path.chmod(0o755)
        for parent in (tmp_path.parent, tmp_path.parent.parent):
            parent.chmod(0o755)
        os.seteuid(65534)
    try:
        assert "ermission denied" in refused(path, capsys)
    finally:
        os.seteuid(user)


# Pickles


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.index.json", "a.pt", "a.pkl"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_by_another_name_is_never_loaded(name, protocol, tmp_path, capsys):
    data = pickle.dumps(Trap(tmp_path / "sprung"), protocol)
    (tmp_path / name).write_bytes(data)
    assert "begins like a pickle, which is never loaded" in refused(tmp_path / name, capsys)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(data)
    assert (tmp_path / "sprung").exists()


def test_an_array_of_objects_is_shown_and_never_loaded(tmp_path):
    objects = np.array([Trap(tmp_path / "sprung")], object)
    (tmp_path / "a.npz").write_bytes(npz(o=objects, r=np.zeros(1, [("x", "O")]), w=np.ones(3)))
    shown = summary(read(tmp_path / "a.npz"))
    assert [(row.path, row.kind, row.bytes, row.trains) for row in shown.rows] == [
        ("o", "Pickled", 0, False),
        ("r", "Pickled", 0, False),
        ("w", "array", 24, True),
    ]
    assert not (tmp_path / "sprung").exists()


# Shards


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"},
            "2 of 3 shards not found: '2.safetensors', '3.safetensors'. Download them into ",
        ),
        ({f"a{i}": f"{i + 2}.safetensors" for i in range(7)}, "'6.safetensors' and 2 more."),
        (
            {"a": "1.safetensors", "b": "1.safetensors", "z": "1.safetensors"},
            "'1.safetensors' is to hold, and does not, 'b', 'z'. Index and shards are of",
        ),
        ({}, "it has no 'weight_map' from names to files"),
        ({"x": "0.safetensors"}, "'0.safetensors' holds what the index does not say: 'y'."),
        ({"x": "broken.safetensors"}, "broken.safetensors: not a whole .safetensors file"),
    ],
)
def test_shards_that_do_not_fit_their_index(where, text, tmp_path, capsys):
    ones = np.ones(2, np.float32)
    safetensors.numpy.save_file({"x": ones, "y": ones}, tmp_path / "0.safetensors")
    safetensors.numpy.save_file({"a": ones}, tmp_path / "1.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"abc")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert command.main(["show", str(index)]) == 2
    assert text in capsys.readouterr().err


# Orbax


def save(folder):
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder, {"w": jnp.ones((3, 4))})
    return folder


def test_folders_that_are_none_of_orbax(tmp_path, capsys):
    found = refused(tmp_path, capsys)
    assert found.startswith("no folder of Orbax: there is no _METADATA in it. Name one that holds")
    (tmp_path / "a.npz").touch()
    assert f"It holds '{tmp_path / 'a.npz'}'" in refused(tmp_path, capsys)


def test_a_folder_of_several_trees_names_them(tmp_path, capsys):
    first, second = save(tmp_path / "0" / "params"), save(tmp_path / "single")
    found = refused(tmp_path, capsys)
    assert found == f"a folder with trees of Orbax. Name one of them: '{first}', '{second}'"


@pytest.mark.parametrize("name", ["_METADATA", "manifest.ocdbt"])
@pytest.mark.parametrize("data", [b"", b'{"tree_metadata": {"(', b"{}", b"[]"])
def test_an_orbax_folder_that_is_damaged(name, data, tmp_path, capsys):
    (save(tmp_path / "saved") / name).write_bytes(data)
    found = refused(tmp_path / "saved", capsys)
    assert "Orbax cannot read what it says of its arrays (" in found
    assert found.endswith("Copy the whole folder, or save it again")
    assert "\n" not in found


def test_an_orbax_folder_without_its_arrays(tmp_path, capsys):
    folder = save(tmp_path / "saved")
    for path in [folder / "d", folder / "ocdbt.process_0"]:
        shutil.rmtree(path)
    assert "Orbax cannot read what it says of its arrays" in refused(folder, capsys)


# Libraries that are not there


@pytest.mark.parametrize(
    ("module", "extra"), [("safetensors", "safetensors"), ("orbax.checkpoint", "orbax")]
)
def test_an_extra_is_asked_for_by_name(module, extra, tmp_path, monkeypatch, capsys):
    safetensors.numpy.save_file({}, tmp_path / "safetensors.safetensors")
    save(tmp_path / "orbax")
    path = next(tmp_path.glob(f"{extra}*"))
    monkeypatch.setitem(sys.modules, module, None)
    found = refused(path, capsys)
    assert found == f"to read it, install {extra}: pip install 'optax-freeze[{extra}]'"


# Anything


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("any")


SOUND = {
    "a.safetensors": safetensors.numpy.save({"a.b": np.ones(2), "c": np.ones((2, 3), np.int8)}),
    "a.npz": npz(a=np.ones(2), b=np.ones((2, 3), np.int8)),
    "a.index.json": b'{"metadata": {}, "weight_map": {"a.b": "a.safetensors"}}',
}


@pytest.mark.parametrize("name", SOUND)
@given(data=st.data())
def test_any_damage_is_refused_or_shown_but_never_a_crash(folder, name, data):
    sound = bytearray(SOUND[name])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(sound)))
        sound[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    (folder / name).write_bytes(sound)
    with contextlib.suppress(CheckpointError):
        str(summary(read(folder / name)))
