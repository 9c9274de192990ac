r"""Count the questions of tasks that are in a training text, and measure a model without them.

    python -m data.filters.contamination --config=configs/pretrained.py:in_context \
        --config.initialize=gpt2 --config.data.settings.validation=test.jsonl \
        --input "corpus/*.jsonl.gz" --output report.json

Brown et al. 2020, section 4 and appendix C. A question overlaps if it shares N words in a row with
a document; N is the 5th percentile of the lengths of a task's questions in words, at least 8 and at
most 13. Case, punctuation and whitespace do not count. All strings of a row are the question: also
its answer and its choices.

The table has, for each task of the config and each of its measures that reads rows, what table C.1
of the paper has: N, the number of questions, of those that overlap and of those that do not, and
the score of each kind, with the change from the score of all to the score of the clean ones. The
paper suspects tasks whose clean score is more than 1 or 2% worse. A question of fewer than N words
never overlaps: `short` counts these. For generated tasks of short questions the paper has no lower
limit of N: --shortest=2 for its word scrambles.

Without a model (no `initialize`, `workdir` or --checkpoint) only questions are counted. The model
answers all questions, and then the ones of each kind again, with other examples in their prompts.

--input are JSON Lines with the documents in the field --text, which are streamed; separate several
patterns by commas. The N-grams of the questions are in memory, about 200 bytes for each of their
words.
"""

if __name__ == "__main__":
    from t5x_like.experiment import command_line

    SETTINGS = command_line.start(
        __doc__,
        several_processes=True,
        input=(None, "A,B: files or patterns of the text that the model was trained on"),
        text=("text", "the field with the text"),
        shortest=(8, "the least N"),
        checkpoint=(None, "a checkpoint, or a folder of them; best: the run's best one"),
        output=(None, "JSON file for the table"),
    )

import dataclasses
import fnmatch
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from data.filters import json_lines
from t5x_like import partitioning, vocabularies
from t5x_like.config import RunSettings, one_line_errors
from t5x_like.evaluation import measures, overlaps
from t5x_like.evaluation.measure import Measure, Row
from t5x_like.evaluation.overlaps import Overlaps
from t5x_like.evaluation.resources import MeasureResources, asked_rows
from t5x_like.experiment import command_line, completion, data_setup
from t5x_like.experiment.run import Part, Run
from t5x_like.pretrained.loading import from_source
from t5x_like.pretrained.weight_source import open_source

Numbers = Mapping[str, float]
_KINDS = ("all", "overlapping", "clean")
_HEAD = ("task", "N", "rows", "overlapping", "short", "number", *_KINDS, "change")


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """The questions of a task.

    Attributes:
        task: the name of the task.
        rows: its questions.
        score: measures a model on some of them; None without a model.
    """

    task: str
    rows: Sequence[Row]
    score: Callable[[Sequence[Row]], Numbers] | None = None


def main(settings: RunSettings) -> None:
    """Run the command; a mistake prints one line and exits with status 2."""
    partitioning.connect_processes()
    given = flags.FLAGS
    with one_line_errors():
        if not given.input:
            raise ValueError("--input is not set: name the files of the training text")
        if given.shortest < 1:
            raise ValueError(f"--shortest={given.shortest} must be 1 or more")
        if given.output:
            command_line.check_file("--output", given.output)
        files = json_lines.find("--input", given.input.split(","))
        has_model = settings.initialize or settings.workdir or given.checkpoint
        asked = list(_with_model(settings) if has_model else _without_model(settings))
        documents = _texts(files, given.text)
        rows = {number: one.rows for number, one in enumerate(asked)}
        found = overlaps.find(rows, documents, shortest=given.shortest)
        report = [_entry(one, found[number]) for number, one in enumerate(asked)]
        if jax.process_index() == 0:
            sys.stdout.writelines(f"{line}\n" for line in table(report))
            if given.output:
                command_line.write_json(given.output, report)


