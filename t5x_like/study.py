r"""Run a study: train arms with several seeds, tabulate them beside the paper, judge its claims.

    python -m t5x_like.study t5_grid --plan
    python -m t5x_like.study t5_grid --processes=2 --write=docs/studies
    python -m t5x_like.study t5_grid --arms=baseline,prefix_lm --seeds=0 --config.train.steps=20
    python -m t5x_like.study t5_grid --until_decided --hours=8
    python -m t5x_like.study --all --report --write=docs/studies

The study is a name in configs/studies/ or a file, for some studies with an argument after a colon
(`fine_tuning_grid:topic`). Each cell, an arm with a seed, is one training run or several, such as
pretraining and fine-tuning; a run that several cells share is trained once. Runs are in
OUTPUT/ARM/SEED/RUN; each is a process whose output goes to output.txt. Ctrl-C, SIGTERM or a kill
lose only the steps since the last checkpoints: the same command continues, and trains no finished
run again. A run whose settings have changed is refused, or trained anew with --rerun=ARM.

Vocabularies and other files that a study needs and that do not exist are made first.

--until_decided adds seeds, one at a time, to the arms of claims that are not decided, until all
are, or an arm has --most_seeds, or --hours are over; intervals are wide enough for these looks.

--plan prints the runs to train, their FLOPs and hours, and trains nothing; the FLOP/s are measured
on finished runs or a few steps of the first run, or given by --rate. --report writes the table of
the finished runs. docs/studies.md explains studies.
"""

import argparse
import ast
import dataclasses
import math
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like.config import LARGEST, one_line_errors
from t5x_like.experiment import command_line
from t5x_like.experiment.terminal import PROGRESS
from t5x_like.names import choose

if TYPE_CHECKING:
    from t5x_like.research.studies import Study
    from t5x_like.research.studies.cells import Cell, CellRun
    from t5x_like.research.studies.verdicts import Looks, Values


def _parser() -> command_line.ArgumentParser:
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.study")
    parser.add_argument(
        "study", nargs="?", metavar="NAME|FILE", help="a name in configs/studies/, or a file"
    )
    parser.add_argument("--all", action="store_true", help="all studies, with --plan or --report")
    parser.add_argument("--output", metavar="FOLDER", help="of the runs (runs/studies/NAME)")
    parser.add_argument("--write", metavar="FOLDER", help="for table and figure (--output)")
    parser.add_argument("--arms", metavar="A,B", help="only these (all)")
    parser.add_argument("--seeds", metavar="0,1", help="instead of the study's")
    parser.add_argument("--rerun", default="", metavar="A,B", help="arms to train anew if changed")
    parser.add_argument("--processes", type=command_line.count, default=1, help="runs at a time")
    parser.add_argument("--plan", action="store_true", help="print the cost, and train nothing")
    parser.add_argument("--report", action="store_true", help="write the table, and train nothing")
    parser.add_argument("--until_decided", action="store_true", help="add seeds to open claims")
    parser.add_argument("--hours", type=float, metavar="H", help="then no seed is added")
    parser.add_argument(
        "--most_seeds", type=command_line.count, default=12, help="of an arm, with --until_decided"
    )
    parser.add_argument("--rate", type=float, metavar="FLOPS", help="FLOP/s, for --plan")
    return parser


def main(arguments: Sequence[str]) -> None:
    """Run the command; a bad argument prints one line and exits with status 2."""
    of_config = [argument for argument in arguments if argument.startswith("--config.")]
    options = _parser().parse_args(
        [argument for argument in arguments if argument not in of_config]
    )
    with one_line_errors(), PROGRESS.clearing():
        if options.rate is not None and not options.rate > 0:
            raise ValueError(f"--rate={options.rate:g} must be above 0")
        if options.hours is not None and not (options.hours > 0 and options.until_decided):
            raise ValueError(
                f"--hours={options.hours:g} needs --until_decided, and must be above 0"
            )
        if bool(options.study) == options.all:
            raise ValueError("NAME|FILE is not set: name one study, or all by --all")
        if options.all:
            _all(options, dict(map(_change, of_config)))
        else:
            _run(options, dict(map(_change, of_config)))


