"""Training on one GPU in bfloat16: sequences/s, utilization and memory, compared with PyTorch.

    pip install torch transformers               # without them only our side is measured
    python -m benchmarks.gpu_training [--workloads t5_large llama_1b] [--json FILE] [--steps 20]
    python -m benchmarks.gpu_training --plan     # the bounds for known GPUs; needs none
    python -m t5x_like.plan --config=benchmarks/gpu_training.py:t5_large --topology=h100:1x1
    python -m benchmarks.gpu_training --tiny     # small shapes, to try the command

First the gradients of cuDNN's attention are compared with dense attention's, for each mask. Then
each side of each workload trains on random tokens: AdamW with float32 parameters and moments, no
dropout. PyTorch runs Hugging Face's network under `torch.autocast`, with each layer compiled and
without compilation. The largest batch of --rows that fits is found by bisection; each number of
rows runs in a separate process, so that a failed attempt leaves nothing in memory, and all sides
may use the same share of the device. A step is timed from its start to its last output; figures are
medians. Utilization is model FLOPs (`training/flops.py`, for all sides) per second divided by the
published peak.
"""

import bisect
import dataclasses
import functools
import json
import os
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

from benchmarks import attention_gradients
from configs import bert, llama, switch, t5
from t5x_like.experiment import model_side
from t5x_like.experiment.command_line import ArgumentParser, count
from t5x_like.experiment.run import of_config
from t5x_like.nn.stack import LOOPS
from t5x_like.research.planning import batches
from t5x_like.research.planning.gpus import GPUS, bounds
from t5x_like.training import flops

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
WARM_UP = 3  # untimed first steps
ROOM = 0.95  # share of the device's memory that each side may use
# JAX preallocates its share; in PyTorch's process it only counts FLOPs, on the CPU.
_ENVIRONMENT = {
    "ours": {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(ROOM)},
    "pytorch": {"JAX_PLATFORMS": "cpu"},
    "pytorch_eager": {"JAX_PLATFORMS": "cpu"},
}


def t5_large() -> ml_collections.ConfigDict:
    """Return the config of T5 v1.1 large on 512 and 128 tokens."""
    config = t5.get_config("large")
    config.data.lengths = {"inputs": 512, "targets": 128}
    return config


def llama_1b() -> ml_collections.ConfigDict:
    """Return the config of LLaMA 3.2 1B (Hugging Face's config.json) on 2,048 tokens."""
    config = llama.get_config("7b")
    config.model.update({"layers": 16, "d_model": 2048, "d_ff": 8192, "heads": 32, "kv_heads": 8})
    config.model.update({"head_width": 64, "vocab_size": 128_256, "tied_head": True})
    return config


def bert_large() -> ml_collections.ConfigDict:
    """Return the config of BERT large on 512 tokens, 15% with a loss, without next sentences."""
    config = bert.get_config("large")
    config.train.phases, config.phases = (), {}
    config.model.update({"head": "masked_lm", "dropout": 0.0})
    config.data.objective_settings.next_sentence = False
    config.data.lengths = {"inputs": 512}
    return config


def switch_base() -> ml_collections.ConfigDict:
    """Return the config of Switch base with 8 experts on 512 and 128 tokens; not for PyTorch."""
    config = switch.get_config("base_8")
    config.data.lengths = {"inputs": 512, "targets": 128}
    return config


WORKLOADS = {
    "t5_large": t5_large,
    "llama_1b": llama_1b,
    "bert_large": bert_large,
    "switch_base": switch_base,
}
_TINY = {"d_model": 64, "d_ff": 64, "heads": 2, "vocab_size": 512}
_TINY_LAYERS = {"layers": 2, "encoder_layers": 2, "decoder_layers": 2, "d_kv": 32}
_TINY_LAYERS |= {"kv_heads": 1, "head_width": 32}
MASKED = 0.15  # the share of an encoder's tokens that have a loss


def settings(
    name: str, *, rows: int, tiny: bool, loop: str = "auto", quantization: str = "none"
) -> ml_collections.ConfigDict:
    """Return the config of a workload."""
    config = WORKLOADS[name]()
    config.model.loop = loop
    if quantization != "none":
        config.model.quantization = quantization
    config.model.dtype = "bfloat16"
    config.data.batch_size = rows
    config.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-4}
    config.mesh = {"data": 1, "fsdp": 1, "expert": 1, "model": 1}
    if tiny:
        layers = {name: x for name, x in _TINY_LAYERS.items() if name in config.model}
        config.model.update(_TINY | layers)
        config.data.lengths = dict.fromkeys(config.data.lengths, 32)
    return config


