"""A task of a benchmark: its fields, its text-to-text and labelled forms, and its metrics.

Also the rows of hidden test sets, and the predictions that a benchmark's server expects.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from t5x_like.names import hint
from t5x_like.reading import labelled_text

Raw = Mapping[str, Any]  # a row in the schema of its file
ChangeRow = Callable[[Raw], Raw]  # a raw row with changed or added fields

_FIELD = re.compile(r"\{([\w.]+)\}")


def value(raw: Raw, path: str) -> Any:
    """Return a field of a raw row; "idx.question" is the field "question" of the field "idx".

    Raises:
        ValueError: the row has no such field; the message has the nearest name.
    """
    field: Any = raw
    for name in path.split("."):
        if not isinstance(field, Mapping) or name not in field:
            names = field if isinstance(field, Mapping) else ()
            raise ValueError(f"there is no field {path!r}.{hint(name, names)}")
        field = field[name]
    return field


def text(raw: Raw, path: str) -> str:
    """Return a field that is a string.

    Raises:
        ValueError: the field is missing, or it is not a string.
    """
    field = value(raw, path)
    if not isinstance(field, str):
        raise ValueError(f"{path}={field!r:.80} must be a string.")
    return field


def number(raw: Raw, path: str) -> int:
    """Return a field that is a whole number.

    Raises:
        ValueError: the field is missing, or it is not a whole number.
    """
    field = value(raw, path)
    if not isinstance(field, int) or isinstance(field, bool):
        raise ValueError(f"{path}={field!r:.80} must be a whole number.")
    return field


def texts(raw: Raw, path: str) -> list[str]:
    """Return a field that is a list of one or more strings.

    Raises:
        ValueError: the field is missing, it is not such a list, or it is empty.
    """
    field = value(raw, path)
    if not isinstance(field, list) or not all(isinstance(element, str) for element in field):
        raise ValueError(f"{path}={field!r:.80} must be a list of strings.")
    if not field:
        raise ValueError(f"{path} is an empty list.")
    return field


def fill(template: str, raw: Raw) -> str:
    """Fill a template, "question: {question}", with the strings of a raw row.

    Raises:
        ValueError: see `text`.
    """
    return _FIELD.sub(lambda match: text(raw, match[1]), template)


def key(template: str, raw: Raw) -> str:
    """Fill a template with any fields of a raw row, such as strings and whole numbers.

    Raises:
        ValueError: see `value`.
    """
    return _FIELD.sub(lambda match: str(value(raw, match[1])), template)


def label(raw: Raw, path: str, labels: Sequence[str]) -> str:
    """Return the name of a row's label; the file has a name, a number from 0 or a boolean.

    Raises:
        ValueError: it is not a label, or is -1, which marks the rows of hidden test sets.
    """
    field = value(raw, path)
    if isinstance(field, bool):
        field = str(field)
    if isinstance(field, str) and field in labels:
        return field
    if isinstance(field, str) and field.lstrip("-").isdecimal():
        field = int(field)
    if isinstance(field, int) and 0 <= field < len(labels):
        return labels[field]
    if field in (-1, "", None):
        raise ValueError(
            f"{path}={field!r}: the row has no label, as in hidden test sets; such rows can "
            "only be predicted (infer)"
        )
    if isinstance(field, int):
        problem = f"{path}={field} is not a label: 0 to {len(labels) - 1} are {', '.join(labels)}"
        raise ValueError(problem)
    raise ValueError(f"{path}={field!r:.80} is not a label.{hint(str(field), labels)}")


BenchmarkRow = dict[str, Any]

# The objectives that read each labelled form.
LABELLED_OBJECTIVES = {
    "classification": (
        "classification",
        "pair_classification",
        "gpt_classification",
        "gpt_similarity",
    ),
    "regression": ("regression", "gpt_regression"),
    "question_answering": ("question_answering", "word_question_answering"),
    "multiple_choice": ("multiple_choice", "candidates", "gpt_multiple_choice"),
    "supporting_facts": ("supporting_facts",),
    "long_answers": ("long_answers",),
}
TEXT_TO_TEXT = ("text_to_text", "marked_text_to_text")
_LABEL, _CHOICE = "{label}", "{choice}"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Benchmark:
    """The definition of a task, one row in the table of a benchmark.

    Templates have fields of a raw row in braces. `{label}` is the name of the label, `{choice}` the
    right choice and `{options}` all of the choices, "(A) red (B) blue".

    Attributes:
        inputs, targets: templates of the text-to-text form.
        answers: the field with all right answers, if there may be several; "" for `targets`.
        kind: the labelled form, classification, regression, question_answering, multiple_choice,
            supporting_facts or long_answers; "" for a task that has only texts.
        text_a, text_b: templates of the texts in the labelled form; for questions, the question and
            its context; for supporting_facts and long_answers, the question, beside the other
            fields of `reading.labelled_text`.
        label: the field with the label or the number; for multiple choice, with the right choice as
            a label or a number from 0; for supporting_facts, with the facts.
        labels: the names of the labels in the order of their numbers; `label` may have either.
        choices: the fields of the choices, or the field with the list of all choices.
        candidates: the field with the texts that a language model chooses from by likelihood, if
            these are not the names of the labels or the choices.
        prepare: changes a raw row for both forms; raises ValueError if it is bad.
        for_text: turns a raw row into one or more raw rows for the text-to-text form.
        for_labels: changes a prepared row for the labelled form.
        included: which rows of the files the task has, in both forms; None for all.
        trained_on: which raw rows the text-to-text form is trained on; None for all.
        metrics: names in `evaluation.metrics`, for both forms.
        text_metrics: metrics of the text-to-text form, if they differ.
        positive: the label that is the positive class of a metric.
        group: a template of the key of a row's group, for metrics of groups.
        splits: {our split: file name}; "train[:90]" is the first 90 rows of "train", "train[90:]"
            the rest.
        test: the split with labels on which the papers test; "" for a task without such a split.
        folder: the task's folder within the user's folder; "" for the task's name.
        prepared: the data set of TensorFlow Datasets, with its config and version.
        from_prepared: turns a prepared row into one or more rows in the schema of the files.
    """

    inputs: str
    targets: str
    answers: str = ""
    kind: str = ""
    text_a: str = ""
    text_b: str = ""
    label: str = "label"
    labels: tuple[str, ...] = ()
    choices: tuple[str, ...] | str = ()
    candidates: str = ""
    prepare: ChangeRow | None = None
    for_text: Callable[[Raw], Iterable[Raw]] | None = None
    for_labels: ChangeRow | None = None
    included: Callable[[Raw], bool] | None = None
    trained_on: Callable[[Raw], bool] | None = None
    metrics: tuple[str, ...] = ("accuracy",)
    text_metrics: tuple[str, ...] = ()
    positive: str = ""
    group: str = ""
    splits: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train", "validation": "validation"}
    )
    test: str = ""
    folder: str = ""
    prepared: str = ""
    from_prepared: Callable[[Raw], Iterable[Raw]] | None = None

    def check_objective(self, task: str, objective: str) -> None:
        """Check that the task has the form that an objective reads.

        Raises:
            ValueError: it does not; the message names the objectives that fit.
        """
        fitting = (*TEXT_TO_TEXT, *LABELLED_OBJECTIVES.get(self.kind, ()))
        if objective not in fitting:
            raise ValueError(
                f"data.objective={objective!r} is not a form of {task}.{hint(objective, fitting)}"
            )

    def measure(self, objective: str) -> dict[str, Any]:
        """Return the kind and settings of the measure of one of the forms (`evaluate.measures`)."""
        if self.kind == "question_answering" and objective not in TEXT_TO_TEXT:
            return {"kind": "squad"}
        of_groups: dict[str, Any] = {"positive": self.positive} if self.positive else {}
        of_groups |= {"group": "group"} if self.group else {}
        if objective not in TEXT_TO_TEXT:
            return {"kind": "predictions", "metrics": self.metrics, **of_groups}
        metrics = self.text_metrics or self.metrics
        named = {"labels": self.labels} if self.targets == _LABEL and self.labels else {}
        return {"kind": "generation", "metrics": metrics, **named, **of_groups}

    def text_rows(self, raw: Raw, *, split: str) -> list[BenchmarkRow]:
        """Return rows of the text-to-text form: inputs, targets, maybe answers, choices, a group.

        Raises:
            ValueError: the raw row has another schema, or a bad value.
        """
        prepared = self._prepared(raw)
        if split == "train" and self.trained_on and not self.trained_on(prepared):
            return []
        return [self._text_row(variant) for variant in self._for_text(prepared)]

    def _for_text(self, raw: Raw) -> Iterable[Raw]:
        return self.for_text(raw) if self.for_text else [raw]

    def _text_row(self, raw: Raw) -> BenchmarkRow:
        row: BenchmarkRow = {
            "inputs": fill(self.inputs, raw),
            "targets": fill(self.targets, raw),
        }
        if self.answers:
            row["answers"] = texts(raw, self.answers)
        if self.candidates:
            row["choices"] = texts(raw, self.candidates)
        elif self.targets == _LABEL:
            row["choices"] = list(self.labels)
        elif self.targets == _CHOICE:
            row["choices"] = raw["all_choices"]
        return row | self._group(raw)

    def labelled_row(self, raw: Raw, *, most: int) -> BenchmarkRow:
        """Return the row of the labelled form, with the fields of `reading.labelled_text`.

        Args:
            raw: a raw row.
            most: the maximum number of choices.

        Raises:
            ValueError: the raw row has another schema, a bad value or too many choices.
        """
        prepared = self._prepared(raw)
        if self.for_labels:
            prepared = self.for_labels(prepared)
        if self.kind == "multiple_choice" and len(prepared["all_choices"]) > most:
            number = len(prepared["all_choices"])
            raise ValueError(f"it has {number} choices, and data.objective_settings.choices={most}")
        names = _QUESTION if self.kind in _OF_QUESTIONS else _TEXTS
        templates = zip(names, (self.text_a, self.text_b), strict=True)
        row: BenchmarkRow = {
            name: fill(template, prepared) for name, template in templates if template
        }
        if self.kind == "question_answering":
            row |= {"answers": value(prepared, self.answers), "id": prepared.get("id", "")}
        elif self.kind == "supporting_facts":
            row |= {name: value(prepared, name) for name in ("context", "answer")}
            row["facts"] = value(prepared, self.label)
        elif self.kind == "long_answers":
            answers = ("context", "long_answers", "short_answers")
            row |= {name: value(prepared, name) for name in answers}
        elif self.kind == "multiple_choice":
            row |= {"choices": prepared["all_choices"], "answer": prepared["right"]}
        else:
            name = "label" if self.kind == "classification" else "value"
            row[name] = value(prepared, "label" if self.labels else self.label)
        parse, fields = labelled_text.KINDS[self.kind]
        row = parse(row, {field: field for field in fields if field in row})
        if self.kind == "classification":
            row["label"] = self.labels.index(row["label"])
        return row | self._group(prepared)

    def _group(self, raw: Raw) -> BenchmarkRow:
        return {"group": key(self.group, raw)} if self.group else {}

    def _prepared(self, raw: Raw) -> Raw:
        """Apply `prepare` to a raw row, and add the name of its label and its choices."""
        if self.prepare:
            raw = self.prepare(raw)
        if self.labels:
            raw = {**raw, "label": label(raw, self.label, self.labels)}
        if not self.choices:
            return raw
        if isinstance(self.choices, str):
            choices = texts(raw, self.choices)
        else:
            choices = [text(raw, name) for name in self.choices]
        right = self._right(raw, choices)
        options = " ".join(f"({chr(ord('A') + n)}) {choice}" for n, choice in enumerate(choices))
        added = {"right": right, "choice": choices[right], "options": options}
        return {**raw, **added, "all_choices": choices}

    def _right(self, raw: Raw, choices: list[str]) -> int:
        right = self.labels.index(raw["label"]) if self.labels else number(raw, self.label)
        if right not in range(len(choices)):
            label = value(raw, self.label)
            raise ValueError(f"{self.label}={label!r} is not one of its {len(choices)} choices.")
        return right


_TEXTS, _QUESTION = ("text_a", "text_b"), ("question", "context")
_OF_QUESTIONS = ("question_answering", "supporting_facts", "long_answers")


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
) -> Iterator[BenchmarkRow]:
    """Yield the rows of a test set without labels, with `index`, in one of the task's forms.

    Rows get the label 0 if their form has a label: only the fields that a model reads are used.

    Args:
        raws: (location, for messages; row).
        as_text: whether to use the text-to-text form rather than the labelled form.
        most: the maximum number of choices of a labelled row.

    Raises:
        ValueError: a row has another schema; the message begins with its location.
    """
    for where, raw in raws:
        try:
            stand_ins = {
                name: value(raw, other)[:1] for name, other in submission.stand_ins.items()
            }
            filled = {**raw, **({benchmark.label: 0} if not stand_ins else {}), **stand_ins}
            if as_text:
                [row, *_] = benchmark.text_rows(filled, split="validation")
            else:
                row = benchmark.labelled_row(filled, most=most)
            yield {**row, "index": value(raw, submission.index)}
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
