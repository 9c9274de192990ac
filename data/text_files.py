"""Your own text: .txt, .jsonl or .parquet files, one document per row.

    --config.data.module=data/text_files.py --config.data.task=text_files
    --config.data.settings.files="corpus/*.jsonl.gz"

| files | row | columns |
|---|---|---|
| .txt | a line | none |
| .jsonl, .json | a line with a JSON object | its fields |
| .parquet | a row | its columns of strings |

Text may be compressed (.txt.gz, .jsonl.zst, ...); docs/data.md has the rules of reading.

`files` is a path, a pattern (`*`, `?`, `[a-z]`) or a list of these, all of one format. They are
streamed: a few lines of text files are in memory, or two row groups of Parquet files (so write
thousands of rows per group, not millions).

Pretraining reads the column `text`. Fine-tuning, with `--config.data.objective=text_to_text` (or
`marked_text_to_text` for BART, `masked_targets` for UniLM), reads pairs:
`--config.data.settings.inputs=question --config.data.settings.targets=answer`.

For validation 1% of the rows (`held_out`) are held out, chosen by their text or the inputs of a
pair (`sources.held_out`), so that copies are never in both splits. Or set `validation_files`: then
all of `files` is for training, and you must make sure that the two have no text in common.

A row that is not a JSON object, or has no string in the column, is an error with its file and line.
Texts that `preprocessing/cleaning.py` rejects are skipped and counted.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t5x_like import reading
from t5x_like.names import hint
from t5x_like.preprocessing import cleaning, line_datasets, sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.vocabularies import Vocabulary

Files = str | Sequence[str]
Columns = dict[str, str]  # {feature, "text" or "inputs" and "targets": its column}

_ROWS = 64  # rows per call into Python


def register(
    vocabulary: Vocabulary, objective: SeqioObjective, *, name: str = "text_files", **settings: Any
) -> None:
    """Add the task `name`, with the splits "train" and "validation".

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: turns the rows into examples; for pairs one of `sources.OF_PAIRS`.
        name: name of the task.
        settings: arguments of `source`.

    Raises:
        ValueError: see `source`; or the objective reads documents and the rows are pairs, or the
            reverse.
    """
    rows, columns = _source_and_columns(settings)
    if "text" not in columns and objective.name not in sources.OF_PAIRS:
        raise ValueError(
            f"objective={objective.name!r} reads documents, and `inputs` and `targets` are pairs: "
            f"set one of {', '.join(sources.OF_PAIRS)}, or the column `text` instead."
        )
    if "text" in columns and objective.name in sources.OF_PAIRS:
        raise ValueError(
            f"objective={objective.name!r} reads pairs: set their columns `inputs` and `targets`."
        )
    if "text" in columns:
        sources.add_document_task(name, source=rows, vocabulary=vocabulary, objective=objective)
        return
    sources.add_task(
        name,
        source=rows,
        vocabulary=vocabulary,
        preprocessors=[cleaning.clean_pairs, *objective.cacheable],
        features=objective.features,
    )


def documents(split: str, **settings: Any) -> tf.data.Dataset:
    """Return the documents of a split, or both sides of its pairs, {"text": scalar string}."""
    rows, columns = _source_and_columns(settings)
    return rows.get_dataset(split, shuffle=False).flat_map(
        lambda row: tf.data.Dataset.from_tensor_slices({"text": [row[name] for name in columns]})
    )


def source(
    *,
    files: Files,
    text: str | None = None,
    inputs: str | None = None,
    targets: str | None = None,
    validation_files: Files | None = None,
    held_out: float = 0.01,
    documents: int | None = None,
) -> sources.FileSource:
    """Check the settings against the files, and return the source of their rows.

    Args:
        files: path, pattern, or list of paths and patterns.
        text: column of the documents, "text" if not set; .txt files have no columns.
        inputs: column of the inputs of pairs, instead of `text`.
        targets: column of the targets of pairs.
        validation_files: like `files`; None to hold out a part of `files`.
        held_out: the share to hold out, from 0 to 1.
        documents: the number of training rows, for mixtures in proportion to size.

    Raises:
        ValueError: a file or column does not exist, files have several formats, or a setting is out
            of range. While reading, a damaged file or row is a `FileError`.
    """
    columns = _columns(text=text, inputs=inputs, targets=targets)
    if not 0 <= held_out <= 1:
        raise ValueError(f"held_out={held_out!r} must be from 0 to 1.")
    paths = dict.fromkeys(sources.SPLITS, _expand("files", files))
    if validation_files:
        paths["validation"] = _expand("validation_files", validation_files)
    every_path = sorted({*paths["train"], *paths["validation"]})
    form = _form(every_path)
    for split, of_split in paths.items():
        if not any(tf.io.gfile.stat(path).length for path in of_split):
            raise ValueError(f"files: all of the split {split!r} are empty: {', '.join(of_split)}")
    for path in every_path:
        try:
            form.check(path, columns)
        except OSError as error:
            raise ValueError(f"files: {path} cannot be read: {error}") from error

    def examples(rows: tf.data.Dataset, split: str) -> tf.data.Dataset:
        def choose(batch: Any) -> dict[str, tf.Tensor]:
            row = form.parse(batch, columns)
            if validation_files:
                return row
            # The inputs of a pair decide, so that a question is never in both splits.
            is_held_out = sources.held_out(next(iter(row.values())), fraction=held_out)
            mine = is_held_out == (split == "validation")
            return {name: tf.boolean_mask(text, mine) for name, text in row.items()}

        return rows.batch(_ROWS).map(choose, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    return sources.FileSource(
        list_units=lambda split: form.units(paths[split]),
        read=lambda unit: form.read(unit, columns),
        examples=examples,
        count=lambda split: documents if split == "train" else None,
        unit_files=form.files,
        cycle=form.cycle,
        version=form.version,
    )


def _source_and_columns(settings: dict[str, Any]) -> tuple[sources.FileSource, Columns]:
    sources.check_settings(source, settings)
    chosen = {name: settings.get(name) for name in ("text", "inputs", "targets")}
    return source(**settings), _columns(**chosen)


def _columns(*, text: str | None, inputs: str | None, targets: str | None) -> Columns:
    if inputs is None and targets is None:
        return {"text": text or "text"}
    if inputs is None or targets is None or text is not None:
        raise ValueError(
            f"text={text!r}, inputs={inputs!r}, targets={targets!r}: set `text` for documents, or "
            "both `inputs` and `targets` for pairs."
        )
    return {"inputs": inputs, "targets": targets}


def _expand(setting: str, patterns: Files) -> list[str]:
    """Return the files that match, sorted and without duplicates."""
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = os.path.expanduser(pattern)
        matches = [path] if tf.io.gfile.exists(path) else tf.io.gfile.glob(path)
        if any(tf.io.gfile.isdir(match) for match in matches):
            raise ValueError(f"{setting}={pattern!r} is a folder: name files, as {pattern}/*.jsonl")
        if not matches:
            folder = os.path.dirname(path) or "."
            there = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
            raise ValueError(
                f"{setting}={pattern!r} matches no file."
                + hint(os.path.basename(path), [f for f in there if _suffix(f)])
            )
        found.update(matches)
    if not found:
        raise ValueError(f"{setting}={patterns!r} is not set: give a file, a pattern or a list.")
    return sorted(found)


@dataclasses.dataclass(frozen=True)
class _Form:
    """How files of one format are read.

    Attributes:
        check: raises ValueError if a file lacks a column of strings.
        units: paths -> units, see `FileSource`.
        read: unit -> its raw rows.
        parse: a batch of raw rows -> {feature: strings [N]}.
        files: unit -> the files that it is read from.
        cycle: the number of units to interleave.
        version: see `FileSource`.
    """

    check: Callable[[str, Columns], None]
    units: Callable[[list[str]], list[str]]
    read: Callable[[tf.Tensor, Columns], tf.data.Dataset]
    parse: Callable[[Any, Columns], dict[str, tf.Tensor]]
    files: Callable[[str], Sequence[str]] = lambda unit: [unit]
    cycle: int = 16
    version: str = line_datasets.VERSION


def _suffix(path: str) -> str:
    """Return the ending that names a path's format, ".txt" of "a.txt.gz"; "" if unknown."""
    is_known = path.lower().endswith(ENDINGS)
    return os.path.splitext(reading.uncompressed(path))[1] if is_known else ""


