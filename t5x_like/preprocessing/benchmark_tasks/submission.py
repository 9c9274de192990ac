"""The rows of hidden test sets, and how a benchmark's server wants the predictions for them."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from t5x_like.preprocessing.benchmark_tasks.benchmark import Benchmark, Row
from t5x_like.preprocessing.benchmark_tasks.raw_fields import Raw, value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """The official file of a task's predictions.

    Attributes:
        file: its name; .tsv has the columns index and prediction, .jsonl lines with idx and label.
        form: what a prediction is: the `number` or the `name` of a label, the name in `lower` case,
            a `value` (a number), `text`, `referent` (a number of the label of WSC, from a text) or
            `referent_name`.
        split: the file of the test rows.
        index: the field with the row's index.
        stand_ins: fields that the rows lack -> the field whose first item stands in their place.
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
    """The rows of a test set without labels, with `index`, in one of the task's forms.

    A label of 0 stands where the form has one: only what a model reads of the row is used.

    Args:
        raws: the rows with their place, for messages.
        as_text: text to text, or labelled.
        most: the most choices of a labelled row.

    Raises:
        ValueError: a row has another schema; the message begins with its place.
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
