"""Training on one GPU in bfloat16: sequences per second, utilization and memory, beside PyTorch.

    pip install torch transformers               # without them our side alone is measured
    python benchmarks/gpu_training.py [--workloads t5_large llama_1b] [--json FILE] [--steps 20]
    python benchmarks/gpu_training.py --tiny     # a shape for any machine, to try the command

Each side of each workload runs in a process of its own, which has the whole memory of the device:
random tokens, AdamW with float32 parameters and moments, no dropout, and the largest batch of
--rows that fits. PyTorch runs Hugging Face's network under `torch.autocast`, compiled. A step is
timed from its start to its last output; figures are medians. Utilization is model FLOPs
(`training/flops.py`, for both sides) by the published peak.
"""

import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from configs import llama, t5
from t5x_like.experiment import model_side
from t5x_like.experiment.command_line import ArgumentParser, count
from t5x_like.planning import batches
from t5x_like.training import flops

ROWS = (128, 64, 32, 16, 8, 4, 2, 1)
WARM_UP = 3  # steps before those that are timed


def t5_large() -> ml_collections.ConfigDict:
    """T5 v1.1 large on 512 and 128 tokens."""
    config = t5.get_config("large")
    config.data.lengths = {"inputs": 512, "targets": 128}
    return config


def llama_1b() -> ml_collections.ConfigDict:
    """The shape of LLaMA 3.2 1B on 2,048 tokens (Hugging Face's config.json)."""
    config = llama.get_config("7b")
    config.model.update({"layers": 16, "d_model": 2048, "d_ff": 8192, "heads": 32, "kv_heads": 8})
    config.model.update({"head_width": 64, "vocab_size": 128_256, "tied_head": True})
    return config


WORKLOADS = {"t5_large": t5_large, "llama_1b": llama_1b}
_TINY = {"d_model": 64, "d_ff": 64, "heads": 2, "vocab_size": 512}
_TINY_LAYERS = {"layers": 2, "kv_heads": 1, "head_width": 32}
_TINY_SIDES = {"encoder_layers": 2, "decoder_layers": 2, "d_kv": 32}


def settings(name: str, *, rows: int, tiny: bool) -> ml_collections.ConfigDict:
    """The config of a workload."""
    config = WORKLOADS[name]()
    config.model.dtype = "bfloat16"
    config.data.batch_size = rows
    config.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-4}
    config.mesh = {"data": 1, "fsdp": 1, "expert": 1, "model": 1}
    if tiny:
        own = _TINY_SIDES if "encoder_layers" in config.model else _TINY_LAYERS
        config.model.update(_TINY | own)
        config.data.lengths = dict.fromkeys(config.data.lengths, 32)
    return config


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one side of a workload takes.

    Attributes:
        rows: of the batch.
        seconds: of a step, the median.
        flops: of the model, a step.
        peak_flops: of the device, None where unknown.
        memory: the most bytes of the device at once, None where it is not counted.
        loss: of the last step, to see that it is a number.
    """

    side: str
    workload: str
    device: str
    rows: int
    seconds: float
    flops: int
    peak_flops: float | None
    memory: int | None
    loss: float

    @property
    def text(self) -> str:
        """One line."""
        used = "unknown"
        if self.peak_flops is not None:
            used = f"{self.flops / self.seconds / self.peak_flops:.1%}"
        memory = "unknown" if self.memory is None else f"{self.memory / 1e9:.1f} GB"
        return (
            f"{self.workload}, {self.side}, {self.device}: {self.rows / self.seconds:.1f} "
            f"sequences/s with {self.rows} rows, utilization {used}, memory {memory}"
        )


def main(arguments: Sequence[str] | None = None) -> list[Figures]:
    """Print the figures."""
    parser = ArgumentParser(__doc__, prog="python benchmarks/gpu_training.py")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--rows", type=count, nargs="+", default=list(ROWS))
    parser.add_argument("--steps", type=count, default=20)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", help="JSON Lines file for the figures")
    parser.add_argument("--alone", help="a file for the figures of one side, measured in here")
    given = parser.parse_args(arguments)
    if given.alone:
        found = measure(
            given.sides[0], given.workloads[0], rows=given.rows, steps=given.steps, tiny=given.tiny
        )
        pathlib.Path(given.alone).write_text(json.dumps(dataclasses.asdict(found)))
        return [found]
    figures = []
    for workload in given.workloads:
        for side in given.sides:
            if one := _in_process(side, workload, given):
                print(one.text, flush=True)
                figures.append(one)
    if given.json:
        lines = [json.dumps(dataclasses.asdict(one)) for one in figures]
        pathlib.Path(given.json).write_text("\n".join(lines) + "\n")
    return figures


def _in_process(side: str, workload: str, given: Any) -> Figures | None:
    """The figures of one side, None where it fails, which is printed."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "figures.json"
        command = [sys.executable, __file__, "--workloads", workload, "--sides", side]
        command += ["--rows", *map(str, given.rows), "--steps", str(given.steps)]
        command += ["--alone", str(file), *(["--tiny"] if given.tiny else [])]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            print(f"{workload}, {side}: failed: {' '.join(last)}", flush=True)
            return None
        return Figures(**json.loads(file.read_text()))


