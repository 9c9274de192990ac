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
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from t5x_like import reading
from t5x_like.names import hint
from t5x_like.preprocessing import sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import row_source
from t5x_like.vocabularies import Vocabulary

Row = dict[str, Any]  # inputs, targets, maybe answers and choices, other strings

_LISTS = ("answers", "choices")


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    name: str = "prompted_files",
    **settings: Any,
) -> None:
    """Add the task `name`, with the splits "train" and "validation".

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: turns pairs into examples: text_to_text.
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`.
    """
    sources.check_settings(read, settings)
    sources.add_task(
        name,
        source=row_source(read(**settings)),
        vocabulary=vocabulary,
        preprocessors=objective.cacheable,
        features=objective.features,
    )


def documents(split: str, **settings: Any) -> tf.data.Dataset:
    """Return the inputs and targets of a split, one after the other, {"text": scalar string}."""
    sources.check_settings(read, settings)
    rows = read(**settings)[split]
    texts = [row[field] for row in rows for field in ("inputs", "targets")]
    return tf.data.Dataset.from_tensor_slices({"text": tf.constant(texts, tf.string)})


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
    path = os.path.expanduser(path)
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        folder = os.path.dirname(path) or "."
        there = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        endings = reading.with_endings([".jsonl"])
        near = hint(os.path.basename(path), [one for one in there if one.endswith(endings)])
        raise ValueError(f"data.settings.{setting}={path!r} is not a file.{near}")
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
