"""Compile the programs of a training step for devices that need not exist, and analyse them."""

import dataclasses
import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from t5x_like import partitioning
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.research.planning import collectives, counting, cuda_kernels, gpus, products
from t5x_like.research.planning.batches import BatchShapes
from t5x_like.research.planning.chips import Chip, Topology
from t5x_like.research.planning.collectives import Collective
from t5x_like.research.planning.gpus import Gpu
from t5x_like.research.planning.hlo import Instruction, Program, parse
from t5x_like.research.planning.products import Products
from t5x_like.training import flops
from t5x_like.training.step import TrainState

_METADATA = re.compile(r", metadata=\{[^{}]*\}")
_TABLES = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)$")


class TooLargeError(ValueError):
    """The step does not fit into the memory of the devices."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The analysis of a compiled step, for one device.

    Attributes:
        text: the optimized HLO.
        products: {types of the operands: matrix products}, the most FLOPs first.
        kernels: {kernel: executions} on GPUs, the most frequent first; {} on other devices.
        memory_bytes: bytes read from and written to memory.
        memory: bytes by kind of buffer, see `_memory`.
        collectives: the collectives, sorted by bytes, largest first.
        unknown_loops: the number of loops of unknown length, which count as if they ran once.
        early_loops: the number of loops that can end early, which count in full.
        seconds: time of tracing and compiling.
    """

    text: str
    products: dict[str, Products]
    kernels: dict[str, int]
    memory_bytes: int
    memory: dict[str, int]
    collectives: list[Collective]
    unknown_loops: int
    early_loops: int
    seconds: float

    @property
    def flops(self) -> int:
        """FLOPs of the matrix products."""
        return sum(products.flops for products in self.products.values())


def on_mesh(fields: BatchShapes, mesh: Mesh) -> BatchShapes:
    """Return the shapes of a batch with its sharding."""
    sharding = partitioning.batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for name, x in fields.items()
    }


def compile_step(model: TaskProgram, fields: BatchShapes) -> dict[str, Compiled]:
    """Compile the programs of a training step, see `TaskProgram.programs`.

    Raises:
        TooLargeError: the step does not fit into memory; the message is the compiler's.
    """
    programs = model.programs(on_mesh(fields, model.mesh))
    return {name: _compile(model, *program) for name, program in programs.items()}


def _compile(model: TaskProgram, jitted: Any, *arguments: Any) -> Compiled:
    start = time.perf_counter()
    on_gpus = model.mesh.devices.flat[0].platform == "gpu"
    with model.layout():
        lowered = jitted.lower(*arguments)
        try:
            compiled = lowered.compile(compiler_options=gpus.OPTIONS if on_gpus else None)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise TooLargeError(str(error)) from error
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    program = parse(text)
    memory = _memory(model, compiled.memory_analysis(), program, state=arguments[0])
    return counted(text, program, model.mesh, memory=memory, seconds=seconds)


def counted(
    text: str, program: Program, mesh: Mesh, *, memory: dict[str, int], seconds: float
) -> Compiled:
    """Count what a compiled program computes, moves and sends.

    Args:
        text: the optimized HLO.
        program: the same, parsed.
        mesh: the devices that it is compiled for, in the order of its partitions.
        memory, seconds: see `Compiled`.
    """
    on_gpus = mesh.devices.flat[0].platform == "gpu"
    return Compiled(
        text=text,
        products=products.by_type(program),
        kernels=cuda_kernels.names(program) if on_gpus else {},
        memory_bytes=products.memory_bytes(program),
        memory=memory,
        collectives=collectives.collect(program, mesh),
        unknown_loops=sum(loop.trips is None for loop in program.loops),
        early_loops=sum(loop.early for loop in program.loops),
        seconds=seconds,
    )


def temporaries(stats: Any, platform: str) -> int:
    """Return the bytes of the buffers within a program: on TPUs of those alive at its peak.

    libtpu refuses a program by this number. Its `temp_size_in_bytes` also counts buffers that are
    not alive at once: of a step that fits into 16.9 GB it was 18.6 GB. Compilers for GPUs have a
    peak that lacks buffers within loops, and there `temp_size_in_bytes` is what is allocated.

    Args:
        stats: the compiler's memory analysis.
        platform: of the devices, such as "tpu".
    """
    if platform != "tpu":
        return stats.temp_size_in_bytes
    outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return stats.peak_memory_in_bytes - stats.argument_size_in_bytes - outputs


