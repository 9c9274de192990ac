"""Asynchronous, sharded checkpoints, whose checksums are verified before they are used."""

import asyncio
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import logging as standard_logging
import pathlib
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import jax
import orbax.checkpoint
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from t5x_like import paths
from t5x_like.checkpoints import manifest, reading
from t5x_like.checkpoints.best import BestCheckpoint
from t5x_like.checkpoints.reading import CheckpointError, DataState, checkpoint_steps

_ORBAX = str(pathlib.Path(orbax.checkpoint.__file__).parent)


@functools.cache
def leave_out_tracebacks() -> None:
    """Suppress the output about errors in Orbax's threads; --verbosity=1 shows it.

    If a file cannot be written, on a full disk for example, each thread of a save fails and logs
    it, asyncio logs the futures that Orbax did not wait for, TensorStore prints that their event
    loops are closed, and Python warns of coroutines that were never awaited: hundreds of lines
    around the line of the `CheckpointWriteError`. Some come after it, so the output stays
    suppressed for the rest of the process.
    """
    for logger in (logging.get_absl_logger(), standard_logging.getLogger("asyncio")):
        logger.addFilter(_keep)
    sys.unraisablehook = functools.partial(_report, sys.unraisablehook)
    if not logging.level_debug():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def _keep(record: standard_logging.LogRecord) -> bool:
    return logging.level_debug() or not _of_orbax(record)


def _of_orbax(record: standard_logging.LogRecord) -> bool:
    """Return whether Orbax logged an error, or it passed through Orbax or came from TensorStore."""
    if not record.exc_info:
        return False
    if record.exc_info[2] is None:  # no Python code raised it: TensorStore's C++ ended a future
        return record.name == "asyncio"
    frames = traceback.extract_tb(record.exc_info[2])
    files = [record.pathname, *(frame.filename for frame in frames)]
    return any(file.startswith(_ORBAX) for file in files)


def _report(
    report: Callable[["sys.UnraisableHookArgs"], object], error: "sys.UnraisableHookArgs"
) -> None:
    """Report an error that no caller can catch, unless a failed save has closed its event loop."""
    if logging.level_debug() or str(error.exc_value) != "Event loop is closed":
        report(error)


# Parts of the keys of Orbax's barriers: all processes have written; the first process has finished
# the checkpoint; all processes agree that the save has ended (a barrier before and after).
_WRITTEN, _COMMITTED, _ENDED = "async_write_complete", "async_commit_complete", "set_value"
_VERSIONED = ("jax", "flax", "optax", "orbax-checkpoint")


class CheckpointWriteError(OSError):
    """A checkpoint could not be written: no space, no permission, storage gone."""


