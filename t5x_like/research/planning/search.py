"""Search for the best layout of a config on a topology: estimate all, compile the best."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator

from t5x_like import partitioning
from t5x_like.config.run_settings import MeshSettings
from t5x_like.experiment import model_side
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.run import Run
from t5x_like.experiment.terminal import PROGRESS
from t5x_like.nn.stack import REMAT_POLICIES
from t5x_like.research.planning import batches, counting, report
from t5x_like.research.planning.chips import Chip, Topology
from t5x_like.research.planning.report import Plan
from t5x_like.training import flops

# Offloading to the host is left out, since the bounds of a plan do not count its transfers.
_POLICIES = ("none", *(name for name in REMAT_POLICIES if not name.endswith("_on_host")))
# Guessed properties of simulated devices, for ranking layouts.
_SIMULATED = Chip(2**40, 1e11, 1e10, dimensions=1, full=1)


@dataclasses.dataclass(frozen=True)
class MeshLayout:
    """A mesh, a number of microbatches and a remat policy."""

    mesh: tuple[tuple[str, int], ...]
    microbatches: int
    remat: str

    def __str__(self) -> str:
        axes = ", ".join(f"{axis} {size}" for axis, size in self.mesh if size > 1)
        return f"{axes or 'one device'}; {self.microbatches} microbatches; remat {self.remat}"

    def apply(self, run: Run) -> Run:
        """Return the run with this layout."""
        model = dict(run.settings.model)
        if "remat" in model:
            model["remat"] = self.remat
        train = dataclasses.replace(run.settings.train, microbatches=self.microbatches)
        return run.replace(mesh=MeshSettings(**dict(self.mesh)), train=train, model=model)


@dataclasses.dataclass(frozen=True, order=True)
class _Estimate:
    """The estimate of a layout; ordered by time, then by memory."""

    seconds: float
    memory: float
    layout: MeshLayout = dataclasses.field(compare=False)


def best(plan: Plan, run: Run, topology: Topology, *, tries: int) -> Plan:
    """Return the plan of the fitting layout whose compiled step has the lowest time bound.

    All layouts are estimated, and up to `tries` are compiled, the fastest first: one for each mesh
    and, if it does not fit, others of the mesh that need less memory. Progress is printed.

    Raises:
        ValueError: no layout divides the model and the batch, or none is estimated to fit.
    """
    left = _estimates(plan, run, topology)
    _print(f"{len(left)} layouts may fit {topology.name}; compiling the {tries} likeliest")
    plans: list[Plan] = []
    while left and len(plans) < tries:
        next_estimate = min(left)
        _print(f"  {next_estimate.layout} (estimated {next_estimate.seconds:.3g} s)", end=" ... ")
        tried = report.with_compiler(plan, next_estimate.layout.apply(run), topology)
        plans.append(tried)
        _print(report.verdict(tried).split(";")[0] + _bound_text(tried))
        left = [
            estimate
            for estimate in left
            if _differs(estimate, next_estimate, fits=tried["fits"] is not False)
        ]
    fitting = [tried for tried in plans if tried["fits"] is not False]
    return min(fitting or plans, key=_order) | {"tried": [_row(tried) for tried in plans]}


def _differs(estimate: _Estimate, tried: _Estimate, *, fits: bool) -> bool:
    """Return whether an estimate is worth compiling after another has been tried."""
    return estimate.layout.mesh != tried.layout.mesh or (
        not fits and estimate.memory < tried.memory
    )


def _order(plan: Plan) -> float:
    """Return the time bound of a step; for simulated devices, without known peaks, its bytes."""
    if "step_seconds_lower_bound" in plan:
        return plan["step_seconds_lower_bound"]
    return plan["bytes_per_device"].get("peak", math.inf)


def _row(plan: Plan) -> Plan:
    names = ("mesh", "microbatches", "remat", "fits", "step_seconds_lower_bound")
    return {name: plan.get(name) for name in names}


def _bound_text(plan: Plan) -> str:
    if "step_seconds_lower_bound" not in plan:
        return ""
    return f"; at least {plan['step_seconds_lower_bound']:.3g} s a step"


def _print(line: str, *, end: str = "\n") -> None:
    sys.stderr.write(line + end)
    sys.stderr.flush()


def _estimates(plan: Plan, run: Run, topology: Topology) -> list[_Estimate]:
    """Return the estimates of the layouts that may fit."""
    devices = topology.devices()
    step, steps = batches.largest(run, task=plan["task"]), batches.steps(run)
    rows = step.part.data.batch_size
    policies = _POLICIES if "remat" in run.settings.model else ("none",)
    estimates, memories, reason = [], [], ""
    meshes = list(_meshes(len(devices), sparse="experts" in plan["parameters_by_part"]))
    for number, mesh in enumerate(meshes, start=1):
        PROGRESS.show(f"estimating the layouts of mesh {number} of {len(meshes)} ...")
        cut = partitioning.batch_parts(dict(mesh))
        if rows % cut:
            continue
        try:
            laid_out = MeshLayout(mesh, 1, policies[0]).apply(run)
            model = model_side.build_tasks(laid_out, devices=devices)[step.part.name]
            for planned in steps:
                report.check_shards(planned, model.mesh)
        except ValueError as error:
            reason = str(error)
            continue
        numbers = [
            n
            for n in _powers(rows // cut)
            if rows % (cut * n) == 0
            and not any(planned.part.data.batch_size % n for planned in steps)
        ]
        for number, remat in itertools.product(numbers, policies):
            layout = MeshLayout(mesh, number, remat)
            memory, seconds = _estimate(plan, model, step.batch, topology, layout)
            memories.append(memory)
            if topology.chip is None or memory < topology.chip.memory:
                estimates.append(_Estimate(seconds, memory, layout))
    if not estimates:
        least = (
            f"the smallest needs about {min(memories) / 1e9:.3g} GB a device"
            if memories
            else reason
        )
        raise ValueError(f"no layout of {rows} rows fits {topology.name}: {least}")
    return estimates


def _meshes(devices: int, *, sparse: bool) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield all ways to divide the devices among the axes of a mesh."""
    for model in _divisors(devices):
        for expert in _divisors(devices // model) if sparse else (1,):
            rest = devices // (model * expert)
            for fsdp in _divisors(rest):
                sizes = {"data": rest // fsdp, "fsdp": fsdp, "expert": expert, "model": model}
                yield tuple(sizes.items())


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _powers(number: int) -> list[int]:
    """Return 1, 2, 4, ... up to a number; [] for 0."""
    return [2**n for n in range(number.bit_length())]


def _estimate(
    plan: Plan,
    model: TaskProgram,
    batch: batches.BatchShapes,
    topology: Topology,
    layout: MeshLayout,
) -> tuple[float, float]:
    """Estimate the bytes per device and the seconds of a step, well enough to rank layouts.

    The bytes of the state are exact. A layer keeps its input, and without remat the outputs of its
    products. A step gathers parameters over `fsdp` in each pass and scatters gradients, and reduces
    activations over `model` at the end of each sublayer. Compute and communication mostly overlap.
    """
    sizes, chip = dict(layout.mesh), topology.chip or _SIMULATED
    settings = model.part.model
    parameters = counting.parameters(model.shapes.params, model.axes.params, model=settings)
    cut = partitioning.batch_parts(sizes)
    tokens = plan["batch"]["tokens"] / cut / layout.microbatches
    width = 2 if settings.get("dtype") == "bfloat16" else 4
    out = [
        parameter
        for parameter in parameters
        if len(parameter.axes) > 1 and parameter.axes[-1] == "embed" and _is_reduced(parameter)
    ]
    inputs = sum(parameter.along("layers") * parameter.shape[-1] for parameter in out) / 2
    outputs = _sizes(parameters, "layers", "heads", "kv", "mlp", having="embed")
    scores = counting.scores(parameters, batch)
    heads = _sizes(parameters, "layers", "heads", "kv_heads", "kv", having="kv")
    inner = {
        "full": 0.0,
        "attention": heads,
        "dots_with_no_batch_dims": outputs,
        "dots": outputs + 2 * scores,
        "none": 1.5 * outputs + 3 * scores,
    }[layout.remat] / sizes["model"]
    parameter_bytes = counting.device_bytes(model.shapes.params, model.shardings.params)
    state = counting.device_bytes(model.abstract_state, model.shardings)
    memory = state + 2 * parameter_bytes + tokens * width * (inputs + inner)
    passes = 3 if layout.remat in ("full", "attention") else 2
    moved = parameter_bytes / 4 * width * (sizes["fsdp"] - 1) * (passes + 1) * layout.microbatches
    moved += 2 * parameter_bytes * (sizes["data"] > 1)
    summed = 2 * passes * tokens * layout.microbatches * inputs * width
    summed *= 2 * (sizes["model"] - 1) / sizes["model"]
    link = 2 * chip.link_bandwidth / chip.devices
    work = plan["flops_per_step"] * (passes + 1) / 3 / math.prod(sizes.values())
    peak = flops.peak_flops(model.mesh.devices.flat[0]) or 1e11
    parts = (work / peak, summed / link, moved / (link * max(1, chip.dimensions - 1)))
    return memory, max(parts) + sum(parts) / 10


def _sizes(parameters: list[counting.Parameter], *names: str, having: str) -> int:
    """Return the summed sizes along axes, over the parameters that have the axis `having`."""
    return sum(parameter.along(*names) for parameter in parameters if having in parameter.axes)


def _is_reduced(parameter: counting.Parameter) -> bool:
    """Return whether `model` shards the contracted axis, so that partial products are reduced."""
    return bool({"heads", "mlp"} & set(parameter.axes)) and "layers" in parameter.axes
