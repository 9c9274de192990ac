"""A task of a benchmark: its fields, its text-to-text and labelled forms, and its metrics."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from t5x_like.names import hint
from t5x_like.preprocessing import labelled_text
from t5x_like.preprocessing.benchmark_tasks import raw_fields
from t5x_like.preprocessing.benchmark_tasks.raw_fields import Change, Raw

Row = dict[str, Any]

# The objectives that read each labelled form.
OBJECTIVES = {
    "classification": (
        "classification",
        "pair_classification",
        "gpt_classification",
        "gpt_similarity",
    ),
    "regression": ("regression", "gpt_regression"),
    "question_answering": ("question_answering",),
    "multiple_choice": ("multiple_choice", "gpt_multiple_choice"),
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
        kind: the labelled form, classification, regression, question_answering or
            multiple_choice; "" for a task that has only texts.
        text_a, text_b: templates of the texts in the labelled form; for questions, the question and
            its context.
        label: the field with the label or the number; for multiple choice, with the right choice as
            a label or a number from 0.
        labels: the names of the labels in the order of their numbers; `label` may have either.
        choices: the fields of the choices, or the field that has a list of them.
        candidates: the field with the texts that a language model chooses from by likelihood, if
            these are not the names of the labels or the choices.
        prepare: changes a raw row for both forms; raises ValueError if it is bad.
        for_text: turns a raw row into one or more raw rows for the text-to-text form.
        trained_on: which raw rows the text-to-text form is trained on; None for all.
        metrics: names in `evaluation.metrics`, for both forms.
        text_metrics: metrics of the text-to-text form, if they differ.
        positive: the label that is the positive class of a metric.
        group: a template of the key of a row's group, for metrics of groups.
        splits: {our split: file name}; "train[:90]" is the first 90 rows of "train", "train[90:]"
            the rest.
        test: the split with labels on which the papers test; "" if there is no such split.
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
    prepare: Change | None = None
    for_text: Callable[[Raw], Iterable[Raw]] | None = None
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
        own = (*TEXT_TO_TEXT, *OBJECTIVES.get(self.kind, ()))
        if objective not in own:
            raise ValueError(
                f"data.objective={objective!r} is no form of {task}.{hint(objective, own)}"
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

    def text_rows(self, raw: Raw, *, split: str) -> list[Row]:
        """Return rows of the text-to-text form: inputs, targets, maybe answers, choices, a group.

        Raises:
            ValueError: the raw row has another schema, or a bad value.
        """
        prepared = self._prepared(raw)
        if split == "train" and self.trained_on and not self.trained_on(prepared):
            return []
        return [self._text_row(one) for one in self._for_text(prepared)]

    def _for_text(self, raw: Raw) -> Iterable[Raw]:
        return self.for_text(raw) if self.for_text else [raw]

    def _text_row(self, raw: Raw) -> Row:
        row: Row = {
            "inputs": raw_fields.fill(self.inputs, raw),
            "targets": raw_fields.fill(self.targets, raw),
        }
        if self.answers:
            row["answers"] = raw_fields.texts(raw, self.answers)
        if self.candidates:
            row["choices"] = raw_fields.texts(raw, self.candidates)
        elif self.targets == _LABEL:
            row["choices"] = list(self.labels)
        elif self.targets == _CHOICE:
            row["choices"] = raw["all_choices"]
        return row | self._group(raw)

    def labelled_row(self, raw: Raw, *, most: int) -> Row:
        """Return the row of the labelled form, with the fields of `preprocessing.labelled_text`.

        Args:
            raw: a raw row.
            most: the maximum number of choices.

        Raises:
            ValueError: the raw row has another schema, a bad value or too many choices.
        """
        found = self._prepared(raw)
        if self.kind == "multiple_choice" and len(found["all_choices"]) > most:
            number = len(found["all_choices"])
            raise ValueError(f"it has {number} choices, and data.objective_settings.choices={most}")
        names = ("question", "context") if self.kind == "question_answering" else _TEXTS
        templates = zip(names, (self.text_a, self.text_b), strict=True)
        row: Row = {name: raw_fields.fill(own, found) for name, own in templates if own}
        if self.kind == "question_answering":
            row |= {"answers": raw_fields.value(found, self.answers), "id": found.get("id", "")}
        elif self.kind == "multiple_choice":
            row |= {"choices": found["all_choices"], "answer": found["right"]}
        else:
            name = "label" if self.kind == "classification" else "value"
            row[name] = raw_fields.value(found, "label" if self.labels else self.label)
        parse, fields = labelled_text.KINDS[self.kind]
        row = parse(row, {field: field for field in fields if field in row})
        if self.kind == "classification":
            row["label"] = self.labels.index(row["label"])
        return row | self._group(found)

    def _group(self, raw: Raw) -> Row:
        return {"group": raw_fields.key(self.group, raw)} if self.group else {}

    def _prepared(self, raw: Raw) -> Raw:
        """Add the name of its label and its choices to a raw row, and apply `prepare`."""
        if self.labels:
            raw = {**raw, "label": raw_fields.label(raw, self.label, self.labels)}
        if self.prepare:
            raw = self.prepare(raw)
        if not self.choices:
            return raw
        if isinstance(self.choices, str):
            choices = raw_fields.texts(raw, self.choices)
        else:
            choices = [raw_fields.text(raw, name) for name in self.choices]
        right = self._right(raw, choices)
        options = " ".join(f"({chr(ord('A') + n)}) {one}" for n, one in enumerate(choices))
        added = {"right": right, "choice": choices[right], "options": options}
        return {**raw, **added, "all_choices": choices}

    def _right(self, raw: Raw, choices: list[str]) -> int:
        if self.labels:
            right = self.labels.index(raw["label"])
        else:
            right = raw_fields.number(raw, self.label)
        if right not in range(len(choices)):
            own = raw_fields.value(raw, self.label)
            raise ValueError(f"{self.label}={own!r} is none of its {len(choices)} choices.")
        return right


_TEXTS = ("text_a", "text_b")
