"""Settings of the whole suite."""

import os

# Before JAX starts: sharding is tested on eight devices made of one.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import hypothesis
import jax

# Not "strict" dtype promotion as well: most of Optax does not work under it. Tests of what does not
# call Optax's own arithmetic turn it on for themselves.
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("dev", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")
