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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like import paths, reading
from t5x_like.grain_pipeline import corpus
from t5x_like.grain_pipeline.rows_of_files import (
    Files,
    Lines,
    ParsedLines,
    SideBySide,
    expand,
)
from t5x_like.names import check_settings
from t5x_like.vocabularies import Vocabulary

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf

    from t5x_like.preprocessing.seqio_objectives import SeqioObjective

Patterns = str | Sequence[str]

_TABLE, _OBJECTS = ".tsv", ".jsonl"
_SPLITS, _SIDES = ("train", "validation"), ("inputs", "targets")


def corpora(*, name: str = "parallel_text", **settings: Any) -> dict[str, corpus.Corpus]:
    """Return {name: the pairs of both splits}.

    Args:
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`.
    """
    check_settings("data.settings", read, settings)
    found = read(**settings)
    if found.held_out is None:
        splits = {split: corpus.Split(form.rows()) for split, form in found.forms.items()}
        return {name: corpus.Corpus(splits, fields=_SIDES)}
    return {name: corpus.held_out_of(found.forms["train"].rows(), found.held_out)}


def register(
    vocabulary: Vocabulary,
    objective: "SeqioObjective",
    *,
    name: str = "parallel_text",
    **settings: Any,
) -> None:
    """Add the task `name`, with the splits "train" and "validation", to seqio.

    Args:
        vocabulary: the vocabulary of both sides.
        objective: `translation`, or another objective of pairs.
        name: name of the task.
        settings: arguments of `read`.

    Raises:
        ValueError: see `read`; or the objective reads documents.
    """
    from t5x_like.preprocessing import sources  # loads TensorFlow

    rows = source_of_pairs(**settings)
    sources.add_pair_task(name, source=rows, vocabulary=vocabulary, objective=objective)


def documents(split: str, **settings: Any) -> "tf.data.Dataset":
    """Return both sides of the pairs of a split, one after the other, {"text": scalar string}."""
    from t5x_like.preprocessing import sources  # loads TensorFlow

    return sources.both_sides(source_of_pairs(**settings), split)


def source_of_pairs(**settings: Any) -> "seqio.DataSource":
    """Return the pairs as a source of seqio, {"inputs": string, "targets": string}; see `read`."""
    from t5x_like.preprocessing import line_datasets  # loads TensorFlow

    check_settings("data.settings", read, settings)
    found = read(**settings)
    return line_datasets.pairs_of_files(
        {split: form.units for split, form in found.forms.items()},
        found.forms["train"].take,
        held_out=found.held_out,
    )


@dataclasses.dataclass(frozen=True)
class Form:
    """How pairs are written in files.

    Attributes:
        name: a description for messages.
        units: each a file with both sides, or a file for each side.
        take: the sides of a pair in a line; None if each side has a file.
    """

    name: str
    units: Sequence[Sequence[str]]
    take: Callable[[str], list[str]] | None = None

    def rows(self) -> Files:
        """Return the pairs by index."""
        files = [path for unit in self.units for path in unit]
        parts = [self._pairs(unit) for unit in self.units]
        return Files(parts, paths=files, columns=dict(zip(_SIDES, _SIDES, strict=True)))

    def _pairs(self, unit: Sequence[str]) -> ParsedLines | SideBySide:
        local = list(map(paths.local_copy, unit))
        if self.take is None:
            return SideBySide(dict(zip(_SIDES, map(Lines, local), strict=True)))
        take = self.take
        return ParsedLines(local[0], lambda line: dict(zip(_SIDES, take(line), strict=True)))


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """The checked files of both splits.

    Attributes:
        forms: {split: how its pairs are written}.
        held_out: the share of the pairs for validation; None if it has files of its own.
    """

    forms: Mapping[str, Form]
    held_out: float | None


