"""List the files that seqio tasks read."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import seqio

from t5x_like.preprocessing.sources import SPLITS


def paths(tasks: Iterable[str], settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of registered tasks and mixtures, in the order in which they are read.

    Args:
        tasks: names of the tasks and mixtures.
        settings: of the data module, which may name files that it reads into memory.

    Returns:
        {"TASK/SPLIT": files}; files need not exist, and a source that generates its examples has
        none. The key "data.settings" has the files in the settings that no source lists.
    """
    found: dict[str, list[str]] = {}
    for name in tasks:
        provider = seqio.get_mixture_or_task(name)
        for task in provider.tasks if isinstance(provider, seqio.Mixture) else [provider]:
            for split in SPLITS:
                files = getattr(task.source, "files", task.source.list_shards)
                # A source without files lists the split itself as its only shard.
                listed = files(split) if split in task.splits else ()
                found[f"{task.name}/{split}"] = [path for path in listed if path != split]
    known = {path for files in found.values() for path in files}
    named = (os.path.expanduser(text) for text in _texts(settings) if os.path.splitext(text)[1])
    return found | {"data.settings": [path for path in named if path not in known]}


def _texts(settings: Any) -> Iterator[str]:
    """Yield all strings in a tree of settings."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from _texts(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _texts(value)
