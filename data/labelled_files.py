"""Your own labelled text for fine-tuning: JSON Lines, TSV, CSV, Parquet, SQuAD's or CoNLL's files.

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
| word_question_answering | as question_answering, for ELMo | no |
| gpt_classification, gpt_similarity | as classification, the second with text_b | the same |
| gpt_regression | as regression, with text_b | the same |
| multiple_choice, gpt_multiple_choice | text_a, text_b (optional), choices, answer: 0, 1... | no |
| candidates, for BigBird-ETC | as multiple_choice; text_a has a document in each line | no |
| long_answers, for BigBird-ETC | question, context, long_answers, short_answers | no |
| supporting_facts, for BigBird-ETC | question, context, answer, facts | no |

`answer` may also be a list, with 1 for the right choice (a relevant candidate) and 0 for all
others.

With `group=FIELD` rows have the key of a group, a string or an integer, for metrics of groups
(MultiRC's questions).

`answers` are a list of strings, or of {"text", "answer_start"}, or {"text": [...], "answer_start":
[...]}; an empty list or null marks a question without an answer. Files of SQuAD 1.1 and 2.0 are
read as published. The first line of a .tsv or .csv names its columns; a .tsv has no quoting. A
.parquet has the values of JSON Lines.

For supporting_facts `context` is a list of paragraphs, texts with the title in the first line and a
sentence in each other line, `answer` is a text, and `facts` is {"title": [...], "sent_id": [...]}
with the title of the paragraph and the number of the sentence, from 0, of each fact.

For long_answers `context` is the list of a page's paragraphs, and `long_answers` and
`short_answers` have a text for each annotator: "none", the numbers of words such as "3-6" or "3-6
8-9", counted from 0 over all paragraphs without the last, or for a short answer "yes" or "no".

For tagging, files of CoNLL-2003 (eng.train, eng.testa, eng.testb; train.txt, valid.txt, test.txt)
and others in its format (.conll) are read as published: a line has a word and its tags in columns,
the last of which is read, a blank line ends a sentence, and lines with -DOCSTART- are left out.

`train` and `validation` are paths; without `validation` a part of `train` is held out, chosen by
its text or, for questions, by the context (`sources.held_out`).

Classes and tags are numbered in the order of `labels`, or by default in the sorted order of all
labels in `train` (integers as numbers). Every row is checked before training, and kept in memory;
the error of a bad row names its file and line.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like import reading
from t5x_like.grain_pipeline.corpus import Corpus, in_memory, is_held_out
from t5x_like.names import check_settings, hint
from t5x_like.objectives import AnyObjective
from t5x_like.reading import labelled_text
from t5x_like.reading.labelled_text import LabelledRow
from t5x_like.vocabularies import Vocabulary

if TYPE_CHECKING:
    from t5x_like.preprocessing.seqio_objectives import SeqioObjective


def corpora(
    *,
    objective: AnyObjective | None = None,
    name: str = "labelled_files",
    kind: str = "classification",
    **settings: Any,
) -> dict[str, Corpus]:
    """Return {name: the rows of both splits}.

    Args:
        objective: an objective of the table above; None to read only texts.
        name: name of the task.
        kind: the name of the objective, without `objective`.
        settings: arguments of `read`.

    Raises:
        ValueError: another objective, or see `read`.
    """
    check_settings("data.settings", read, settings, given=["kind"])
    found = read(objective.name if objective else kind, **settings)
    if objective:
        _check_choices(found, most=objective.settings.get("choices", 0))
    rows = {split: found.numbered(split) for split in found.rows}  # checks the labels
    return {name: in_memory(rows, files=found.files, texts=_texts)}


def register(vocabulary: Vocabulary, objective: "SeqioObjective", **settings: Any) -> None:
    """Add the task `name` to seqio, with the splits "train" and "validation"; see `corpora`."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    made = corpora(objective=objective.plain, **settings)
    sources.add_corpora(made, vocabulary=vocabulary, objective=objective)