def _texts(files: Sequence[str], text: str) -> Iterator[str]:
    """Yield the texts of all documents."""
    is_empty = True
    for document in json_lines.documents(files, text=text):
        is_empty = False
        yield document.text
    if is_empty:
        raise ValueError(f"the {len(files)} files of --input have no documents")


def _without_model(settings: RunSettings) -> Iterator[Asked]:
    """Yield the questions of all tasks."""
    for part in Run(settings).parts:
        tasks = data_setup.tasks_of(part.data, vocabularies.load("bytes"))
        for place, task in part.evaluated.items():
            yield Asked(place, asked_rows(tasks, part, task, cleaned=False))


def _with_model(settings: RunSettings) -> Iterator[Asked]:
    """Yield the questions of all tasks for each measure that reads rows, with its scores."""
    run = completion.complete(Run(settings))
    mesh = partitioning.make_mesh(dataclasses.asdict(run.settings.mesh))
    path = completion.model_folder(run.settings, checkpoint=flags.FLAGS.checkpoint)
    source = open_source(path, whole=True)
    weights = run.settings.weights
    pretrained = from_source(source, mesh=mesh, param_dtype=weights, **run.settings.model)
    for part in run.phase_at(source.run.get("step", 0)).parts:
        resources = MeasureResources(pretrained.for_task(part.name), part, make=dict)
        for place, task in part.evaluated.items():
            for name, measure in _reading_rows(part, task).items():
                needed = dict(zip(measure.needs, resources.of(measure, task), strict=True))
                score = _scorer(name, measure, needed, resources)
                yield Asked(place, needed["rows"], score)


def _reading_rows(part: Part, task: str) -> dict[str, Measure]:
    found = {
        name: one
        for name, one in measures.of_part(part, data_task=task).items()
        if "rows" in one.needs
    }
    if not found:
        raise ValueError(
            f"evaluate.measures: no measure of data.task={task!r} reads rows: set one, such as "
            "in_context or generation"
        )
    return found


def _scorer(
    name: str, measure: Measure, needed: Mapping[str, Any], resources: MeasureResources
) -> Callable[[Sequence[Row]], Numbers]:
    def score(rows: Sequence[Row]) -> Numbers:
        with resources.layout():
            found, _ = measure.measure(*{**needed, "rows": rows}.values())
        return {
            f"{name}/{key}": float(value)
            for key, value in found.items()
            if any(fnmatch.fnmatchcase(key, pattern) for pattern in measure.directions())
        }

    return score


def _entry(asked: Asked, found: Overlaps) -> dict[str, Any]:
    """Return what the report has about a task, with {number: {kind of questions: its value}}."""
    is_of = (np.ones_like(found.overlapping), found.overlapping, ~found.overlapping)
    numbers: dict[str, dict[str, float | None]] = {}
    for kind, chosen in zip(_KINDS, is_of, strict=True):
        rows = list(itertools.compress(asked.rows, chosen))
        if asked.score and rows:
            for name, value in asked.score(rows).items():
                own = numbers.setdefault(name, dict.fromkeys(_KINDS))
                own[kind] = value if math.isfinite(value) else None
    return {
        "task": asked.task,
        "N": found.size,
        "rows": len(asked.rows),
        "overlapping": int(found.overlapping.sum()),
        "short": found.short,
        "numbers": numbers,
    }


def table(report: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table: a line for each number of each task."""
    lines: list[tuple[str, ...]] = [_HEAD]
    for entry in report:
        counts = [str(entry[name]) for name in _HEAD[:5]]
        for name, own in entry["numbers"].items() or [("", dict.fromkeys(_KINDS))]:
            whole, clean = own["all"], own["clean"]
            change = None if not whole or clean is None else (clean - whole) / whole
            values = ("-" if own[kind] is None else f"{own[kind]:.4f}" for kind in _KINDS)
            lines.append((*counts, name, *values, "-" if change is None else f"{change:+.1%}"))
    if not any(entry["numbers"] for entry in report):
        lines = [line[:5] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(map(str.ljust, line, widths)).rstrip()


if __name__ == "__main__":
    main(SETTINGS)
