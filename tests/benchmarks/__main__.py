"""Run all benchmarks: `python -m tests.benchmarks [--instructions]`."""

import argparse
import os

import jax
import optax

import optax_freeze

from . import (
    hiding,
    importing,
    jitted_calls,
    mask_building,
    rates,
    tracing,
    training_step,
    unfreezing,
)

parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
parser.add_argument(
    "--instructions", action="store_true", help="count with valgrind, which takes long"
)
options = parser.parse_args()
print(
    f"{optax_freeze.__path__[0]}, jax {jax.__version__}, optax {optax.__version__}, "
    f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
)
training_step.main()
mask_building.main(instructions=options.instructions)
hiding.main(instructions=options.instructions)
jitted_calls.main()
unfreezing.main()
rates.main()
tracing.main()
importing.main()
