r"""Annotated dialogs in JSON Lines, for LaMDA's fine-tuning (Thoppilan et al. 2022, section 6).

    --config.data.module=data/dialog_files.py --config.data.task=dialog_files
    --config.data.settings.train=dialogs.jsonl --config.data.settings.validation=held_out.jsonl

| field | content |
|---|---|
| context | a list of strings: the turns so far, by the user and the model in turn |
| response | string: the next turn |
| sensible, specific, interesting, unsafe | 0 or 1; missing or null if unknown |
| calls | optional: [{"query": string, "results": [string, ...]}, ...] of the toolset |
| grounded | with `calls`: the reply after them; `response` is then the base reply before them |

    {"context": ["How tall is it?"], "response": "Very.", "sensible": 1, "specific": 0, "unsafe": 0}

A dialog becomes rows of three parts (t5x_like/batches/dialog_rows.py), each a task NAME_PART, and
NAME is their mixture: `generation`, with a loss on the response; `ratings`, with a loss only on the
rating; `research`, with a loss on queries and on the reply, but not on results. One model learns
all parts. A response is a target of generation unless a rating excludes it (unsafe, not sensible,
or not specific) or it is a base reply. The mixture samples each part in proportion to its number of
rows, or at the `rates` of a config.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import tensorflow as tf

from t5x_like import reading
from t5x_like.batches import dialog_rows
from t5x_like.batches.dialog_rows import ATTRIBUTES, RATINGS, Call
from t5x_like.names import choose, hint
from t5x_like.preprocessing import mixtures, seqio_objectives, sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import ColumnSource, TensorColumns, columns
from t5x_like.vocabularies import Vocabulary

Dialog: TypeAlias = "Mapping[str, Any]"  # with the fields above
Row: TypeAlias = "dict[str, str]"  # inputs, targets

PARTS = ("generation", "ratings", "research")
_FIELDS = ("context", "response", *ATTRIBUTES, "calls", "grounded")
_RESPONSES = ("good", "all")
_NONE: TensorColumns = {name: tf.constant([], tf.string) for name in ("inputs", "targets")}


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    train: str = "",
    validation: str = "",
    name: str = "dialog_files",
    parts: Sequence[str] = PARTS,
    responses: str = "good",
    rates: Mapping[str, float] | None = None,
) -> None:
    """Add a task for each part, and their mixture.

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: text_to_text, with end_inputs=False.
        train, validation: paths; "" for a split without rows.
        name: name of the mixture.
        parts: the parts to train on, among `PARTS`.
        responses: "good", or "all" to generate responses whatever their ratings.
        rates: rates of parts in the mixture; None for their numbers of rows.

    Raises:
        ValueError: a setting is wrong, a file is missing or bad, or a rating is not a single token.
    """
    files = {"train": train, "validation": validation}
    if not any(files.values()):
        raise ValueError("data.settings.train is not set: give a .jsonl file of dialogs")
    found = {split: read(split, path) if path else [] for split, path in files.items()}
    add_tasks(
        name, found, vocabulary, objective, parts=parts, responses=responses, rates=rates or {}
    )


def documents(split: str, *, train: str = "", validation: str = "") -> tf.data.Dataset:
    """Return the rows of a split as texts, {"text": scalar string}."""
    path = {"train": train, "validation": validation}[split]
    parts = rows_of(read(split, path) if path else [], responses="all")
    texts = [row["inputs"] + row["targets"] for rows in parts.values() for row in rows]
    return tf.data.Dataset.from_tensor_slices({"text": tf.constant(texts, tf.string)})


def add_tasks(
    name: str,
    dialogs: Mapping[str, Sequence[Dialog]],
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    parts: Sequence[str],
    responses: str,
    rates: Mapping[str, float],
) -> None:
    """Add the tasks NAME_PART of some dialogs, and their mixture NAME; see `register`.

    Args:
        dialogs: {split: dialogs}.

    Raises:
        ValueError: see `register`.
    """
    if objective.name != "text_to_text" or objective.ends_inputs:
        raise ValueError(
            f"data.objective={objective.name!r} with end_inputs={objective.ends_inputs}: dialogs "
            "need text_to_text with data.objective_settings.end_inputs=False, where a response "
            "continues its context"
        )
    choose("data.settings.responses", responses, dict.fromkeys(_RESPONSES))
    for part in (*parts, *rates):
        choose("data.settings.parts", part, dict.fromkeys(PARTS))
    dialog_rows.rating_ids(vocabulary)
    rows = {split: rows_of(own, responses=responses) for split, own in dialogs.items()}
    there = [part for part in parts if rows["train"][part] or rows["validation"][part]]
    if not there:
        raise ValueError(f"data.settings.parts={tuple(parts)!r}: the dialogs have no such rows")
    # A rating is one token, and nothing else may have a loss.
    alone = seqio_objectives.build("text_to_text", end_inputs=False, end_targets=False)
    for part in there:
        own = {split: columns(of[part]) if of[part] else _NONE for split, of in rows.items()}
        sources.add_task(
            f"{name}_{part}",
            source=ColumnSource(own.__getitem__, splits=sources.SPLITS),
            vocabulary=vocabulary,
            preprocessors=(alone if part == "ratings" else objective).cacheable,
            features=objective.features,
        )
    tasks = {f"{name}_{part}": rates.get(part, len(rows["train"][part])) for part in there}
    mixtures.mixture(name, list(tasks), rate={task: float(rate) for task, rate in tasks.items()})


def rows_of(dialogs: Sequence[Dialog], *, responses: str) -> dict[str, list[Row]]:
    """Return {part: rows} of some dialogs, see the top of this file."""
    found: dict[str, list[Row]] = {part: [] for part in PARTS}
    for dialog in dialogs:
        # A base reply was written by the model itself: it is not a response to learn.
        if not dialog.get("grounded") and (responses == "all" or is_good(dialog)):
            prompt = dialog_rows.response_prompt(dialog["context"])
            found["generation"].append(_row(prompt, dialog["response"]))
        for name in ATTRIBUTES:
            if dialog.get(name) is not None:
                prompt = dialog_rows.rating_prompt(dialog["context"], dialog["response"], name)
                found["ratings"].append(_row(prompt, str(dialog[name])))
        if dialog.get("grounded"):
            found["research"] += _research(dialog)
    return found


def is_good(dialog: Dialog) -> bool:
    """Return whether no rating of a response excludes it from generation."""
    right = {"sensible": 1, "specific": 1, "unsafe": 0}
    return all(dialog.get(name) in (None, value) for name, value in right.items())


def _research(dialog: Dialog) -> list[Row]:
    calls = [Call(one["query"], one["results"]) for one in dialog["calls"]]
    written = [dialog_rows.query_text(call.query) for call in calls]
    written.append(dialog_rows.reply_text(dialog["grounded"]))
    prompts = [
        dialog_rows.research_prompt(dialog["context"], dialog["response"], calls[:done])
        for done in range(len(written))
    ]
    return [_row(*pair) for pair in zip(prompts, written, strict=True)]


def _row(prompt: str, text: str) -> Row:
    return {"inputs": prompt, "targets": dialog_rows.target(text)}


def read(split: str, path: str) -> list[Dialog]:
    """Read and check the dialogs of a file.

    Args:
        split: the setting that names the file.
        path: path of the file.

    Raises:
        ValueError: the file does not exist, or a line is bad; the message has file and line.
    """
    path = os.path.expanduser(path)
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        folder = os.path.dirname(path) or "."
        there = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        endings = reading.with_endings([".jsonl"])
        near = hint(os.path.basename(path), [one for one in there if one.endswith(endings)])
        raise ValueError(f"data.settings.{split}={path!r} is not a file.{near}")
    found = [_dialog(raw, where=where) for where, raw in reading.json_lines(path)]
    return found or _fail(path, "it has no dialogs")


def _dialog(raw: Mapping[str, Any], *, where: str) -> Dialog:
    if not raw.get("context") or not _are_strings(raw["context"]):
        _fail(where, f"context={raw.get('context')!r:.80} is not a list of turns")
    if not isinstance(raw.get("response"), str):
        _fail(where, f"there is no string 'response'.{hint('response', raw)}")
    for name in ATTRIBUTES:
        if raw.get(name) not in (None, *RATINGS):
            _fail(where, f"{name}={raw[name]!r} must be 0 or 1")
    calls, grounded = raw.get("calls") or [], raw.get("grounded")
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        _fail(where, "calls must be a list of objects with a string query and a list of results")
    if calls and not isinstance(grounded, str):
        _fail(where, "there are calls, but no string 'grounded', the reply after them")
    return {"calls": [], **{name: raw[name] for name in _FIELDS if raw.get(name) is not None}}


def _is_call(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("query"), str)
        and _are_strings(one.get("results"))
    )


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _fail(where: str, problem: str) -> NoReturn:
    raise ValueError(f"{where}: {problem}")