def _run(options: argparse.Namespace, changes: dict[str, Any]) -> None:
    PROGRESS.show(f"reading the study {options.study} ...")
    # They take seconds to import: not for --help.
    import jax

    from t5x_like.research.studies import cells, definition, estimate, verdicts

    if not options.plan:
        jax.config.update("jax_platforms", "cpu")  # the runs use the accelerator
    name, study = definition.load(options.study)
    study = _restricted(study, options)
    again = _names("--rerun", options.rerun, study.arms)
    folder = pathlib.Path(options.output or f"runs/studies/{name}")
    command_line.check_folder("--output", folder)
    command_line.check_folder("--write", options.write or folder)
    if not options.report:
        _make(study.missing(), runs=not options.plan)
    study_cells = cells.cells(study, folder, changes=changes)
    runs = cells.runs_of(study_cells)
    estimate.check(runs)  # find a wrong network or vocabulary before training
    if not study.missing():
        _check_vocabularies(runs)
    if options.plan:
        cells.check_unchanged(runs, again=again)
        rate, source = (options.rate, "--rate") if options.rate else estimate.measured_rate(runs)
        lines = estimate.table(study_cells, rate=rate, source=source, processes=options.processes)
        print("\n".join(lines))
        return
    design = verdicts.stored(folder)
    if options.until_decided:
        design = verdicts.begin(folder, verdicts.Looks(len(study.seeds), options.most_seeds))
    trained = _Training(study, folder, changes, again, options.processes, train=not options.report)
    if design is None:
        trained.train()
    else:
        trained.train_until_decided(design, hours=options.hours if options.until_decided else 0.0)
    page = pathlib.Path(options.write or folder)
    _write(study, name, trained, page, design, words=options.study)
    if not all(check.passed for check in verdicts.checks(study, trained.values())):
        sys.exit(1)


def _write(
    study: "Study",
    name: str,
    trained: "_Training",
    folder: pathlib.Path,
    design: "Looks | None",
    *,
    words: str,
) -> None:
    """Write the results of a study into a folder, and print the page.

    Args:
        words: how the command names the study.
    """
    from t5x_like.research.studies import cells, estimate, results

    study_cells = trained.cells()
    cost = estimate.of_finished(cells.runs_of(study_cells))
    with command_line.writing(folder):
        path = results.write(
            study,
            name,
            study_cells,
            folder,
            words=words,
            looks=design,
            cost=dataclasses.asdict(cost) if cost else None,
        )
    print(f"{path.read_text()}\nwritten to {path}")


def _check_vocabularies(runs: "Sequence[CellRun]") -> None:
    """Raise ValueError if a vocabulary cannot be read."""
    from t5x_like import vocabularies

    for vocabulary in dict.fromkeys(run.settings.data.vocabulary for run in runs):
        if vocabulary:  # otherwise the `initialize` folder's
            vocabularies.load(vocabulary)


def _make(commands: Sequence[Sequence[str]], *, runs: bool) -> None:
    """Print the commands that make what a study needs, and with `runs` run them.

    Raises:
        ValueError: a command failed; its output has the reason.
    """
    for command in commands:
        print(f"first: python -m {shlex.join(command)}", flush=True)
        if runs and subprocess.run([sys.executable, "-m", *command], check=False).returncode:
            raise ValueError(f"the study needs what `python -m {shlex.join(command)}` makes")


def _all(options: argparse.Namespace, changes: dict[str, Any]) -> None:
    if options.plan == options.report:
        raise ValueError("--all plans the studies or reports them: add --plan or --report")
    PROGRESS.show("reading the studies ...")
    from t5x_like.research.studies import cells, estimate, overview

    if options.report:
        folder = pathlib.Path(options.write or "docs/studies")
        command_line.check_folder("--write", folder)
        with command_line.writing(folder):
            page = overview.write(folder)
        print(f"written to {page}")
        return
    flops, first = {}, None
    for name, study in overview.all_studies().items():
        PROGRESS.show(f"reading the runs of {name} ...")
        try:
            study_cells = cells.cells(study, pathlib.Path(f"runs/studies/{name}"), changes=changes)
            flops[name] = estimate.unfinished_flops(study_cells)
            first = first or study_cells
        except ValueError as error:  # such as a vocabulary that is not trained yet
            flops[name] = math.nan
            print(f"{name}: {error}")
    if first is None and not options.rate:
        raise ValueError("no study can be planned")
    rate = options.rate or estimate.measured_rate(cells.runs_of(first or ()))[0]
    print("\n".join(overview.hours_of(flops, rate=rate)))


