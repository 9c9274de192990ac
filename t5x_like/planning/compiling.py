"""The training step of a config, compiled for devices that need not be there, and what it tells."""

import dataclasses
import itertools
import re
import time
from typing import Any

import jax
from jax.sharding import Mesh

from t5x_like import partitioning
from t5x_like.experiment.model_side import Experiment
from t5x_like.planning import collectives, counting, products
from t5x_like.planning.batches import Batch
from t5x_like.planning.chips import Topology
from t5x_like.planning.collectives import Collective
from t5x_like.planning.program import Program, parse
from t5x_like.training import flops

_METADATA = re.compile(r", metadata=\{[^{}]*\}")
_TABLES = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)$")


class TooLargeError(ValueError):
    """The compiler found no way to fit the step into the devices' memory."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiled step tells; of one device, where nothing else is said.

    Attributes:
        text: its optimized HLO.
        flops: of its matrix products.
        memory_bytes: read from and written to memory.
        memory: bytes by what holds them, see `_memory`.
        collectives: those with most bytes first.
        unknown_loops: loops that were counted as if they ran once.
        seconds: that tracing and compiling took.
    """

    text: str
    flops: int
    memory_bytes: int
    memory: dict[str, int]
    collectives: list[Collective]
    unknown_loops: int
    seconds: float


def on_mesh(fields: Batch, mesh: Mesh) -> Batch:
    """A batch's shapes with its sharding."""
    sharding = partitioning.batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for name, x in fields.items()
    }


def compile_step(model: Experiment, fields: Batch) -> Compiled:
    """Compiles the step that training runs.

    Raises:
        TooLargeError: it does not fit into memory; the message is the compiler's.
    """
    start = time.perf_counter()
    step: Any = model.train_step
    with partitioning.layout(model.mesh):
        lowered = step.lower(model.abstract_state, on_mesh(fields, model.mesh))
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise TooLargeError(str(error)) from error
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    program = parse(text)
    return Compiled(
        text=text,
        flops=products.flops(program),
        memory_bytes=products.memory_bytes(program),
        memory=_memory(model, compiled.memory_analysis(), program),
        collectives=collectives.collect(program, model.mesh),
        unknown_loops=sum(trips is None for _, trips in program.loops),
        seconds=seconds,
    )


def _memory(model: Experiment, stats: Any, program: Program) -> dict[str, int]:
    """Bytes of one device.

    `arguments` are parameters, optimizer and batch; `temporaries` all that lives within the step,
    of which `activations` wait for the backward pass; `peak` is all that is there at once, with
    the program itself and those outputs that do not take the place of an argument.
    """
    shardings = model.shardings
    outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
    parts = {
        "parameters": counting.device_bytes(model.shapes.params, shardings.params),
        "optimizer": counting.device_bytes(model.shapes.opt_state, shardings.opt_state),
        "arguments": stats.argument_size_in_bytes,
        "activations": _activations(model, program),
        "temporaries": stats.temp_size_in_bytes,
        "outputs": outputs,
        "program": stats.generated_code_size_in_bytes,
    }
    own = ("arguments", "temporaries", "outputs", "program")
    return parts | {"peak": sum(parts[name] for name in own)}


def _activations(model: Experiment, program: Program) -> int:
    """Bytes that the loops over layers stack up in the forward pass for the backward pass.

    Those are the stacked values of such a loop that have no parameter's shape.
    """
    shardings = model.shardings
    known = {
        tuple(sorted(shape)) for shape, _ in counting.shards(model.shapes.params, shardings.params)
    }
    total = 0
    for loop, trips in program.loops:
        where = loop.attributes
        if "jvp(" in where and "transpose(jvp(" not in where:
            total += sum(
                array.bytes
                for array in loop.arrays
                if len(array.shape) > 2
                and array.shape[0] == trips
                and tuple(sorted(array.shape)) not in known
            )
    return total


def step_bounds(compiled: Compiled, topology: Topology, device: jax.Device) -> dict[str, float]:
    """Seconds below which a step cannot come, by what each part of a device can do at its best.

    `compute`: the products at the peak in bfloat16; `memory`: the bytes at the memory's bandwidth;
    `interconnect`: of the exchanges, which use the links of the dimensions that their groups lie
    along. Empty for devices that have no published peaks.
    """
    peak = flops.peak_flops(device)
    chip = topology.chip
    if peak is None or chip is None:
        return {}
    return {
        "compute": compiled.flops / peak,
        "memory": compiled.memory_bytes * chip.devices / chip.memory_bandwidth,
        "interconnect": interconnect_seconds(compiled.collectives, topology),
    }


def interconnect_seconds(found: list[Collective], topology: Topology) -> float:
    """The least time for all exchanges, where those along other dimensions go on together.

    For each set of dimensions: what stays within it has its links alone.
    """
    chip = topology.chip
    assert chip is not None
    bounds = [0.0]
    sides = range(chip.dimensions)
    for number in range(1, chip.dimensions + 1):
        for within in itertools.combinations(sides, number):
            sent = sum(one.bytes for one in found if set(one.dimensions) <= set(within))
            links = sum(topology.links[side] for side in within)
            if links:
                bounds.append(sent * chip.devices / (links * chip.link_bandwidth))
    return max(bounds)


def cleaned(text: str) -> str:
    """Optimized HLO without what tells of the source: metadata, and tables of files and lines."""
    lines, skipping = [], False
    for line in text.splitlines():
        skipping = bool(_TABLES.match(line)) or (skipping and bool(line))
        if not skipping:
            lines.append(_METADATA.sub("", line))
    return "\n".join(lines)
