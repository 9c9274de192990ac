r"""Scaling laws: train the runs for a fit, fit the laws, and plan a run with them.

    python -m t5x_like.scaling ladder --system=chinchilla --flops=1e12,4e12,1.6e13 \
        --sizes=2x64,3x96,4x128,6x192 --output=runs/ladder --run
    python -m t5x_like.scaling fit runs/ladder --json=fit.json --figures=figures
    python -m t5x_like.scaling fit RUNS.csv --json=fit.json
    python -m t5x_like.scaling plan --flops=1e21 --system=chinchilla --topology=v4:4x4x4

`ladder` writes the configs of runs of several sizes with equal FLOPs, each with a warmup and a
cosine decay as long as the run. --run trains the unfinished runs one after the other; after an
interruption the same command continues. --config=FILE:SIZE is the config that the runs vary
(default: configs/SYSTEM.py:demo), --config.key=value changes it for all runs.

`fit` reads a CSV file with the columns N (parameters), D (tokens), C (FLOPs) and loss (nats), or a
folder of finished runs, and fits the three approaches of Hoffmann et al. 2022 (Chinchilla), with
bootstrap intervals, and warnings if a fit should not be trusted.

`plan` prints the best numbers of parameters and tokens for a budget according to a law (--law: a
published one, or the JSON file of a fit), the nearest size of a system, its chip hours, and the
command that trains it; with --topology also a lower bound on the hours there, from the compiled
step. --config.key=value changes the config of that size. docs/scaling.md explains the three
actions.
"""

import math
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from t5x_like.config import RunSettings, parse
from t5x_like.experiment import command_line
from t5x_like.names import choose

if TYPE_CHECKING:
    from t5x_like.research.scaling_laws.runs import TrainedRun


