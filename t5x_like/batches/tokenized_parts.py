"""Write a folder of tokenized text part by part, in several processes.

A file is written under another name and renamed when it is whole. A run that was killed goes on
with the files that are missing.
"""

import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import pathlib
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from t5x_like import paths
from t5x_like.batches.tokenized_folder import RECORD, UNFINISHED, difference

UNFINISHED_ENDING = ".unfinished"  # of what a finished folder does not keep


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a split that becomes a file.

    Attributes:
        key: of the split, "TASK/SPLIT".
        file: its path in the folder.
    """

    key: str
    file: str


class Opened(Protocol):
    """Text that was found, and can be tokenized."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `tokenized_folder.difference`."""

    @property
    def layout(self) -> Mapping[str, Any]:
        """What else decides which part has which text, as JSON has it."""

    @property
    def keys(self) -> Sequence[str]:
        """The splits, "TASK/SPLIT"."""

    def parts(self) -> Sequence[Part]:
        """The files of the folder, which do not depend on the processes."""

    def write(self, part: Any, file: pathlib.Path) -> None:
        """Tokenize a part into a file, whose name ends in `UNFINISHED_ENDING`."""

    def finish(self, folder: pathlib.Path) -> None:
        """Write what else belongs in the folder when all parts are there."""


class Text(Protocol):
    """What is tokenized. It can be sent to a process, which opens the text for itself."""

    def open(self) -> Opened:
        """Find the text; raises ValueError if something does not exist."""


def write(text: Text, folder: str, *, processes: int) -> Iterator[tuple[int, int]]:
    """Write the folder, or what is missing of it.

    Args:
        text: what is tokenized.
        folder: a new one, or one of the same text.
        processes: that tokenize at once.

    Yields:
        The number of files that are whole, and of all files.

    Raises:
        ValueError: something does not exist, the folder has something else, or the text changed in
            the meantime.
        OSError: the folder cannot be written, or a process was killed.
    """
    opened = text.open()
    made, parts = opened.identity, opened.parts()
    place = pathlib.Path(folder).expanduser()
    if _is_whole(place, made, opened.layout, name=folder):
        yield len(parts), len(parts)
        return
    for part in parts:
        (place / part.file).parent.mkdir(parents=True, exist_ok=True)
    missing = [part for part in parts if not (place / part.file).exists()]
    whole = len(parts) - len(missing)
    processes = min(processes, len(missing))
    written = (
        _in_processes(text, missing, place, processes)
        if processes > 1
        else _in_this_process(opened, missing, place)
    )
    for number, _ in enumerate(written, whole + 1):
        yield number, len(parts)
    if other := difference(made, text.open().identity):
        (place / UNFINISHED).unlink()  # nothing goes on with files of two states of the text
        raise ValueError(
            f"the documents were changed meanwhile: {other}; delete {folder} and begin anew"
        )
    opened.finish(place)
    sizes: dict[str, dict[str, int]] = {key: {} for key in opened.keys}
    for part in parts:
        sizes[part.key][part.file] = (place / part.file).stat().st_size
    record = {"identity": made, "files": sizes}
    paths.write_whole(place / RECORD, json.dumps(record, indent=1) + "\n")
    for left in place.rglob(f"*{UNFINISHED_ENDING}"):  # by runs that were killed, too
        left.unlink()
    (place / UNFINISHED).unlink()


def _is_whole(
    place: pathlib.Path, identity: Mapping[str, Any], layout: Mapping[str, Any], *, name: str
) -> bool:
    """Whether the folder is finished; a new one gets the plan.

    Raises:
        ValueError: it has something else.
    """
    for file in (RECORD, UNFINISHED):
        try:
            found = json.loads((place / file).read_text())
            other = difference(found["identity"], identity)
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--output={name!r}: {file} cannot be read: {error}") from error
        for setting, now in layout.items() if not other and file == UNFINISHED else ():
            if found.get(setting) != now:
                other = f"{setting} of a file is {now}, and was {found.get(setting)}"
        if other:
            raise ValueError(
                f"--output={name!r} was made of other text or tokens: {other}; set another "
                "--output, or delete the folder"
            )
        return file == RECORD
    if place.exists() and any(place.iterdir()):
        raise ValueError(f"--output={name!r} has other files: give a new folder, or an empty one")
    place.mkdir(parents=True, exist_ok=True)
    plan = {"identity": identity, **layout}
    paths.write_whole(place / UNFINISHED, json.dumps(plan, indent=1) + "\n")
    return False


def _in_this_process(opened: Opened, parts: Sequence[Part], place: pathlib.Path) -> Iterator[None]:
    """Write the files, and return after each."""
    for part in parts:
        _write_whole(opened, part, place)
        yield


def _in_processes(
    text: Text, parts: Sequence[Part], place: pathlib.Path, processes: int
) -> Iterator[None]:
    """The same in other processes."""
    # Threads of this process may hold locks, which a fork would copy.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=context, initializer=_end_with_parent
    ) as pool:
        packed = pickle.dumps(text)
        futures = [pool.submit(_write, packed, part, place) for part in parts]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
                yield
        except BrokenProcessPool as error:
            raise OSError(
                "a process was killed, perhaps for its memory: set fewer --processes; the same "
                "command goes on with the files that are missing"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _write(text: bytes, part: Part, place: pathlib.Path) -> None:
    _write_whole(_opened(text), part, place)


@functools.lru_cache(1)
def _opened(text: bytes) -> Opened:
    """What a process of the pool reads, opened once."""
    return pickle.loads(text).open()


def _write_whole(opened: Opened, part: Part, place: pathlib.Path) -> None:
    file = place / part.file
    unfinished = file.with_name(f"{file.name}.{os.getpid()}{UNFINISHED_ENDING}")
    opened.write(part, unfinished)
    unfinished.replace(file)


def _end_with_parent() -> None:
    """End this process when the one that started it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # for the type checker

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
