"""`python -m optax_freeze show`: what it prints and what it refuses."""

import json
import os
import re
import shlex
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_freeze import __main__ as command
from optax_freeze import summary
from optax_freeze._checkpoints import optimizer, showing

PARAMS = {
    "embeddings.word": np.ones((9, 4), np.float32),
    **{f"encoder.layer.{i}.weight": np.ones((4, 4), np.float32) for i in range(4)},
    **{f"encoder.layer.{i}.bias": np.ones(4, np.float32) for i in range(4)},
    "position_ids": np.arange(3),
}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path, capsys):
    np.savez(tmp_path / "params.npz", **PARAMS)

    def call(*args):
        code = command.main(["show", str(tmp_path / "params.npz"), *args])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("args", "choice"),
    [
        ([], {}),
        (["--freeze", "embeddings"], {"freeze": "embeddings"}),
        (["--freeze", "embeddings", "--freeze", "**.bias"], {"freeze": ["embeddings", "**.bias"]}),
        (["--trainable", "encoder", "--trainable", "embeddings"], {"trainable": ["e*", "e*.*"]}),
        (
            ["--trainable", "encoder", "--freeze", "encoder.layer[:-1]", "--depth", "2"],
            {"trainable": "encoder", "freeze": "encoder.layer[:-1]", "depth": 2},
        ),
        (["--optimizer", "adamw"], {"tx": optax.adamw(1.0)}),
        (["--depth", "0", "--optimizer", "sgd"], {"depth": 0, "tx": optax.sgd(1.0)}),
    ],
)
def test_the_summary_of_the_arguments(args, choice, run):
    expected = summary(PARAMS, **choice)
    assert run(*args) == (0, f"{expected}\n", "")
    code, out, err = run(*args, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(expected.as_dict()))


def test_dotted_keys_are_a_tree(run):
    _, out, _ = run("--freeze", "encoder.layer[0]")
    assert [line.split()[0] for line in out.splitlines()[:9]] == [
        "path",
        "embeddings.word",
        "encoder.layer",
        "[0]",
        "bias",
        "weight",
        "[1:4]",
        "bias",
        "weight",
    ]


def test_in_a_terminal_the_table_is_as_wide_as_it_is(run, monkeypatch):
    _, plain, _ = run()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    _, out, err = run()
    assert not err
    assert "\x1b[32mtrains" in out
    assert "left out in 40 columns: class or array, \nbytes\n" in out
    assert "left out in" not in plain
    assert "class or array" in plain


def test_a_pipe_gets_every_column_whatever_the_terminal(run, monkeypatch):
    _, wide, _ = run()
    monkeypatch.setenv("COLUMNS", "40")
    assert run()[1] == wide


@pytest.mark.parametrize(
    ("args", "texts"),
    [
        (["--freeze", "encodr"], ["freeze: an entry matches no leaf", "closest: 'encoder"]),
        (["--trainable", "position_ids"], ["trainable: ", "'position_ids'"]),
        (["--freeze", "encoder["], ["brackets"]),
        (["--freeze"], ["--freeze: expected one argument"]),
        (["--depth", "-1"], ["--depth: -1 is not a whole number from 0 to 1000"]),
        (["--optimizer", "adamm"], ["'adamm' is no optimizer of Optax that", "closest: adam, "]),
        (["--optimizer", "zzz"], ["closest: acprop, ", ", yogi"]),
        (["--optimizer", "scale_by_adam"], ["is no optimizer of Optax"]),
        (["another.npz"], ["unrecognized arguments: another.npz"]),
        (["--steps", "3"], ["unrecognized arguments: --steps 3"]),
    ],
)
def test_refusals(args, texts, run):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert "python -m optax_freeze" in err
    assert [text for text in texts if text not in err] == []


def test_without_a_file(capsys):
    assert command.main(["show"]) == 2
    assert "the following arguments are required: FILE" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(showing._optimizers()))
@pytest.mark.filterwarnings("ignore:Specifying a key will be required", "ignore:.*is deprecated")
def test_every_optimizer_has_a_state_to_count(name):
    params = {"a": jnp.ones((3, 4)), "b": jnp.ones((), jnp.bfloat16)}
    found = summary(params, "b", tx=optimizer(name))
    state = optimizer(name).init({"a": params["a"]})
    expected = sum(leaf.nbytes for leaf in map(jnp.asarray, jax.tree.leaves(state)))
    assert found.state.in_trainable_only == expected


def test_the_optimizers_are_those_that_people_use():
    assert {
        "adam",
        "adamw",
        "sgd",
        "lion",
        "adafactor",
        "lbfgs",
        "muon",
    } <= showing._optimizers().keys()
    assert not {"dpsgd", "chain", "scale_by_learning_rate", "masked"} & showing._optimizers().keys()


def test_help_shows_three_examples_that_run(capsys, tmp_path, monkeypatch):
    assert command.main(["show", "--help"]) == 0
    out = capsys.readouterr().out
    assert command.EXAMPLES in out
    assert max(map(len, out.splitlines())) <= 80
    examples = command.EXAMPLES.partition("\n\n")[0].replace("\\\n", "")
    lines = [shlex.split(line) for line in examples.splitlines()[1:]]
    assert len(lines) == 3
    monkeypatch.chdir(tmp_path)
    tree = {name.replace(".word", ".a.b.c"): array for name, array in PARAMS.items()}
    np.savez("params.npz", **tree)
    import safetensors.numpy

    safetensors.numpy.save_file(tree, "model.safetensors")
    index = {"weight_map": dict.fromkeys(tree, "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for words in lines:
        assert words[:3] == command.COMMAND.split()
        assert command.main(words[3:]) == 0
        assert capsys.readouterr().out


def test_the_help_of_the_demonstration_mentions_it(capsys):
    assert command.main(["--help"]) == 0
    assert f"{command.COMMAND} show --help" in capsys.readouterr().out


# Patience


def slow(seconds):
    def read(path):
        time.sleep(seconds)
        return PARAMS

    return read


def test_what_takes_long_says_so_in_a_terminal(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(showing, "PATIENCE", 0.0)
    monkeypatch.setattr(showing, "read", slow(0.5))
    code, out, err = run("--json")
    assert code == 0
    assert "reading " in err
    assert "params.npz" in re.sub(r"\s", "", err)  # wherever the line was broken
    assert json.loads(out)["parameters"] == 119


def test_what_does_not_says_nothing(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(showing, "PATIENCE", 3600.0)
    assert run("--json")[2] == ""


def test_nobody_who_does_not_watch_is_told(run, monkeypatch):
    monkeypatch.setattr(showing, "PATIENCE", 0.0)
    monkeypatch.setattr(showing, "read", slow(0.1))
    assert run()[2] == ""


@pytest.mark.parametrize("args", [[], ["--json"]])
def test_a_reader_who_has_seen_enough(args, run, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert run(*args) == (0, "", "")


def test_as_a_command(tmp_path):
    np.savez(tmp_path / "params.npz", **PARAMS)
    args = ["show", str(tmp_path / "params.npz"), "--freeze", "embedings"]
    done = subprocess.run(
        [sys.executable, "-m", "optax_freeze", *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert not done.stdout
    assert "'embedings': closest: 'embeddings'" in done.stderr
    assert "Traceback" not in done.stderr
