"""Write the rows of PyGLUE to files in a cache: split the code, balance labels, remove leaks.

The cache is `$T5X_LIKE_CACHE/pyglue`, with a folder for each set of sources: `labelled/` and
`text/` with TASK-SPLIT.jsonl, the documents to pretrain on, and sizes.json.
"""

import collections
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from t5x_like import paths
from t5x_like.names import choose, import_file
from t5x_like.preprocessing import sources

_HERE = Path(__file__)
_pydocs = sources.load_module(str(_HERE.with_name("pydocs.py")))
_tasks, _texts = (
    import_file("data.module", _HERE.with_name(f"{name}.py"), name=f"data.{name}")
    for name in ("pyglue_tasks", "pyglue_texts")
)
TASKS: Mapping[str, Any] = _tasks.TASKS

SPLITS = ("train", "validation", "test")
LABELLED, TEXT = "labelled", "text"
SIZES = "sizes.json"
# The most rows of a task in each split; and the share of the code, by the names of its modules.
MOST = {"train": 8000, "validation": 800, "test": 1600}
_SHARES = {"test": 0.15, "validation": 0.1}
_LONG = 6  # texts of this many words must not be in two splits
_RARE = 8  # leave out labels with less than 1 / _RARE of the rows of the most frequent label


def rows(
    task: str, split: str, *, form: str = LABELLED, packages: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a split of a task.

    Args:
        task: a name in `TASKS`.
        split: one of `SPLITS`.
        form: `LABELLED`, or `TEXT` for `inputs` and `targets`.
        packages: see data/pydocs.py.

    Raises:
        ValueError: the task is unknown, or it has no rows.
    """
    choose("task", task, TASKS)
    return read(folder(packages) / form / f"{task}-{split}.jsonl")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file.

    Raises:
        ValueError: it has no rows.
    """
    found = [json.loads(line) for line in path.read_text().splitlines()]
    if not found:
        raise ValueError(f"data.settings.packages: there are too few documents for {path.stem}")
    return found


def folder(packages: Sequence[str] | None = None) -> Path:
    """Return the folder of all rows; write it first if it does not exist.

    Raises:
        ValueError: a package is not installed.
    """
    return _folder(_pydocs.folders(packages), paths.cache("pyglue"))


@functools.cache
def _folder(folders: tuple[tuple[str, str], ...], cache: Path) -> Path:
    files = _pydocs.source_files(folders)
    code = ("docstrings.py", "documented_code.py", "pyglue_tasks.py", "pyglue_texts.py", _HERE.name)
    key = [hashlib.sha1(_HERE.with_name(name).read_bytes()).hexdigest() for name in code]

    def write(made: Path) -> None:
        found = _pydocs.run_worker("documented_code.py", [str(file) for _, file in files])
        places = [place for place, _ in files]
        _write(made, _split(_entries(zip(places, found, strict=True))))

    return _pydocs.cached(cache, files, key, write)


def _entries(found: Any) -> list[Any]:
    """Return the documented code, each docstring once, in the order of the texts' SHA-1."""
    every: dict[bytes, Any] = {}
    for place, documented in found:
        package, _, path = place.partition("/")
        module = f"{package}.{path.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        for one in documented:
            key = hashlib.sha1(f"{one['summary']}\n{one['rest']}".encode(errors="replace"))
            every.setdefault(key.digest(), _tasks.Entry(package=package, module=module, **one))
    return [every[key] for key in sorted(every)]


def _split(entries: Sequence[Any]) -> dict[str, list[Any]]:
    """Split entries by the last name of their module; no first sentence is in two splits."""
    splits: dict[str, list[Any]] = {split: [] for split in SPLITS}
    for entry in entries:
        splits[_split_of(entry.module.rpartition(".")[2])].append(entry)
    seen: set[str] = set()
    for split in reversed(SPLITS):
        splits[split] = [one for one in splits[split] if _plain(one.summary) not in seen]
        seen |= {_plain(one.summary) for one in splits[split] if one.summary}
    return splits


def _split_of(name: str) -> str:
    place = int(hashlib.sha1(name.encode()).hexdigest()[:8], 16) / 16**8
    for split, share in _SHARES.items():
        if place < share:
            return split
        place -= share
    return "train"


def _plain(text: str) -> str:
    """Return the words of a text in lower case."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _write(made: Path, entries: Mapping[str, Sequence[Any]]) -> None:
    sizes = {}
    for form in (LABELLED, TEXT):
        (made / form).mkdir(parents=True)
    for name, task in TASKS.items():
        for split, found in _rows(task, entries).items():
            texts = [text for row in found for text in _texts.WRITE[name](row)]
            for form, own in ((LABELLED, found), (TEXT, texts)):
                file = f"{form}/{name}-{split}.jsonl"
                (made / file).write_text("".join(json.dumps(row) + "\n" for row in own))
                sizes[file] = len(own)
    for split in sources.SPLITS:
        whole = (f"{one.summary}\n{one.rest}".strip() for one in entries[split])
        long = [text for text in whole if len(text) >= _pydocs.MIN_CHARACTERS]
        sizes[f"documents-{split}"] = len(long)
        with tf.io.TFRecordWriter(str(made / f"documents-{split}")) as writer:
            for text in long:
                writer.write(text.encode("utf-8", errors="replace"))
    (made / SIZES).write_text(json.dumps(sizes))


def _rows(task: Any, entries: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the rows of each split: no long text in two, labels balanced, at most `MOST`."""
    made: dict[str, list[Any]] = {}
    seen: set[str] = set()
    for split in reversed(SPLITS):
        found = [row for row in _unique(task.make(entries[split])) if not _long_texts(row) & seen]
        made[split] = found
        seen |= {text for row in found for text in _long_texts(row)}
    if task.balanced:
        made = _balance(made, task.balanced)
    return {split: made[split][: MOST[split]] for split in SPLITS}


def _unique(found: Iterator[Any]) -> Iterator[Any]:
    seen = set()
    for row in found:
        key = json.dumps({name: row[name] for name in row if name not in ("label", "value")})
        if key not in seen:
            seen.add(key)
            yield row


def _long_texts(row: Mapping[str, Any]) -> set[str]:
    """Return the long texts of a row."""
    found: list[str] = []
    for name, value in row.items():
        if name not in ("label", "answers", "question"):
            found += value if isinstance(value, list) else [value] if isinstance(value, str) else []
    return {_plain(text) for text in found if text.count(" ") >= _LONG - 1}


def _balance(made: Mapping[str, list[Any]], field: str) -> dict[str, list[Any]]:
    """Keep equally many rows of each label; leave out labels that are rare in some split."""
    numbers = {split: collections.Counter(row[field] for row in made[split]) for split in made}
    kept = {
        label
        for label in numbers["train"]
        if all(_RARE * own[label] >= max(own.values(), default=0) for own in numbers.values())
    }
    balanced: dict[str, list[Any]] = {}
    for split, own in numbers.items():
        each = min((own[label] for label in kept), default=0)
        each = min(each, MOST[split] // max(len(kept), 1))
        taken: collections.Counter[Any] = collections.Counter()
        balanced[split] = []
        for row in made[split]:
            taken[row[field]] += 1
            if row[field] in kept and taken[row[field]] <= each:
                balanced[split].append(row)
    return balanced
