"""Two processes, joined on this machine, train the same steps as one."""

import os
import pathlib
import socket
import subprocess
import sys

import optax_freeze

ROOT = pathlib.Path(optax_freeze.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
WORKER = """
import sys
import jax
port, count, rank = map(int, sys.argv[1:])
jax.config.update("jax_platforms", "cpu")
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", count, rank)
import hashlib
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from optax_freeze import apply_updates, assert_unchanged, trainable_only, value_and_grad

assert jax.device_count() == 2 and jax.process_count() == count
mesh = Mesh(np.array(jax.devices()), ("data",))
whole, rows = (NamedSharding(mesh, PartitionSpec(*names)) for names in ((), ("data",)))

def everywhere(value, sharding):
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

rng = np.random.default_rng(0)
make = lambda *shape: rng.integers(-2, 3, shape).astype(np.float32)
params = {"encoder": everywhere(make(4, 4), rows), "head": everywhere(make(4, 2), whole)}
x = everywhere(make(8, 4), rows)
tx = trainable_only(optax.adamw(0.5), "encoder")

def loss(params, x):
    return jnp.sum((x @ params["encoder"] @ params["head"]) ** 2) / 64

@jax.jit
def step(params, state, x):
    _, grads = value_and_grad(loss, "encoder")(params, x)
    updates, state = tx.update(grads, state, params)
    return apply_updates(params, updates), state

new, state = params, jax.jit(tx.init)(params)
for _ in range(3):
    new, state = step(new, state, x)
assert_unchanged(params, new, "encoder")
assert new["encoder"].sharding.is_equivalent_to(rows, 2)
head = np.asarray(new["head"].addressable_data(0))
print(hashlib.sha256(head.tobytes()).hexdigest(), float(np.abs(head).sum()))
"""


def run(count):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={2 // count}"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(port), str(count), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, **flags},
        )
        for rank in range(count)
    ]
    results = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count, results
    return [out.splitlines()[-1] for out, _ in results]  # Gloo talks as well


def test_two_processes_train_as_one():
    (alone,) = run(1)
    first, second = run(2)
    assert first == second == alone