def measure(
    side: str, workload: str, *, rows: Sequence[int], steps: int, tiny: bool = False
) -> Figures:
    """Measure one side with the first number of rows that fits into memory.

    Raises:
        MemoryError: none of them does.
    """
    for number in rows:
        config = settings(workload, rows=number, tiny=tiny)
        model = model_side.build(config, devices=jax.devices()[:1])
        batch = random_batch(config)
        shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
        with model.layout():
            work = model.flops(shapes)
        try:
            seconds, loss, memory, device = SIDES[side](config, model, batch, steps)
        except Exception as error:
            if not any(word in str(error) for word in ("RESOURCE_EXHAUSTED", "out of memory")):
                raise
            continue
        peak = flops.peak_of_kind(device)
        return Figures(side, workload, device, number, seconds, work, peak, memory, loss)
    raise MemoryError(f"{workload} does not fit with {rows[-1]} rows: give fewer with --rows")


def random_batch(config: ml_collections.ConfigDict) -> dict[str, np.ndarray]:
    """A batch of random tokens, all of them real and with a loss."""
    draw = np.random.default_rng(0)
    tokens = {}
    for name, x in batches.batch(config).items():
        if name.endswith("_tokens"):
            tokens[name] = draw.integers(2, config.model.vocab_size, x.shape, np.int32)
        else:
            tokens[name] = np.ones(x.shape, x.dtype)
    return tokens


def ours(
    config: ml_collections.ConfigDict, model: Any, batch: dict[str, np.ndarray], steps: int
) -> tuple[float, float, int | None, str]:
    """Seconds of a step, loss, memory and device of this repository."""
    del config
    device = jax.devices()[0]
    with model.layout():
        state, on_device = model.initial_state(), model.put(batch)

        def take() -> float:
            nonlocal state
            state, metrics = model.train_step(state, on_device)
            jax.block_until_ready(state)
            return float(metrics["loss"].compute())

        seconds, loss = timed(take, steps)
    stats = device.memory_stats() or {}
    return seconds, loss, stats.get("peak_bytes_in_use"), device.device_kind


def pytorch(
    config: ml_collections.ConfigDict, model: Any, batch: dict[str, np.ndarray], steps: int
) -> tuple[float, float, int | None, str]:
    """The same of Hugging Face's network, compiled by PyTorch."""
    from benchmarks import pytorch_networks  # PyTorch, which our side does not need

    del model
    take = pytorch_networks.training_step(config.model.to_dict(), batch)
    seconds, loss = timed(take, steps)
    return seconds, loss, *pytorch_networks.memory_and_device()


def timed(take: Callable[[], float], steps: int) -> tuple[float, float]:
    """The median seconds of a step after those that warm up, and the last loss."""
    seconds, loss = [], float("nan")
    for number in range(WARM_UP + steps):
        start = time.perf_counter()
        loss = take()  # fetched, so the device is done
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), loss


SIDES: dict[str, Callable[..., tuple[float, float, int | None, str]]] = {
    "ours": ours,
    "pytorch": pytorch,
}

if __name__ == "__main__":
    main()
