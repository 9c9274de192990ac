"""The folder of a run, `workdir`: checks that the run can start or resume there, and its lock.

Only one run at a time writes there, on any machine.
"""

import dataclasses
import json
import operator
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like import checkpoints, config, paths, processes
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import command_line, completion, optimizer_state
from t5x_like.experiment.run import Run

NAME = "lock.json"
EVERY = 10.0  # seconds from one heartbeat to the next
STALE = 60.0  # seconds without a heartbeat after which a run on another host counts as dead
_SETTLED = 1.0  # seconds until two runs that take over a lock at once both see who wrote last

_PROC = pathlib.Path("/proc")


class LockedError(ValueError):
    """Another run holds the lock of the workdir."""


class WorkdirLock:
    """The lock of a workdir, a context manager for the first process of a run.

    A run that was killed leaves its lock. On the same machine the lock is stale if the process is
    gone, and is taken over at once; on another machine it is watched, and taken over when no
    heartbeat has come for `STALE` seconds. Clocks of different machines are never compared.

    Args:
        workdir: the folder; created if absent when the lock is taken.
        report: called with a line of text when the lock is watched or taken over.

    Raises:
        LockedError: on entering, if another run is alive.
        WriteError: on entering, if the folder cannot be created.
    """

    def __init__(self, workdir: pathlib.Path, *, report: Callable[[str], None]):
        self._path, self._report = workdir / NAME, report
        self._workdir = workdir
        self._content: dict[str, Any] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = ""

    def refuse_if_alive(self) -> None:
        """Raise LockedError if a live run on this machine holds the lock; nothing is written."""
        holder = self._read()
        if holder and _is_alive(holder):
            raise LockedError(self._refusal(holder))

    def __enter__(self) -> "WorkdirLock":
        with command_line.writing(self._workdir):
            self._workdir.mkdir(parents=True, exist_ok=True)
        self._content = _identity() | {"run": uuid.uuid4().hex, "beat": 0}
        while not self._create():
            holder = self._read()
            if holder is not None:
                self._take_over(holder)
                break
        self._thread = threading.Thread(target=self._beat, daemon=True, name="workdir_lock")
        self._thread.start()
        self._take_back = processes.before_end(self._release)
        return self

    def __exit__(self, *_: object) -> None:
        self._take_back()
        self._release()

    def _release(self) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()
        if self._is_held():
            self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise LockedError if another run took over the lock, because this run seemed dead."""
        if self._lost:
            raise LockedError(self._lost)

    def _create(self) -> bool:
        return paths.create(self._path, json.dumps(self._content))

    def _take_over(self, holder: dict[str, Any]) -> None:
        alive = _is_alive(holder)
        if alive is None:
            alive = self._watch(holder)
        if alive:
            raise LockedError(self._refusal(holder))
        self._write()
        time.sleep(_SETTLED)
        if not self._is_held():
            raise LockedError(self._refusal(self._read() or holder))
        self._report(f"took over the lock of {_name(holder)}, which is gone")

    def _watch(self, holder: dict[str, Any]) -> bool:
        """Return whether the lock file changes within `STALE` seconds."""
        self._report(f"{self._path} is of {_name(holder)}: waiting {STALE:.0f} s for a heartbeat")
        end = time.monotonic() + STALE
        while time.monotonic() < end:
            time.sleep(min(1.0, STALE / 10))
            if self._read() != holder:
                return True
        return False

    def _beat(self) -> None:
        while not self._ended.wait(EVERY):
            try:
                holder = self._read()
                if holder and holder.get("run") != self._content["run"]:
                    self._lost = self._refusal(holder) + "; it took over this run's lock"
                    return
                self._content["beat"] += 1
                self._write()
            except OSError:
                pass  # a full disk or a slow network: the next heartbeat may succeed

    def _write(self) -> None:
        paths.write_whole(self._path, json.dumps(self._content))

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the lock, {} while it is being written, None without a lock."""
        try:
            with paths.requests(self._path):
                content = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def _is_held(self) -> bool:
        return (self._read() or {}).get("run") == self._content["run"]

    def _refusal(self, holder: dict[str, Any]) -> str:
        return (
            f"workdir={os.fspath(self._workdir)!r} is in use by {_name(holder)}: stop that run, or "
            "set another workdir"
        )


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('process', '?')} on host {holder.get('host', '?')}"


def _identity() -> dict[str, Any]:
    """Return the machine and process; each container of a machine numbers its own processes."""
    boot = _PROC / "sys/kernel/random/boot_id"
    namespace = _PROC / "self/ns/pid"
    return {
        "host": socket.gethostname(),
        "boot": boot.read_text().strip() if boot.exists() else "",
        "namespace": os.readlink(namespace) if namespace.exists() else "",
        "process": os.getpid(),
        "started": _started(os.getpid()),
    }


def _started(process: int) -> str | None:
    """Return when a process started, None if it is gone; this detects reused process numbers."""
    stat = _PROC / str(process) / "stat"
    if _PROC.is_dir():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]  # a zombie has ended
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _is_alive(holder: dict[str, Any]) -> bool | None:
    """Return whether the process of a lock is alive; None if it is on another machine."""
    this_process = _identity()
    if any(holder.get(key) != this_process[key] for key in ("host", "boot", "namespace")):
        return None
    process = holder.get("process")
    if type(process) is not int or process < 1:  # the lock was not written by a run
        return None
    return _started(process) == holder.get("started")


