"""The demonstration: what it prints, what it refuses, and that its verdict is computed."""

import contextlib
import io
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_freeze import __main__ as command
from optax_freeze._demo import digits as demo
from optax_freeze._demo import report

OURS = ["frozen + adam", "trainable_only(adamw)", "split + adamw"]
OTHERS = ["optax.masked(adamw)", "optax.freeze + adamw"]
UNCHANGED = f"Frozen bits UNCHANGED by {', '.join(OURS)}."


@pytest.fixture(autouse=True, scope="module")
def surroundings():
    # The adam of Optax takes a float to an integer power, which strict promotion does not allow.
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setenv("COLUMNS", "80")
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        yield


def run(*args):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = command.main(["--steps", "20", *args])
    return code, out.getvalue()


def table(out):
    """The cells of each way: moved by, accuracy, state bytes, FLOPs, remark."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if cells[0] in OURS + OTHERS}


def number(cell):
    return float(cell.replace(",", ""))


@pytest.fixture(scope="module")
def default_run(surroundings):
    return run()


def test_the_ways_of_this_library_keep_every_frozen_bit(default_run):
    code, out = default_run
    assert code == 0
    assert out.splitlines()[-1] == UNCHANGED
    assert [table(out)[name][0] for name in OURS] == ["0", "0", "0"]


def test_the_others_move_what_is_frozen(default_run):
    _, out = default_run
    assert [table(out)[name][0] != "0" for name in OTHERS] == [True, True]
    assert [table(out)[name][-1] for name in OTHERS] == ["MOVED", "MOVED"]
    assert "CHANGED by optax.masked(adamw): it adds the raw gradient (uphill)." in out
    assert "CHANGED by optax.freeze + adamw: weight decay follows the zeros." in out


def test_the_costs_are_those_of_what_trains(default_run):
    _, out = default_run
    masked, freeze, first, only, apart = (table(out)[name] for name in OTHERS + OURS)
    head, everything = 325, 16_901
    assert [number(row[2]) for row in (only, apart)] == [2 * 4 * head + 4] * 2
    assert [number(row[2]) for row in (freeze, first)] == [2 * 4 * everything + 4] * 2
    assert number(only[3]) == number(apart[3]) < number(first[3])
    assert number(first[3]) < number(freeze[3]) < number(masked[3])


def test_the_frozen_and_the_trained_are_named(default_run):
    _, out = default_run
    assert re.search(r"frozen +16,576 weights +encoder\.0\.bias, encoder\.0\.weight", out)
    assert re.search(r"trains +325 weights +head\.bias, head\.weight", out)


def test_everything_fits_into_80_columns(default_run):
    _, out = default_run
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert out.isascii()


def test_more_steps_from_another_seed_learn_the_new_digits(default_run):
    code, out = run("--steps", "400", "--seed", "1", "--train", "head")
    assert code == 0
    assert out.splitlines()[-1] == UNCHANGED
    assert [number(table(out)[name][1].rstrip("%")) > 85 for name in OURS] == [True] * 3
    assert table(out) != table(default_run[1])


def test_one_seed_is_one_result(default_run):
    assert run("--seed", "0") == default_run


def test_nothing_frozen():
    code, out = run("--train", "**")
    assert code == 0
    assert out.splitlines()[-1].startswith("Nothing is frozen with these SPECs")
    assert [cells[0] for cells in table(out).values()] == ["-"] * 5
    assert "CHANGED" not in out


def test_nothing_trains_and_a_progress_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert command.main(["--steps", "2", "--freeze", "encoder[:]", "head"]) == 0
    out, err = capsys.readouterr()
    assert "Nothing trains with these SPECs" in out
    assert UNCHANGED in out
    assert "pretraining" in err
    assert "split + adamw" in err


def test_the_bar_counts_every_way():
    params = demo.new_params(np.random.default_rng(0))
    assert len(demo.ways(params, ["encoder"], None)) == report.WAYS


def test_a_way_of_this_library_that_leaks_is_told_on(monkeypatch):
    def leaky(params, freeze, train):
        return [demo.Way("a leak", is_ours=True, tx=optax.sgd(0.1), trained=params)]

    monkeypatch.setattr(report, "ways", leaky)
    code, out = run()
    assert code == 1
    assert out.splitlines()[-1] == "Frozen bits CHANGED by a leak: a bug of this library."


@pytest.mark.parametrize(
    ("args", "texts"),
    [
        (["--freeze", "encodr"], ["freeze: an entry matches no leaf", "'encodr'", "'encoder'"]),
        (["--train", "heat", "encoder"], ["trainable: an entry", "'heat'", "'head'"]),
        (["--freeze", "encoder", "encoder[2]"], ["'encoder[2]'"]),
        (["--freeze", ""], ["empty string"]),
        (["--freeze", "encoder["], ["brackets"]),
        (["--freeze"], ["--freeze: expected at least one argument"]),
        (["--steps", "0"], ["--steps: 0 is not a whole number from 1 to 10000"]),
        (["--steps", "10001"], ["--steps: 10001 is not a whole number"]),
        (["--steps", "many"], ["--steps: many is not a whole number"]),
        (["--seed", "-1"], ["--seed: -1 is not a whole number from 0"]),
        (["encoder"], ["unrecognized arguments: encoder"]),
    ],
)
def test_refusals(args, texts, capsys):
    assert command.main(args) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "python -m optax_freeze: " in err
    assert "Traceback" not in err
    assert [text for text in texts if text not in err] == []


def test_without_scikit_learn(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert command.main([]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [
        "python -m optax_freeze: the digits need scikit-learn: pip install 'optax-freeze[demo]'"
    ]


def test_help_explains_specs_in_ten_lines(capsys):
    assert command.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert command.SPECS in out
    assert len(command.SPECS.splitlines()) == 10
    assert max(map(len, out.splitlines())) <= 80
    assert [name for name in ("--freeze", "--train", "--steps", "--seed") if name not in out] == []


@pytest.mark.parametrize("line", re.findall(r"^  '?([^ ']+)'?  ", command.SPECS, re.MULTILINE))
def test_every_spec_in_the_help_means_something(line):
    assert demo.ways(demo.new_params(np.random.default_rng(0)), [line], None)


def test_as_a_command():
    args = [sys.executable, "-m", "optax_freeze", "--freeze", "encoder.weight"]
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not done.stdout
    assert "'encoder.0.weight'" in done.stderr
    assert "Traceback" not in done.stderr


def test_bits_are_more_than_values():
    zero, nan = np.float32(0.0), np.float32(np.nan)
    assert demo.same_bits([np.array([zero, nan])], [np.array([zero, nan])])
    assert not demo.same_bits([np.array([zero])], [np.array([-zero])])
    assert not demo.same_bits([np.zeros(2, np.float32)], [np.zeros(2, np.int32)])
    assert not demo.same_bits([np.zeros(2)], [np.zeros((2, 1))])


def test_nan_is_neither_still_nor_right():
    ones, nans = np.ones(2, np.float32), np.full(2, np.nan, np.float32)
    assert np.isnan(demo.largest_change([ones, ones], [nans, ones]))
    params = demo.new_params(np.random.default_rng(0))
    params["head"]["bias"] = jnp.full(5, jnp.nan)
    digits = demo.Digits(np.ones((3, 64), np.float32), np.zeros(3, np.int32))
    assert demo.accuracy(params, digits) == 0


def test_five_digits_are_parted_without_overlap():
    first, held_out = demo.five_from(5, demo.load(), np.random.default_rng(0))
    assert set(first.labels) == set(held_out.labels) == set(range(5))
    assert len(first.labels) + len(held_out.labels) == 896
    assert not set(map(bytes, first.images)) & set(map(bytes, held_out.images))
