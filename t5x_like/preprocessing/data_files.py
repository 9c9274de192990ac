"""Fingerprints of the files that tasks read, by which a restart notices that they have changed."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import seqio
import tensorflow as tf

from t5x_like.preprocessing.sources import SPLITS

_ENDS = 1 << 16  # bytes of the beginning and of the end that are hashed
_READERS = 16

# Size in bytes, time of modification in seconds, hash of the beginning and the end.
Fingerprint = list[Any]


def paths(tasks: Iterable[str], settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """The files of registered tasks and mixtures, in the order in which they are read.

    Args:
        tasks: their names.
        settings: of the data module, which may name files that it reads into memory.

    Returns:
        Files, which need not exist, by "TASK/SPLIT"; "data.settings" has those of the settings that
        no source lists. A source that generates its examples has none.
    """
    found: dict[str, list[str]] = {}
    for name in tasks:
        provider = seqio.get_mixture_or_task(name)
        for task in provider.tasks if isinstance(provider, seqio.Mixture) else [provider]:
            for split in SPLITS:
                files = getattr(task.source, "files", task.source.list_shards)
                # A source that is no files lists the split itself.
                listed = files(split) if split in task.splits else ()
                found[f"{task.name}/{split}"] = [path for path in listed if path != split]
    known = {path for files in found.values() for path in files}
    named = (os.path.expanduser(text) for text in _texts(settings) if os.path.splitext(text)[1])
    return found | {"data.settings": [path for path in named if path not in known]}


def fingerprints(files: Iterable[str]) -> dict[str, Fingerprint]:
    """The fingerprints of those paths that are files; a few reads each, several at once."""
    distinct = list(dict.fromkeys(files))
    with ThreadPoolExecutor(_READERS) as pool:
        pairs = zip(distinct, pool.map(_fingerprint, distinct), strict=True)
        return {path: found for path, found in pairs if found is not None}


def _fingerprint(path: str) -> Fingerprint | None:
    try:
        stat = tf.io.gfile.stat(path)
        if tf.io.gfile.isdir(path):
            return None
        with tf.io.gfile.GFile(path, "rb") as file:
            ends = hashlib.sha256(file.read(_ENDS))
            file.seek(max(0, stat.length - _ENDS))
            ends.update(file.read(_ENDS))
    except (tf.errors.OpError, OSError):
        return None
    return [stat.length, stat.mtime_nsec // 10**9, ends.hexdigest()[:16]]


def _texts(settings: Any) -> Iterator[str]:
    """All strings of a tree of settings."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from _texts(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _texts(value)
