r"""Prompts in your own files, for a model that is trained with rewards on its responses.

    --config.data.module=data/prompt_files.py --config.data.task=prompt_files
    --config.data.settings.prompts=prompts.jsonl --config.data.objective=prompts

A line of `prompts` is a JSON object whose field `prompt` (set another with `field`) has a string,
or a conversation: a list of messages {"role", "content"} that is written by `template`, as in
data/preference_files.py. Answers at its end are removed, and other fields ignored, so that files of
demonstrations and comparisons can be used.

With `data.objective_settings.pretraining_rows` R above 0 (PPO-ptx) each prompt gets R texts from
the lines of `pretraining`: JSON objects with a string in `text`, or plain lines of a .txt file. The
texts are assigned in a random order, starting again from the first when all are used; a prompt
always keeps the same texts.

For validation the share `held_out` of the prompts is held out. All lines are read at the start and
kept in memory; an error names the file and the line.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t5x_like import reading
from t5x_like.names import hint
from t5x_like.preprocessing import sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import row_source
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.chat import ChatTemplate, check_turns, find_template

Row = dict[str, Any]  # inputs, and with pretraining rows a list of texts, pretraining


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    name: str = "prompt_files",
    **settings: Any,
) -> None:
    """Add the task `name`, with the splits "train" and "validation".

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: `prompts`.
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`; or another objective.
    """
    sources.check_settings(read, settings)
    if objective.name != "prompts":
        raise ValueError(f"data.objective={objective.name!r}: data/prompt_files.py has 'prompts'")
    rows = read(objective.converter_settings["pretraining_rows"], **settings)
    sources.add_task(
        name,
        source=row_source(rows),
        vocabulary=vocabulary,
        preprocessors=objective.cacheable,
        features=objective.features,
    )


def documents(split: str, **settings: Any) -> tf.data.Dataset:
    """Return each prompt of a split and its pretraining texts, {"text": scalar string}."""
    sources.check_settings(read, settings)
    rows = read(1 if settings.get("pretraining") else 0, **settings)[split]
    texts = [text for row in rows for text in (row["inputs"], *row.get("pretraining", ()))]
    return tf.data.Dataset.from_tensor_slices({"text": tf.constant(texts, tf.string)})


def read(
    pretraining_rows: int = 0,
    /,
    *,
    prompts: str = "",
    field: str = "prompt",
    pretraining: str = "",
    held_out: float = 0.05,
    template: str | dict = "plain",
) -> dict[str, list[Row]]:
    """Read the rows of both splits.

    Args:
        pretraining_rows: the number of texts beside each prompt.
        prompts, field: the file, and the field of its lines.
        pretraining: the file of the texts.
        held_out: the share of the prompts for validation.
        template: how the turns of a conversation are written, see `vocabularies.chat`.

    Raises:
        ValueError: a setting is missing, or a file or line cannot be read.
    """
    if not 0 <= held_out < 1:
        raise ValueError(f"data.settings.held_out={held_out} must be a share from 0 to below 1")
    chat = find_template(template)
    found = _texts("prompts", prompts, lambda row: _prompt(row, field, chat))
    rows: list[Row] = [{"inputs": prompt} for prompt in found]
    if pretraining_rows:
        texts = _texts("pretraining", pretraining, lambda row: _string(row, "text"))
        order = np.random.default_rng(0).permutation(len(texts))
        for row, numbers in zip(rows, np.resize(order, (len(rows), pretraining_rows)), strict=True):
            row["pretraining"] = [texts[n] for n in numbers]
    apart = sources.held_out(tf.constant(found), fraction=held_out).numpy()
    pairs = list(zip(rows, apart, strict=True))
    return {
        "train": [row for row, out in pairs if not out],
        "validation": [row for row, out in pairs if out],
    }


def _texts(setting: str, path: str, read_row: Callable[[Row], str]) -> Sequence[str]:
    """Return the texts of a file: its lines (.txt), or `read_row` of each JSON line."""
    if not path:
        raise ValueError(f"data.settings.{setting} is not set: a file (data/prompt_files.py)")
    path = os.path.expanduser(path)
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise ValueError(f"data.settings.{setting}={path!r} is not a file")
    if reading.uncompressed(path).endswith(".txt"):
        found = [line for _, line in reading.numbered(path)]
    else:
        found = [_read(where, row, read_row) for where, row in reading.json_lines(path)]
    if not found:
        raise ValueError(f"data.settings.{setting}={path!r} has no lines")
    return found


def _read(where: str, row: Row, read_row: Callable[[Row], str]) -> str:
    try:
        return read_row(row)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _string(row: Row, field: str) -> str:
    if field not in row:
        raise ValueError(f"there is no {field!r}.{hint(field, row)}")
    if not isinstance(row[field], str):
        raise ValueError(f"{field}={row[field]!r:.80} is not a string")
    return row[field]


def _prompt(row: Row, field: str, chat: ChatTemplate) -> str:
    """Return a prompt: a string as it is, or a conversation up to the answer to sample."""
    if not isinstance(row.get(field), list):
        return _string(row, field)
    turns = list(check_turns(row[field]))
    while turns and turns[-1]["role"] == "assistant":
        del turns[-1]
    if not turns:
        raise ValueError(f"{field} has only answers of the assistant: there is nothing to answer")
    return chat.prompt(turns)
