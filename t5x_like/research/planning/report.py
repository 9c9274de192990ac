"""Make a plan of a config, as JSON with stable keys and as text."""

import contextlib
import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh

from t5x_like import partitioning
from t5x_like.batches import sharded_batches
from t5x_like.config.run_settings import CostSettings, MeshSettings
from t5x_like.decoding.generator import stacks
from t5x_like.experiment import data_side, energy, model_side
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.experiment.run import Run
from t5x_like.research.planning import batches, compiling, counting
from t5x_like.research.planning.batches import PlannedStep
from t5x_like.research.planning.chips import NoCompilerError, Topology
from t5x_like.research.planning.compiling import Compiled, TooLargeError
from t5x_like.research.planning.counting import Parameter
from t5x_like.training import flops, several_tasks

Plan = dict[str, Any]
ONE_DEVICE = MeshSettings(data=1)


def arithmetic(run: Run, *, task: str = "") -> Plan:
    """Count parameters, optimizer state and FLOPs from shapes, without compiling.

    Args:
        task: the task to plan in a run with several; "": the task with the largest batch.

    Raises:
        ValueError: a setting does not exist or does not fit the others.
    """
    step = batches.largest(run, task=task)
    # The step is only traced, on a CPU, which lacks the compiler options of TPUs.
    train = dataclasses.replace(run.settings.train, compiler="default")
    on_one_device = run.replace(mesh=ONE_DEVICE, train=train)
    model = model_side.build_tasks(on_one_device, devices=jax.devices("cpu")[:1])[step.part.name]
    fields = step.batch
    parameters = _parameters(model)
    parts = counting.by_part(parameters)
    tokens = batches.tokens(fields)
    formula = counting.formula_flops(parameters, fields)
    counted = _counted(model, fields)
    return {
        "system": run.settings.system,
        "phase": step.phase,
        "task": step.part.name,
        "batch": {"rows": step.part.data.batch_size, "tokens": tokens},
        "parameters": sum(part["total"] for part in parts.values()),
        "active_parameters": sum(part["active"] for part in parts.values()),
        "parameters_by_part": parts,
        "parameter_bytes": counting.state_bytes(model.shapes.params),
        "optimizer_bytes": counting.state_bytes(model.shapes.opt_state),
        "flops_per_step": counted["model"],
        "flops_per_step_by_formula": formula,
        "flops_per_step_recomputing": counted["step"],
        "flops_per_token": counted["model"] / tokens,
        "flops_per_token_by_formula": formula / tokens,
    }


def _parameters(model: TaskProgram) -> list[Parameter]:
    """List the parameters of a model; heads of the run's other tasks count as inactive."""
    parameters = counting.parameters(
        model.shapes.params, model.axes.params, model=model.run.settings.model
    )
    owners = several_tasks.owners(model.axes.params, tasks=model.run.heads)
    return [
        parameter
        if owner in (several_tasks.SHARED, model.name)
        else dataclasses.replace(parameter, active=0.0)
        for parameter, owner in zip(parameters, jax.tree.leaves(owners), strict=True)
    ]


def _counted(model: TaskProgram, fields: batches.BatchShapes) -> dict[str, int]:
    """Count the FLOPs of the model, and of the step including recomputed activations."""
    with model.layout():
        return {
            "model": model.flops(fields),
            "step": flops.count(*model.programs(fields)["update"]),
        }


def with_compiler(plan: Plan, run: Run, topology: Topology) -> Plan:
    """Add memory, collectives and time bounds of the step, compiled for a topology.

    Raises:
        ValueError: the mesh does not fit the topology or the model.
        NoCompilerError: what compiles for the topology is not installed.
    """
    devices = topology.devices()
    step = batches.largest(run, task=plan["task"])
    model = model_side.build_tasks(run, devices=devices)[step.part.name]
    fields = step.batch
    layout = {
        "topology": topology.name,
        "slices": topology.slices,
        "devices": len(devices),
        "mesh": dict(model.mesh.shape),
        "microbatches": run.settings.train.microbatches,
        "remat": run.settings.model.get("remat", "none"),
    }
    chip = topology.chip
    memory = None if chip is None else round(chip.memory)
    try:
        compiled = compiling.compile_step(model, fields)
    except TooLargeError as error:
        return plan | layout | _refused(model, memory, why=_reason(error))
    update = compiled.pop("update")
    compiled_plan = measured(plan, update, topology, devices) | decide(update, memory)
    for name, other in compiled.items():  # the work before the update
        of_other = measured(plan, other, topology, devices)
        del of_other["flops_ratio"]
        for share in _UTILIZATIONS:
            of_other.pop(share, None)
        compiled_plan[name] = of_other | decide(other, memory)
        compiled_plan["fits"] = compiled_plan["fits"] and compiled_plan[name]["fits"]
    if plan.get("generates"):
        compiled_plan |= _while_generating(model, memory, fits=compiled_plan["fits"])
    if "step_seconds" in compiled_plan:
        compiled_plan["run"] = _whole_run(plan | compiled_plan, run, devices)
    return plan | layout | {"memory_per_device": memory} | _networks(model) | compiled_plan