def find(settings: RunSettings) -> pathlib.Path:
    """Return the workdir of a config, which need not exist; nothing is written to it.

    Raises:
        ValueError: it is not set, not a folder, not writable, or in a bucket that cannot be read.
    """
    if not settings.workdir:
        raise ValueError("workdir is not set: --config.workdir=FOLDER")
    command_line.check_folder("workdir", settings.workdir)
    if paths.in_bucket(settings.workdir) and settings.train.profile_at:
        raise ValueError(
            f"train.profile_at={settings.train.profile_at}: a profile goes to a folder of the "
            "machine, and the workdir is in a bucket: set 0, or profile with another workdir"
        )
    return paths.path(settings.workdir)


@dataclasses.dataclass(frozen=True)
class Stored:
    """The metadata in the newest checkpoint of a workdir.

    Attributes:
        step: the step of the checkpoint.
        config: the run's config, as plain JSON values.
        shards: the number of shards in which the run reads its data.
        fingerprints: of its vocabulary and data files, {} in older checkpoints.
    """

    step: int
    config: dict[str, Any]
    shards: int
    fingerprints: dict[str, Any]


def stored(workdir: pathlib.Path, run: Run) -> Stored | None:
    """Read the metadata of the newest checkpoint of a workdir; None without a checkpoint.

    Raises:
        ValueError: the config cannot resume the run there; or, without a checkpoint, `initialize`
            is not the folder of a model, has other labels, or is not set for a run with LoRA.
    """
    folder, settings = workdir / "checkpoints", run.settings
    if not checkpoints.agreed_steps(folder):
        if settings.initialize_optimizer:
            optimizer_state.find(run)
        elif settings.initialize:
            run.check_source()
            completion.check_labels(run)
        elif settings.lora.rank:
            raise ValueError(
                f"lora.rank={settings.lora.rank} trains matrices beside the kernels of a "
                "pretrained model: set initialize to its folder"
            )
        return None
    metadata = checkpoints.read_metadata(folder)
    if "data_shards" not in metadata:
        raise ValueError(
            f"workdir={settings.workdir!r} has converted weights, and no run to resume: set "
            "initialize to that folder, and workdir to another"
        )
    if (system := metadata["config"]["system"]) != settings.system:
        raise ValueError(
            f"workdir={settings.workdir!r} has a run of system {system!r}, and this config has "
            f"system={settings.system!r}: set another workdir"
        )
    _check_unchanged(settings, config.of_stored(metadata["config"]))
    return Stored(
        step=metadata["step"],
        config=metadata["config"],
        shards=metadata["data_shards"],
        fingerprints=metadata.get("fingerprints", {}),
    )


def _check_unchanged(settings: RunSettings, before: RunSettings) -> None:
    """Check the settings that a run keeps: LoRA's, and the seed of the order of its data."""
    of_lora = [f"lora.{field.name}" for field in dataclasses.fields(settings.lora)]
    for name in (*of_lora, "data.seed"):
        old, new = map(operator.attrgetter(name), (before, settings))
        if old != new:
            raise ValueError(
                f"{name}={new!r}: the run in workdir={settings.workdir!r} has {name}={old!r}: set "
                "it, or set initialize to that folder, and workdir to another"
            )


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings in which two configs differ, as lines `train.steps: 100 -> 200`.

    Settings newer than the first config count as defaults in it. `workdir` is left out, and
    `data.shards`, which a run keeps.
    """
    old, new = flat(config.to_dict(config.of_stored(before))), flat(now)
    absent = "not set"
    return [
        f"{key}: {_shown(old[key]) if key in old else absent} -> "
        f"{_shown(new[key]) if key in new else absent}"
        for key in sorted(old.keys() | new.keys())
        if key not in ("workdir", "data.shards") and old.get(key, absent) != new.get(key, absent)
    ]


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as {"train.steps": value}."""
    leaves: dict[str, Any] = {}
    for key, value in settings.items():
        is_part = isinstance(value, Mapping)
        leaves |= flat(value, f"{prefix}{key}.") if is_part else {f"{prefix}{key}": value}
    return leaves


def write_config(settings: RunSettings, workdir: pathlib.Path, *, step: int) -> None:
    """Write config.json, and a copy configs/NUMBER_step_STEP.json if the config has changed.

    Writes are atomic: a kill leaves either the old or the new config.json.

    Args:
        step: the step at which the run starts or resumes.
    """
    content = command_line.as_json(config.to_dict(settings), indent=2)
    copies = sorted((workdir / "configs").glob("*_step_*.json"))
    before = json.loads(copies[-1].read_bytes()) if copies else None
    if command_line.as_json(before, indent=2) != content:
        (workdir / "configs").mkdir(exist_ok=True)
        _write(workdir / "configs" / f"{len(copies) + 1:04d}_step_{step}.json", content)
    _write(workdir / "config.json", content)


def _write(path: pathlib.Path, content: bytes) -> None:
    with command_line.writing(path):
        paths.write_whole(path, content)
