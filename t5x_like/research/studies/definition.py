"""The parts of a study, as defined in configs/studies/: runs, arms, measures, claims."""

import dataclasses
import inspect
import itertools
import pathlib
import re
import shlex
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from t5x_like.names import choose, hint, import_file

FOLDER = "configs/studies"
_NAME = re.compile(r"[\w-][\w.-]*")
CENTERS = ("mean", "median")

Changes = Mapping[str, Any]  # {setting, such as "train.steps": value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A training run that every cell (an arm with a seed) has.

    Attributes:
        config: FILE or FILE:SIZE, as for `--config`.
        changes: changed settings of the config, for all arms.
        starts_from: the name of an earlier run, whose parameters, system and vocabulary this run
            starts from; "" for none.
    """

    config: str
    changes: Changes = dataclasses.field(default_factory=dict)
    starts_from: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A generated language (docs/languages.md) and a vocabulary for it, which runs share.

    A generated language has few words, and the vocabulary a piece for each: spelled in several
    pieces, much of what a model would learn is how to spell.

    Attributes:
        language: the name of its file in data/languages/.
        kind, size: of the vocabulary: `--kind` and `--size` of `python -m t5x_like.vocabulary`.
    """

    language: str
    kind: str
    size: int

    @property
    def vocabulary(self) -> str:
        """The file or folder of the vocabulary."""
        ending = ".txt" if self.kind in ("wordpiece", "words") else ""
        return f"runs/studies/{self.language}_{self.kind}_{self.size}{ending}"

    @property
    def needs(self) -> dict[str, str]:
        """The command that makes the vocabulary, for `Study.needs`."""
        command = (
            f"t5x_like.vocabulary --data=data/languages/{self.language}.py --kind={self.kind} "
            f"--size={self.size} --output={self.vocabulary}"
        )
        if self.kind in ("unigram", "albert"):
            command += " --every_word"
        return {self.vocabulary: command}

    def changes(self, task: str = "", **settings: Any) -> Changes:
        """Return the settings of a run that reads a task, by default the language's documents."""
        return {
            "data.module": f"data/languages/{self.language}.py",
            "data.task": task or self.language,
            "data.settings": settings,
            "data.vocabulary": self.vocabulary,
        }

    def fine_tuning(
        self,
        kind: str,
        task: str,
        *,
        rows: int,
        steps: int,
        length: int = 16,
        starts_from: str = "pretraining",
        changes: Changes = types.MappingProxyType({}),
        **settings: Any,
    ) -> TrainingRun:
        """Return a run that is fine-tuned on few rows of a task, and measured on all held-out rows.

        Args:
            kind: of configs/fine_tuning.py, such as "classification".
            task: of the language.
            rows: labelled rows for training.
            steps: batches of 16 rows.
            length: tokens of a row.
            starts_from: the earlier run that it starts from.
            changes: other settings of the run.
            settings: other settings of the language.
        """
        of_run = {
            **self.changes(task, documents=rows, **settings),
            "data.lengths": {"inputs": length},
            "data.batch_size": 16,
            "train.steps": steps,
            "train.log_every": 50,
            "checkpoint.every": 0,
            "evaluate.every": steps,
            "evaluate.batches": 0,
            "optimizer.learning_rate": 1e-3,
            **changes,
        }
        config = f"configs/fine_tuning.py:{kind}"
        return TrainingRun(config=config, changes=of_run, starts_from=starts_from)

    def generation(self, task: str, *, rows: int, steps: int, **settings: Any) -> Changes:
        """Return the settings of a run on few pairs of a task, measured by generated targets.

        The targets are single words; of all held-out rows the share of exact matches is the number
        TASK/generation/exact_match.

        Args:
            task: of the language.
            rows: pairs for training.
            steps: batches of 16 rows.
            settings: other settings of the language.
        """
        generation = {"metrics": ("exact_match",), "every": steps}
        return {
            **self.changes(task, documents=rows, **settings),
            "data.lengths": {"inputs": 16, "targets": 4},
            "data.batch_size": 16,
            "train.steps": steps,
            "train.log_every": 50,
            "checkpoint.every": 0,
            "decode": {"max_new_tokens": 4, "num_beams": 1},
            "evaluate.every": steps,
            "evaluate.batches": 0,
            "evaluate.tasks": (task,),
            "evaluate.measures": {"loss": {}, "generation": generation},
            "evaluate.averages": {},
        }

    def pretrained(
        self, config: str, folder: str, *, steps: int, changes: Changes
    ) -> dict[str, str]:
        """Return the command that pretrains a network for all seeds, for `Study.needs`.

        Args:
            config: FILE or FILE:SIZE, as for `--config`.
            folder: of the run.
            steps, changes: the run's steps, and its other settings; the task is the language's
                documents.
        """
        read = {name: value for name, value in self.changes().items() if name != "data.settings"}
        settings = {"workdir": folder, **read, "train.steps": steps, **changes}
        flags = shlex.join(f"--config.{name}={value}" for name, value in settings.items())
        command = f"t5x_like.train --config={config} {flags}"
        return {f"{folder}/checkpoints/{steps}": command}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """A variant that a study compares.

    Attributes:
        changes: {run: changed settings in this arm}.
        starts_from: {run: earlier run that it starts from in this arm}, which replaces the run's
            `starts_from` or `initialize`.
        leaves_out: names of runs that this arm does not have; a run that would start from such a
            run is randomly initialized.
        paper: {measure: the paper's number for this arm}.
        part: the arm's part of the table, such as "Table 2: architectures".
    """

    changes: Mapping[str, Changes] = dataclasses.field(default_factory=dict)
    starts_from: Mapping[str, str] = dataclasses.field(default_factory=dict)
    leaves_out: Sequence[str] = ()
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    part: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutcomeMeasure:
    """A number for comparing runs: its value at the last step of a run.

    Attributes:
        run: the name of the run.
        number: its name in the run's metrics.jsonl, such as "pyglue/average".
        scale: factor by which it is multiplied in tables.
        smaller_is_better: whether smaller values are better, as for a loss.
        in_paper: name of the paper's corresponding number, such as "GLUE".
    """

    run: str
    number: str
    scale: float = 1.0
    smaller_is_better: bool = False
    in_paper: str = ""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence about two arms that a study confirms, refutes, or leaves open.

    Attributes:
        text: the sentence.
        arm, than: the names of the arms; the claim is that `arm` is better than `than`.
        measure: the name of the measure.
        within: if not 0, the claim is instead that the arms differ by at most this, in the
            measure's scale.
        margin: the largest difference that does not matter. Arms whose interval is within it are
            called equal, also if an arm is surely better; 0: never.
    """

    text: str
    arm: str
    than: str
    _: dataclasses.KW_ONLY
    measure: str
    within: float = 0.0
    margin: float = 0.0

    def __post_init__(self) -> None:
        if min(self.within, self.margin) < 0 or (self.within and self.margin):
            raise ValueError(
                f"the claim {self.text!r} has within={self.within:g} and margin={self.margin:g}: "
                "set one of them, above 0, or neither"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """What an arm must be better than before any claim is judged: else it has learned nothing.

    Attributes:
        arm, measure: the names of the arm, mostly the baseline, and of the measure.
        than: the number of a prediction that needs no model, in the measure's scale: a constant's
            accuracy, a bag of words', the loss of word frequencies.
        what: what `than` is.
    """

    arm: str
    measure: str
    than: float
    what: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """The figure of a study whose arms differ in a number: measures over this number.

    Attributes:
        number: what the number is, such as "pairs"; its axis is logarithmic.
        lines: {line: {value of the number, above 0: arm}}.
    """

    number: str
    lines: Mapping[str, Mapping[float, str]]

    def __post_init__(self) -> None:
        for line, arms in self.lines.items():
            if not arms or min(arms) <= 0:
                raise ValueError(f"the line {line!r} of a curve must have values above 0")

    def of(self, names: Collection[str]) -> Self | None:
        """Return the curve of only some arms; None if it has none of them."""
        lines = {
            line: {number: arm for number, arm in arms.items() if arm in names}
            for line, arms in self.lines.items()
        }
        lines = {line: arms for line, arms in lines.items() if arms}
        return dataclasses.replace(self, lines=lines) if lines else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study: each arm is trained with each seed, run by run.

    Attributes:
        title, source: title of the page, and the paper and its section.
        runs, arms, measures: by name, in order.
        needs: {file or folder that the runs read: the command that makes it, after `python -m`}.
            Before training, what does not exist is made, in this order.
        claims: the claims to judge.
        learned: what must be true before claims are judged.
        seeds: values of `train.seed` and `data.seed`, the same for every run of a cell.
        center: how the table summarizes the seeds of an arm, "mean" or "median".
        best_by: the measure whose center determines the best arm; "" to name no best arm.
        text: what its runs read, "generated" or "natural" text.
        curve: what the figure shows; None for a row for each arm.
    """

    title: str
    source: str
    runs: Mapping[str, TrainingRun]
    arms: Mapping[str, Arm]
    measures: Mapping[str, OutcomeMeasure]
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    claims: Sequence[Claim] = ()
    learned: Sequence[Learned] = ()
    seeds: Sequence[int] = (0, 1, 2)
    center: str = "mean"
    best_by: str = ""
    text: str = "generated"
    curve: Curve | None = None

    def __post_init__(self) -> None:
        choose("center", self.center, dict.fromkeys(CENTERS))
        choose("text", self.text, dict.fromkeys(("generated", "natural")))
        if self.best_by:
            choose("best_by", self.best_by, self.measures)
        for kind in ("runs", "arms", "measures"):
            for name in getattr(self, kind) or {"": None}:
                if not _NAME.fullmatch(name):
                    raise ValueError(
                        f"{kind}: {name!r} must be a name of letters, digits, _, - and ."
                    )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={tuple(self.seeds)} must be one or more, each once")
        self._check_runs()
        for name, measure in self.measures.items():
            choose(f"measures.{name}.run", measure.run, self.runs)
        for claim in self.claims:
            choose("measure of a claim", claim.measure, self.measures)
            for arm in (claim.arm, claim.than):
                choose("arm of a claim", arm, self.arms)
        for learned in self.learned:
            choose("measure of learned", learned.measure, self.measures)
            choose("arm of learned", learned.arm, self.arms)
        for line in (self.curve.lines if self.curve else {}).values():
            for arm in line.values():
                choose("arm of a curve", arm, self.arms)

    def _check_runs(self) -> None:
        before: dict[str, TrainingRun] = {}
        for name, run in self.runs.items():
            if run.starts_from:
                choose(f"runs.{name}.starts_from", run.starts_from, before)
            before[name] = run
        measured = {measure.run for measure in self.measures.values()}
        for name, arm in self.arms.items():
            for run_name in (*arm.changes, *arm.starts_from, *arm.leaves_out):
                choose(f"run of arms.{name}", run_name, self.runs)
            self._check_starts(name, arm)
            if measured & set(arm.leaves_out):
                raise ValueError(f"arms.{name} leaves out a run that is measured")
            for measure_name in arm.paper:
                choose(f"measure of arms.{name}.paper", measure_name, self.measures)

    def _check_starts(self, name: str, arm: Arm) -> None:
        order = list(self.runs)
        for run, start in arm.starts_from.items():
            setting = f"arms.{name}.starts_from[{run!r}]={start!r}"
            before = [
                earlier for earlier in order[: order.index(run)] if earlier not in arm.leaves_out
            ]
            if start not in before:
                raise ValueError(
                    f"{setting} must be an earlier run that the arm has.{hint(start, before)}"
                )
            if "initialize" in arm.changes.get(run, {}):
                initialize = arm.changes[run]["initialize"]
                raise ValueError(
                    f"{setting} and initialize={initialize!r} are two starts: leave out one"
                )

    def missing(self) -> list[list[str]]:
        """Return the arguments of `python -m` of the commands whose result does not exist."""
        return [
            shlex.split(command)
            for path, command in self.needs.items()
            if not pathlib.Path(path).exists()
        ]

    def start_of(self, arm: str, run: str) -> str:
        """Return the name of the run that a run starts from in an arm; "" for none."""
        return self.arms[arm].starts_from.get(run, self.runs[run].starts_from)