def _whole_run(plan: Plan, run: Run, devices: list[jax.Device]) -> Plan:
    """Return hours and cost of all steps, each without overlap and in proportion to its tokens."""
    parts = [part for part in (plan, plan.get("prepare")) if part]
    seconds = sum(part.get("step_seconds_without_overlap", 0.0) for part in parts)
    read = batches.tokens_of_run(run)
    hours = seconds * read / plan["batch"]["tokens"] / 3600
    footprint = energy.cost(
        run.settings.cost, kind=devices[0].device_kind, device_hours=hours * len(devices)
    )
    assumed = dataclasses.asdict(run.settings.cost)
    return {"tokens": read, "hours": hours, **dataclasses.asdict(footprint), "assumed": assumed}


def _while_generating(model: TaskProgram, memory: int | None, *, fits: bool | None) -> Plan:
    """Return the bytes per device while an evaluation generates: state and copied stacked layers.

    The key-value cache and the forward pass are left out: their sizes depend on the rows.
    """
    shapes, shardings = (model.policy(tree.params) for tree in (model.shapes, model.shardings))
    parts = {
        "state": counting.device_bytes(model.abstract_state, model.shardings),
        "copied_layers": counting.device_bytes(stacks(shapes), stacks(shardings)),
    }
    enough = None if memory is None else bool(fits) and sum(parts.values()) <= memory
    return {"generating_per_device": parts, "fits": enough}


def _networks(model: TaskProgram) -> Plan:
    """Return the parameter bytes per device of each network, for a system with several."""
    if not model.run.system.policy:
        return {}
    parts, shardings = model.shapes.params, model.shardings.params
    sizes = {name: counting.device_bytes(parts[name], shardings[name]) for name in parts}
    return {"networks_per_device": sizes}


def _refused(model: TaskProgram, memory: int | None, *, why: str) -> Plan:
    """Return the part of a plan for a step that the compiler found too large."""
    state = counting.device_bytes(model.abstract_state, model.shardings)
    most = "temporaries" if memory is None or state < memory / 2 else "parameters and optimizer"
    return {
        "memory_per_device": memory,
        "bytes_per_device": {"state": state},
        "fits": False,
        "why": why,
        "largest_part": most,
    }


def check_layout(run: Run, topology: Topology) -> None:
    """Check that a run of the config can start on the topology, without compiling.

    These are the checks of `train`: that the mesh fits the devices and divides the batches of all
    phases and tasks, and that the processes can share the rows and the data. The check of the
    processes needs the compiler's description of the devices, and is skipped without it.

    Raises:
        ValueError: a check fails.
    """
    steps, shape = batches.steps(run), dataclasses.asdict(run.settings.mesh)
    for step in steps:
        sizes = partitioning.mesh_sizes(shape, number=topology.number, slices=topology.slices)
        partitioning.check_batch(step.part.data.batch_size, sizes)
    with contextlib.suppress(NoCompilerError):
        mesh = partitioning.make_mesh(shape, devices=topology.devices())
        for step in steps:
            check_shards(step, mesh)


def check_shards(step: PlannedStep, mesh: Mesh) -> None:
    """Check that the processes of a mesh can share the data of a step.

    Raises:
        ValueError: they cannot, or the data shards do not divide the batch.
    """
    data = step.part.data
    shards = data_side.number_of_shards(data, mesh, continues=step.continues)
    sharded_batches.check_shards(shards, batch_size=data.batch_size)


def _reason(error: TooLargeError) -> str:
    """Return the compiler's message about memory, without its list of allocations."""
    text = " ".join(str(error).split())
    return text[: text.find("Largest program allocations")].strip()[:400]