def _form(paths: list[str]) -> _Form:
    forms = {}
    for path in paths:
        suffix = _suffix(path)
        if not suffix:
            raise ValueError(f"files: {path} has none of the suffixes {', '.join(ENDINGS)}.")
        forms[_FORMS[suffix]] = path
    if len(forms) > 1:
        raise ValueError(
            f"files: {' and '.join(forms.values())} differ in format: register a task for each "
            "format, under its own `name`, and mix the tasks."
        )
    return next(iter(forms))


def _read_lines(path: tf.Tensor, columns: Columns) -> tf.data.Dataset:
    del columns
    return line_datasets.lines(path)


def _check_lines(path: str, columns: Columns) -> None:
    if columns != {"text": "text"}:
        feature, column = next(iter(columns.items()))
        raise ValueError(f"{feature}={column!r}: {path} has lines, whose only column is 'text'.")
    next(reading.lines(path), None)


def _check_json(path: str, columns: Columns) -> None:
    """Check the first row."""
    for _, row in reading.json_lines(path):
        for feature, column in columns.items():
            found = [field for field, value in row.items() if isinstance(value, str)]
            if column not in found:
                raise ValueError(
                    f"{feature}={column!r}: {path} has no such column of strings."
                    + hint(column, found)
                )
        return


def _parse_json(lines: Any, columns: Columns) -> dict[str, tf.Tensor]:
    read = functools.partial(_fields, columns=tuple(columns.values()))
    found = line_datasets.texts(lines, read, columns=len(columns))
    return dict(zip(columns, found, strict=True))


