r"""Judgements in your own files: whether a response violates a rule, for a rule model.

    --config.data.module=data/rule_files.py --config.data.task=rule_files
    --config.data.settings.train=judgements.jsonl --config.data.objective=judgements

A line of a .jsonl file has a prompt, a response, a rule in words, and whether the response violates
it (Glaese et al. 2022, Sparrow): true or false, 1 or 0.

    {"prompt": "A pet?", "response": " A dog.", "rule": "Name no dogs.", "violates": true}

The lines of `validation` are for evaluation; without it, the share `held_out` of the prompts is.
All lines are checked at the start and kept in memory; an error names the file and the line.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like import reading
from t5x_like.grain_pipeline.corpus import Corpus, in_memory, is_held_out
from t5x_like.names import check_settings, hint
from t5x_like.objectives import AnyObjective
from t5x_like.vocabularies import Vocabulary

if TYPE_CHECKING:
    from t5x_like.preprocessing.seqio_objectives import SeqioObjective

Row = dict[str, Any]  # prompt, response, rule: strings; violates: 0 or 1

_TEXTS = ("prompt", "response", "rule")


def corpora(
    *, objective: AnyObjective | None = None, name: str = "rule_files", **settings: Any
) -> dict[str, Corpus]:
    """Return {name: the rows of both splits}.

    Args:
        objective: `judgements`; None to read only texts.
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`; or another objective.
    """
    check_settings("data.settings", read, settings)
    if objective and objective.name != "judgements":
        raise ValueError(f"data.objective={objective.name!r}: data/rule_files.py has 'judgements'")
    files = {"train": settings.get("train", "")}
    files["validation"] = settings.get("validation") or files["train"]
    return {name: in_memory(read(**settings), files=files)}


def register(vocabulary: Vocabulary, objective: "SeqioObjective", **settings: Any) -> None:
    """Add the task `name` to seqio, with the splits "train" and "validation"; see `corpora`."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    made = corpora(objective=objective.plain, **settings)
    sources.add_corpora(made, vocabulary=vocabulary, objective=objective)


def documents(split: str, **settings: Any) -> Any:
    """Return the texts of a split as a tf.data dataset, {"text": string}."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    return sources.texts_of(corpora(**settings), split)


def read(
    *, train: str = "", validation: str = "", held_out: float = 0.05
) -> dict[str, Sequence[Row]]:
    """Read and check the rows of both splits.

    Args:
        train, validation: paths; "" for a split without lines.
        held_out: the share of the prompts of `train` for validation, if `validation` is not set.

    Raises:
        ValueError: neither file is set, a file does not exist, or a line is bad.
    """
    if not train and not validation:
        raise ValueError("data.settings.train is not set: give a .jsonl file (data/rule_files.py)")
    if not 0 <= held_out < 1:
        raise ValueError(f"data.settings.held_out={held_out} must be a share from 0 to below 1")
    files = {"train": train, "validation": validation}
    rows = {split: _rows(split, path) if path else [] for split, path in files.items()}
    if validation or not held_out:
        return dict(rows)
    pairs = [(row, is_held_out(row["prompt"], fraction=held_out)) for row in rows["train"]]
    return {
        "train": [row for row, out in pairs if not out],
        "validation": [row for row, out in pairs if out],
    }


def _rows(setting: str, path: str) -> list[Row]:
    path = reading.existing_file(f"data.settings.{setting}", path, reading.with_endings([".jsonl"]))
    rows: list[Row] = []
    for where, raw in reading.json_lines(path):
        try:
            rows.append(_row(raw))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    if not rows:
        raise ValueError(f"{path}: it has no lines")
    return rows


def _row(raw: Mapping[str, Any]) -> Row:
    """Return a checked row."""
    row: Row = {name: reading.field_text(raw, name) for name in _TEXTS}
    if not row["rule"].strip():
        raise ValueError("the 'rule' is empty")
    if "violates" not in raw:
        raise ValueError(f"there is no 'violates'.{hint('violates', raw)}")
    if raw["violates"] not in (0, 1):
        raise ValueError(f"violates={raw['violates']!r:.40} must be true or false")
    return {**row, "violates": int(raw["violates"])}