def measured(plan: Plan, compiled: Compiled, topology: Topology, devices: list[jax.Device]) -> Plan:
    """Return the part of a plan that follows from a compiled program.

    Args:
        plan: has the FLOPs of the model in a step.
        compiled: the program.
        topology: what it is compiled for.
        devices: the topology's devices.
    """
    part: Plan = {
        "flops_per_step_compiled": compiled.flops * len(devices),
        "flops_ratio": compiled.flops * len(devices) / plan["flops_per_step"],
        "bytes_per_device": compiled.memory,
        "memory_traffic": compiled.memory_bytes,
        "products": {
            types: dataclasses.asdict(products) for types, products in compiled.products.items()
        },
        "collectives": [
            {
                "kind": collective.kind,
                "axis": "*".join(collective.axes),
                "count": collective.count,
                "bytes": collective.bytes,
                "network_bytes": collective.network,
                "largest": collective.largest,
            }
            for collective in compiled.collectives
        ],
        "unknown_loops": compiled.unknown_loops,
        "early_loops": compiled.early_loops,
        "compile_seconds": round(compiled.seconds, 1),
    }
    if compiled.kernels:
        part["kernels"] = compiled.kernels
    bounds = compiling.step_bounds(compiled, topology, devices[0])
    if bounds:
        least, total = max(bounds.values()), sum(bounds.values())
        peak = flops.peak_flops(devices[0])
        assert peak is not None
        at_peak = plan["flops_per_step"] / (len(devices) * peak)  # seconds
        part |= {
            "step_seconds": bounds,
            "step_seconds_lower_bound": least,
            "step_seconds_without_overlap": total,
            "utilization_ceiling": at_peak / least,
            "utilization_without_overlap": at_peak / total,
        }
    return part


# Shares of the whole step's FLOPs; a program before the update has none of its own.
_UTILIZATIONS = ("utilization_ceiling", "utilization_without_overlap")


def decide(compiled: Compiled, memory: int | None) -> Plan:
    """Return whether the step fits (None if the limit is unknown), and its largest part."""
    parts = {name: size for name, size in compiled.memory.items() if name not in _SUMS}
    stored = parts["activations"] + parts["cache"]
    parts["other temporaries"] = compiled.memory["temporaries"] - stored
    return {
        "fits": None if memory is None else compiled.memory["peak"] <= memory,
        "largest_part": max(parts, key=lambda name: parts[name]),
    }


_SUMS = ("arguments", "temporaries", "peak")  # sums of other parts


def text(plan: Plan) -> str:
    """Format a plan as text."""
    lines = [*_model_lines(plan), *_flops_lines(plan)]
    if "topology" in plan:
        lines += _layout_lines(plan)
    if "prepare" in plan:  # a separate program
        before = plan["prepare"] | {"memory_per_device": plan["memory_per_device"]}
        lines += ["", "before the update: sampling, rewards, a teacher's answers"]
        lines += [*measured_lines(before), "", verdict(before), "", "the update"]
    if "collectives" in plan:
        lines += [*measured_lines(plan), *_generating_lines(plan), *_run_lines(plan)]
    if "fits" in plan:
        lines += ["", verdict(plan)]
    return "\n".join(lines)


def _model_lines(plan: Plan) -> list[str]:
    lines = [f"{'parameters':<24}{'total':>18}{'active per token':>20}"]
    for part, sums in plan["parameters_by_part"].items():
        lines.append(f"  {part:<22}{sums['total']:>18,}{sums['active']:>20,}")
    total, active = plan["parameters"], plan["active_parameters"]
    lines.append(f"  {'all':<22}{total:>18,}{active:>20,}")
    parameters, state = plan["parameter_bytes"], plan["optimizer_bytes"]
    lines.append(f"{'bytes':<24}{_size(parameters)} of parameters, {_size(state)} of optimizer")
    return lines


def _flops_lines(plan: Plan) -> list[str]:
    batch, model = plan["batch"], plan["flops_per_step"]
    which = [f"{name} {plan[name]!r}" for name in ("phase", "task") if plan[name]]
    step = f" ({', '.join(which)})" if which else ""
    lines = [
        f"{'batch':<24}{batch['rows']:,} rows, {batch['tokens']:,} tokens{step}",
        f"{'FLOPs':<24}{'a step':>12}{'a token':>12}{'to the model':>15}",
    ]
    rows = {
        "by formula": plan["flops_per_step_by_formula"],
        "of the model": model,
        "with recomputation": plan["flops_per_step_recomputing"],
        "as compiled": plan.get("flops_per_step_compiled"),
    }
    for name, count in rows.items():
        if count is not None:
            each = count / batch["tokens"]
            lines.append(f"  {name:<22}{count:>12.4g}{each:>12.4g}{count / model:>15.3f}")
    return lines


def _layout_lines(plan: Plan) -> list[str]:
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items() if size > 1)
    slices = f"{plan['slices']} slices of " if plan["slices"] > 1 else ""
    return [
        "",
        f"{slices}{plan['topology']}: {plan['devices']:,} devices; mesh {mesh or 'of one'}; "
        f"{plan['microbatches']} microbatches; remat {plan['remat']}",
    ]


def measured_lines(plan: Plan) -> list[str]:
    """Format what follows from a compiled program."""
    return [
        *_memory_lines(plan),
        *_product_lines(plan),
        *_collective_lines(plan),
        *_time_lines(plan),
    ]


