"""Makes every test see eight CPU devices, and compiles quickly, each program once."""

import gc
import os
import tempfile
from collections.abc import Iterator

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# Most of a tiny program's time is LLVM's, at work on code that runs once: level 0 leaves that out.
# XLA's own passes (fusions, sharding, collectives) are the same at every level. Flags given from
# outside come last, and win: XLA_FLAGS=--xla_backend_optimization_level=3 tests what users run.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        os.environ.get("XLA_FLAGS", ""),
    ]
).strip()

import jax
import pytest

# Many tests compile the same tiny program anew: a third of the time. The cache lasts as long as
# this process: JAX writes it without care for a run that is cut off, and one that was kept could
# fail the next.
COMPILED = tempfile.TemporaryDirectory(prefix="t5x_like_compiled_")
jax.config.update("jax_compilation_cache_dir", COMPILED.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="module", autouse=True)
def _release_compiled_programs() -> Iterator[None]:
    """Drop the programs that a test file compiled: kept, they fill gigabytes over the suite."""
    yield
    jax.clear_caches()
    gc.collect()
