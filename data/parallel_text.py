r"""Your own translations: two files with a sentence per line, or .tsv or .jsonl files of pairs.

    --config.data.module=data/parallel_text.py --config.data.task=parallel_text
    --config.data.objective=translation
    --config.data.settings.source="corpus/*.en" --config.data.settings.target="corpus/*.de"

| setting | files | a pair is |
|---|---|---|
| `source`, `target` | text, of any name | line n of both |
| `pairs` instead | .tsv | two cells of a line, `columns=(0, 1)` |
| `pairs` instead | .jsonl | two fields of an object, `columns=("source", "target")` |

All may be compressed (.en.gz, .tsv.zst, ...); docs/data.md has the rules of reading. Each setting
is a path, a pattern (`*`, `?`, `[a-z]`) or a list of these. Files of `source` and `target` are
matched in sorted order, or in the order of two lists, and must have equally many lines: this is
checked before training. A field within an object is written with a dot: "translation.de".

For validation 1% of the pairs (`held_out`) is held out, chosen by the text of the source
(`sources.held_out`), so that a sentence is never in both splits. Or set `validation_source` and
`validation_target`, or `validation_pairs`: then all other files are for training.

To train the vocabulary that both languages share on both sides:

    python -m t5x_like.vocabulary --data=data/parallel_text.py --set source=a.en \
        --set target=a.de --size=36900 --limit_chars=200000000 --output=vocabulary.model

It reads from the beginning, so set a large limit for files that are not in random order.

A line of `pairs` without both fields, or with more or fewer cells than the first line, is an error
with its file and line. Pairs with an empty side, and texts that `preprocessing/cleaning.py`
rejects, are skipped and counted.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t5x_like import reading
from t5x_like.names import hint
from t5x_like.preprocessing import line_datasets, sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.vocabularies import Vocabulary

Files = str | Sequence[str]

_ROWS = 64  # rows per call into Python
_TABLE, _OBJECTS = ".tsv", ".jsonl"
_BETWEEN = "\t"  # separates the paths of a unit of two files


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    name: str = "parallel_text",
    **settings: Any,
) -> None:
    """Add the task `name`, with the splits "train" and "validation".

    Args:
        vocabulary: the vocabulary of both sides.
        objective: `translation`, or another objective of pairs.
        name: name of the task.
        settings: arguments of `source_of_pairs`.

    Raises:
        ValueError: see `source_of_pairs`; or the objective reads documents.
    """
    sources.check_settings(source_of_pairs, settings)
    sources.add_pair_task(
        name, source=source_of_pairs(**settings), vocabulary=vocabulary, objective=objective
    )


def documents(split: str, **settings: Any) -> tf.data.Dataset:
    """Return both sides of the pairs of a split, one after the other, {"text": scalar string}."""
    sources.check_settings(source_of_pairs, settings)
    return sources.both_sides(source_of_pairs(**settings), split)


def source_of_pairs(
    *,
    source: Files = (),
    target: Files = (),
    pairs: Files = (),
    columns: Sequence[str | int] = (),
    validation_source: Files = (),
    validation_target: Files = (),
    validation_pairs: Files = (),
    held_out: float = 0.01,
) -> sources.FileSource:
    """Check the files, and return the source of their {"inputs": string, "targets": string}.

    Args:
        source, target: files of lines.
        pairs: files with both sides, instead of `source` and `target`.
        columns: the columns of source and target in files of pairs, names or numbers from 0.
        validation_source, validation_target, validation_pairs: the same for validation.
        held_out: the share of the pairs for validation, from 0 to 1, without validation files.

    Raises:
        ValueError: a file or column does not exist; source and target differ in their number of
            files or lines; a setting is out of range.
    """
    if not 0 <= held_out <= 1:
        raise ValueError(f"held_out={held_out!r} must be from 0 to 1.")
    form = _form(source, target, pairs, columns=columns, prefix="")
    units = dict.fromkeys(sources.SPLITS, form.units)
    apart = bool(validation_source or validation_target or validation_pairs)
    if apart:
        other = _form(
            validation_source,
            validation_target,
            validation_pairs,
            columns=columns,
            prefix="validation_",
        )
        if other.name != form.name:
            raise ValueError(
                f"the training pairs are {form.name} and the validation pairs {other.name}: "
                "convert one of them."
            )
        units["validation"] = other.units

    def examples(rows: tf.data.Dataset, split: str) -> tf.data.Dataset:
        def choose(batch: tf.Tensor) -> dict[str, tf.Tensor]:
            row = form.parse(batch)
            if apart:
                return row
            mine = sources.held_out(row["inputs"], fraction=held_out) == (split == "validation")
            return {name: tf.boolean_mask(text, mine) for name, text in row.items()}

        return rows.batch(_ROWS).map(choose, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    return sources.FileSource(
        list_units=lambda split: units[split],
        read=form.read,
        examples=examples,
        unit_files=lambda unit: unit.split(_BETWEEN),
        version=line_datasets.VERSION,
    )


@dataclasses.dataclass(frozen=True)
class _Form:
    """How pairs are read.

    Attributes:
        name: a description for messages.
        units: each a path, or two with a tab between them.
        read: unit -> its raw rows.
        parse: a batch of raw rows -> {"inputs", "targets": strings [N]}.
    """

    name: str
    units: list[str]
    read: Callable[[tf.Tensor], tf.data.Dataset]
    parse: Callable[[Any], dict[str, tf.Tensor]]


def _form(
    source: Files, target: Files, pairs: Files, *, columns: Sequence[str | int], prefix: str
) -> _Form:
    if bool(source) != bool(target) or bool(source) == bool(pairs):
        raise ValueError(
            f"{prefix}source={source!r}, {prefix}target={target!r}, {prefix}pairs={pairs!r}: set "
            f"both {prefix}source and {prefix}target, or only {prefix}pairs."
        )
    if pairs:
        return _of_tables(_expand(f"{prefix}pairs", pairs), columns, setting=f"{prefix}pairs")
    if columns:
        raise ValueError(f"columns={tuple(columns)!r} needs `pairs`, which is not set.")
    sides = [
        _expand(f"{prefix}{name}", files)
        for name, files in (("source", source), ("target", target))
    ]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{prefix}source={source!r} has {len(sides[0])} files, and {prefix}target={target!r} "
            f"{len(sides[1])}: they are matched one by one, in sorted order."
        )
    for paths in zip(*sides, strict=True):
        for path in paths:
            next(reading.lines(path), None)  # raises here if the file is not text
        counts = [_count_lines(path) for path in paths]
        if counts[0] != counts[1]:
            raise ValueError(
                f"{paths[0]} has {counts[0]:,} lines, and {paths[1]} {counts[1]:,}: line n of "
                f"{prefix}target must be the translation of line n of {prefix}source."
            )
    units = [_BETWEEN.join(paths) for paths in zip(*sides, strict=True)]
    return _Form("two files of lines", units, _read_two, _sides)


def _read_two(unit: tf.Tensor) -> tf.data.Dataset:
    paths = tf.strings.split(unit, _BETWEEN)
    lines = tf.data.Dataset.zip(line_datasets.lines(paths[0]), line_datasets.lines(paths[1]))
    return lines.map(lambda *pair: tf.stack([side["line"] for side in pair]))


def _sides(rows: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"inputs": rows[:, 0], "targets": rows[:, 1]}


def _of_tables(paths: list[str], columns: Sequence[str | int], *, setting: str) -> _Form:
    endings = {os.path.splitext(reading.uncompressed(path))[1] for path in paths}
    if len(endings) > 1 or not endings <= {_TABLE, _OBJECTS}:
        raise ValueError(
            f"{setting}: {', '.join(paths)} must all be .tsv or all .jsonl files, or compressed."
        )
    is_table = endings == {_TABLE}
    chosen = tuple(columns) or ((0, 1) if is_table else ("source", "target"))
    kind = int if is_table else str
    if len(chosen) != 2 or not all(type(one) is kind for one in chosen):
        what = "numbers from 0" if is_table else "names of fields"
        raise ValueError(f"columns={chosen!r} must be two {what}: source and target.")
    take: Callable[[str], list[str]] = functools.partial(_fields, chosen=chosen)
    if is_table:
        take = functools.partial(_cells, chosen=chosen, number=_number_of_cells(paths))
    for path in paths:
        for _, line in reading.numbered(path):
            try:
                take(line)
            except ValueError as error:
                raise ValueError(
                    f"columns={chosen!r}: the first line of {path} does not have both: {error}"
                ) from error
            break
    name = "a table" if is_table else "JSON objects"
    return _Form(name, paths, line_datasets.lines, functools.partial(_parse, take=take))


def _number_of_cells(paths: Sequence[str]) -> int:
    """Return the number of cells in the first line of the first file that is not empty."""
    rows = (line for path in paths for _, line in reading.numbered(path))
    return next(rows, "").count("\t") + 1


def _parse(lines: Any, *, take: Callable[[str], list[str]]) -> dict[str, tf.Tensor]:
    inputs, targets = line_datasets.texts(lines, take, columns=2)
    return {"inputs": inputs, "targets": targets}


def _cells(line: str, *, chosen: Sequence[Any], number: int) -> list[str]:
    cells = line.split("\t")
    if len(cells) != number or max(chosen) >= number:
        least = max(number, max(chosen) + 1)
        raise ValueError(f"it has {len(cells)} cells with tabs between, and must have {least}")
    return [cells[one] for one in chosen]


def _fields(line: str, *, chosen: Sequence[Any]) -> list[str]:
    row, found = reading.json_object(line), []
    for name in chosen:
        value: Any = row
        *parents, last = name.split(".")
        for key in parents:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            raise ValueError(f"there is no object {'.'.join(parents)!r}")
        found.append(reading.field_text(value, last))
    return found


def _expand(setting: str, patterns: Files) -> list[str]:
    """Return the files that match, in sorted order for each pattern."""
    found: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = os.path.expanduser(pattern)
        matches = [path] if tf.io.gfile.exists(path) else sorted(tf.io.gfile.glob(path))
        if not matches or any(tf.io.gfile.isdir(match) for match in matches):
            folder = os.path.dirname(path) or "."
            there = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
            raise ValueError(
                f"{setting}={pattern!r} is not a file.{hint(os.path.basename(path), there)}"
            )
        found += matches
    return found


def _count_lines(path: str) -> int:
    status = tf.io.gfile.stat(path)
    return _count_lines_of(path, status.length, status.mtime_nsec)


@functools.cache
def _count_lines_of(path: str, length: int, changed: int) -> int:
    """Count lines, cached until the file changes."""
    del length, changed
    return reading.count_lines(path)
