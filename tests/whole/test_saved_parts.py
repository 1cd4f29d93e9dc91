"""What trains, saved and loaded: over its base, over another one, under another `freeze=`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy
from hostile import all_bits

from optax_freeze import SpecError, merge, split


def through_npz(part, folder):
    np.savez(folder / "part.npz", **part)
    with np.load(folder / "part.npz") as loaded:
        return dict(loaded)


def through_safetensors(part, folder):
    """In order of rows, which safetensors takes for granted: a transposed view would be lost."""
    rows = {name: np.asarray(leaf, order="C") for name, leaf in part.items()}
    safetensors.numpy.save_file(rows, folder / "part.safetensors")
    return safetensors.numpy.load_file(folder / "part.safetensors")


def through_safetensors_of_jax(part, folder):
    safetensors.flax.save_file(dict(part), folder / "part.safetensors")
    return safetensors.flax.load_file(folder / "part.safetensors")


def through_raw_safetensors(part, folder):
    """The bytes as such, where the reader of safetensors has no name for the dtype."""
    found = safetensors.deserialize(safetensors.numpy.save(jax.device_get(part)))
    return {name: np.frombuffer(raw["data"], "V1").reshape(raw["shape"]) for name, raw in found}


def through_raw_npz(part, folder):
    """The bytes as such, where NumPy writes a dtype that it cannot read."""
    return through_npz(
        {k: np.asarray(v).view(f"V{v.dtype.itemsize}") for k, v in part.items()}, folder
    )


WAYS = {
    "float32": [through_npz, through_safetensors, through_safetensors_of_jax],
    "float16": [through_npz, through_safetensors, through_safetensors_of_jax],
    "bfloat16": [through_npz, through_safetensors, through_safetensors_of_jax, through_raw_npz],
    "complex64": [through_npz, through_safetensors, through_safetensors_of_jax],
    "float4_e2m1fn": [through_npz, through_raw_npz],
    "float8_e3m4": [through_npz, through_raw_npz],
    "float8_e4m3": [through_npz, through_raw_npz],
    "float8_e4m3b11fnuz": [through_npz, through_raw_npz],
    "float8_e4m3fn": [through_npz, through_raw_npz, through_raw_safetensors],
    "float8_e4m3fnuz": [through_npz, through_raw_npz, through_raw_safetensors],
    "float8_e5m2": [through_raw_npz, through_raw_safetensors],
    "float8_e5m2fnuz": [through_npz, through_raw_npz, through_raw_safetensors],
    "float8_e8m0fnu": [through_npz, through_raw_npz, through_raw_safetensors],
}


def hostile(dtype):
    """Every value of one byte; of more bytes zeros of both signs, NaNs with payloads and more."""
    dtype = np.dtype(dtype)
    if dtype.itemsize == 1:
        count = 16 if "float4" in dtype.name else 256
        return jnp.asarray(np.arange(count, dtype=np.uint8).view(dtype).reshape(-1, 4))
    raw = np.random.default_rng(0).integers(0, 256, (16, 4, dtype.itemsize), np.uint8)
    raw[0] = 255  # a NaN
    raw[1] = 0
    raw[2] = [*[0] * (dtype.itemsize - 1), 128]  # -0.0
    return jnp.asarray(raw.view(dtype)[..., 0])


@pytest.mark.parametrize(
    ("dtype", "through"), [(dtype, way) for dtype, ways in WAYS.items() for way in ways]
)
def test_a_part_comes_back_bit_for_bit(dtype, through, tmp_path):
    leaf = hostile(dtype)
    params = {"enc": jnp.ones(2), "head": {"w": leaf, "one": leaf[0, 0]}}
    part, rest = split(params, "enc")
    found = jax.device_put(merge(through(part, tmp_path), rest))
    assert all_bits(found) == all_bits(params)


def test_every_float_of_jax_is_in_the_table():
    known = {name for name in dir(jnp) if re.fullmatch(r"(b?float|complex)\d\w*", name)}
    no_64_bits, not_in_xla = {"float64", "complex128"}, {"float6_e2m3fn", "float6_e3m2fn"}
    assert known - no_64_bits - not_in_xla == WAYS.keys()


def test_an_int4_base_stays_in_the_rest():
    params = {"base": jnp.ones((2, 2), jnp.int4), "adapter": jnp.ones(2)}
    part, rest = split(params)
    assert list(part) == ["adapter"]
    assert rest["base"] is params["base"]


def test_float64_keeps_its_precision_by_numpy(tmp_path):
    part, rest = split({"w": np.full(2, 1 / 3)})
    assert all_bits(merge(through_safetensors(part, tmp_path), rest)) == all_bits(merge(part, rest))


@pytest.mark.parametrize("key", ["file", "allow_pickle"])
def test_keys_are_data_for_safetensors(key, tmp_path):
    """Case 36."""
    part, rest = split({key: jnp.ones(2), "w": jnp.zeros(2)})
    assert all_bits(merge(through_safetensors(part, tmp_path), rest)) == all_bits(merge(part, rest))


def test_keys_are_arguments_for_savez(tmp_path):
    """Case 36: `merge` at least finds out what was lost."""
    part, _ = split({"file": jnp.ones(2)})
    with pytest.raises(TypeError, match="multiple values for argument 'file'"):
        through_npz(part, tmp_path)
    part, rest = split({"allow_pickle": jnp.ones(2), "w": jnp.zeros(2)})
    with pytest.raises(ValueError, match=r"^merge: nothing fills 'allow_pickle'"):
        merge(through_npz(part, tmp_path), rest)


def base(seed, rank=2):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "encoder": {f"l{i}": {"w": jax.random.normal(keys[i], (4, 4))} for i in range(2)},
        "lora": {"a": jax.random.normal(keys[2], (4, rank)), "b": jnp.zeros((rank, 4))},
        "name": f"base {seed}",
    }


both_ways = pytest.mark.parametrize("through", [through_npz, through_safetensors])


@both_ways
def test_a_part_over_another_base(through, tmp_path):
    part = through({k: v + 1 for k, v in split(base(0), "encoder")[0].items()}, tmp_path)
    other = base(1)
    found = merge(part, split(other, "encoder")[1])
    assert all_bits(found["encoder"]) == all_bits(other["encoder"])
    assert found["name"] == "base 1"
    assert all_bits(jax.device_put(found["lora"])) == all_bits(
        jax.tree.map(lambda leaf: leaf + 1, base(0)["lora"])
    )


@both_ways
def test_a_part_over_a_base_of_other_shapes(through, tmp_path):
    """Case 37."""
    part = through(split(base(0, rank=2), "encoder")[0], tmp_path)
    rest = split(base(1, rank=4), "encoder")[1]
    text = (
        r"^merge: 'lora\.a' is filled with f32\[4,2\], where f32\[4,4\] belongs; "
        r"'lora\.b' is filled with f32\[2,4\], where f32\[4,4\] belongs"
    )
    for take in (merge, jax.jit(merge)):
        with pytest.raises(ValueError, match=text):
            take(part, rest)


OTHER = (
    r"\. A part that was saved under another freeze= goes into "
    r"split\(params, trainable=list\(part\)\)\[1\]$"
)
FREEZES = {
    "more trained": (["encoder.l0"], ["encoder"], "'encoder.l1.w' is filled already"),
    "less trained": (["encoder"], ["encoder.l0"], "nothing fills 'encoder.l1.w'"),
    "other leaves": (["encoder.l0"], ["encoder.l1"], "nothing fills 'encoder.l0.w'; .* already"),
}


@both_ways
@pytest.mark.parametrize(("saved", "freeze", "text"), FREEZES.values(), ids=FREEZES.keys())
def test_a_part_saved_under_another_freeze(saved, freeze, text, through, tmp_path):
    """Case 38: the error names the way, and the way works."""
    params = base(0)
    part = through({k: v + 1 for k, v in split(params, saved)[0].items()}, tmp_path)
    with pytest.raises(ValueError, match=f"^merge: {text}{OTHER}"):
        merge(part, split(params, freeze)[1])
    found = merge(part, split(params, trainable=list(part))[1])
    whole = {**split(params)[0], **part}
    assert all_bits(jax.device_put(split(found)[0])) == all_bits(jax.device_put(whole))
    again, _ = split(found, freeze)  # and on with the other freeze
    assert again.keys() == split(params, freeze)[0].keys()


def test_a_part_of_another_model_is_not_sent_that_way():
    rest = split(base(0), "encoder")[1]
    with pytest.raises(ValueError, match=r"there is no 'head'; there is no 'tail'$"):
        merge({"head": jnp.ones(2), "tail": jnp.ones(2)}, rest)
    with pytest.raises(SpecError, match="closest: "):
        split(base(0), trainable=["lora.c"])


def loss(params):
    x = params["encoder"]["l0"]["w"] @ params["encoder"]["l1"]["w"]
    return jnp.mean((x @ params["lora"]["a"] @ params["lora"]["b"] - 1.0) ** 2)


def test_an_average_of_what_trains_also_after_an_unfreezing():
    """Case 45: what is frozen does not drift by rounding, what is new begins at its value."""
    params, decay, tx = base(0), 0.9, optax.adam(0.1)
    before = all_bits(params["encoder"])

    @jax.jit
    def step(trainable, state, ema, rest):
        gradient = jax.grad(lambda t: loss(merge(t, rest)))(trainable)
        updates, state = tx.update(gradient, state, trainable)
        trainable = optax.apply_updates(trainable, updates)
        return trainable, state, optax.incremental_update(trainable, ema, 1 - decay)

    trainable, rest = split(params, "encoder")
    state, ema = tx.init(trainable), trainable
    for _ in range(3):
        trainable, state, ema = step(trainable, state, ema, rest)
    averaged = merge(ema, rest)
    assert all_bits(averaged["encoder"]) == before
    assert all_bits(averaged["lora"]) != all_bits(merge(trainable, rest)["lora"])

    trainable, rest = split(merge(trainable, rest), "encoder.l0")
    old, ema = ema, {**trainable, **ema}
    assert all_bits({k: ema[k] for k in old}) == all_bits(old)
    assert ema["encoder.l1.w"] is trainable["encoder.l1.w"]
    state = tx.init(trainable)
    for _ in range(3):
        trainable, state, ema = step(trainable, state, ema, rest)
    averaged = merge(ema, rest)
    assert all_bits(averaged["encoder"]["l0"]) == all_bits(params["encoder"]["l0"])
    assert all_bits(averaged["encoder"]["l1"]) != all_bits(params["encoder"]["l1"])
