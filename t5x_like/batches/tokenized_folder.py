"""A folder of tokenized text, which is read instead of the text.

It is written part by part, in several processes.
"""

import dataclasses
import functools
import json
import os
import pathlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from t5x_like import paths
from t5x_like.batches import worker_processes

RECORD, UNFINISHED = "tokenized.json", "unfinished.json"


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how two identities differ, for the splits of the second; "" if they do not.

    Args:
        before, now: everything that decides the tokens, as JSON has it: "format", the version of
            the files and of the rules of cleaning; "vocabulary", its hash; "splits", a mapping for
            each "TASK/SPLIT".
    """
    if before["format"] != now["format"]:
        return f"its format is {before['format']!r}, and here it is {now['format']!r}"
    if before["vocabulary"] != now["vocabulary"]:
        return "data.vocabulary is another vocabulary"
    for key, settings in now["splits"].items():
        was = before["splits"].get(key)
        if was is None:
            return f"it has {', '.join(before['splits'])}, and not {key}"
        for name in dict.fromkeys([*settings, *was]):
            if settings.get(name) != was.get(name):
                if name == "files":
                    return f"the files of {key} have changed"
                return f"{name} of {key} is {settings.get(name)!r}, and was {was.get(name)!r}"
    return ""


def _is_record(record: Any) -> bool:
    """Return whether the content of a file has what `tokenized.json` must have."""
    if not isinstance(record, dict) or not isinstance(identity := record.get("identity"), dict):
        return False
    splits, files = identity.get("splits"), record.get("files")
    if not isinstance(splits, dict) or not isinstance(files, dict):
        return False
    inner = (*splits.values(), *files.values())
    return {"format", "vocabulary"} <= identity.keys() and all(isinstance(v, dict) for v in inner)


class TokenizedFolder:
    """A folder of tokenized text.

    Args:
        folder: `data.tokenized`.

    Raises:
        ValueError: it is not such a folder, or is unfinished.
    """

    def __init__(self, folder: str):
        self._name, self._folder = f"data.tokenized={folder!r}", pathlib.Path(folder).expanduser()
        try:
            self._record = json.loads((self._folder / RECORD).read_text())
        except FileNotFoundError:
            unfinished = (self._folder / UNFINISHED).exists()
            problem = "is unfinished: go on with it" if unfinished else f"has no {RECORD}: make it"
            raise ValueError(f"{self._name} {problem} by t5x-like tokenize") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{self._name}: {RECORD} cannot be read: {error}") from error
        if not _is_record(self._record):
            raise ValueError(
                f"{self._name}: {RECORD} is another file than t5x-like tokenize writes: copy the "
                "folder again, or make it anew"
            )

    def files(self, key: str, identity: Mapping[str, Any]) -> Sequence[str]:
        """Return the files of a split, in order.

        Args:
            key: "TASK/SPLIT".
            identity: the text and vocabulary that the folder must have been made from.

        Raises:
            ValueError: the folder was made from other text or with another vocabulary, or a file is
                missing or has another size.
        """
        if other := difference(self._record["identity"], identity):
            raise ValueError(
                f"{self._name} was made of other text or tokens: {other}; make another folder by "
                "t5x-like tokenize, or tokenize while training, data.tokenized=''"
            )
        sizes = self._record["files"][key]
        for name, size in sizes.items():
            file = self._folder / name
            actual = file.stat().st_size if file.is_file() else 0
            if actual != size:
                raise ValueError(
                    f"{self._name} is damaged: {name} has {actual:,} bytes, and had {size:,}: copy "
                    "the folder again, or delete it and make it by t5x-like tokenize"
                )
        return [str(self._folder / name) for name in sizes]


UNFINISHED_ENDING = ".unfinished"  # of files that a finished folder does not keep


@dataclasses.dataclass(frozen=True)
class FilePart:
    """A part of a split that becomes one file.

    Attributes:
        key: its split, "TASK/SPLIT".
        file: its path in the folder.
    """

    key: str
    file: str


class Opened(Protocol):
    """Text that exists and can be tokenized."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the tokens, see `tokenized_folder.difference`."""

    @property
    def layout(self) -> Mapping[str, Any]:
        """What else decides which part has which text, as JSON has it."""

    @property
    def keys(self) -> Sequence[str]:
        """The splits, "TASK/SPLIT"."""

    def parts(self) -> Sequence[FilePart]:
        """Return the files of the folder, which do not depend on the number of processes."""

    def write(self, part: Any, file: pathlib.Path) -> None:
        """Tokenize a part into a file, whose name ends in `UNFINISHED_ENDING`."""

    def finish(self, folder: pathlib.Path) -> None:
        """Write the other files of the folder once all parts are written."""


