"""Rows of hidden test sets, and the format of the predictions that a benchmark's server expects."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from t5x_like.preprocessing.benchmark_tasks.benchmark import Benchmark, Row
from t5x_like.preprocessing.benchmark_tasks.raw_fields import Raw, value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """The official file of a task's predictions.

    Attributes:
        file: its name; .tsv has the columns index and prediction, .jsonl lines with idx and label.
        form: the form of a prediction: the `number` or the `name` of a label, the name in `lower`
            case, a `value` (a number), `text`, `referent` (the number of WSC's label, derived from
            a text) or `referent_name`.
        split: the name of the file with the test rows.
        index: the field with the row's index.
        stand_ins: {a field that the rows lack: the field whose first item replaces it}.
    """

    file: str
    form: str
    split: str = "test"
    index: str = "idx"
    stand_ins: Mapping[str, str] = dataclasses.field(default_factory=dict)


def hidden_rows(
    benchmark: Benchmark,
    submission: Submission,
    raws: Iterable[tuple[str, Raw]],
    *,
    as_text: bool,
    most: int,
) -> Iterator[Row]:
    """Yield the rows of a test set without labels, with `index`, in one of the task's forms.

    Rows get the label 0 if their form has a label: only the fields that a model reads are used.

    Args:
        raws: (location, for messages; row).
        as_text: whether to use the text-to-text form rather than the labelled form.
        most: the maximum number of choices of a labelled row.

    Raises:
        ValueError: a row has another schema; the message begins with its location.
    """
    for place, raw in raws:
        try:
            found = {name: value(raw, other)[:1] for name, other in submission.stand_ins.items()}
            filled = {**raw, **({benchmark.label: 0} if not found else {}), **found}
            if as_text:
                [row, *_] = benchmark.text_rows(filled, split="validation")
            else:
                row = benchmark.labelled_row(filled, most=most)
            yield {**row, "index": value(raw, submission.index)}
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
