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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t5x_like import reading
from t5x_like.grain_pipeline.corpus import Corpus, in_memory, is_held_out
from t5x_like.names import check_settings, hint
from t5x_like.objectives import AnyObjective
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.chat import ChatTemplate, check_turns, find_template

if TYPE_CHECKING:
    from t5x_like.preprocessing.seqio_objectives import SeqioObjective

Row = dict[str, Any]  # inputs, and with pretraining rows a list of texts, pretraining


def corpora(
    *, objective: AnyObjective | None = None, name: str = "prompt_files", **settings: Any
) -> dict[str, Corpus]:
    """Return {name: the rows of both splits}.

    Args:
        objective: `prompts`; None to read only texts.
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`; or another objective.
    """
    check_settings("data.settings", read, settings, given=["pretraining_rows"])
    number = 1 if settings.get("pretraining") else 0
    if objective:
        if objective.name != "prompts":
            raise ValueError(
                f"data.objective={objective.name!r}: data/prompt_files.py has 'prompts'"
            )
        number = objective.converter_settings["pretraining_rows"]
    files = dict.fromkeys(("train", "validation"), settings.get("prompts", ""))
    return {name: in_memory(read(number, **settings), files=files)}


def register(vocabulary: Vocabulary, objective: "SeqioObjective", **settings: Any) -> None:
    """Add the task `name` to seqio, with the splits "train" and "validation"; see `corpora`."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    made = corpora(objective=objective.plain, **settings)
    sources.add_corpora(made, vocabulary=vocabulary, objective=objective)


def documents(split: str, **settings: Any) -> Any:
    """Return the prompts and pretraining texts of a split, a dataset of {"text": string}."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    return sources.texts_of(corpora(**settings), split)


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
    pairs = [(row, is_held_out(row["inputs"], fraction=held_out)) for row in rows]
    return {
        "train": [row for row, out in pairs if not out],
        "validation": [row for row, out in pairs if out],
    }


def _texts(setting: str, path: str, read_row: Callable[[Row], str]) -> Sequence[str]:
    """Return the texts of a file: its lines (.txt), or `read_row` of each JSON line."""
    if not path:
        raise ValueError(f"data.settings.{setting} is not set: a file (data/prompt_files.py)")
    endings = reading.with_endings([".jsonl", ".json", ".txt"])
    path = reading.existing_file(f"data.settings.{setting}", path, endings)
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