def grid(run: str, settings: Mapping[str, Sequence[Any]]) -> dict[str, Arm]:
    """Make an arm for each combination of values, named `learning_rate-0.001_batch_size-16`.

    Args:
        run: the name of the run that has the settings.
        settings: {setting, such as "optimizer.learning_rate": its values}.
    """
    arms = {}
    for values in itertools.product(*settings.values()):
        changes = dict(zip(settings, values, strict=True))
        parts = [f"{key.rpartition('.')[2]}-{value}" for key, value in changes.items()]
        arms["_".join(parts)] = Arm(changes={run: changes})
    return arms


def load(name: str) -> tuple[str, Study]:
    """Load a study from the function `get_study` of a file; return its name and the study.

    Args:
        name: a file, or its name in configs/studies/; after a colon, the argument of `get_study`,
            which becomes a part of the study's name.

    Raises:
        ValueError: the file or function does not exist, or the study is invalid.
    """
    name, _, argument = name.partition(":")
    path = pathlib.Path(name if name.endswith(".py") else f"{FOLDER}/{name}.py")
    if not path.is_file():
        files = [file.stem for file in pathlib.Path(FOLDER).glob("*.py")]
        raise ValueError(f"{name!r} is not a study: {path} does not exist.{hint(name, files)}")
    module = import_file("the study", path, name=f"study_{path.stem}")
    get_study = getattr(module, "get_study", None)
    if get_study is None:
        raise ValueError(f"{path} has no function get_study")
    if argument and not inspect.signature(get_study).parameters:
        raise ValueError(f"{path} is one study: leave out {':' + argument!r}")
    study = get_study(*([argument] if argument else []))
    if not isinstance(study, Study):
        raise ValueError(f"get_study of {path} returns a {type(study).__name__}, and no Study")
    return f"{path.stem}_{argument}" if argument else path.stem, study
