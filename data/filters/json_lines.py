"""Read and write JSON Lines of documents as streams, for the commands that filter them.

Files are .jsonl or .json, plain or compressed, with a JSON object in each line, in the format of C4
and similar corpora; docs/data.md has the rules of reading. A bad row ends the command with its file
and line: a filter should not lose text silently.
"""

import contextlib
import glob
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from t5x_like import reading
from t5x_like.experiment.command_line import ArgumentParser, writing
from t5x_like.names import hint

SUFFIXES = reading.with_endings((".jsonl", ".json"))


class Document(NamedTuple):
    """A row of a file.

    Attributes:
        path: the file.
        row: all fields.
        text: the text of the document, a field of the row.
    """

    path: str
    row: Mapping[str, Any]
    text: str


class Row(NamedTuple):
    """A row of a file, with its location `where`, the file and the line."""

    path: str
    where: str
    row: Mapping[str, Any]


def find(setting: str, patterns: Sequence[str], *, suffixes: Sequence[str] = SUFFIXES) -> list[str]:
    """Return the files that match, sorted and without duplicates.

    Args:
        setting: the name of the setting, for the messages.
        patterns: paths or patterns.
        suffixes: the allowed suffixes.

    Raises:
        ValueError: a pattern matches no file, or a file with another suffix.
    """
    found: set[str] = set()
    for pattern in patterns:
        matches = [path for path in glob.glob(os.path.expanduser(pattern)) if os.path.isfile(path)]
        if not matches:
            folder = Path(os.path.expanduser(pattern)).parent
            there = [one.name for one in folder.glob("*") if one.name.endswith(tuple(suffixes))]
            near = hint(Path(pattern).name, there) if there else ""
            raise ValueError(f"{setting}={pattern!r} matches no file.{near}")
        found.update(matches)
    for path in found:
        if not path.endswith(tuple(suffixes)):
            raise ValueError(f"{setting}: {path} has none of the suffixes {', '.join(suffixes)}")
    return sorted(found)


def documents(paths: Sequence[str], *, text: str) -> Iterator[Document]:
    """Yield the rows of files, one after the other.

    Args:
        text: the field with the text.

    Raises:
        ValueError: a line is not a JSON object, or has no string in the field; the message begins
            with the file and the line.
    """
    for row in rows(paths):
        try:
            yield Document(row.path, row.row, reading.field_text(row.row, text))
        except ValueError as error:
            raise ValueError(f"{row.where}: {error}") from error


def rows(paths: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of files, whatever their fields.

    Raises:
        ValueError: a line is not a JSON object.
    """
    for path in paths:
        for where, row in reading.json_lines(path):
            yield Row(path, where, row)


class Writer:
    """Writes rows into files of a folder, named like the files that the rows come from.

    A context manager. Files appear under their names when everything is written, so that an
    interrupted command leaves no files that look complete.

    Args:
        folder: created if it does not exist; None to write nothing.
        paths: the files that are read.

    Raises:
        ValueError: two files have the same name, or a file already exists.
    """

    def __init__(self, folder: str | None, paths: Sequence[str]):
        self._folder = Path(folder or "").expanduser()
        names = [Path(path).name for path in paths] if folder else []
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two files are named {twice}: filter them into folders of their own")
        there = next((name for name in names if (self._folder / name).exists()), None)
        if there is not None:
            raise ValueError(f"{self._folder / there} exists already: give another --output")
        self._new = bool(folder) and not self._folder.exists()
        if folder:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[str]] = {}
        self._stack = contextlib.ExitStack()
        for name in names:  # create all files, even if none of their rows are kept
            part = self._folder / f"unfinished-{name}"
            binary = self._stack.enter_context(reading.create(str(part)))
            text = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
            self._files[name] = self._stack.enter_context(text)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        complete = False
        try:
            with writing(self._folder):
                self._stack.close()
            complete = not kind
        finally:
            for name in self._files:
                part = self._folder / f"unfinished-{name}"
                part.rename(self._folder / name) if complete else part.unlink()
            if self._new and not complete:
                self._folder.rmdir()

    def write(self, path: str, row: Mapping[str, Any]) -> None:
        """Write a row that comes from the file `path`."""
        if self._files:
            with writing(self._folder):
                self._files[Path(path).name].write(json.dumps(row, ensure_ascii=False) + "\n")


def parser(module: str, description: str | None, *, output_required: bool = True) -> ArgumentParser:
    """Return the parser of a command, with the arguments that all commands here share."""
    made = ArgumentParser(description, prog=f"python -m {module}")
    made.add_argument("--input", nargs="+", required=True, metavar="FILES", help="or patterns")
    made.add_argument("--output", required=output_required, metavar="FOLDER")
    made.add_argument("--text", default="text", metavar="FIELD", help="with the text (text)")
    return made
