"""Tokenize the documents of a data module once, in several processes, into a folder.

A file is written under another name and renamed when it is whole. A run that was killed goes on
with the files that are missing.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from t5x_like import paths, vocabularies
from t5x_like.batches import data_modules
from t5x_like.grain_pipeline.corpus import Split, splits_of
from t5x_like.grain_pipeline.corpus_tasks import corpora_of
from t5x_like.grain_pipeline.tokenized_documents import (
    RECORD,
    UNFINISHED,
    difference,
    identity,
    pack,
    tokenize,
)

_ROWS = 10_000  # of a file, and more in a large corpus
_MOST_FILES = 1024  # of a split


@dataclasses.dataclass(frozen=True)
class Documents:
    """What is tokenized. It can be sent to a process, which opens the files for itself.

    Attributes:
        module: the path of a data module with corpora.
        settings: its settings.
        vocabulary: the name of the vocabulary.
        tasks: the names of the corpora.
    """

    module: str
    settings: Mapping[str, Any]
    vocabulary: str
    tasks: Sequence[str]

    def open(self) -> tuple[vocabularies.Vocabulary, dict[str, Split]]:
        """The vocabulary, and the splits by "TASK/SPLIT".

        Raises:
            ValueError: it, a corpus, a setting or a file does not exist, or seqio reads the module.
        """
        module = data_modules.load(self.module)
        if not hasattr(module, data_modules.CORPORA):
            raise ValueError(
                f"data.module={self.module!r} is read by seqio, and only documents that grain reads"
                " can be tokenized beforehand: take data/grain_files.py"
            )
        splits = splits_of(corpora_of(module, self.settings), *self.tasks)
        return vocabularies.load(self.vocabulary), splits


@dataclasses.dataclass(frozen=True)
class _Part:
    """Rows of a split, "TASK/SPLIT", that become a file."""

    key: str
    rows: range
    file: pathlib.Path

    def write(self, vocabulary: vocabularies.Vocabulary, split: Split) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        unfinished = self.file.with_suffix(f".{os.getpid()}.unfinished")
        writer = ArrayRecordWriter(str(unfinished), "group_size:1")  # for reading in any order
        for number in self.rows:
            writer.write(pack(tokenize(split.document(number), vocabulary)))
        writer.close()
        unfinished.replace(self.file)


def write(
    documents: Documents, folder: str, *, processes: int, rows: int = _ROWS
) -> Iterator[tuple[int, int]]:
    """Write the folder, or what is missing of it.

    Args:
        documents: what is tokenized.
        folder: a new one, or one of the same documents.
        processes: that tokenize at once.
        rows: of a file.

    Yields:
        The number of files that are whole, and of all files.

    Raises:
        ValueError: something does not exist, the folder has something else, or the documents
            changed in the meantime.
        OSError: the folder cannot be written, or a process was killed.
    """
    vocabulary, splits = documents.open()
    made = identity(vocabulary, splits)
    place = pathlib.Path(folder).expanduser()
    parts = [part for key, own in splits.items() for part in _parts(place, key, own, rows=rows)]
    if _is_whole(place, {"identity": made, "rows": rows}, name=folder):
        yield len(parts), len(parts)
        return
    for part in parts:
        part.file.parent.mkdir(parents=True, exist_ok=True)
    missing = [part for part in parts if not part.file.exists()]
    whole = len(parts) - len(missing)
    for number, _ in enumerate(_written(documents, missing, processes=processes), whole + 1):
        yield number, len(parts)
    if other := difference(made, identity(*documents.open())):
        (place / UNFINISHED).unlink()  # nothing goes on with files of two states of the text
        raise ValueError(
            f"the documents were changed meanwhile: {other}; delete {folder} and begin anew"
        )
    for left in place.rglob("*.unfinished"):  # by runs that were killed
        left.unlink()
    sizes: dict[str, dict[str, int]] = {key: {} for key in splits}
    for part in parts:
        sizes[part.key][os.path.relpath(part.file, place)] = part.file.stat().st_size
    record = {"identity": made, "files": sizes}
    paths.write_whole(place / RECORD, json.dumps(record, indent=1) + "\n")
    (place / UNFINISHED).unlink()


def _parts(place: pathlib.Path, key: str, split: Split, *, rows: int) -> list[_Part]:
    """The files of a split, which do not depend on the processes; none without rows."""
    number = min(max(1, -(-len(split.rows) // rows)), _MOST_FILES)
    ends = [len(split.rows) * n // number for n in range(number + 1)]
    return [
        _Part(key, range(*pair), place / f"{key}-{n:05d}-of-{number:05d}.array_record")
        for n, pair in enumerate(itertools.pairwise(ends))
        if pair[0] < pair[1]
    ]


def _is_whole(place: pathlib.Path, plan: Mapping[str, Any], *, name: str) -> bool:
    """Whether the folder is finished; a new one gets the plan.

    Raises:
        ValueError: it has something else.
    """
    for file in (RECORD, UNFINISHED):
        try:
            found = json.loads((place / file).read_text())
            other = difference(found["identity"], plan["identity"])
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--output={name!r}: {file} cannot be read: {error}") from error
        if not other and file == UNFINISHED and found["rows"] != plan["rows"]:
            other = f"its files have {found['rows']} rows"
        if other:
            raise ValueError(
                f"--output={name!r} was made of other text or tokens: {other}; set another "
                "--output, or delete the folder"
            )
        return file == RECORD
    if place.exists() and any(place.iterdir()):
        raise ValueError(f"--output={name!r} has other files: give a new folder, or an empty one")
    place.mkdir(parents=True, exist_ok=True)
    paths.write_whole(place / UNFINISHED, json.dumps(plan, indent=1) + "\n")
    return False


def _written(documents: Documents, parts: Sequence[_Part], *, processes: int) -> Iterator[None]:
    """Write the files, and return after each."""
    if processes == 1:
        vocabulary, splits = documents.open()
        for part in parts:
            part.write(vocabulary, splits[part.key])
            yield
        return
    # Threads of this process may hold locks, which a fork would copy.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=context, initializer=_end_with_parent
    ) as pool:
        futures = [pool.submit(_write, documents, part) for part in parts]
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


def _write(documents: Documents, part: _Part) -> None:
    vocabulary, splits = _opened(json.dumps(dataclasses.asdict(documents)))
    part.write(vocabulary, splits[part.key])


@functools.lru_cache(1)
def _opened(documents: str) -> tuple[vocabularies.Vocabulary, dict[str, Split]]:
    """What a process of the pool reads, opened once."""
    return Documents(**json.loads(documents)).open()


def _end_with_parent() -> None:
    """End this process when the one that started it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # for the type checker

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