class _Training:
    """The cells of a study, to which seeds may be added.

    Attributes:
        seeds: the seeds of each arm.
    """

    def __init__(
        self,
        study: "Study",
        folder: pathlib.Path,
        changes: dict[str, Any],
        again: Sequence[str],
        processes: int,
        *,
        train: bool,
    ):
        self.seeds = {arm: list(study.seeds) for arm in study.arms}
        self._study, self._folder, self._changes = study, folder, changes
        self._again, self._processes, self._trains = again, processes, train

    def cells(self, seeds: "Mapping[str, Sequence[int]] | None" = None) -> "list[Cell]":
        """Return the cells of all arms with their seeds, or with other seeds."""
        from t5x_like.research.studies import cells

        return cells.cells(
            self._study, self._folder, changes=self._changes, seeds=seeds or self.seeds
        )

    def values(self) -> "Values":
        """Return the numbers of the finished cells."""
        from t5x_like.research.studies import results

        return results.values_of(self._study, self.cells())

    def train(self) -> None:
        """Train the runs that are not finished; with --report only check their settings."""
        from t5x_like.research.studies import cells

        runs = cells.runs_of(self.cells())
        if self._trains:
            cells.write(runs, again=self._again)
            _train(runs, processes=self._processes)
        else:
            cells.check_unchanged(runs, again=())

    def train_until_decided(self, design: "Looks", *, hours: float | None) -> None:
        """Add seeds to the arms of claims that are not decided, and train them.

        Args:
            design: the looks at the study.
            hours: no seed is added after them; None for no limit. Seeds that were added by an
                earlier command are added in any case.
        """
        from t5x_like.research.studies import cells, verdicts

        started = time.monotonic()
        self.train()
        while True:
            values = self.values()
            judged = verdicts.judge(self._study, values, looks=design)
            undecided = [verdict.claim for verdict in judged if verdict.verdict == verdicts.OPEN]
            arms = [arm for claim in undecided for arm in (claim.arm, claim.than)]
            arms = [arm for arm in dict.fromkeys(arms) if len(self.seeds[arm]) < design.most]
            learned = all(check.passed for check in verdicts.checks(self._study, values))
            if not arms or not learned:
                return
            more = {
                arm: [*seeds, max(seeds) + 1] if arm in arms else seeds
                for arm, seeds in self.seeds.items()
            }
            runs = cells.runs_of(self.cells(more))
            is_new = not all(run.is_finished() for run in runs)
            over = hours is not None and time.monotonic() - started > hours * 3600
            if is_new and (over or not self._trains):
                if hours:
                    print(f"--hours={hours:g} are over: {len(undecided)} claims are not decided")
                return
            self.seeds = more
            if is_new:
                print(f"{len(undecided)} claims are not decided: a seed more for {', '.join(arms)}")
            self.train()


def _restricted(study: "Study", options: argparse.Namespace) -> "Study":
    """Restrict the study to the arms and seeds of the command line, and the claims about them."""
    arms = _names("--arms", options.arms, study.arms) if options.arms else list(study.arms)
    seeds = study.seeds
    if options.seeds:
        if not all(number.isdecimal() for number in options.seeds.split(",")):
            raise ValueError(f"--seeds={options.seeds!r} must be whole numbers with commas between")
        seeds = tuple(map(int, options.seeds.split(",")))
        if len(set(seeds)) < len(seeds) or max(seeds) > LARGEST:
            raise ValueError(f"--seeds={options.seeds!r} must be each once, and at most {LARGEST}")
    return dataclasses.replace(
        study,
        arms={name: study.arms[name] for name in study.arms if name in arms},
        claims=[claim for claim in study.claims if {claim.arm, claim.than} <= set(arms)],
        learned=[learned for learned in study.learned if learned.arm in arms],
        seeds=seeds,
        curve=study.curve and study.curve.of(arms),
    )


def _train(runs: "Sequence[CellRun]", *, processes: int) -> None:
    """Train the runs that are not finished; exit with status 1 after a signal.

    Raises:
        ValueError: a run failed, or was trained to its end and has not measured its numbers.
    """
    from t5x_like.experiment import training_processes
    from t5x_like.experiment.training_processes import Job

    numbers = {run.folder: number for number, run in enumerate(runs, start=1)}

    def report(job: Job, seconds: float | None) -> None:
        when = "finished before" if seconds is None else f"{seconds:.0f} s"
        print(f"{numbers[job.folder]}/{len(runs)} {job.folder} ({when})", flush=True)

    jobs = [
        Job(run.folder, run.is_finished, after=(run.after.folder,) if run.after else ())
        for run in runs
    ]
    if not training_processes.train(jobs, report=report, processes=processes):
        for run in runs:
            if missing := run.missing():
                raise ValueError(
                    f"{run.folder} was trained, but at its last step its log has no "
                    f"{', '.join(missing)}: if it was stopped while it evaluated, the same command "
                    "evaluates it again; otherwise correct `number` of this measure"
                )
        print("stopped and saved: the same command goes on from there")
        sys.exit(1)


def _names(flag: str, text: str, known: Iterable[str]) -> list[str]:
    allowed = {name: name for name in known}
    return [choose(flag, name, allowed) for name in text.split(",") if name]


def _change(flag: str) -> tuple[str, Any]:
    """Parse --config.key=value into key and value, a Python literal if it is one, or else text."""
    name, equals, text = flag.partition("=")
    if not equals:
        raise ValueError(f"{flag!r} has no value: settings are written --config.key=value")
    try:
        return name.removeprefix("--config."), ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name.removeprefix("--config."), text


if __name__ == "__main__":
    main(sys.argv[1:])
