"""Your own labelled text for fine-tuning: JSON Lines, TSV, CSV, or SQuAD's JSON files.

    --config.data.module=data/labelled_files.py --config.data.task=labelled_files
    --config.data.objective=classification --config.data.settings.train=reviews.jsonl

| objective | fields of a row (settings rename them) | in TSV and CSV |
|---|---|---|
| classification | text_a, text_b (optional), label: a string or an integer | the same |
| pair_classification | as classification, with text_b | the same |
| regression | text_a, text_b (optional), value: a number | the same |
| tagging | words and tags: lists of strings, equally long | strings, separated by blanks |
| word_classification, word_tagging | as without word_, for ELMo | the same |
| knowledge_classification, knowledge_tagging | as without knowledge_, for K-BERT | the same |
| question_answering, knowledge_question_answering | question, context, answers | no |
| gpt_classification, gpt_similarity | as classification, the second with text_b | the same |
| gpt_regression | as regression, with text_b | the same |
| multiple_choice, gpt_multiple_choice | text_a, text_b (optional), choices, answer: 0, 1... | no |

`answer` may also be a list, with 1 for the right choice (a relevant candidate) and 0 for all
others.

With `group=FIELD` rows have the key of a group, a string or an integer, for metrics of groups
(MultiRC's questions).

`answers` are a list of strings, or of {"text", "answer_start"}, or {"text": [...], "answer_start":
[...]}; an empty list or null marks a question without an answer. Files of SQuAD 1.1 and 2.0 are
read as published. The first line of a .tsv or .csv names its columns; a .tsv has no quoting.

`train` and `validation` are paths; without `validation` a part of `train` is held out, chosen by
its text or, for questions, by the context (`sources.held_out`).

Classes and tags are numbered in the order of `labels`, or by default in the sorted order of all
labels in `train` (integers as numbers). Every row is checked before training, and kept in memory;
the error of a bad row names its file and line.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from t5x_like.names import hint
from t5x_like.preprocessing import labelled_text, sources
from t5x_like.preprocessing.labelled_text import LabelledRow
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import Columns, ColumnSource, columns
from t5x_like.vocabularies import Vocabulary


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    name: str = "labelled_files",
    **settings: Any,
) -> None:
    """Add the task `name`, with the splits "train" and "validation".

    Args:
        vocabulary: the vocabulary of the tokens, with an encoder's special tokens.
        objective: an objective of the table above.
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: another objective, or see `read`.
    """
    sources.check_settings(read, settings)
    found = read(objective.name, **settings)
    _check_choices(found, most=objective.converter_settings.get("rows", 0))
    splits = {split: found.columns(split) for split in found.rows}  # checks the labels
    sources.add_task(
        name,
        source=ColumnSource(splits.__getitem__, splits=sources.SPLITS),
        vocabulary=vocabulary,
        preprocessors=objective.cacheable,
        features=objective.features,
    )


def _check_choices(found: "Labelled", *, most: int) -> None:
    for row in (row for rows in found.rows.values() for row in rows if "choices" in row):
        if len(row["choices"]) > most:
            number = len(row["choices"])
            problem = f"it has {number} choices, and data.objective_settings.choices={most}"
            labelled_text.fail(row["where"], problem)


def documents(split: str, *, kind: str = "classification", **settings: Any) -> tf.data.Dataset:
    """Return the texts of a split, {"text": scalar string}, to train a vocabulary on.

    Args:
        split: "train" or "validation".
        kind: the name of the objective.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`.
    """
    sources.check_settings(read, settings)
    texts = []
    for row in read(kind, **settings).rows[split]:
        fields = ("text_a", "text_b", "question", "context")
        texts += [row[field] for field in fields if field in row]
        texts += row.get("choices", [])
        texts += [" ".join(row["words"])] if "words" in row else []
    return tf.data.Dataset.from_tensor_slices({"text": texts})


def labels(kind: str, *, name: str = "labelled_files", **settings: Any) -> tuple[str, ...]:
    """Return the names of classes or tags in the order of their numbers; empty without labels.

    Args:
        kind: the name of the objective.
        name: name of the task, see `register`; the labels do not depend on it.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`.
    """
    del name
    sources.check_settings(read, settings)
    return read(kind, **settings).labels


@dataclasses.dataclass(frozen=True)
class Labelled:
    """The checked rows of both splits.

    Attributes:
        rows: {split: rows}.
        labels: names of the classes or tags.
    """

    rows: Mapping[str, Sequence[LabelledRow]]
    labels: tuple[str, ...]

    def columns(self, split: str) -> Columns:
        """Return the fields of a split's rows, [N] or [N, (M)], with numbers for labels."""
        return columns([self._numbered(row) for row in self.rows[split]])

    def _numbered(self, row: LabelledRow) -> dict[str, Any]:
        found = {name: value for name, value in row.items() if name != "where"}
        if "label" in found:
            found["label"] = self._number(row["label"], row)
        if "tags" in found:
            found["tags"] = [self._number(tag, row) for tag in row["tags"]]
        return found

    def _number(self, label: str, row: LabelledRow) -> int:
        if label not in self.labels:
            near = hint(label, self.labels)
            labelled_text.fail(row["where"], f"{label!r} is not a label.{near}")
        return self.labels.index(label)