def _fields(line: str, *, columns: Sequence[str]) -> list[str]:
    row = reading.json_object(line)
    return [reading.field_text(row, column) for column in columns]


def _check_parquet(path: str, columns: Columns) -> None:
    found = reading.TextColumns(path)
    for feature, column in columns.items():
        found.check(feature, column)


def _row_groups(paths: list[str]) -> list[str]:
    """Return all row groups, as "path#number"."""
    return [
        f"{path}#{group}" for path in paths for group in range(len(reading.TextColumns(path).rows))
    ]


def _read_row_group(unit: tf.Tensor, columns: Columns) -> tf.data.Dataset:
    def load(unit: bytes) -> list[np.ndarray]:
        path, _, group = unit.decode().rpartition("#")
        texts = reading.TextColumns(path).read(int(group), list(columns.values()))
        return [np.array([text.encode() for text in column], object) for column in texts]

    loaded = tf.numpy_function(load, [unit], [tf.string] * len(columns))
    rows = dict(zip(columns, (tf.ensure_shape(text, [None]) for text in loaded), strict=True))
    return tf.data.Dataset.from_tensor_slices(rows)


_LINES = _Form(
    check=_check_lines,
    units=list,
    read=_read_lines,
    parse=lambda lines, columns: {"text": lines["line"]},
)
_JSON = _Form(
    check=_check_json,
    units=list,
    read=_read_lines,
    parse=_parse_json,
)
_PARQUET = _Form(
    check=_check_parquet,
    units=_row_groups,
    read=_read_row_group,
    parse=lambda rows, columns: rows,
    files=lambda unit: [unit.rpartition("#")[0]],
    cycle=2,
    version="",
)
_FORMS = {".txt": _LINES, ".jsonl": _JSON, ".json": _JSON, ".parquet": _PARQUET}
ENDINGS = (*reading.with_endings((".txt", ".jsonl", ".json")), ".parquet")