def _memory_lines(plan: Plan) -> list[str]:
    memory, limit = plan["bytes_per_device"], plan["memory_per_device"]
    of = f" of {_size(limit)}" if limit else ""
    return [
        f"{'bytes of a device':<24}{_size(memory['peak'])}{of} at the peak:",
        f"  {'parameters':<22}{_size(memory['parameters']):>12}",
        *(
            f"    {name:<20}{_size(size):>12}"
            for name, size in plan.get("networks_per_device", {}).items()
        ),
        *(
            f"  {name:<22}{_size(memory[name]):>12}"
            for name in ("optimizer", "temporaries", "activations", "cache", "program")
            if memory[name] or name != "cache"
        ),
    ]


def _generating_lines(plan: Plan) -> list[str]:
    if not (parts := plan.get("generating_per_device")):
        return []
    return [
        f"{'while it generates':<24}{_size(sum(parts.values()))} of a device: "
        f"{_size(parts['state'])} of state, {_size(parts['copied_layers'])} of copied layers"
    ]


def _product_lines(plan: Plan) -> list[str]:
    lines = [f"{'products on a device':<24}{'times':>18}{'FLOPs':>12}"]
    for types, products in plan["products"].items():
        lines.append(f"  {types:<22}{products['count']:>18,}{products['flops']:>12.4g}")
    if "kernels" in plan:
        lines.append(f"{'kernels on a device':<40}{'times':>8}")
        lines += [f"  {name:<38}{count:>8,}" for name, count in plan["kernels"].items()]
    return lines


def _collective_lines(plan: Plan) -> list[str]:
    rows = plan["collectives"]
    # Between slices there are separate collectives; between hosts of GPUs a share of each.
    hosts = any(row["network_bytes"] and row["axis"] != "slices" for row in rows)
    last = f"{'between hosts':>15}" if hosts else ""
    lines = [f"{'a device sends':<24}{'over':<14}{'times':>8}{'bytes':>12}{'largest':>12}{last}"]
    for row in rows:
        last = f"{_size(row['network_bytes']):>15}" if hosts else ""
        lines.append(
            f"  {row['kind']:<22}{row['axis']:<14}{row['count']:>8,}{_size(row['bytes']):>12}"
            f"{_size(row['largest']):>12}{last}"
        )
    return lines


def _time_lines(plan: Plan) -> list[str]:
    lines = [f"{'compiled in':<24}{plan['compile_seconds']:.0f} s"]
    if plan["unknown_loops"]:
        lines.append(f"{plan['unknown_loops']} loops of unknown length count as if run once")
    if plan["early_loops"]:
        lines.append(f"{plan['early_loops']} loops that can end early count in full")
    if "step_seconds" not in plan:
        return lines
    bounds = ", ".join(
        f"{name.replace('_', ' ')} {value:.3g} s" for name, value in plan["step_seconds"].items()
    )
    lines.append(
        f"{'a step takes at least':<24}{plan['step_seconds_lower_bound']:.3g} s: {bounds}; "
        f"without overlap {plan['step_seconds_without_overlap']:.3g} s"
    )
    across = any(row["network_bytes"] for row in plan["collectives"])
    if across and not any(name.startswith("between_") for name in plan["step_seconds"]):
        lines.append("without the network's transfers: its bandwidth is not published")
    if "utilization_ceiling" in plan:
        ceiling, total = (f"{plan[name]:.1%}" for name in _UTILIZATIONS)
        shares = f"{ceiling} of the peak in model FLOPs; without overlap {total}"
        lines.append(f"{'utilization at most':<24}{shares}")
    return lines


def _run_lines(plan: Plan) -> list[str]:
    if not (totals := plan.get("run")):
        return []
    names = [field.name for field in dataclasses.fields(energy.Footprint)]
    cost = energy.Footprint(**{name: totals[name] for name in names})
    time = f"{totals['tokens']:.4g} tokens in {totals['hours']:,.4g} hours without overlap"
    first, *others = energy.lines(cost, CostSettings(**totals["assumed"]))
    return [
        f"{'the whole run':<24}{time}: {first}",
        *(f"{'':<24}{line}" for line in others),
    ]


def verdict(plan: Plan) -> str:
    """Return one line: whether the step fits, and the largest part of its memory."""
    if plan["fits"] is None:
        part = plan["largest_part"]
        return f"the memory limit of these devices is unknown; the largest part: {part}"
    if "why" in plan:
        return f"does not fit: {plan['why']} The largest part: {plan['largest_part']}"
    word = "fits" if plan["fits"] else "does not fit"
    peak, limit = plan["bytes_per_device"]["peak"], plan["memory_per_device"]
    return f"{word}: {_size(peak)} of {_size(limit)}; the largest part: {plan['largest_part']}"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError
