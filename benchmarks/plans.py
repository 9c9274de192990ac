"""Compile configs/plans.py and configs/published_runs.py, and write the plans into docs/plans.md.

    python -m benchmarks.plans                 all plans, one after the other: `make plans`
    python -m benchmarks.plans gpt3_175b_v4    only this plan; the others keep their stored results

Each plan runs in a separate process, since compiling a large step takes gigabytes. Its output is
stored in runs/plans/, and copied to the page. Of published runs only the utilizations are copied.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.plans import TOPOLOGIES
from configs.published_runs import RUNS, PublishedRun
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser
from t5x_like.names import choose

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "runs" / "plans"
PAGE = ROOT / "docs" / "plans.md"
BEGIN, END = "<!-- written by make plans -->\n", "<!-- end -->\n"
SLICES = {name: run.topology for name, run in RUNS.items()} | TOPOLOGIES


def main(arguments: Sequence[str]) -> None:
    """Compile the named plans, or all, and write the page.

    Exits with status 1 if a plan of configs/plans.py does not fit.
    """
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.plans")
    parser.add_argument("names", nargs="*", help="plans to compile; all, if none is named")
    names = parser.parse_args(arguments).names
    with one_line_errors():
        for name in names:
            choose("the plan", name, SLICES)
    names = names or list(SLICES)
    RESULTS.mkdir(parents=True, exist_ok=True)
    fit = {name: compile_plan(name) for name in names}
    found = {name: read(name) for name in SLICES if (RESULTS / f"{name}.json").exists()}
    PAGE.write_text(written(PAGE.read_text(), published(found), section(found)))
    print(f"written into {PAGE.relative_to(ROOT)}")
    sys.exit(0 if all(fit[name] for name in names if name in TOPOLOGIES) else 1)


def compile_plan(name: str) -> bool:
    """Run the command of a plan and store its output; return whether the step fits."""
    print(f"{name} on {SLICES[name]} ...", end=" ", flush=True)
    start = time.monotonic()
    file = "plans" if name in TOPOLOGIES else "published_runs"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "t5x_like.plan"),
            f"--config=configs/{file}.py:{name}",
            f"--topology={SLICES[name]}",
            f"--json={RESULTS / name}.json",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode > 1:
        sys.exit(f"\n{done.stderr}")
    (RESULTS / f"{name}.txt").write_text(done.stdout)
    print(f"{done.stdout.splitlines()[-1]} ({time.monotonic() - start:.0f} s)", flush=True)
    return done.returncode == 0


def read(name: str) -> dict[str, Any]:
    """Return the stored JSON of a plan, with its printed output in the field `text`."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    return found | {"text": (RESULTS / f"{name}.txt").read_text()}


def written(page: str, *parts: str) -> str:
    """Return the page with these texts between its pairs of BEGIN and END, in their order."""
    before, *rest = page.split(BEGIN)
    after = [text.split(END)[1] for text in rest]
    return before + "".join(
        BEGIN + part + END + text for part, text in zip(parts, after, strict=True)
    )


def published(found: dict[str, dict[str, Any]]) -> str:
    """Format the table of published runs, with the plan of each, if it is stored, and its error."""
    heads = ["run", "slice", "published", "source", "plan", "peak", "of"]
    heads += ["without overlap", "error", "at most", "error"]
    lines = [f"\n| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, run in RUNS.items():
        cells = [run.title, run.topology, f"{run.utilization:.1%}", f"[{run.source}]", name]
        plan = found.get(name)
        cells += [*_memory(plan), *_errors(run, plan)] if plan else [""] * 6
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"


def _errors(run: PublishedRun, plan: dict[str, Any]) -> list[str]:
    """Return both utilizations of a plan, each with its error relative to the published one."""
    if "utilization_ceiling" not in plan:
        return ["", "", "", ""]
    cells = []
    for key in ("utilization_without_overlap", "utilization_ceiling"):
        cells += [f"{plan[key]:.1%}", f"{plan[key] / run.utilization - 1:+z.0%}"]
    return cells


def section(found: dict[str, dict[str, Any]]) -> str:
    """Format the results as Markdown: a table, and below it the output of each plan."""
    found = {name: found[name] for name in TOPOLOGIES if name in found}
    heads = ["plan", "devices", "mesh", "parameters", "peak", "of", "step at least"]
    heads += ["utilization at most", "without overlap"]
    lines = [f"\n| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [row(name, plan) for name, plan in found.items()]
    for name, plan in found.items():
        lines += [f"\n### {name}\n", "```", plan["text"].rstrip(), "```"]
    return "\n".join(lines) + "\n\n"


def row(name: str, plan: dict[str, Any]) -> str:
    """Format a plan's row of the table."""
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items() if size > 1)
    cells = [name, f"{plan['devices']:,} ({plan['topology']})", mesh, f"{plan['parameters']:,}"]
    cells += _memory(plan)
    if "utilization_ceiling" not in plan:
        return f"| {' | '.join([*cells, '', '', ''])} |"
    step = f"{plan['step_seconds_lower_bound']:.3g} s"
    ceiling = f"{plan['utilization_ceiling']:.0%}"
    expected = f"{plan['utilization_without_overlap']:.0%}"
    return f"| {' | '.join([*cells, step, ceiling, expected])} |"


def _memory(plan: dict[str, Any]) -> list[str]:
    """Return the peak of a device, if the compiler could give one, and its memory."""
    peak = plan["bytes_per_device"].get("peak")
    limit = f"{plan['memory_per_device'] / 1e9:.1f} GB"
    return ["does not fit" if peak is None else f"{peak / 1e9:.1f} GB", limit]


if __name__ == "__main__":
    main(sys.argv[1:])
