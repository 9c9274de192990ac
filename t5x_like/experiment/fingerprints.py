"""Fingerprints of a run's vocabulary and data files, compared when the run resumes."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t5x_like import hub, paths
from t5x_like.experiment.recurrent_state import Data
from t5x_like.experiment.run import Phase

_READERS = 16

# [size in bytes, modification time in seconds, hash of the file's beginning and end]
Fingerprint = list[Any]


def of_run(parts: Sequence[tuple[Phase, Data]], *, models: Sequence[str]) -> dict[str, Any]:
    """Return the fingerprints of a run, as JSON values.

    Args:
        parts: the phases with their data.
        models: the settings that may name models of Hugging Face's hub.

    Returns:
        `vocabulary`, a hash of all that determines how text is encoded; `read`, the files that each
        task of each phase reads, in order; `files`, {path: fingerprint}; `hub`, {name of a model:
        commit}.
    """
    read: dict[str, list[str]] = {}
    digest = ""
    for phase, data in parts:
        for name, inputs in data.items():
            digest = inputs.part.text.vocabulary.digest  # the same in all parts of a run
            tasks = dict.fromkeys((inputs.part.data.task, *inputs.eval_tasks))
            files_of_task = inputs.part.text.tasks().files(*tasks)
            prefix = "".join(f"{part}/" for part in (phase.name, name) if part)
            read |= {f"{prefix}{key}": files for key, files in files_of_task.items()}
    files = _fingerprints(path for group in read.values() for path in group)
    fingerprinted = {key: [path for path in group if path in files] for key, group in read.items()}
    commits = hub.commits(*models)
    return {"vocabulary": digest, "read": fingerprinted, "files": files, "hub": commits}


def check_vocabulary(before: Mapping[str, Any], digest: str, *, vocabulary: str) -> None:
    """Check that a vocabulary equals the checkpoint's, if the checkpoint has its fingerprint.

    Args:
        before: the fingerprints in the checkpoint, {} if it has none.
        digest: the hash of the vocabulary.
        vocabulary: `data.vocabulary`, for the error message.

    Raises:
        ValueError: the vocabularies differ.
    """
    if before and before["vocabulary"] != digest:
        raise ValueError(
            f"data.vocabulary={vocabulary!r} is another vocabulary than the one in the run's "
            "checkpoint, whose parameters belong to its tokens: give that one, or set another "
            "workdir"
        )


def compare(
    before: Mapping[str, Any], now: Mapping[str, Any], *, vocabulary: str, allow_changed: bool
) -> list[str]:
    """Compare the fingerprints of a run with its checkpoint's, if the checkpoint has any.

    Files may have moved, as to another machine. Their sizes, beginnings and ends must be the same,
    in the order in which they are read; a changed modification time is only reported, and so is
    another commit of a model of the hub, since the checkpoint has the parameters.

    Args:
        vocabulary: `data.vocabulary`, for the error message.
        allow_changed: `data.allow_changed`.

    Returns:
        Lines to print.

    Raises:
        ValueError: the vocabulary has changed, or the data has changed without `allow_changed`.
    """
    if not before:
        return []
    check_vocabulary(before, now["vocabulary"], vocabulary=vocabulary)
    changes = [change for key in before["read"] if (change := _change(before, now, key=key))]
    if changes and not allow_changed:
        more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
        raise ValueError(
            f"the data have changed since the checkpoint: {changes[0]}{more}; give the files that "
            "the run was trained on, set another workdir, or continue with these by "
            "data.allow_changed=True"
        )
    touched = [
        path
        for path, (_, modified, _) in now["files"].items()
        if path in before["files"] and before["files"][path][1] != modified
    ]
    if touched and not changes:
        changes = [
            f"{len(touched)} files were written again, {touched[0]} for one, with the same size, "
            "beginning and end: they are taken for the same"
        ]
    commits = before.get("hub", {})
    moved = [
        f"{name} of the hub had commit {commits[name]} at the checkpoint, and has {commit} now"
        for name, commit in now["hub"].items()
        if commits.get(name, commit) != commit
    ]
    return [*(f"data: {change}" for change in changes), *moved]


def _change(before: Mapping[str, Any], now: Mapping[str, Any], *, key: str) -> str:
    """Describe the first difference between the files of a task and split; "" if they agree."""
    if key not in now["read"]:  # the config no longer reads it
        return ""
    old, new = before["read"][key], now["read"][key]
    if len(old) != len(new):
        return f"{key} has {len(new)} files, and had {len(old)}"
    for was, path in zip(old, new, strict=True):
        (size, _, ends), (size_now, _, ends_now) = before["files"][was], now["files"][path]
        if size != size_now:
            return f"{path} of {key} has {size_now} bytes, and had {size}"
        if ends != ends_now:
            return f"{path} of {key} has another content"
    return ""


def _fingerprints(files: Iterable[str]) -> dict[str, Fingerprint]:
    """Return the fingerprints of the paths that are files, read in parallel."""
    distinct = list(dict.fromkeys(files))
    with ThreadPoolExecutor(_READERS) as pool:
        pairs = zip(distinct, pool.map(paths.fingerprint, distinct), strict=True)
        return {path: fingerprint for path, fingerprint in pairs if fingerprint is not None}
