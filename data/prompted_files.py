r"""Tasks for prompts: JSON Lines with inputs, the right answer, and optionally choices.

    --config.data.module=data/prompted_files.py --config.data.task=prompted_files
    --config.data.objective=text_to_text --config.data.settings.validation=questions.jsonl

| field | content | setting that renames it |
|---|---|---|
| inputs | string: the question, a passage, a sentence to be translated | inputs |
| targets | string: the right answer; or a list of all right answers | targets |
| choices | optional: a list of two or more strings, targets among them | choices |
| any other | a string or a whole number, for use in a template, or as the key of a group | |

    {"inputs": "Is grass green?", "targets": "yes", "choices": ["yes", "no"]}
    {"inputs": "Who wrote Emma?", "targets": ["Jane Austen", "Austen"]}

If there are several right answers (TriviaQA's aliases), measures use the best match in `answers`;
a model is trained on the first, `targets`.
The inputs of a Children's Book question are the passage, then the sentence with the blank XXXXX.
All rows have the same fields. The rows of `validation` are evaluated; the examples in a prompt are
sampled from `train`. Either may be empty, and both may be the same file. Every row is checked at
the start, and kept in memory; the error of a bad row names its file and line. A model can also be
trained on the rows.

`python -m data.filters.contamination` finds the rows of which the training text has a part, and
compares the model's score with its score without them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from t5x_like import reading
from t5x_like.grain_pipeline.corpus import Corpus, in_memory
from t5x_like.names import check_settings, hint
from t5x_like.vocabularies import Vocabulary

if TYPE_CHECKING:
    from t5x_like.preprocessing.seqio_objectives import SeqioObjective

Row = dict[str, Any]  # inputs, targets, maybe answers and choices, other strings

_LISTS = ("answers", "choices")


def corpora(*, name: str = "prompted_files", **settings: Any) -> dict[str, Corpus]:
    """Return {name: the rows of both splits}; an objective of pairs makes examples of them.

    Args:
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`.
    """
    check_settings("data.settings", read, settings)
    files = {split: settings.get(split, "") for split in ("train", "validation")}
    return {name: in_memory(read(**settings), files=files, texts=_texts)}


def register(vocabulary: Vocabulary, objective: "SeqioObjective", **settings: Any) -> None:
    """Add the task `name` to seqio, with the splits "train" and "validation"; see `corpora`."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    made = corpora(**settings)
    sources.add_corpora(made, vocabulary=vocabulary, objective=objective)


def documents(split: str, **settings: Any) -> Any:
    """Return the inputs and targets of a split as a tf.data dataset, {"text": string}."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    return sources.texts_of(corpora(**settings), split)


def _texts(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["inputs"], row["targets"]


def read(
    *,
    train: str = "",
    validation: str = "",
    inputs: str = "inputs",
    targets: str = "targets",
    choices: str = "choices",
) -> Mapping[str, Sequence[Row]]:
    """Read and check the rows of both splits.

    Args:
        train, validation: paths; "" for a split without rows.
        inputs, targets, choices: the fields' names in the files; rows have choices if the first row
            has them.

    Raises:
        ValueError: neither file is set, a file or field does not exist, or a row is bad.
    """
    if not train and not validation:
        raise ValueError("data.settings.validation is not set: give a .jsonl file of questions")
    names = {"inputs": inputs, "targets": targets, "choices": choices}
    files = {"train": train, "validation": validation}
    return {split: _rows(split, path, names) if path else () for split, path in files.items()}


def _rows(setting: str, path: str, names: Mapping[str, str]) -> list[Row]:
    path = reading.existing_file(f"data.settings.{setting}", path, reading.with_endings([".jsonl"]))
    rows: list[Row] = []
    for where, raw in reading.json_lines(path):
        row = _row(raw, names, where=where)
        if rows and row.keys() != rows[0].keys():
            own, first = ([*one.keys() - {"answers"}] for one in (row, rows[0]))
            _fail(where, f"the fields {sorted(own)} are not {sorted(first)}")
        rows.append(row)
    if all(row["answers"] == [row["targets"]] for row in rows):
        rows = [{name: row[name] for name in row if name != "answers"} for row in rows]
    return rows or _fail(path, "it has no rows")


def _row(raw: Mapping[str, Any], names: Mapping[str, str], *, where: str) -> Row:
    if not isinstance(raw.get(names["inputs"]), str):
        _fail(where, f"there is no string {names['inputs']!r}.{hint(names['inputs'], raw)}")
    answers = _answers(raw, names["targets"], where=where)
    others = {
        name: str(value)
        for name, value in raw.items()
        if name not in names.values() and isinstance(value, str | int) and name not in _LISTS
    }
    row = {
        **others,
        "inputs": raw[names["inputs"]],
        "targets": answers[0],
        "answers": answers,
    }
    choices = raw.get(names["choices"])
    if choices is None:
        return row
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        _fail(where, f"{names['choices']}={choices!r} is not a list of strings")
    if not set(answers) <= set(choices) or len(choices) < 2:
        wrong = next((one for one in answers if one not in choices), answers[0])
        _fail(where, f"{wrong!r} is not one of two or more choices: {choices}")
    return {**row, "choices": choices}


def _answers(raw: Mapping[str, Any], name: str, *, where: str) -> list[str]:
    """Return the right answers of a row, one or more."""
    value = raw.get(name)
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
        _fail(where, f"there is no string {name!r}, nor a list of strings.{hint(name, raw)}")
    return answers or _fail(where, f"the list {name!r} of right answers is empty")


def _fail(where: str, problem: str) -> NoReturn:
    raise ValueError(f"{where}: {problem}")