class Checkpoints:
    """Writes and restores the checkpoints of a run: a context manager, used on all processes.

    Args:
        folder: the folder of the checkpoints; created if absent.
        every: steps from one checkpoint to the next, for `due`; 0 if no step is due.
        keep: the number of newest checkpoints to keep.
        keep_every: checkpoints at multiples of this step are kept forever; a multiple of `every`.
        metadata: JSON values stored with each checkpoint, such as the config.
        best: chooses the best checkpoint, which is kept in addition.
        may_write: called before each save; raises an error if another run uses the folder.

    Raises:
        CheckpointError: a setting is out of range, or nothing can be written to the folder.
    """

    def __init__(
        self,
        folder: epath.PathLike,
        *,
        every: int = 0,
        keep: int = 2,
        keep_every: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        best: BestCheckpoint | None = None,
        may_write: Callable[[], None] = lambda: None,
    ):
        if every < 0:
            raise CheckpointError(f"checkpoint.every={every}: must be 0 (never) or more")
        if keep < 1:
            raise CheckpointError(f"checkpoint.keep={keep}: must be 1 or more")
        if keep_every and (keep_every < 0 or not every or keep_every % every):
            rule = f"must be a multiple of checkpoint.every={every}"
            raise CheckpointError(f"checkpoint.keep_every={keep_every}: {rule}")
        self.folder = paths.absolute(folder)
        self._every, self._keep, self._keep_every, self._best = every, keep, keep_every, best
        self._may_write = may_write
        versions = {name: importlib.metadata.version(name) for name in _VERSIONED}
        self._metadata = {**(metadata or {}), "versions": versions}
        json.dumps(self._metadata)  # raise an error now rather than at the first save
        self._saving: int | None = None
        self._committed: int | None = None  # `_saving`, once it is finished on all processes
        self._saver: threading.Thread | None = None  # the thread that called `save`
        _probe(self.folder)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except CheckpointWriteError as failure:
            if error is None:
                raise
            if not isinstance(error, CheckpointWriteError):  # that is the same failure
                logging.error("%s", failure)  # the error that ended the run is raised

    def due(self, step: int) -> bool:
        """Return whether to save at this step."""
        return bool(self._every) and step % self._every == 0

    def save(
        self,
        step: int,
        state: Any,
        data_state: Mapping[int, bytes] | Future[Mapping[int, bytes] | None] | None = None,
    ) -> None:
        """Copy the state to the host, and write it in a background thread.

        Args:
            step: the number of steps taken, which names the checkpoint.
            state: a dataclass of arrays or None, with `params` and other fields; its arrays may be
                donated afterwards.
            data_state: {virtual shard: position} of the shards that this process reads, or a future
                with this mapping; None for data without positions.

        Raises:
            CheckpointWriteError: this or the previous save could not be written.
        """
        self._may_write()
        self.wait()
        self._saving, self._committed = step, None
        self._saver = threading.current_thread()
        metadata = json.dumps({**self._metadata, "step": step}).encode()
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            training=ocp.args.StandardSave(reading.all_but_params(state)),
            data=_SaveFiles(functools.partial(_positions, data_state)),
            metadata=_SaveFiles(
                lambda: {"metadata.json": metadata} if jax.process_index() == 0 else {}
            ),
        )
        with self._named_failure():
            self._manager.save(step, args=items, force=True)

    def wait(self) -> None:
        """Block until the last save is on disk; raise CheckpointWriteError if it failed."""
        if self._saving is not None:
            with self._named_failure():
                self._manager.wait_until_finished()
            self._saving = None

    def close(self) -> None:
        """Wait for the last save, and end the threads; raise CheckpointWriteError if it failed."""
        if "_manager" in self.__dict__:
            with self._named_failure():
                self._manager.close()
            del self._manager
        self._saving = None

    def restore_latest(self, abstract: Any) -> tuple[Any, DataState] | None:
        """Restore the newest intact checkpoint; None if the folder has none.

        Newer, damaged checkpoints are logged, and renamed to `<step>.damaged` so that the run can
        save at their steps again.

        Args:
            abstract: the train state, `jax.ShapeDtypeStruct`s with shardings, on any mesh.

        Returns:
            The train state, and the positions in the shards of all processes.

        Raises:
            DamagedCheckpointError: there are checkpoints, but none is intact; the caller decides
                whether to start anew.
            CheckpointError: a parameter is missing or has another shape or dtype.
        """
        self.close()  # Orbax lists the steps only once, when it opens a folder
        # In a bucket a folder without files does not exist.
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path.name.endswith(ocp.utils.TMP_DIR_SUFFIX):
                logging.warning("%s was never finished and is not used", path)
        if not reading.agreed_steps(self.folder):
            return None
        newest = reading.newest_intact(self.folder)
        for step in checkpoint_steps(self.folder):
            if step > int(newest.name) and jax.process_index() == 0:
                _set_aside(self.folder / str(step))
        multihost_utils.sync_global_devices("t5x_like.checkpoints.set_aside")
        return reading.restore_state(newest, abstract)

    def restore(self, abstract: Any, *, step: int) -> tuple[Any, DataState]:
        """Restore the checkpoint of a step; for the arguments and errors see `restore_latest`."""
        self.wait()
        return reading.restore_state(reading.newest_intact(self.folder / str(step)), abstract)

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        leave_out_tracebacks()
        policies = ocp.checkpoint_managers
        preservation: list[Any] = [policies.LatestN(self._keep)]
        if self._keep_every:
            preservation.append(policies.EveryNSteps(self._keep_every))
        if self._best is not None:
            preservation.append(self._best)
        return ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(preservation),
                cleanup_tmp_directories=True,
                lightweight_initialize=True,
                save_root_metadata=False,
                async_options=ocp.AsyncOptions(
                    barrier_sync_fn=self._meet, post_finalization_callback=self._finish
                ),
            ),
        )

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """Wait for the other processes, and first compute checksums of what this process wrote.

        A process whose part of the save failed skips the barriers at the end of the save: the
        others still wait at an earlier barrier, and its error ends the run.
        """
        in_background = threading.current_thread() is not self._saver
        if _ENDED in key and in_background and self._committed != self._saving:
            return
        if _WRITTEN in key:
            process = jax.process_index()
            written = [f"{item}/ocdbt.process_{process}/" for item in reading.ARRAYS]
            manifest.sum_own(self._unfinished, process=process, written=written)
        multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)
        if _COMMITTED in key:
            self._committed = self._saving

    def _finish(self) -> None:
        """Write the manifest: called on one process after all arrays, before the rename."""
        manifest.write(self._unfinished)

    @property
    def _unfinished(self) -> epath.Path:
        unfinished = self.folder / f"{self._saving}{ocp.utils.TMP_DIR_SUFFIX}"
        # Object stores cannot rename: there Orbax writes under the final name.
        return unfinished if unfinished.exists() else self.folder / str(self._saving)

    @contextlib.contextmanager
    def _named_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise CheckpointWriteError(
                f"cannot write the checkpoint of step {self._saving} to {self.folder}: {error}"
            ) from error


def _positions(
    data_state: Mapping[int, bytes] | Future[Mapping[int, bytes] | None] | None,
) -> dict[str, bytes]:
    """Wait for the positions in the data, and return {file name: position}."""
    positions = data_state.result() if isinstance(data_state, Future) else data_state
    return {f"{shard}{reading.POSITION}": position for shard, position in (positions or {}).items()}


class _FilesHandler(ocp.AsyncCheckpointHandler):
    """Writes small files atomically: processes that read the same shard write the same file."""

    async def async_save(self, directory: epath.Path, args: "_SaveFiles") -> list[Any]:
        write = asyncio.to_thread(self.save, directory, args)
        return [ocp.future.CommitFutureAwaitingContractedSignals(write)]

    def save(self, directory: epath.Path, args: "_SaveFiles") -> None:
        for name, content in args.files().items():
            paths.write_whole(directory / name, content)

    def restore(self, directory: epath.Path, args: Any = None) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in directory.iterdir()}


@ocp.args.register_with_handler(_FilesHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _SaveFiles(ocp.args.CheckpointArgs):
    files: Callable[[], dict[str, bytes]]


def _set_aside(folder: epath.Path) -> None:
    """Rename a damaged checkpoint, replacing an older damaged checkpoint of the same step."""
    aside = folder.parent / f"{folder.name}.damaged"
    if aside.exists():
        aside.rmtree()
    folder.rename(aside)


def _probe(folder: epath.Path) -> None:
    """Raise an error now, rather than later in a thread, if the folder cannot be written."""
    probe = folder / f".probe-{jax.process_index()}"
    try:
        with paths.requests(folder):
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_text("can this be written?")
            probe.unlink()
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoints to {folder}: {error}") from error