def get_config(name: str = "t5_large") -> ml_collections.ConfigDict:
    """Return the config of a workload, as the file of a command's `--config`."""
    return settings(name, rows=ROWS[-1], tiny=False)


@dataclasses.dataclass(frozen=True)
class Figures:
    """The measurements of one side of a workload.

    Attributes:
        rows: rows of the batch.
        seconds: median seconds of a step.
        flops: model FLOPs of a step.
        peak_flops: peak FLOP/s of the device, None if unknown.
        memory: maximum bytes of the device in use, None if not counted.
        loss: loss of the last step, to check that it is finite.
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
        """The figures as one line."""
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
    given = _parser().parse_args(arguments)
    if given.plan:
        print("\n".join(line for name in given.workloads for line in plan(name)))
        return []
    if given.check_alone:
        print("\n".join(attention_gradients.check()), flush=True)
        return []
    if given.alone:
        return _measure_alone(given)
    _run(["--check-alone"], environment=_ENVIRONMENT["ours"], what="gradients of attention")
    figures = []
    for workload in given.workloads:
        for side in given.sides:
            if side != "ours" and workload == "switch_base":
                continue
            if one := largest(given.rows, lambda rows, s=side, w=workload: _try(s, w, rows, given)):
                print(one.text, flush=True)
                figures.append(one)
    if given.json:
        lines = [json.dumps(dataclasses.asdict(one)) for one in figures]
        pathlib.Path(given.json).write_text("".join(line + "\n" for line in lines))
    return figures


def _parser() -> ArgumentParser:
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.gpu_training")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--rows", type=count, nargs="+", default=list(ROWS))
    parser.add_argument("--steps", type=count, default=20)
    parser.add_argument(
        "--loop",
        default="auto",
        choices=list(LOOPS),
        help="model.loop, our side; `auto` compiles up to 24 layers separately",
    )
    parser.add_argument(
        "--quantization",
        default="none",
        choices=("none", "int8", "fp8"),
        help="model.quantization, our side",
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plan", action="store_true", help="print bounds, measure nothing")
    parser.add_argument("--json", help="JSON Lines file for the figures")
    parser.add_argument("--alone", help="a file for the figures of one side, measured in here")
    parser.add_argument("--check-alone", action="store_true", help="check the gradients in here")
    return parser


def largest(rows: Sequence[int], measure: Callable[[int], Figures | None]) -> Figures | None:
    """Return the figures of the largest batch that fits, by bisection; None if no batch fits.

    Args:
        rows: candidate numbers of rows.
        measure: returns the figures for a number of rows, None if it does not fit.
    """
    fitted: dict[int, Figures] = {}

    def fails(number: int) -> bool:
        found = measure(number)
        if found is not None:
            fitted[number] = found
        return found is None

    bisect.bisect_left(sorted(set(rows)), True, key=fails)
    return fitted[max(fitted)] if fitted else None


def _measure_alone(given: Any) -> list[Figures]:
    """Measure one side with one number of rows, and write its figures; null if it is too big."""
    side, workload, (rows, *_) = given.sides[0], given.workloads[0], given.rows
    try:
        shape = {"rows": rows, "tiny": given.tiny}
        shape |= {"loop": given.loop, "quantization": given.quantization}
        found = [measure(side, workload, steps=given.steps, **shape)]
    except MemoryError:
        found = []
    written = dataclasses.asdict(found[0]) if found else None
    pathlib.Path(given.alone).write_text(json.dumps(written))
    return found


def _try(side: str, workload: str, rows: int, given: Any) -> Figures | None:
    """Measure a number of rows in a separate process; return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "figures.json"
        command = ["--workloads", workload, "--sides", side, "--rows", str(rows)]
        command += ["--steps", str(given.steps), "--alone", str(file)]
        command += ["--loop", given.loop, "--quantization", given.quantization]
        command += ["--tiny"] if given.tiny else []
        what = f"{workload}, {side}, {rows} rows"
        if not _run(command, environment=_ENVIRONMENT[side], what=what):
            return None
        written = json.loads(file.read_text())
        if written is None:
            print(f"{what}: too many for the memory", flush=True)
        return None if written is None else Figures(**written)


