"""Compile the plans of configs/plans.py, and write their results into docs/plans.md.

    python -m benchmarks.plans                 all plans, one after the other: `make plans`
    python -m benchmarks.plans gpt3_175b_v4    only this plan; the others keep their stored results

Each plan runs in a separate process, since compiling a large step takes gigabytes. Its output is
stored in runs/plans/, and copied to the page.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment.command_line import ArgumentParser

    PARSER = ArgumentParser(__doc__, prog="python -m benchmarks.plans")
    PARSER.add_argument("names", nargs="*", help="plans to compile; all, if none is named")
    ARGUMENTS = PARSER.parse_args()

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.plans import TOPOLOGIES
from t5x_like.config import one_line_errors
from t5x_like.names import choose

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "runs" / "plans"
PAGE = ROOT / "docs" / "plans.md"
BEGIN, END = "<!-- written by make plans -->\n", "<!-- end -->\n"


def main(names: Sequence[str]) -> None:
    """Compile the named plans, or all, and write the page.

    Exits with status 1 if a plan does not fit.
    """
    with one_line_errors():
        for name in names:
            choose("the plan", name, TOPOLOGIES)
    names = names or list(TOPOLOGIES)
    RESULTS.mkdir(parents=True, exist_ok=True)
    fit = [compile_plan(name) for name in names]
    found = {name: read(name) for name in TOPOLOGIES if (RESULTS / f"{name}.json").exists()}
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + section(found) + END + after)
    print(f"written into {PAGE.relative_to(ROOT)}")
    sys.exit(0 if all(fit) else 1)


def compile_plan(name: str) -> bool:
    """Run the command of a plan and store its output; return whether the step fits."""
    print(f"{name} on {TOPOLOGIES[name]} ...", end=" ", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "t5x_like.plan"),
            f"--config=configs/plans.py:{name}",
            f"--topology={TOPOLOGIES[name]}",
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


def section(found: dict[str, dict[str, Any]]) -> str:
    """Format the results as Markdown: a table, and below it the output of each plan."""
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
    memory = f"{plan['memory_per_device'] / 1e9:.1f} GB"
    if "utilization_ceiling" not in plan:
        return f"| {' | '.join([*cells, 'does not fit', memory, '', '', ''])} |"
    peak = f"{plan['bytes_per_device']['peak'] / 1e9:.1f} GB"
    step = f"{plan['step_seconds_lower_bound']:.3g} s"
    ceiling = f"{plan['utilization_ceiling']:.0%}"
    expected = f"{plan['utilization_without_overlap']:.0%}"
    return f"| {' | '.join([*cells, peak, memory, step, ceiling, expected])} |"


if __name__ == "__main__":
    main(ARGUMENTS.names)
