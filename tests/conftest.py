"""Makes every test see eight CPU devices, and compiles quickly, each program once."""

import gc
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# Most of a tiny program's time is compilation of code that runs once. LLVM's level 0 leaves out its
# optimizations, and without XLA's fusion emitters and with one module per program there is half as
# much to compile. XLA's own passes (fusions, sharding, collectives) stay the same. Flags given from
# outside come last, and win: XLA_FLAGS="--xla_backend_optimization_level=3
# --xla_cpu_use_fusion_emitters=true" tests what users run. A collective waits for as long as a test
# may: by default XLA ends the process after 40 s, which a machine with other work can take.
# XLA ends a process that names a flag it does not know, and JAX 0.12 always has the emitters.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_parallel_codegen_split_count=1",
        "--xla_cpu_collective_call_terminate_timeout_seconds=1200",
        "--xla_cpu_use_fusion_emitters=false" * version("jax").startswith("0.10."),
        os.environ.get("XLA_FLAGS", ""),
    ]
).strip()

# A name that is not a folder is never looked up on the network.
os.environ["HF_HUB_OFFLINE"] = "1"

# Nor is a cache of the user's read or written by the commands that tests start.
os.environ["JAX_COMPILATION_CACHE_DIR"] = ""

import jax
import pytest
from jax.sharding import Mesh

from t5x_like import partitioning
from t5x_like.nn import stack
from tests.programs import shards

# Layers are compiled once for all, as on accelerators, and not each, as `model.loop=auto` has it on
# a CPU. Commands that tests start have the default, and so has the test of `auto`.
stack._FEW = 0

gc.set_threshold(100_000)  # imports and traces make many objects that live on, and few cycles

# Many tests compile the same program anew. The cache lasts as long as this process: JAX writes it
# without care for a run that is cut off, and one that was kept could fail the next.
COMPILED = tempfile.TemporaryDirectory(prefix="t5x_like_compiled_")
jax.config.update("jax_compilation_cache_dir", COMPILED.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Nobody reads the lines of Python from which the operations of a test's programs come.
jax.config.update("jax_traceback_in_locations_limit", 0)

# Above this many resident bytes the programs of finished test files are dropped, which takes
# seconds. The allocator keeps what they filled, so the next time is after so much growth.
MEMORY, GROWTH = 2.6e9, 7e8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run take one part of the test files, such as `--shard=3/8`."""
    parser.addoption("--shard", default="1/1", help="the part of the test files to run")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a part that does not exist."""
    try:
        shards.parse(config.getoption("--shard"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leave out the files of other parts, without importing them."""
    if collection_path.suffix != ".py":
        return None
    part = shards.parse(config.getoption("--shard"))
    return None if shards.has(part, collection_path) else True


def pytest_collection_finish() -> None:
    """Take what the imports made, and what stays, out of the garbage collector's rounds."""
    gc.collect()
    gc.freeze()
    # Each device would write its slice of a replicated array, by a program of its own for each
    # shape: eight times as many as a checkpoint has shapes. Tiny arrays are written whole.
    if handlers := sys.modules.get("orbax.checkpoint.type_handlers"):
        handlers.get_type_handler(jax.Array)._min_slice_bytes_for_replica_parallel = 2**20


def resident_bytes() -> float:
    """Return the memory of this process, or infinity where the system does not list it."""
    listed = pathlib.Path("/proc/self/statm")
    if not listed.exists():
        return float("inf")
    return int(listed.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """Let the meshes of a test file be of one device, where it tests no layout: less work."""
    make_mesh = partitioning.make_mesh

    def of_one(shape: Mapping[str, int], *, devices: Sequence[Any] | None = None) -> Mesh:
        return make_mesh(shape, devices=devices or jax.devices()[:1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioning, "make_mesh", of_one)
        yield


@pytest.fixture(scope="module")
def emulator() -> Iterator[None]:
    """An emulator of Cloud Storage for this process, and for those that it starts."""
    from tests.programs import storage_emulator  # the other files' tests do without

    with storage_emulator.used():
        yield


@pytest.fixture(scope="session")
def dropped() -> dict[str, float]:
    """Under `at` the resident bytes after programs were last dropped."""
    return {"at": 0.0}


@pytest.fixture(scope="module", autouse=True)
def _release_compiled_programs(dropped: dict[str, float]) -> Iterator[None]:
    """Drop the programs that test files compiled: kept, they fill gigabytes over the suite."""
    yield
    if drops := resident_bytes() > max(MEMORY, dropped["at"] + GROWTH):
        jax.clear_caches()
        gc.unfreeze()
    gc.collect()  # what a test left open is closed before the next file begins
    gc.freeze()  # what stays, such as compiled programs, is not looked through after each file
    if drops:
        dropped["at"] = resident_bytes()