def documents(split: str, **settings: Any) -> Any:
    """Return the texts of a split as a tf.data dataset, {"text": string}."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    return sources.texts_of(corpora(**settings), split)


def _texts(row: Mapping[str, Any]) -> Iterator[str]:
    for name in ("text_a", "text_b", "question", "context"):
        yield from _as_list(row.get(name, []))
    yield from row.get("choices", ())
    if "words" in row:
        yield " ".join(row["words"])


def _check_choices(found: "Labelled", *, most: int) -> None:
    for row in (row for rows in found.rows.values() for row in rows if "choices" in row):
        if len(row["choices"]) > most:
            number = len(row["choices"])
            problem = f"it has {number} choices, and data.objective_settings.choices={most}"
            labelled_text.fail(row["where"], problem)


def labels(kind: str, *, name: str = "labelled_files", **settings: Any) -> tuple[str, ...]:
    """Return the names of classes or tags in the order of their numbers; empty without labels.

    Args:
        kind: the name of the objective.
        name: name of the task, see `corpora`; the labels do not depend on it.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`.
    """
    del name
    check_settings("data.settings", read, settings, given=["kind"])
    return read(kind, **settings).labels


@dataclasses.dataclass(frozen=True)
class Labelled:
    """The checked rows of both splits.

    Attributes:
        rows: {split: rows}.
        labels: names of the classes or tags.
        files: {split: its file}.
    """

    rows: Mapping[str, Sequence[LabelledRow]]
    labels: tuple[str, ...]
    files: Mapping[str, str]

    def numbered(self, split: str) -> list[dict[str, Any]]:
        """Return the rows of a split, with numbers for labels."""
        return [self._numbered(row) for row in self.rows[split]]

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
    facts: str = "facts",
    long_answers: str = "long_answers",
    short_answers: str = "short_answers",
    group: str = "",
) -> Labelled:
    """Read and check the rows of both splits.

    Args:
        kind: the name of the objective.
        train, validation: paths; without the second a part of the first is held out.
        held_out: the share to hold out, from 0 to 1.
        labels: names of the classes or tags in order; empty for all of `train`, sorted.
        text_a, text_b, label, value, words, tags, question, context, answers, choices, answer,
            facts, long_answers, short_answers: the fields' names in the files. Without `text_b`,
            rows are pairs if the first row has a field "text_b".
        group: the field with the key of a row's group; "" for no groups.

    Raises:
        ValueError: no such kind, file or field (the message has the nearest), a bad row, or no
            rows.
    """
    given = dict(locals())
    if not 0 <= held_out <= 1:
        raise ValueError(f"held_out={held_out!r} must be from 0 to 1.")
    files = {"train": _find("train", train)}
    files["validation"] = _find("validation", validation) if validation else files["train"]
    known = labelled_text.read(files["train"], kind=kind, names=given)
    rows = {"train": known}
    if validation:
        rows["validation"] = labelled_text.read(files["validation"], kind=kind, names=given)
    else:
        keys = [_held_out_by(row) for row in known]
        chosen = {key: is_held_out(key, fraction=held_out) for key in dict.fromkeys(keys)}
        rows = {
            split: tuple(row for row, key in zip(known, keys, strict=True) if chosen[key] == wanted)
            for split, wanted in (("train", False), ("validation", True))
        }
    for split, found in rows.items():
        if not found:
            raise ValueError(f"{given[split] or train} has no row for the split {split!r}.")
    own = next((field for field in ("label", "tags") if field in known[0]), None)
    order = tuple(map(str, labels)) if own else ()
    return Labelled(rows, order or _sorted_labels(known, own), files)


def _sorted_labels(rows: Sequence[LabelledRow], field: str | None) -> tuple[str, ...]:
    found = {label for row in rows for label in _as_list(row[field])} if field else set()
    whole = all(label.lstrip("-").isdecimal() for label in found)
    return tuple(sorted(found, key=int if whole else str))


def _held_out_by(row: LabelledRow) -> str:
    return " ".join(_as_list(row.get("context", row.get("text_a", row.get("words")))))


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _find(setting: str, path: str) -> str:
    if not path:
        raise ValueError(f"data.settings.{setting} is not set: give a file of labelled text.")
    return reading.existing_file(f"data.settings.{setting}", path, labelled_text.ENDINGS)