def read(
    *,
    source: Patterns = (),
    target: Patterns = (),
    pairs: Patterns = (),
    columns: Sequence[str | int] = (),
    validation_source: Patterns = (),
    validation_target: Patterns = (),
    validation_pairs: Patterns = (),
    held_out: float = 0.01,
) -> ParallelText:
    """Check the files.

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
    if not (validation_source or validation_target or validation_pairs):
        return ParallelText(dict.fromkeys(_SPLITS, form), held_out)
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
    other = dataclasses.replace(other, take=form.take)  # one number of cells for all files
    return ParallelText({"train": form, "validation": other}, None)


def _form(
    source: Patterns,
    target: Patterns,
    pairs: Patterns,
    *,
    columns: Sequence[str | int],
    prefix: str,
) -> Form:
    if bool(source) != bool(target) or bool(source) == bool(pairs):
        raise ValueError(
            f"{prefix}source={source!r}, {prefix}target={target!r}, {prefix}pairs={pairs!r}: set "
            f"both {prefix}source and {prefix}target, or only {prefix}pairs."
        )
    if pairs:
        return _of_tables(
            expand(f"{prefix}pairs", pairs, any_name=True), columns, setting=f"{prefix}pairs"
        )
    if columns:
        raise ValueError(f"columns={tuple(columns)!r} needs `pairs`, which is not set.")
    sides = [
        expand(f"{prefix}{name}", files, any_name=True)
        for name, files in (("source", source), ("target", target))
    ]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{prefix}source={source!r} has {len(sides[0])} files, and {prefix}target={target!r} "
            f"{len(sides[1])}: they are matched one by one, in sorted order."
        )
    for pair in zip(*sides, strict=True):
        for path in pair:
            next(reading.lines(path), None)  # raises here if the file is not text
        counts = [_count_lines(path) for path in pair]
        if counts[0] != counts[1]:
            raise ValueError(
                f"{pair[0]} has {counts[0]:,} lines, and {pair[1]} {counts[1]:,}: line n of "
                f"{prefix}target must be the translation of line n of {prefix}source."
            )
    return Form("two files of lines", list(zip(*sides, strict=True)))


def _of_tables(files: list[str], columns: Sequence[str | int], *, setting: str) -> Form:
    endings = {os.path.splitext(reading.uncompressed(path))[1] for path in files}
    if len(endings) > 1 or not endings <= {_TABLE, _OBJECTS}:
        raise ValueError(
            f"{setting}: {', '.join(files)} must all be .tsv or all .jsonl files, or compressed."
        )
    is_table = endings == {_TABLE}
    chosen = tuple(columns) or ((0, 1) if is_table else ("source", "target"))
    kind = int if is_table else str
    if len(chosen) != 2 or not all(type(one) is kind for one in chosen):
        what = "numbers from 0" if is_table else "names of fields"
        raise ValueError(f"columns={chosen!r} must be two {what}: source and target.")
    take: Callable[[str], list[str]] = functools.partial(_fields, chosen=chosen)
    if is_table:
        take = functools.partial(_cells, chosen=chosen, number=_number_of_cells(files))
    for path in files:
        for _, line in reading.numbered(path):
            try:
                take(line)
            except ValueError as error:
                raise ValueError(
                    f"columns={chosen!r}: the first line of {path} does not have both: {error}"
                ) from error
            break
    name = "a table" if is_table else "JSON objects"
    return Form(name, [[path] for path in files], take)


def _number_of_cells(files: Sequence[str]) -> int:
    """Return the number of cells in the first line of the first file that is not empty."""
    rows = (line for path in files for _, line in reading.numbered(path))
    return next(rows, "").count("\t") + 1


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


def _count_lines(path: str) -> int:
    return _count_lines_of(path, tuple(paths.fingerprint(path) or ()))


@functools.cache
def _count_lines_of(path: str, changed: tuple[Any, ...]) -> int:
    """Count lines, cached until the file changes."""
    del changed
    return reading.count_lines(path)
