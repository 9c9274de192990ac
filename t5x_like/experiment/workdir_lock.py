"""The lock of a workdir: only one run at a time writes there, on any machine.

The file `lock.json` names the host and the process, and is rewritten every few seconds. It needs no
file-system locks, which network file systems and buckets may lack.
"""

import json
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from t5x_like import paths, processes

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
    """

    def __init__(self, workdir: pathlib.Path, *, report: Callable[[str], None]):
        self._path, self._report = workdir / NAME, report
        self._workdir = workdir
        self._own: dict[str, Any] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = ""

    def refuse_if_alive(self) -> None:
        """Raise LockedError if a live run on this machine holds the lock; nothing is written."""
        found = self._read()
        if found and _is_alive(found):
            raise LockedError(self._refusal(found))

    def __enter__(self) -> "WorkdirLock":
        self._workdir.mkdir(parents=True, exist_ok=True)
        self._own = _identity() | {"run": uuid.uuid4().hex, "beat": 0}
        while not self._create():
            found = self._read()
            if found is not None:
                self._take_over(found)
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
        if self._is_own():
            self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise LockedError if another run took over the lock, because this run seemed dead."""
        if self._lost:
            raise LockedError(self._lost)

    def _create(self) -> bool:
        return paths.create(self._path, json.dumps(self._own))

    def _take_over(self, found: dict[str, Any]) -> None:
        alive = _is_alive(found)
        if alive is None:
            alive = self._watch(found)
        if alive:
            raise LockedError(self._refusal(found))
        self._write()
        time.sleep(_SETTLED)
        if not self._is_own():
            raise LockedError(self._refusal(self._read() or found))
        self._report(f"took over the lock of {_name(found)}, which is gone")

    def _watch(self, found: dict[str, Any]) -> bool:
        """Return whether the lock file changes within `STALE` seconds."""
        self._report(f"{self._path} is of {_name(found)}: waiting {STALE:.0f} s for a heartbeat")
        end = time.monotonic() + STALE
        while time.monotonic() < end:
            time.sleep(min(1.0, STALE / 10))
            if self._read() != found:
                return True
        return False

    def _beat(self) -> None:
        while not self._ended.wait(EVERY):
            try:
                found = self._read()
                if found and found.get("run") != self._own["run"]:
                    self._lost = self._refusal(found) + "; it took over this run's lock"
                    return
                self._own["beat"] += 1
                self._write()
            except OSError:
                pass  # a full disk or a slow network: the next heartbeat may succeed

    def _write(self) -> None:
        paths.write_whole(self._path, json.dumps(self._own))

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the lock, {} while it is being written, None without a lock."""
        try:
            with paths.requests(self._path):
                found = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _is_own(self) -> bool:
        return (self._read() or {}).get("run") == self._own["run"]

    def _refusal(self, found: dict[str, Any]) -> str:
        return (
            f"workdir={os.fspath(self._workdir)!r} is in use by {_name(found)}: stop that run, or "
            "set another workdir"
        )


def _name(found: dict[str, Any]) -> str:
    return f"process {found.get('process', '?')} on host {found.get('host', '?')}"


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


def _is_alive(found: dict[str, Any]) -> bool | None:
    """Return whether the process of a lock is alive; None if it is on another machine."""
    own = _identity()
    if any(found.get(key) != own[key] for key in ("host", "boot", "namespace")):
        return None
    process = found.get("process")
    if type(process) is not int or process < 1:  # the lock was not written by a run
        return None
    return _started(process) == found.get("started")
