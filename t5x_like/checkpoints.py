"""Asynchronous, sharded checkpoints that are checked byte for byte before they are trusted.

A run's folder of checkpoints holds one folder for each saved step:

    <folder>/<step>/params/...               the parameters, alone, so that they load alone
                    training/...             step, optimizer state, PRNG key data
                    data/<process>.json      where each virtual shard of the data stands
                    metadata/metadata.json   the config and the versions that wrote it
                    manifest.json            size and CRC-32 of every file above

Orbax writes each process's part of the arrays from a background thread into a temporary folder.
The manifest is written when all of it is there, and then a rename makes the checkpoint: a kill at
any moment leaves a folder that is not one.
"""

import base64
import contextlib
import dataclasses
import difflib
import functools
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from t5x_like import manifest

_PARAMS, _TRAINING, _DATA, _METADATA = "params", "training", "data", "metadata"
_VERSIONED = ("jax", "flax", "optax", "orbax-checkpoint")

DataState = dict[int, bytes]


class CheckpointError(ValueError):
    """A path without a checkpoint, a setting out of range, or a model that does not fit."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


class CheckpointWriteError(OSError):
    """A checkpoint that could not be written: no space, no permission, storage gone."""


def checkpoint_steps(folder: epath.PathLike) -> list[int]:
    """The steps of the finished checkpoints in a folder, in order; damaged ones count."""
    folder = epath.Path(folder)
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdecimal() and p.is_dir())


def read_metadata(path: epath.PathLike) -> dict[str, Any]:
    """What `Checkpoints(metadata=...)` stored, with `step`, and the `versions` that wrote it.

    Args:
        path: as for `restore_params`.

    Raises:
        CheckpointError: there is no checkpoint at `path`, or no intact one.
    """
    folder = _newest_intact(path, item=_METADATA)
    return json.loads((folder / _METADATA / "metadata.json").read_text())


def restore_params(path: epath.PathLike, abstract: PyTree | None = None) -> tuple[PyTree, int]:
    """Reads the parameters and nothing else; call it on all processes.

    Args:
        path: a checkpoint, a folder of checkpoints, or a run with a folder `checkpoints` in it; of
            several the newest intact one is read, and damaged ones are reported.
        abstract: shapes, dtypes and shardings to restore to (`jax.ShapeDtypeStruct`), on any mesh;
            floating dtypes may differ from the stored ones, and without a sharding an array goes to
            the first device. None: NumPy arrays as stored.

    Returns:
        The parameters and the step that they were saved at.

    Raises:
        CheckpointError: there is no checkpoint at `path`, none is intact, or a parameter is missing
            or of another shape.
    """
    folder = _newest_intact(path, item=_PARAMS)
    params = _restore_arrays(folder / _PARAMS, abstract, cast=True)
    # A checkpoint that was given away may have been renamed.
    return params, int(folder.name) if folder.name.isdecimal() else read_metadata(folder)["step"]


class Checkpoints:
    """The checkpoints that a run writes and goes on from: a context, used on all processes.

    Args:
        folder: where they are; made if absent.
        every: steps from one checkpoint to the next, for `due`; 0 for none but those asked for.
        keep: how many of the newest stay.
        keep_every: checkpoints at multiples of it stay forever; a multiple of `every`.
        metadata: what to store with each, such as the config; JSON values.

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
    ):
        if every < 0:
            raise CheckpointError(f"checkpoint.every={every}: must be 0 (never) or more")
        if keep < 1:
            raise CheckpointError(f"checkpoint.keep={keep}: must be 1 or more")
        if keep_every and (keep_every < 0 or not every or keep_every % every):
            rule = f"must be a multiple of checkpoint.every={every}"
            raise CheckpointError(f"checkpoint.keep_every={keep_every}: {rule}")
        self.folder = epath.Path(folder).absolute()
        self._every, self._keep, self._keep_every = every, keep, keep_every
        versions = {name: importlib.metadata.version(name) for name in _VERSIONED}
        self._metadata = {**(metadata or {}), "versions": versions}
        json.dumps(self._metadata)  # raises now what it would raise at the first save
        self._saving: int | None = None
        _probe(self.folder)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except CheckpointWriteError as failure:
            if error is None:
                raise
            logging.error("%s", failure)  # and the error that ended the run goes on

    def due(self, step: int) -> bool:
        """Whether this step is one of those to save."""
        return bool(self._every) and step % self._every == 0

    @property
    def latest_step(self) -> int | None:
        """The newest step saved, or being saved; None for none."""
        saving = [] if self._saving is None else [self._saving]
        return max([*checkpoint_steps(self.folder), *saving], default=None)

    def save(self, step: int, state: Any, data_state: Mapping[int, bytes] | None = None) -> None:
        """Copies the state to the host and leaves the writing to a thread.

        Args:
            step: the number of steps taken, which names the checkpoint.
            state: a dataclass with `params` and other fields, all arrays; it may be donated after.
            data_state: the position of each virtual shard that this process reads.

        Raises:
            CheckpointWriteError: this save, or the one before it, could not be written.
        """
        self.wait()
        self._saving = step
        mine = {
            str(shard): base64.b64encode(position).decode()
            for shard, position in (data_state or {}).items()
        }
        metadata = {"metadata.json": json.dumps({**self._metadata, "step": step})}
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            training=ocp.args.StandardSave(_all_but_params(state)),
            data=_SaveFiles({f"{jax.process_index()}.json": json.dumps(mine)}),
            metadata=_SaveFiles(metadata if jax.process_index() == 0 else {}),
        )
        with self._named_failure():
            self._manager.save(step, args=items, force=True)

    def wait(self) -> None:
        """Blocks until the last save is on disk; raises CheckpointWriteError if it failed."""
        if self._saving is not None:
            with self._named_failure():
                self._manager.wait_until_finished()
            self._saving = None

    def close(self) -> None:
        """Waits for the last save, as `wait` does, and ends the threads."""
        self.wait()
        if "_manager" in self.__dict__:
            self._manager.close()
            del self._manager

    def restore_latest(self, abstract: Any) -> tuple[Any, DataState] | None:
        """Restores the newest intact checkpoint; None from a folder without any.

        Damaged checkpoints newer than it are reported, and renamed to `<step>.damaged` so that the
        run can save those steps again.

        Args:
            abstract: the train state as `jax.ShapeDtypeStruct`s with shardings, on any mesh.

        Returns:
            The train state, and the position of all shards, of whichever process.

        Raises:
            DamagedCheckpointError: none is intact; to begin anew is for the caller to say.
            CheckpointError: a parameter is missing or of another shape or dtype.
        """
        self.close()  # Orbax lists the steps once, when it opens a folder
        for path in self.folder.iterdir():
            if path.name.endswith(ocp.utils.TMP_DIR_SUFFIX):
                logging.warning("%s was never finished and is not used", path)
        if not _agreed_steps(self.folder):
            return None
        newest = _newest_intact(self.folder)
        for step in checkpoint_steps(self.folder):
            if step > int(newest.name) and jax.process_index() == 0:
                _set_aside(self.folder / str(step))
        multihost_utils.sync_global_devices("t5x_like.checkpoints.set_aside")
        return _restore(newest, abstract)

    def restore(self, abstract: Any, *, step: int) -> tuple[Any, DataState]:
        """Restores the checkpoint of a step; the rest is as for `restore_latest`."""
        self.wait()
        return _restore(_newest_intact(self.folder / str(step)), abstract)

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        policies = ocp.checkpoint_managers
        kept: list[Any] = [policies.LatestN(self._keep)]
        if self._keep_every:
            kept.append(policies.EveryNSteps(self._keep_every))
        return ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(kept),
                cleanup_tmp_directories=True,
                lightweight_initialize=True,
                save_root_metadata=False,
                async_options=ocp.AsyncOptions(post_finalization_callback=self._finish),
            ),
        )

    def _finish(self) -> None:
        """Runs on one process when the arrays of all are written, before the folder is renamed."""
        unfinished = self.folder / f"{self._saving}{ocp.utils.TMP_DIR_SUFFIX}"
        # Object stores cannot rename: there Orbax writes in place.
        manifest.write(unfinished if unfinished.exists() else self.folder / str(self._saving))

    @contextlib.contextmanager
    def _named_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise CheckpointWriteError(
                f"cannot write the checkpoint of step {self._saving} to {self.folder}: {error}"
            ) from error