def read(
    kind: str,
    *,
    train: str,
    validation: str = "",
    held_out: float = 0.1,
    labels: Sequence[str | int] = (),
    text_a: str = "text_a",
    text_b: str = "",
    label: str = "label",
    value: str = "value",
    words: str = "words",
    tags: str = "tags",
    question: str = "question",
    context: str = "context",
    answers: str = "answers",
    choices: str = "choices",
    answer: str = "answer",
    group: str = "",
) -> Labelled:
    """Read and check the rows of both splits.

    Args:
        kind: the name of the objective.
        train, validation: paths; without the second a part of the first is held out.
        held_out: the share to hold out, from 0 to 1.
        labels: names of the classes or tags in order; empty for all of `train`, sorted.
        text_a, text_b, label, value, words, tags, question, context, answers, choices, answer: the
            fields' names in the files. Without `text_b`, rows are pairs if the first row has a
            field "text_b".
        group: the field with the key of a row's group; "" for no groups.

    Raises:
        ValueError: no such kind, file or field (the message has the nearest), a bad row, or no
            rows.
    """
    given = dict(locals())
    if not 0 <= held_out <= 1:
        raise ValueError(f"held_out={held_out!r} must be from 0 to 1.")
    known = labelled_text.read(_find("train", train), kind=kind, names=given)
    if validation:
        others = labelled_text.read(_find("validation", validation), kind=kind, names=given)
        rows = {"train": known, "validation": others}
    else:
        keys = [_held_out_by(row) for row in known]
        chosen = sources.held_out(tf.constant(keys, tf.string), fraction=held_out).numpy()
        pairs = list(zip(known, chosen, strict=True))
        rows = {
            split: tuple(row for row, is_held_out in pairs if is_held_out == wanted)
            for split, wanted in (("train", False), ("validation", True))
        }
    for split, found in rows.items():
        if not found:
            raise ValueError(f"{given[split] or train} has no row for the split {split!r}.")
    own = next((field for field in ("label", "tags") if field in known[0]), None)
    order = tuple(map(str, labels)) if own else ()
    return Labelled(rows, order or _sorted_labels(known, own))


def _sorted_labels(rows: Sequence[LabelledRow], field: str | None) -> tuple[str, ...]:
    found = {label for row in rows for label in _as_list(row[field])} if field else set()
    whole = all(label.lstrip("-").isdecimal() for label in found)
    return tuple(sorted(found, key=int if whole else str))


def _held_out_by(row: LabelledRow) -> str:
    return " ".join(_as_list(row.get("context", row.get("text_a", row.get("words")))))


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _find(setting: str, path: str) -> str:
    path = os.path.expanduser(path)
    if not path:
        raise ValueError(f"data.settings.{setting} is not set: give a file of labelled text.")
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        folder = os.path.dirname(path) or "."
        there = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        files = [one for one in there if one.endswith(labelled_text.ENDINGS)]
        near = hint(os.path.basename(path), files)
        raise ValueError(f"data.settings.{setting}={path!r} is not a file.{near}")
    return path