def _memory(
    model: TaskProgram, stats: Any, program: Program, *, state: TrainState
) -> dict[str, int]:
    """Return the bytes per device by kind of buffer.

    `arguments` are parameters, optimizer state and batch; `temporaries`: see `temporaries`;
    `activations` are the temporaries kept for the backward pass, and `cache` those that loops that
    can end early change from trip to trip, as in generation; `peak` is the sum of everything alive
    at once, including the program and the outputs that do not reuse an argument.

    Args:
        model: the model.
        stats: the compiler's memory analysis.
        program: the parsed program.
        state: the state argument of the program. If it lacks the optimizer state, that stays in
            memory nevertheless, and is added.
    """
    shardings = model.shardings
    outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
    optimizer = counting.device_bytes(model.shapes.opt_state, shardings.opt_state)
    beside = optimizer if state.opt_state is None else 0
    parts = {
        "parameters": counting.device_bytes(model.shapes.params, shardings.params),
        "optimizer": optimizer,
        "arguments": stats.argument_size_in_bytes + beside,
        "activations": _activations(model, program),
        "cache": sum(loop.changed(program.computations) for loop in program.loops if loop.early),
        "temporaries": temporaries(stats, model.mesh.devices.flat[0].platform),
        "outputs": outputs,
        "program": stats.generated_code_size_in_bytes,
    }
    summed = ("arguments", "temporaries", "outputs", "program")
    return parts | {"peak": sum(parts[name] for name in summed)}


def _activations(model: TaskProgram, program: Program) -> int:
    """Return the bytes that loops over layers stack in the forward pass for the backward pass.

    They are the stacked values of such loops on a device whose shape is not a parameter's.
    """
    shardings = model.shardings
    known = {
        tuple(sorted(shape)) for shape, _ in counting.shards(model.shapes.params, shardings.params)
    }
    return sum(
        array.bytes
        for loop, layers in _forward_loops(program)
        for array in loop.arrays
        if len(array.shape) > 2
        and array.shape[0] == layers
        and not array.on_host
        and tuple(sorted(array.shape)) not in known
    )


def _forward_loops(program: Program) -> Iterator[tuple[Instruction, int]]:
    """Yield the loops of the forward pass of a loss, and the layers that each stacks.

    If a loop keeps arrays on the host, libtpu peels one trip off it and drops its name.
    """
    for loop, trips, _ in program.loops:
        named = "op_name" in loop.attributes
        parts = program.computations[loop.called["body"][0]].values()
        names = [loop.attributes] if named else [part.attributes for part in parts]
        backward = sum("transpose(jvp(" in name for name in names)
        forward = sum("jvp(" in name for name in names) - backward
        if trips is not None and forward > backward:
            yield loop, trips if named else trips + 1


def step_bounds(compiled: Compiled, topology: Topology, device: jax.Device) -> dict[str, float]:
    """Return lower bounds on the time of a step in seconds, by resource.

    `compute`: the matrix products at the peak of their types; `memory`: the bytes at the memory
    bandwidth; `interconnect`: the collectives within a slice, on the links along the dimensions
    that their groups span, or within a host of GPUs; `between_slices` or `between_hosts`: what goes
    over the network, at a chip's share of it, where it is published. {} for devices without
    published peaks.
    """
    peak = flops.peak_flops(device)
    chip = topology.chip
    if peak is None or chip is None:
        return {}
    bounds = {
        "compute": sum(
            products.flops / (peak * _ratio(chip, types))
            for types, products in compiled.products.items()
        ),
        "memory": compiled.memory_bytes * chip.devices / chip.memory_bandwidth,
        "interconnect": interconnect_seconds(compiled.collectives, topology),
    }
    if topology.crosses_network and chip.network_bandwidth is not None:
        sent = sum(collective.network for collective in compiled.collectives)
        bounds[f"between_{topology.network}"] = sent * chip.devices / chip.network_bandwidth
    return bounds


def _ratio(chip: Chip | Gpu, types: str) -> float:
    """Return the peak of products of these types, relative to bfloat16's."""
    names = ["f8" if name.startswith("f8") else name for name in types.split(" x ")]
    return min(chip.ratios.get(name, 1.0) for name in names)


def interconnect_seconds(collectives: list[Collective], topology: Topology) -> float:
    """Return the minimum time of the collectives within a slice, if different dimensions overlap.

    For each set of dimensions, the collectives that stay within it can use only its links. GPUs of
    a host have one dimension.
    """
    chip = topology.chip
    assert chip is not None
    bounds = [0.0]
    sides = range(chip.dimensions)
    for number in range(1, chip.dimensions + 1):
        for within in itertools.combinations(sides, number):
            sent = sum(
                collective.bytes - collective.network
                for collective in collectives
                if set(collective.dimensions) <= set(within)
            )
            links = sum(topology.links[side] for side in within)
            if links:
                bounds.append(sent * chip.devices / (links * chip.link_bandwidth))
    return max(bounds)


def cleaned(text: str) -> str:
    """Strip optimized HLO of references to the source: metadata, tables of files and lines."""
    lines, skipping = [], False
    for line in text.splitlines():
        skipping = bool(_TABLES.match(line)) or (skipping and bool(line))
        if not skipping:
            lines.append(_METADATA.sub("", line))
    return "\n".join(lines)
