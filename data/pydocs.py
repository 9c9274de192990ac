"""Documentation strings of Python and of the installed scientific packages, as a corpus.

English text (about 25 MB, 2 MB of it from the standard library) that is already on the machine:
nothing is downloaded. The first use parses the installed sources, in some seconds on a few cores,
and stores the documents in a cache, `$T5X_LIKE_CACHE/pydocs` (by default
`~/.cache/t5x_like/pydocs`, after `$XDG_CACHE_HOME`), with a folder for each set of sources.

A document is the docstring of a module, class or function, with at least 64 characters; exact
copies are removed. The documents are sorted by their SHA-1, so that neighbours are unrelated, and
written to 16 files per split.

For validation 2% of the documents are held out, chosen by their text (`sources.held_out`). Library
documentation repeats itself: about a third of the held-out words are in a 13-gram that also occurs
in the training documents, so a held-out loss here shows that a model learns, not how well it
generalizes to other text.

With `prose` a document has only the sentences of a docstring, without layout, code, formulas and
tables (`docstrings.prose`): about 7 MB that small models learn sooner. A paragraph that occurs in
several docstrings is kept in only one, so that none is in both splits; a seventh of the held-out
words are in such a 13-gram. With `common_words` in addition, only sentences are kept, each once,
that consist of the words that occur in the most documents: 1.2 MB for 2,000 words, which a model of
a few million parameters learns in minutes (4% of the held-out words are in such a 13-gram).

    --config.data.module=data/pydocs.py --config.data.task=pydocs
    --config.data.settings.packages="('stdlib',)"                    only the standard library
    --config.data.settings.prose=True                                only sentences
    --config.data.settings.common_words=2000                         of 2,000 words, with prose
"""

import collections
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from t5x_like import paths
from t5x_like.names import hint
from t5x_like.preprocessing import sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.vocabularies import Vocabulary

STDLIB = "stdlib"
# The default: those that are installed.
PACKAGES = (
    STDLIB,
    "chex",
    "flax",
    "jax",
    "jaxlib",
    "keras",
    "matplotlib",
    "mpl_toolkits",
    "numpy",
    "optax",
    "orbax",
    "pandas",
    "scipy",
    "seqio",
    "sklearn",
    "sympy",
    "tensorflow",
    "tensorflow_datasets",
    "tensorflow_text",
)
HELD_OUT = 0.02
MIN_CHARACTERS = 64

_FILES = 16
_SIZES = "documents.json"
# Packages below the standard library, and tests: a third of the code, with a hundredth of the text.
_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "tests"}
_PLAIN_WORD = re.compile(r"[a-z]+(?:[-'][a-z]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_FORMAT = 1  # to be raised when the content of a cached corpus changes


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    packages: Sequence[str] | None = None,
    prose: bool = False,
    common_words: int = 0,
    name: str = "pydocs",
) -> None:
    """Add the task `name`, with the splits "train" and "validation".

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: turns the documents into examples.
        packages: names as in `import`, and "stdlib"; None: the installed packages of `PACKAGES`.
        prose: keep only sentences.
        common_words: keep only sentences made of this many most common words; 0 keeps all.
        name: name of the task.

    Raises:
        ValueError: a package is not installed; `common_words` is negative, or `prose` is missing.
    """
    source = _source(packages, prose=prose, common_words=common_words)
    sources.add_document_task(name, source=source, vocabulary=vocabulary, objective=objective)


def documents(
    split: str,
    *,
    packages: Sequence[str] | None = None,
    prose: bool = False,
    common_words: int = 0,
) -> tf.data.Dataset:
    """Return the documents of a split, {"text": scalar string}; for the settings see `register`."""
    source = _source(packages, prose=prose, common_words=common_words)
    return source.get_dataset(split, shuffle=False)


