"""Measure host memory while processes that share a model read and write a Hugging Face folder.

    python -m benchmarks.folder_memory
    python -m benchmarks.folder_memory --processes=2 --devices=8

A LLaMA of random float32 weights (2.2 GB by default) is written, and then read by processes that
shard its parameters over all devices (fsdp), which on a CPU also use host memory. Each process
prints the bytes that its devices hold, and its maximum anonymous memory beyond that (RssAnon in
Linux, without pages of mapped files, which the kernel can drop) while it reads, and while all
processes write the folder again. A small folder is read first, so that imports do not count.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

from t5x_like.experiment.command_line import ArgumentParser, count

_EVERY = 0.002  # seconds between two measurements


def main(arguments: Sequence[str]) -> None:
    """Write the folder, and measure in separate processes."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.folder_memory")
    parser.add_argument("--layers", type=count, default=12)
    parser.add_argument("--d_model", type=count, default=1536)
    parser.add_argument("--vocabulary", type=count, default=32_000)
    parser.add_argument("--processes", type=count, default=1)
    parser.add_argument("--devices", type=count, default=8)
    flags = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
        free.close()
        _finish([spawn.Process(target=_write, args=(flags, folder))])
        _finish(
            [
                spawn.Process(target=_measure, args=(flags, folder, address, process))
                for process in range(flags.processes)
            ]
        )


def _finish(runs: list) -> None:
    for run in runs:
        run.start()
    for run in runs:
        run.join()
        if run.exitcode:
            raise SystemExit(run.exitcode)


def _write(flags: argparse.Namespace, folder: str) -> None:
    import flax.linen as nn
    import jax

    from t5x_like import systems
    from t5x_like.pretrained import Pretrained

    for name, width in {"small": 128, "large": flags.d_model}.items():
        config = systems.find("llama").sizes["7b"] | {
            "layers": flags.layers,
            "d_model": width,
            "d_ff": 4 * width,
            "heads": width // 128,
            "kv_heads": width // 128,
            "vocab_size": flags.vocabulary if name == "large" else 128,
        }
        module = systems.build("llama", config)
        params = jax.jit(module.init)(jax.random.key(0), module.example_batch())["params"]
        model = Pretrained(module, nn.unbox(params), system="llama", config=config)
        model.save_pretrained(pathlib.Path(folder, name))


def _measure(flags: argparse.Namespace, folder: str, address: str, process: int) -> None:
    local = flags.devices // flags.processes
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={local}"
    import jax

    if flags.processes > 1:
        jax.distributed.initialize(address, flags.processes, process)
    from t5x_like import from_pretrained, partitioning

    mesh = partitioning.make_mesh({"fsdp": flags.devices})
    from_pretrained(pathlib.Path(folder, "small"), mesh=mesh)
    with _most() as reading:
        model = from_pretrained(pathlib.Path(folder, "large"), mesh=mesh)
        jax.block_until_ready(model.params)
    leaves = jax.tree.leaves(model.params)
    held = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
    with _most() as writing:
        model.save_pretrained(pathlib.Path(folder, "again"))
    sizes = {
        "parameters": sum(leaf.nbytes for leaf in leaves),
        "largest tensor of the folder": 4 * flags.vocabulary * flags.d_model,
        "held by its devices": held,
        "most beyond it while reading": reading[0] - held,
        "most beyond it while writing": writing[0],
    }
    print(f"process {process}: " + ", ".join(f"{k} {v / 1e9:.3f} GB" for k, v in sizes.items()))


@contextlib.contextmanager
def _most() -> Iterator[list[int]]:
    """Yield a list that gets the maximum increase of anonymous memory within the context."""
    start, most, ended = _anonymous(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY):
            most[0] = max(most[0], _anonymous() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def _anonymous() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