def fit(arguments: Sequence[str]) -> None:
    """Fit scaling laws to runs, print them, and write JSON and figures."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.scaling fit")
    parser.add_argument("source", metavar="RUNS", help="a CSV file, or a folder of runs")
    parser.add_argument("--json", metavar="FILE", help="JSON file for the fits")
    parser.add_argument("--figures", metavar="FOLDER", help="folder for a figure of each approach")
    parser.add_argument("--count", default="counted", help="FLOPs of runs: counted, or 6nd")
    parser.add_argument(
        "--hold_out",
        type=float,
        default=math.inf,
        metavar="FLOPS",
        help="keep runs of as many FLOPs or more apart, and predict their loss",
    )
    parser.add_argument("--bootstrap", type=int, default=200, help="resamples (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the resamples (%(default)s)")
    options = parser.parse_args(arguments)
    if options.bootstrap < 0:
        raise ValueError(f"--bootstrap={options.bootstrap} must be 0 or more")
    if options.json:
        command_line.check_file("--json", options.json)
    if options.figures:
        command_line.check_folder("--figures", options.figures)
    # They take a second to import: after the arguments are checked, and not for --help.
    from t5x_like.research.scaling_laws import analysis, figures, runs

    path = runs.find_runs(options.source)
    every, left_out = _read(path, count=options.count)
    apart = [run for run in every if run.c >= options.hold_out]
    fitted_runs = [run for run in every if run.c < options.hold_out]
    runs.check(fitted_runs, source=options.source)
    result = analysis.analyse(fitted_runs, times=options.bootstrap, seed=options.seed)
    result["held_out"] = analysis.held_out(apart, result)
    result["warnings"] += left_out
    print(analysis.text(result))
    if options.json:
        command_line.write_json(options.json, result)
    if options.figures:
        with command_line.writing(options.figures):
            for file in figures.draw(fitted_runs, result, pathlib.Path(options.figures)):
                print(f"figure: {file}")


def _read(path: pathlib.Path, *, count: str) -> "tuple[list[TrainedRun], list[str]]":
    """Return the runs of a CSV file or a folder, and a sentence about each run left out."""
    choose("--count", count, dict.fromkeys(("counted", "6nd")))
    if not path.is_dir():
        from t5x_like.research.scaling_laws import runs

        return runs.read_csv(path), []
    _count_on_cpu()
    from t5x_like.research.scaling_laws.trained import read_folder

    return read_folder(path, count=count)


def _count_on_cpu() -> None:
    """Start JAX on the CPU: only shapes are counted, so that an accelerator stays free."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def write_ladder(arguments: Sequence[str]) -> None:
    """Write the configs of a ladder of runs, and with --run train them."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.scaling ladder")
    parser.add_argument("--system", metavar="NAME", help="for --config=configs/NAME.py:demo")
    parser.add_argument("--flops", required=True, help="budgets: 1e12,4e12,1.6e13")
    parser.add_argument("--sizes", required=True, help="LAYERSxWIDTH or names: 2x64,4x128")
    parser.add_argument("--learning_rates", default="", help="one for each size")
    parser.add_argument("--ratio", default="0,inf", help="least and most tokens per parameter")
    parser.add_argument("--corpus_tokens", type=float, default=math.inf, help="tokens of one epoch")
    parser.add_argument("--count", default="counted", help="equal FLOPs: counted, or 6nd")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder of the runs")
    parser.add_argument("--run", action="store_true", help="train the runs that are not finished")
    command_flags, of_config = _divide(arguments)
    options = parser.parse_args(command_flags)
    command_line.check_folder("--output", options.output)
    base = _base_settings(of_config, system=options.system)
    _count_on_cpu()
    from t5x_like.research.scaling_laws import ladder

    low_high = _numbers("--ratio", options.ratio)
    if len(low_high) != 2:
        raise ValueError(f"--ratio={options.ratio!r} must be two numbers: the least and the most")
    wanted = ladder.Design(
        budgets=_numbers("--flops", options.flops),
        sizes=tuple(options.sizes.split(",")),
        rates=_numbers("--learning_rates", options.learning_rates),
        tokens_per_parameter=(low_high[0], low_high[1]),
        corpus_tokens=options.corpus_tokens,
        count=options.count,
    )
    rungs = ladder.design(base, wanted, folder=pathlib.Path(options.output))
    ladder.write(rungs)
    print("\n".join(ladder.table(rungs)))
    print(
        "".join(f"warning: {warning}\n" for warning in ladder.warnings(rungs)), end="", flush=True
    )
    if options.run and not ladder.train_ladder(rungs):
        print("stopped and saved: the same command goes on from there")
        sys.exit(1)


def plan(arguments: Sequence[str]) -> None:
    """Print the best size and tokens for a budget, and the command for the nearest size."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.scaling plan")
    parser.add_argument("--flops", type=float, required=True, help="the budget")
    parser.add_argument("--system", default="chinchilla", help="its sizes (%(default)s)")
    parser.add_argument("--law", default="besiroglu", help="besiroglu, hoffmann or a fit's JSON")
    parser.add_argument("--utilization", type=float, default=0.4, help="of the peak (%(default)s)")
    parser.add_argument("--topology", metavar="v4:4x4x4", help="a slice to compile the step for")
    parser.add_argument("--json", metavar="FILE", help="JSON file for the plan")
    command_flags, changes = _divide(arguments)
    options = parser.parse_args(command_flags)
    if options.json:
        command_line.check_file("--json", options.json)
    _count_on_cpu()
    from t5x_like.research.planning import chips
    from t5x_like.research.scaling_laws import allocation

    topology = chips.topology(options.topology) if options.topology else None
    allocated, settings = allocation.allocate(
        options.flops,
        law=allocation.find_law(options.law),
        system=options.system,
        changes=changes,
        utilization=options.utilization,
    )
    if topology is not None:
        topology.devices()
        allocated = allocation.on_topology(allocated, settings, topology)
    print(allocation.text(allocated))
    if options.json:
        command_line.write_json(options.json, allocated)


def _divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into the flags of a command and the --config flags."""
    of_config = [argument for argument in arguments if argument.startswith("--config")]
    return [argument for argument in arguments if argument not in of_config], of_config


def _base_settings(arguments: Sequence[str], *, system: str | None) -> RunSettings:
    """Return the settings that the runs of a ladder vary."""
    if not any(argument.startswith("--config=") for argument in arguments):
        if not system:
            raise ValueError("--system is not set: name a system, or give --config=FILE:SIZE")
        arguments = [f"--config=configs/{system}.py:demo", *arguments]
    return parse(command_line.parse(arguments)[0])


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(",") if number)
    except ValueError as error:
        raise ValueError(f"{flag}={text!r} must be numbers with commas between them") from error


_ACTIONS = {"ladder": write_ladder, "fit": fit, "plan": plan}


def main(arguments: Sequence[str]) -> None:
    """Run one of the actions; a bad argument prints one line and exits with status 2."""
    command_line.run_action(arguments, _ACTIONS, help_text=__doc__ or "")


if __name__ == "__main__":
    main(sys.argv[1:])