def _run(arguments: Sequence[str], *, environment: dict[str, str], what: str) -> bool:
    """Run this command in a process; if it fails, print why."""
    command = [sys.executable, "-m", "benchmarks.gpu_training", *arguments]
    env = os.environ | environment
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=env
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        print(f"{what}: failed: {' '.join(last)}", flush=True)
    return done.returncode == 0


def measure(side: str, workload: str, *, steps: int, **shape: Any) -> Figures:
    """Measure one side; `shape` holds the arguments of `settings`.

    Raises:
        MemoryError: the rows do not fit.
    """
    config = settings(workload, **shape)
    rows = shape["rows"]
    model, batch, work = _counted(config)
    try:
        seconds, loss, memory, device = SIDES[side](config, model, batch, steps)
    except Exception as error:
        if any(word in str(error) for word in ("RESOURCE_EXHAUSTED", "out of memory")):
            raise MemoryError(f"{workload} does not fit with {rows} rows") from error
        raise
    peak = flops.peak_of_kind(device)
    return Figures(side, workload, device, rows, seconds, work, peak, memory, loss)


def _counted(config: ml_collections.ConfigDict) -> tuple[Any, dict[str, np.ndarray], int]:
    """Return the model of a config, a random batch, and the model FLOPs of a step on it."""
    model = model_side.build(of_config(config), devices=jax.devices()[:1])
    batch = random_batch(config)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    with model.layout():
        return model, batch, model.flops(shapes)


def plan(workload: str) -> list[str]:
    """Return a line for each known GPU: upper bounds on training this workload."""
    rows = 128  # enough that work shared by all rows, such as T5's bias, hardly counts
    model, _, work = _counted(settings(workload, rows=rows, tiny=False))
    work //= rows
    with model.layout():
        state = model.abstract_state
    parameters, optimizer = (
        sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
        for tree in (state.params, state.opt_state)
    )
    lines = []
    for name, gpu in GPUS.items():
        found = bounds(gpu, work=work, parameters=parameters, optimizer=optimizer)
        lines.append(
            f"{workload}, {name}: {work / 1e12:.3f} TFLOP a sequence, at most "
            f"{found.sequences:.1f} sequences/s; parameters, optimizer and gradients "
            f"{found.state / 1e9:.1f} GB, {found.left / 1e9:.1f} GB left; the update takes "
            f"{found.update_seconds * 1e3:.1f} ms of a step at least"
        )
    return lines


def random_batch(config: ml_collections.ConfigDict) -> dict[str, np.ndarray]:
    """Return a batch of random tokens without padding; a decoder has a loss for each token."""
    draw = np.random.default_rng(0)
    tokens = {}
    for name, x in batches.batch(of_config(config).parts[0].data).items():
        if name.endswith("_tokens"):
            tokens[name] = draw.integers(2, config.model.vocab_size, x.shape, np.int32)
        elif name == "encoder_loss_weights":
            tokens[name] = (draw.random(x.shape) < MASKED).astype(x.dtype)
        elif name == "encoder_token_types":
            tokens[name] = np.zeros(x.shape, x.dtype)
        else:
            tokens[name] = np.ones(x.shape, x.dtype)
    return tokens


def ours(
    config: ml_collections.ConfigDict, model: Any, batch: dict[str, np.ndarray], steps: int
) -> tuple[float, float, int | None, str]:
    """Return seconds of a step, loss, memory and device of this repository."""
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
    config: ml_collections.ConfigDict,
    model: Any,
    batch: dict[str, np.ndarray],
    steps: int,
    *,
    compiled: bool = True,
) -> tuple[float, float, int | None, str]:
    """Return the same for Hugging Face's network in PyTorch."""
    from benchmarks import pytorch_networks  # imports PyTorch, which our side does not need

    del model
    pytorch_networks.limit_memory(ROOM)
    take = pytorch_networks.training_step(config.model.to_dict(), batch, compiled=compiled)
    seconds, loss = timed(take, steps)
    return seconds, loss, *pytorch_networks.memory_and_device()


def timed(take: Callable[[], float], steps: int) -> tuple[float, float]:
    """Return the median seconds of a step after the warmup, and the last loss."""
    seconds, loss = [], float("nan")
    for number in range(WARM_UP + steps):
        start = time.perf_counter()
        loss = take()  # fetches the loss, so that the device is done
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), loss


SIDES: dict[str, Callable[..., tuple[float, float, int | None, str]]] = {
    "ours": ours,
    "pytorch": pytorch,
    "pytorch_eager": functools.partial(pytorch, compiled=False),
}

if __name__ == "__main__":
    main()