class TextSource(Protocol):
    """The text to tokenize. It can be sent to another process, which then opens it."""

    def open(self) -> Opened:
        """Find the text; raise ValueError if something does not exist."""


def write(text: TextSource, folder: str, *, processes: int) -> Iterator[tuple[int, int]]:
    """Write the folder, or its missing files.

    Args:
        text: the text to tokenize.
        folder: a new folder, or an unfinished folder of the same text.
        processes: the number of processes that tokenize at once.

    Yields:
        The number of complete files, and of all files.

    Raises:
        ValueError: something does not exist, the folder has other content, or the text changed in
            the meantime.
        OSError: the folder cannot be written, or a process was killed.
    """
    opened = text.open()
    identity, parts = opened.identity, opened.parts()
    path = pathlib.Path(folder).expanduser()
    if _is_complete(path, identity, opened.layout, name=folder):
        yield len(parts), len(parts)
        return
    for part in parts:
        (path / part.file).parent.mkdir(parents=True, exist_ok=True)
    missing = [part for part in parts if not (path / part.file).exists()]
    complete = len(parts) - len(missing)
    processes = min(processes, len(missing))
    written = (
        _in_processes(text, missing, path, processes)
        if processes > 1
        else _in_this_process(opened, missing, path)
    )
    for number, _ in enumerate(written, complete + 1):
        yield number, len(parts)
    if other := difference(identity, text.open().identity):
        (path / UNFINISHED).unlink()  # never continue with files from two versions of the text
        raise ValueError(
            f"the documents were changed meanwhile: {other}; delete {folder} and begin anew"
        )
    opened.finish(path)
    sizes: dict[str, dict[str, int]] = {key: {} for key in opened.keys}
    for part in parts:
        sizes[part.key][part.file] = (path / part.file).stat().st_size
    record = {"identity": identity, "files": sizes}
    paths.write_whole(path / RECORD, json.dumps(record, indent=1) + "\n")
    for left in path.rglob(f"*{UNFINISHED_ENDING}"):  # also from runs that were killed
        left.unlink()
    (path / UNFINISHED).unlink()


def _is_complete(
    path: pathlib.Path, identity: Mapping[str, Any], layout: Mapping[str, Any], *, name: str
) -> bool:
    """Return whether the folder is finished; write the plan into a new folder.

    Raises:
        ValueError: it has other content.
    """
    for file in (RECORD, UNFINISHED):
        try:
            record = json.loads((path / file).read_text())
            other = difference(record["identity"], identity)
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--output={name!r}: {file} cannot be read: {error}") from error
        for setting, now in layout.items() if not other and file == UNFINISHED else ():
            if record.get(setting) != now:
                other = f"{setting} of a file is {now}, and was {record.get(setting)}"
        if other:
            raise ValueError(
                f"--output={name!r} was made of other text or tokens: {other}; set another "
                "--output, or delete the folder"
            )
        return file == RECORD
    if path.exists() and any(path.iterdir()):
        raise ValueError(f"--output={name!r} has other files: give a new folder, or an empty one")
    path.mkdir(parents=True, exist_ok=True)
    plan = {"identity": identity, **layout}
    paths.write_whole(path / UNFINISHED, json.dumps(plan, indent=1) + "\n")
    return False


def _in_this_process(
    opened: Opened, parts: Sequence[FilePart], path: pathlib.Path
) -> Iterator[None]:
    """Write the files, yielding after each."""
    for part in parts:
        _write_file(opened, part, path)
        yield


def _in_processes(
    text: TextSource, parts: Sequence[FilePart], path: pathlib.Path, processes: int
) -> Iterator[None]:
    """Write the files in other processes, yielding after each."""
    write_part = functools.partial(_write, pickle.dumps(text), path)
    with worker_processes.pool(processes) as results:
        yield from results(write_part, parts)


def _write(text: bytes, path: pathlib.Path, part: FilePart) -> None:
    _write_file(_opened(text), part, path)


@functools.lru_cache(1)
def _opened(text: bytes) -> Opened:
    """Open the text in a process of the pool, only once."""
    return pickle.loads(text).open()


def _write_file(opened: Opened, part: FilePart, path: pathlib.Path) -> None:
    file = path / part.file
    unfinished = file.with_name(f"{file.name}.{os.getpid()}{UNFINISHED_ENDING}")
    opened.write(part, unfinished)
    unfinished.replace(file)