def _source(
    packages: Sequence[str] | None, *, prose: bool, common_words: int
) -> sources.FileSource:
    if common_words < 0 or (common_words and not prose):
        raise ValueError(
            f"common_words={common_words} must be 0, for all words, or a number of words together "
            "with prose=True, since it chooses sentences."
        )
    corpus = functools.partial(
        _corpus,
        folders(packages),
        paths.cache("pydocs"),
        prose=prose,
        common_words=common_words,
    )
    return sources.FileSource(
        list_units=lambda split: sorted(map(str, corpus().glob(f"{split}-*"))),
        read=tf.data.TFRecordDataset,
        examples=lambda rows, split: rows.map(lambda row: {"text": row}),
        count=lambda split: json.loads((corpus() / _SIZES).read_text())[split],
    )


def folders(packages: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the folders of sources, each with the name of its package, in sorted order.

    Raises:
        ValueError: a package is not installed.
    """
    names = [packages] if isinstance(packages, str) else packages or PACKAGES
    found = []
    for name in names:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if name == STDLIB:
            found.append((name, sysconfig.get_path("stdlib")))
        elif spec is not None and spec.submodule_search_locations:
            found += [(name, folder) for folder in spec.submodule_search_locations]
        elif packages is not None:
            raise ValueError(
                f"packages={tuple(names)!r}: the package {name!r} is not installed, "
                f"or it is a single file.{hint(name, PACKAGES)}"
            )
    return tuple(sorted(found))


@functools.cache
def _corpus(
    sources_of: tuple[tuple[str, str], ...],
    cache: Path,
    *,
    prose: bool = False,
    common_words: int = 0,
) -> Path:
    """Return the folder of the cached documents; write it first if it does not exist."""
    files = source_files(sources_of)

    def write(folder: Path) -> None:
        texts = _extract([str(file) for _, file in files], prose=prose)
        _write(_unique(texts, prose=prose, common_words=common_words), folder)

    key = (_FORMAT, prose, common_words) if common_words else (_FORMAT, prose)
    return cached(cache, files, key, write)


def source_files(folders: Sequence[tuple[str, str]]) -> list[tuple[str, Path]]:
    """Return (PACKAGE/relative path, file) of the Python files in the folders of packages."""
    return [
        (f"{name}/{file.relative_to(folder)}", file)
        for name, folder in folders
        for file in _python_files(folder)
    ]


def cached(
    cache: Path, files: Sequence[tuple[str, Path]], key: Any, write: Callable[[Path], None]
) -> Path:
    """Return the cached folder made from source files; make it first if it does not exist.

    Args:
        cache: the folder that contains such folders.
        files: as returned by `source_files`.
        key: what the content depends on besides the files and Python; a JSON value.
        write: creates the folder at the given path, with its content.

    Raises:
        ValueError: the cache cannot be created.
    """
    # Sizes, not times: a reinstalled environment with the same releases is the same corpus.
    sizes = [(name, file.stat().st_size) for name, file in files]
    fingerprint = json.dumps([key, sys.version_info[:3], sizes])
    made = cache / hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    if made.exists():
        return made
    _make_folder(cache)
    with _alone(cache / "lock"), tempfile.TemporaryDirectory(dir=cache) as temporary:
        if not made.exists():  # another process may have made it while this one waited
            logging.info("Reading the documentation strings of %d files.", len(files))
            complete = Path(temporary, "complete")
            write(complete)
            _publish(complete, made)
    return made


def _python_files(folder: str) -> Iterator[Path]:
    """Yield the Python files of a folder in sorted order, without `_SKIPPED`."""
    for root, children, names in os.walk(folder):
        children[:] = sorted(set(children) - _SKIPPED)
        yield from (Path(root, name) for name in sorted(names) if name.endswith(".py"))


def _extract(files: Sequence[str], *, prose: bool) -> list[list[str]]:
    """Return the docstrings of each file, or their prose."""
    return run_worker("docstrings.py", files, *["--prose"] * prose)


def run_worker(script: str, files: Sequence[str], *flags: str) -> list[Any]:
    """Return the output of a script for each file, with one process per core.

    Args:
        script: its path, relative to this folder.
        files: the files.
        flags: flags of the script.
    """
    file = str(Path(__file__).parent / script)
    command = [sys.executable, "-I", "-S", "-W", "ignore", file, *flags]
    workers = min(os.cpu_count() or 1, 8)

    def work(first: int) -> list[Any]:
        part = json.dumps(files[first::workers])
        done = subprocess.run(command, input=part, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)

    found: list[Any] = [None for _ in files]
    with ThreadPoolExecutor(workers) as pool:
        for first, part in enumerate(pool.map(work, range(workers))):
            found[first::workers] = part
    return found


def _unique(texts: list[list[str]], *, prose: bool, common_words: int) -> list[bytes]:
    """Return the documents of a corpus, without duplicates, in the order of their SHA-1."""
    # A literal may contain half a surrogate pair, which UTF-8 cannot encode.
    encoded = {text.encode("utf-8", errors="replace") for file in texts for text in file}
    found = [
        text.decode() for text in sorted(encoded, key=lambda text: hashlib.sha1(text).digest())
    ]
    if prose:
        found = _without_repetitions(found)
    if common_words:
        found = _of_common_words(found, common_words)
    return [text.encode() for text in found if len(text) >= MIN_CHARACTERS]


def _without_repetitions(texts: list[str]) -> list[str]:
    """Remove lines from each text that an earlier text contains."""
    seen: set[str] = set()
    kept = []
    for text in texts:
        lines = [line for line in dict.fromkeys(text.split("\n")) if line not in seen]
        seen.update(lines)
        kept.append("\n".join(lines))
    return kept


def _of_common_words(texts: list[str], number: int) -> list[str]:
    """Keep the sentences that consist of the words in the most texts, each sentence in one text.

    Consecutive sentences of a paragraph stay in one line.
    """
    in_texts = collections.Counter(word for text in texts for word in set(_words(text)))
    words = sorted(
        filter(_PLAIN_WORD.fullmatch, in_texts), key=lambda word: (-in_texts[word], word)
    )
    common = set(words[:number])
    seen: set[str] = set()
    kept = []
    for text in texts:
        lines: list[str] = []
        for line in text.split("\n"):
            run: list[str] = []
            for sentence in _SENTENCE_END.split(line):
                if sentence not in seen and common.issuperset(_words(sentence)):
                    run.append(sentence)
                    seen.add(sentence)
                else:
                    lines.append(" ".join(run))
                    run = []
            lines.append(" ".join(run))
        kept.append("\n".join(filter(None, lines)))
    return kept


def _words(text: str) -> list[str]:
    return [word.strip("(),;:\"'.").lower() for word in text.split()]


def _write(texts: list[bytes], folder: Path) -> None:
    """Write the files of both splits, and the number of documents in each."""
    folder.mkdir()
    is_held_out = sources.held_out(tf.constant(texts), fraction=HELD_OUT).numpy()
    sizes = {}
    for split in sources.SPLITS:
        mine = [
            text
            for text, held_out in zip(texts, is_held_out, strict=True)
            if held_out == (split == "validation")
        ]
        sizes[split] = len(mine)
        for number in range(_FILES):
            file = folder / f"{split}-{number:05d}-of-{_FILES:05d}.tfrecord"
            with tf.io.TFRecordWriter(str(file)) as writer:
                for text in mine[number::_FILES]:
                    writer.write(text)
    (folder / _SIZES).write_text(json.dumps(sizes))


def _publish(complete: Path, corpus: Path) -> None:
    """Rename a finished folder, unless another process was first."""
    try:
        complete.rename(corpus)
    except OSError:
        if not corpus.exists():
            raise


def _make_folder(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The cache folder {str(cache)!r} cannot be created ({error.strerror}): set the "
            "environment variable T5X_LIKE_CACHE to a folder that can be written."
        ) from error


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep processes of this machine from doing the same work at once.

    If files cannot be locked, several do the work, and the result of the first is used.
    """
    with lock.open("w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
