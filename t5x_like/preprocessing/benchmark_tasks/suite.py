"""Make a data module from a table of benchmarks: tasks, their mixture, labels and measures."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t5x_like import reading
from t5x_like.names import choose
from t5x_like.preprocessing import mixtures, sources
from t5x_like.preprocessing.benchmark_tasks import raw_rows
from t5x_like.preprocessing.benchmark_tasks.benchmark import (
    TEXT_TO_TEXT,
    Benchmark,
    BenchmarkRow,
    Submission,
    hidden_rows,
)
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import ColumnSource, TensorColumns, columns
from t5x_like.reading import labelled_text
from t5x_like.vocabularies import Vocabulary


class Suite:
    """The functions of a data module, for a table of benchmarks.

    Args:
        benchmarks: {name of the task: benchmark}.
        prefix: the beginning of the names of the registered tasks: "glue_" makes "glue_cola".
        mixture: the name of the mixture; "" for no mixture.
        mixed: the tasks of the mixture, by their names in the table.
        submissions: the files of hidden test rows, by the names in the table.

    A benchmark with a `test` split has a second task, NAME_test, that validates on this split.
    """

    def __init__(
        self,
        benchmarks: Mapping[str, Benchmark],
        *,
        prefix: str = "",
        mixture: str = "",
        mixed: Sequence[str] = (),
        submissions: Mapping[str, Submission] | None = None,
    ):
        self._tasks = {
            f"{prefix}{name}": (name, benchmark) for name, benchmark in benchmarks.items()
        }
        self._submissions = {
            f"{prefix}{k}": submission for k, submission in (submissions or {}).items()
        }
        for task, (name, benchmark) in [*self._tasks.items()]:
            if benchmark.test:
                splits = {**benchmark.splits, "validation": benchmark.test}
                twin = dataclasses.replace(benchmark, splits=splits, test="")
                self._tasks[f"{task}_test"] = (name, twin)
        self._mixture, self._mixed = mixture, [f"{prefix}{name}" for name in mixed]

    def register(
        self,
        vocabulary: Vocabulary,
        objective: SeqioObjective,
        *,
        folder: str = "",
        data_dir: str | None = None,
        rate: str = "examples_proportional",
        rate_settings: Mapping[str, Any] | None = None,
        leave_out: Sequence[str] = (),
        splits: Mapping[str, str] | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        """Add all tasks, and for text to text their mixture; rows are only read with their task.

        Args:
            vocabulary: the vocabulary of the tokens.
            objective: text_to_text, or an objective that reads the labelled form of a task.
            folder: a folder with TASK/SPLIT.jsonl; "" for data prepared by tfds.
            data_dir: the folder of prepared data sets; None: `~/tensorflow_datasets`.
            rate: rate of a task in the mixture: equal, examples_proportional or temperature.
            rate_settings: settings of the rate, such as limit=2**19 (the paper's K).
            leave_out: tasks to leave out of the mixture, such as ("glue_cola",).
            splits: replaces the table's splits for all tasks, {"train" or "validation": a file or
                a part}: {"train": "train[:1000]", "validation": "train[1000:]"}.
            labels: ignored; a run passes its label names, which are always the table's.

        Raises:
            ValueError: the rate or one of its settings is unknown, a task to leave out is not in
                the mixture, or a split is not valid.
                Missing data and bad rows are errors when a task is read.
        """
        del labels
        changed = raw_rows.checked_splits(splits or {})
        for task, (_, benchmark) in self._tasks.items():
            read = functools.partial(
                self._columns,
                task,
                objective=objective.name,
                most=objective.plain.settings.get("choices", 0),
                folder=folder,
                data_dir=data_dir,
                splits={**benchmark.splits, **changed},
            )
            sources.add_task(
                task,
                source=ColumnSource(read, splits=tuple(benchmark.splits)),
                vocabulary=vocabulary,
                preprocessors=objective.cacheable,
                features=objective.features,
            )
        if self._mixture and objective.name in TEXT_TO_TEXT:
            share = mixtures.rate(rate, **(rate_settings or {}))
            mixed = mixtures.without(self._mixed, leave_out)
            mixtures.mixture(self._mixture, mixed, rate=share)

    def documents(
        self,
        split: str,
        *,
        tasks: Sequence[str] = (),
        folder: str = "",
        data_dir: str | None = None,
    ) -> tf.data.Dataset:
        """Return the inputs and targets of a split, {"text": string}, to train a vocabulary on.

        Args:
            split: "train" or "validation".
            tasks: names of tasks; empty for all of the mixture, or all that have the split.
            folder, data_dir: see `register`.

        Raises:
            ValueError: a task does not exist, or its data is missing or bad.
        """
        named = (
            tasks
            or self._mixed
            or [task for task, (_, benchmark) in self._tasks.items() if split in benchmark.splits]
        )
        texts = [
            row[side]
            for task in named
            for row in self._rows(
                task,
                split,
                objective="text_to_text",
                most=0,
                folder=folder,
                data_dir=data_dir,
                splits=self._find(task).splits,
            )
            for side in ("inputs", "targets")
        ]
        return tf.data.Dataset.from_tensor_slices({"text": tf.constant(texts, tf.string)})

    def labels(self, objective: str, *, task: str, **settings: Any) -> tuple[str, ...]:
        """Return a task's class names in the order of their numbers; empty without classes.

        Raises:
            ValueError: the task is unknown, or it does not have this form.
        """
        del settings
        if objective in TEXT_TO_TEXT:
            return ()
        benchmark = self._find(task)
        benchmark.check_objective(task, objective)
        return benchmark.labels if benchmark.kind == "classification" else ()

    def measure(self, objective: str, *, task: str, **settings: Any) -> dict[str, Any]:
        """Return the kind and settings of the measure of a task for `evaluate.measures`.

        Raises:
            ValueError: the task is unknown, it is the mixture, or it does not have this form.
        """
        del settings
        if task == self._mixture:
            raise ValueError(
                f"evaluate.tasks: the tasks of the mixture {task!r} have measures of their own; "
                f"name those to evaluate on, for all: {tuple(self._mixed)}"
            )
        benchmark = self._find(task)
        benchmark.check_objective(task, objective)
        return benchmark.measure(objective)

    def hidden_test(
        self,
        objective: str,
        *,
        task: str,
        choices: int = 0,
        folder: str = "",
        data_dir: str | None = None,
        **settings: Any,
    ) -> tuple[Submission, Sequence[str], list[BenchmarkRow]]:
        """Return the `Submission` of a task, its labels, and the rows of its hidden test set.

        Args:
            objective: the form of the rows.
            task: the name of the task.
            choices: the maximum number of choices of a labelled row.
            folder, data_dir: see `register`.

        Raises:
            ValueError: the task has no hidden test set, or not in this form; or its file is missing
                or bad.
        """
        del settings
        benchmark, as_text = self._find(task), objective in TEXT_TO_TEXT
        submission = choose("--submission: the task", task, self._submissions)
        benchmark.check_objective(task, objective)
        if submission.form == "text" and not as_text:
            raise ValueError(f"--submission: {task} is written only from generated text")
        name = self._tasks[task][0]
        if folder:
            path = raw_rows.file_of(benchmark.folder or name, submission.split, folder=folder)
            raws: Iterable[tuple[str, Mapping[str, Any]]] = reading.json_lines(path)
        else:
            split = submission.split
            raws = raw_rows.of_prepared(benchmark, task=name, part=split, data_dir=data_dir)
        rows = hidden_rows(benchmark, submission, raws, as_text=as_text, most=choices)
        return submission, benchmark.labels, list(rows)

    def _find(self, task: str) -> Benchmark:
        return choose("data.task", task, self._tasks)[1]

    def _columns(self, task: str, split: str, **settings: Any) -> TensorColumns:
        return columns(self._rows(task, split, **settings))

    def _rows(
        self,
        task: str,
        split: str,
        *,
        objective: str,
        most: int,
        folder: str,
        data_dir: str | None,
        splits: Mapping[str, str],
    ) -> Sequence[BenchmarkRow]:
        benchmark = self._find(task)
        benchmark.check_objective(task, objective)
        name = self._tasks[task][0]
        form = (split, objective in TEXT_TO_TEXT, most)
        if not folder:
            return _of_prepared(benchmark, name, splits[split], form, data_dir)
        path = raw_rows.file_of(benchmark.folder or name, splits[split], folder=folder)
        stat = tf.io.gfile.stat(path)
        return _of_file(benchmark, path, splits[split], form, (stat.mtime_nsec, stat.length))


# A run registers its tasks several times, but reads each only once. `form` is the split, which may
# filter rows, whether to make text-to-text rows, and the maximum number of choices of a row.
@functools.lru_cache(maxsize=64)
def _of_file(
    benchmark: Benchmark,
    path: str,
    part: str,
    form: tuple[str, bool, int],
    changed: tuple[int, int],
) -> Sequence[BenchmarkRow]:
    del changed
    rows = raw_rows.part_of(reading.json_lines(path), part)
    return _benchmark_rows(benchmark, rows, *form, where=f"{path} as {part!r}")


@functools.lru_cache(maxsize=64)
def _of_prepared(
    benchmark: Benchmark, name: str, part: str, form: tuple[str, bool, int], data_dir: str | None
) -> Sequence[BenchmarkRow]:
    rows = raw_rows.of_prepared(benchmark, task=name, part=part, data_dir=data_dir)
    chosen = raw_rows.part_of(rows, part)
    return _benchmark_rows(benchmark, chosen, *form, where=f"{benchmark.prepared} as {part!r}")


def _benchmark_rows(
    benchmark: Benchmark,
    raws: Iterable[tuple[str, Mapping[str, Any]]],
    split: str,
    as_text: bool,
    most: int,
    *,
    where: str,
) -> Sequence[BenchmarkRow]:
    rows: list[BenchmarkRow] = []
    for location, raw in raws:
        try:
            if benchmark.included and not benchmark.included(raw):
                continue
            if as_text:
                rows += benchmark.text_rows(raw, split=split)
            else:
                rows.append(benchmark.labelled_row(raw, most=most))
        except ValueError as error:
            labelled_text.fail(location, str(error))
    if not rows:
        labelled_text.fail(
            where,
            f"it has no row for the split {split!r}: name another file or part of one in "
            f"data.settings.splits.{split}",
        )
    return rows
