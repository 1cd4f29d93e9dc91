"""What does `import optax_freeze` add to `import optax`?"""

import os
import subprocess
import sys
import tempfile

from .measure import ABSENT, peer, seconds, table

MODULES = ["optax_freeze", "maskx", "sepes", "equinox", "flax.nnx"]
CODE = """
import gc, sys, time
{before}
gc.collect(); gc.disable()
count, start = len(sys.modules), time.perf_counter()
import {module}
print(time.perf_counter() - start, len(sys.modules) - count)
"""


def run(code, cache):
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    taken, modules = done.stdout.split()
    return float(taken), int(modules)


def main():
    with tempfile.TemporaryDirectory() as cache:  # of bytecode, which the first turn compiles
        _main(cache)


def _main(cache):
    codes = {"optax": CODE.format(before="", module="optax")}
    for name in filter(peer, MODULES):
        codes[name] = CODE.format(before="import optax", module=name)
    times = seconds(
        {name: lambda code=code: run(code, cache)[0] for name, code in codes.items()}, 7
    )
    rows = [
        [name, 1e3 * times[name], f"{times[name] / times['optax']:.2%}", run(codes[name], cache)[1]]
        for name in codes
    ]
    rows += [[name, ABSENT, None, None] for name in MODULES if name not in codes]
    table(
        "Importing, once optax is there",
        ["module", "ms", "of import optax", "modules loaded"],
        rows,
    )


if __name__ == "__main__":
    main()
