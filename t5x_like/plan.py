r"""Plan a run: parameters, FLOPs, and memory and time of a step on devices that need not exist.

    python -m t5x_like.plan --config=configs/t5.py:v1_0_11b
    python -m t5x_like.plan --config=configs/plans.py:t5_11b_v4 --topology=v4:8x8x8 --json=plan.json
    python -m t5x_like.plan --config=configs/t5.py:base --config.data.batch_size=512 \
        --topology=v5e:4x4 --slices=2 --search
    python -m t5x_like.plan --config=configs/llama.py:7b --config.model.dtype=bfloat16 \
        --config.data.batch_size=64 --config.mesh.fsdp=8 --topology=h100:4x8

Without --topology it only counts parameters and FLOPs. With one (v4:12x16x16, v5e:4x4, ...;
h100:4x8 for four hosts with eight GPUs; cpu:8 for simulated devices) it compiles the training step
of the config and prints its memory, products, collectives and a lower bound on its time; with
--slices, for several slices of TPUs. --search tries other meshes, microbatches and remat policies
for the same batch. No accelerator, data or vocabulary is needed; TPUs need libtpu: pip install -e
'.[plan]', and GPUs JAX's plugin for CUDA: pip install -e '.[plan-gpu]'. The exit status is 1 if the
step does not fit. docs/plans.md explains the output and shows plans of the largest models.
"""

if __name__ == "__main__":
    from t5x_like.experiment import command_line
    from t5x_like.experiment.terminal import PROGRESS

    if not command_line.wants_help():
        PROGRESS.show("reading the config ...")
    with PROGRESS.clearing():
        SETTINGS = command_line.start(
            __doc__,
            computes=False,
            topology=(None, "v4:12x16x16, v5e:4x4, h100:1x8, ... or cpu:8"),
            slices=(1, "slices of the topology, connected by the data center network"),
            json=(None, "JSON file for the plan"),
            search=(False, "try other layouts, and plan the best that fits"),
            tries=(6, "layouts that --search compiles"),
            task=(None, "the task to plan in a run of several; the largest batch's by default"),
        )
    PROGRESS.show("loading JAX and the planner ...")

import contextlib
import sys

import jax
from absl import flags

from t5x_like.config import RunSettings, one_line_errors
from t5x_like.evaluation import training_evaluation
from t5x_like.experiment import command_line
from t5x_like.experiment.run import Run
from t5x_like.experiment.terminal import PROGRESS
from t5x_like.research.planning import chips, report, search
from t5x_like.research.planning.chips import NoCompilerError, Topology
from t5x_like.research.planning.report import Plan


def main(settings: RunSettings) -> None:
    """Print the plan of a run, and write it to the file given by --json."""
    # Devices are described, not used: an attached accelerator stays free.
    jax.config.update("jax_platforms", "cpu")
    options = flags.FLAGS
    with one_line_errors(), PROGRESS.clearing():
        if options.search and not options.topology:
            raise ValueError("--search needs --topology, the devices to search layouts for")
        if options.slices != 1 and not options.topology:
            raise ValueError(f"--slices={options.slices} needs --topology, the shape of a slice")
        if options.json:
            command_line.check_file("--json", options.json)
        if options.tries < 1:
            raise ValueError(f"--tries={options.tries} must be 1 or more")
        run = Run(settings)
        topology = (
            chips.topology(options.topology, slices=options.slices) if options.topology else None
        )
        if topology is not None:
            with contextlib.suppress(NoCompilerError):  # the counts need no compiler
                topology.devices()  # simulated devices, before JAX starts with one
            if not options.search:
                report.check_layout(run, topology)
        PROGRESS.show(f"counting the parameters and FLOPs of {settings.system or 'the model'} ...")
        plan = report.arithmetic(run, task=options.task or "")
        if training_evaluation.generates(run):
            plan["generates"] = True
    if topology is not None:
        with one_line_errors(), PROGRESS.clearing():
            plan = _on_topology(plan, run, topology)
    print(report.text(plan))
    if options.json:
        with one_line_errors(OSError):
            command_line.write_json(options.json, plan)
    if plan.get("fits") is False:
        sys.exit(1)


def _on_topology(plan: Plan, run: Run, topology: Topology) -> Plan:
    try:
        number = len(topology.devices())
        if flags.FLAGS.search:
            return search.best(plan, run, topology, tries=flags.FLAGS.tries)
        print(f"compiling for {topology.name}, {number:,} devices ...", file=sys.stderr, flush=True)
        return report.with_compiler(plan, run, topology)
    except NoCompilerError:
        print(report.text(plan) + "\n")
        raise


if __name__ == "__main__":
    main(SETTINGS)