class _FilesHandler(ocp.CheckpointHandler):
    """Small text files that each process writes on its own, named so that they do not collide."""

    def save(self, directory: epath.Path, args: "_SaveFiles") -> None:
        for name, text in args.files.items():
            (directory / name).write_text(text)

    def restore(self, directory: epath.Path, args: Any = None) -> dict[str, str]:
        return {path.name: path.read_text() for path in directory.glob("*.json")}


@ocp.args.register_with_handler(_FilesHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class _SaveFiles(ocp.args.CheckpointArgs):
    files: dict[str, str]


def _restore(folder: epath.Path, abstract: Any) -> tuple[Any, DataState]:
    params = _restore_arrays(folder / _PARAMS, abstract.params, cast=False)
    rest = _restore_arrays(folder / _TRAINING, _all_but_params(abstract), cast=False)
    data_state: DataState = {}
    for text in _FilesHandler().restore(folder / _DATA).values():
        shards = json.loads(text)
        data_state |= {int(shard): base64.b64decode(text) for shard, text in shards.items()}
    return dataclasses.replace(abstract, params=params, **rest), data_state


def _restore_arrays(folder: epath.Path, abstract: PyTree | None, *, cast: bool) -> PyTree:
    """Reads one item, as NumPy arrays if `abstract` is None; `cast` lets floating dtypes differ."""
    handler = ocp.PyTreeCheckpointHandler()
    saved = handler.metadata(folder).tree
    with contextlib.closing(ocp.Checkpointer(handler)) as reader:
        if abstract is None:
            target = saved
            restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
        else:
            _check_match(folder, saved, abstract, cast=cast)
            target = abstract
            first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            shardings = jax.tree.map(lambda leaf: leaf.sharding or first, abstract)
            restore_args = ocp.checkpoint_utils.construct_restore_args(abstract, shardings)
        return reader.restore(
            folder, args=ocp.args.PyTreeRestore(item=target, restore_args=restore_args)
        )


def _check_match(folder: epath.Path, saved: PyTree, abstract: PyTree, *, cast: bool) -> None:
    """Names the first parameter in which the checkpoint and the model differ."""
    stored = {"/".join(path): leaf for path, leaf in ocp.tree.to_flat_dict(saved).items()}
    wanted = {"/".join(path): leaf for path, leaf in ocp.tree.to_flat_dict(abstract).items()}
    where = f"checkpoint {folder}"
    for name in sorted(stored.keys() | wanted.keys()):
        if name not in stored:
            raise CheckpointError(f"{where} has no {name} as the model has{_near(name, stored)}")
        if name not in wanted:
            raise CheckpointError(f"{where} has {name}, the model has not{_near(name, wanted)}")
        old, new = stored[name], wanted[name]
        floating = all(jax.numpy.issubdtype(leaf.dtype, np.floating) for leaf in (old, new))
        same_dtype = old.dtype == new.dtype or (cast and floating)
        if tuple(old.shape) != tuple(new.shape) or not same_dtype:
            kinds = [f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for leaf in (old, new)]
            raise CheckpointError(f"{where} has {name} as {kinds[0]}, the model as {kinds[1]}")


def _newest_intact(path: epath.PathLike, *, item: str = "") -> epath.Path:
    """The newest of the checkpoints at a path of which the item is whole; reports the others."""
    path = epath.Path(path).absolute()
    if (path / manifest.NAME).exists() or (path / _PARAMS).exists():
        candidates = [path]
    else:
        folder = path / "checkpoints" if checkpoint_steps(path / "checkpoints") else path
        candidates = [folder / str(step) for step in reversed(_agreed_steps(folder))]
    if not candidates:
        raise CheckpointError(_explain_absence(path))
    problems = []
    for candidate in candidates:
        problem = manifest.damage(candidate, within=item)
        if problem is None:
            return candidate
        problems.append(f"{candidate} is damaged: {problem}")
        logging.error("checkpoint %s; trying the one before", problems[-1])
    raise DamagedCheckpointError(f"no intact checkpoint at {path}: {'; '.join(problems)}")


def _explain_absence(path: epath.Path) -> str:
    """Why a path is no checkpoint, and what near it is one."""
    if path.exists():
        return f"no checkpoint at {path}: it holds no finished one, a folder named by its step"
    present, missing = path.parent, path.name
    while not present.exists():
        present, missing = present.parent, present.name
    steps = checkpoint_steps(present)
    if steps and missing.isdecimal():
        near = f"; nearest is {min(steps, key=lambda step: abs(step - int(missing)))}"
    else:
        names = [child.name for child in present.iterdir()] if present.is_dir() else []
        near = _near(missing, names)
    return f"no checkpoint at {path}: {present} has no {missing}{near}"


def _agreed_steps(folder: epath.Path) -> list[int]:
    """`checkpoint_steps` as the first process sees them: shared storage may show others less."""
    steps = checkpoint_steps(folder)
    count = int(multihost_utils.broadcast_one_to_all(np.int32(len(steps))))
    shared = multihost_utils.broadcast_one_to_all(np.resize(np.array(steps, np.int32), count))
    return shared.tolist()


def _set_aside(folder: epath.Path) -> None:
    """Renames a damaged checkpoint, over an older one of the same step that was damaged too."""
    aside = folder.parent / f"{folder.name}.damaged"
    if aside.exists():
        aside.rmtree()
    folder.rename(aside)


def _all_but_params(state: Any) -> dict[str, Any]:
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: value for name, value in fields.items() if name != _PARAMS}


def _probe(folder: epath.Path) -> None:
    """Fails now if it will fail later, in a thread."""
    probe = folder / f".probe-{jax.process_index()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("can this be written?")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoints to {folder}: {error}") from error


def _near(name: str, others: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(others), n=1)
    return f"; nearest is {close[0]}" if close else ""
