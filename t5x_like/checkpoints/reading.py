"""Read the newest intact checkpoint in a folder: the whole train state, or only the parameters."""

import base64
import contextlib
import dataclasses
import difflib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jaxtyping import PyTree

from t5x_like import paths
from t5x_like.checkpoints import manifest
from t5x_like.processes import from_first_process

# The items of a checkpoint, a subfolder each.
PARAMS, TRAINING, DATA, METADATA = "params", "training", "data", "metadata"
ARRAYS = (PARAMS, TRAINING)

COMMITTED = "commit_success.txt"  # marks a finished checkpoint in a bucket

BEST = "best.json"  # in the folder of the checkpoints, see `best.BestCheckpoint`

POSITION = ".bin"  # the suffix of a shard's file in DATA

DataState = Mapping[int, bytes]


class CheckpointError(ValueError):
    """There is no checkpoint, a setting is out of range, or it does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """The files of a checkpoint differ from what was written."""


def checkpoint_steps(folder: epath.PathLike) -> list[int]:
    """Return the steps of the finished checkpoints in a folder, in order, damaged or not."""
    folder = epath.Path(folder)
    if not folder.is_dir():
        return []
    steps = [p for p in folder.iterdir() if p.name.isdecimal() and p.is_dir()]
    if paths.in_bucket(folder):  # nothing is renamed there: Orbax marks what is finished
        steps = [p for p in steps if (p / COMMITTED).exists()]
    return sorted(int(p.name) for p in steps)


def read_best(folder: epath.PathLike) -> dict[str, Any]:
    """Read best.json in a folder of checkpoints: its entries `number`, `step` and `values`.

    Raises:
        CheckpointError: the file does not exist, or it is not readable.
    """
    path = epath.Path(folder) / BEST
    try:
        best = json.loads(path.read_text())
        return {name: best[name] for name in ("number", "step", "values")}
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist: the run did not choose a best checkpoint (checkpoint.best)"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable: {error!r}") from error


def locate(path: epath.PathLike) -> epath.Path:
    """Resolve RUN/best and RUN/checkpoints/best to the folder of a run's best checkpoint.

    Other paths, and a path `best` that exists, are returned unchanged.

    Raises:
        CheckpointError: the run has no best checkpoint.
    """
    path = epath.Path(path)
    if path.name != "best" or path.exists():
        return path
    within = path.parent / "checkpoints"
    folder = within if (within / BEST).exists() else path.parent
    step = read_best(folder)["step"]
    if step is None:
        raise CheckpointError(f"{folder / BEST} has no value that is a number")
    return folder / str(step)


def read_metadata(path: epath.PathLike) -> dict[str, Any]:
    """Read the metadata of a checkpoint: `Checkpoints(metadata=...)`, `step` and `versions`.

    The versions are {library: version} of the libraries that wrote the checkpoint.

    Args:
        path: see `restore_params`.

    Raises:
        CheckpointError: `path` has no checkpoint, or no intact one.
    """
    file = newest_intact(path, item=METADATA) / METADATA / "metadata.json"
    return from_first_process(lambda: json.loads(file.read_text()))


def restore_params(
    path: epath.PathLike, abstract: PyTree | None = None, *, whole: bool = True, average: int = 1
) -> tuple[PyTree, int]:
    """Read only the parameters of a checkpoint; call it on all processes.

    With `average` above 1 they are the mean over that many checkpoints (Vaswani et al. 2017,
    section 6.1), summed in float32. The checkpoints are read and added one after the other, so that
    at most two are in memory.

    Args:
        path: a checkpoint, a folder of checkpoints, or a run with a folder `checkpoints` in it; if
            there are several checkpoints, the newest intact one is read, and newer, damaged ones
            are logged.
        abstract: shapes, dtypes and shardings to restore to (`jax.ShapeDtypeStruct`), on any mesh;
            floating dtypes may differ from the stored dtypes, and without a sharding an array goes
            to the first device. None returns NumPy arrays as stored.
        whole: whether to require that the checkpoint has no other parameters; False ignores them.
        average: the number of newest intact checkpoints to average.

    Returns:
        The parameters, and the step of the checkpoint, or of the newest that is averaged.

    Raises:
        CheckpointError: there is no checkpoint at `path`, none is intact or fewer than `average`,
            folders were renamed, or a parameter is missing or has another shape.
    """
    if average < 1:
        raise CheckpointError(f"average={average} must be 1 or more")
    folders = _intact(path, item=PARAMS, count=average)
    if len(folders) < average:
        raise CheckpointError(
            f"average={average}: there are {len(folders)} intact checkpoints at {path}. Give a run "
            f"or a folder of them, and keep as many while training: checkpoint.keep={average}"
        )
    read = functools.partial(_restore_arrays, cast=True, whole=whole)
    newest = folders[0]
    params = read(newest / PARAMS, abstract) if average == 1 else _mean(folders, abstract, read)
    # A copy of a checkpoint may have been renamed.
    step = from_first_process(lambda: _step(newest))
    return params, int(newest.name) if step is None else step


def _mean(
    folders: Sequence[epath.Path], abstract: PyTree | None, read: Callable[..., PyTree]
) -> PyTree:
    """Average the parameters of checkpoints, in the dtypes of `abstract`, or as stored."""
    wide = None
    if abstract is not None:
        wide = jax.tree.map(lambda leaf: leaf.update(dtype=np.float32), abstract)
    first = read(folders[0] / PARAMS, wide)
    structure = jax.tree.structure(first)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(first if abstract is None else abstract)]
    sums = [leaf.astype(np.float32) for leaf in jax.tree.leaves(first)]
    del first
    for folder in folders[1:]:
        # Leaf by leaf, so that each old sum is freed before the next sum is made.
        for number, leaf in enumerate(jax.tree.leaves(read(folder / PARAMS, wide))):
            sums[number] = sums[number] + leaf.astype(np.float32)
    means = [(leaf / len(folders)).astype(dtype) for leaf, dtype in zip(sums, dtypes, strict=True)]
    return jax.tree.unflatten(structure, means)


def parameter_shapes(path: epath.PathLike) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's parameters by name; for `path` see `restore_params`."""
    folder = newest_intact(path, item=PARAMS) / PARAMS
    saved = ocp.PyTreeCheckpointHandler().metadata(folder).tree
    return {
        "/".join(name): tuple(leaf.shape) for name, leaf in ocp.tree.to_flat_dict(saved).items()
    }


def check_params(path: epath.PathLike, abstract: PyTree) -> None:
    """Check the shapes of a checkpoint's parameters, without reading their values.

    A checkpoint whose shapes cannot be read passes: whoever reads it finds the damage.

    Args:
        path: see `restore_params`.
        abstract: the parameters as ShapeDtypeStructs.

    Raises:
        CheckpointError: a parameter is missing or left over, or has another shape or dtype.
    """
    folder = newest_intact(path, item=METADATA) / PARAMS
    try:
        saved = ocp.PyTreeCheckpointHandler().metadata(folder).tree
    except (OSError, ValueError):
        return
    _check_match(folder, saved, abstract, cast=False, whole=True)


def restore_state(folder: epath.Path, abstract: Any) -> tuple[Any, DataState]:
    """Read the train state in a checkpoint's folder, and the positions in all data shards."""
    params = _restore_arrays(folder / PARAMS, abstract.params, cast=False)
    rest = _restore_arrays(folder / TRAINING, all_but_params(abstract), cast=False)
    return dataclasses.replace(abstract, params=params, **rest), _positions(folder / DATA)


def _positions(folder: epath.Path) -> DataState:
    """Return the positions in all shards; each is read when it is looked up."""
    names = from_first_process(lambda: [path.name for path in folder.glob(f"*{POSITION}")])
    if names:
        return _Positions({int(name.removesuffix(POSITION)): folder / name for name in names})
    older: dict[int, bytes] = {}  # an older checkpoint has a file for each process
    for path in folder.glob("*.json"):
        shards = json.loads(path.read_text())
        older |= {int(shard): base64.b64decode(text) for shard, text in shards.items()}
    return older


class _Positions(Mapping[int, bytes]):
    """The positions by shard, read lazily: a process looks up only its shards."""

    def __init__(self, files: Mapping[int, epath.Path]):
        self._files = files

    def __getitem__(self, shard: int) -> bytes:
        return self._files[shard].read_bytes()

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, shard: object) -> bool:
        return shard in self._files  # without reading it


def _restore_arrays(
    folder: epath.Path, abstract: PyTree | None, *, cast: bool, whole: bool = True
) -> PyTree:
    """Read an item, as NumPy arrays if `abstract` is None; `cast` allows other floating dtypes."""
    handler = ocp.PyTreeCheckpointHandler()
    saved = handler.metadata(folder).tree
    with contextlib.closing(ocp.Checkpointer(handler)) as reader:
        if abstract is None:
            target = saved
            restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
        else:
            _check_match(folder, saved, abstract, cast=cast, whole=whole)
            target = abstract
            first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            shardings = jax.tree.map(lambda leaf: leaf.sharding or first, abstract)
            restore_args = ocp.checkpoint_utils.construct_restore_args(abstract, shardings)
        return reader.restore(
            folder,
            args=ocp.args.PyTreeRestore(
                item=target, restore_args=restore_args, partial_restore=not whole
            ),
        )


def _check_match(
    folder: epath.Path, saved: PyTree, abstract: PyTree, *, cast: bool, whole: bool
) -> None:
    """Raise an error that names the first parameter in which checkpoint and model differ."""
    stored = {"/".join(path): leaf for path, leaf in ocp.tree.to_flat_dict(saved).items()}
    wanted = {"/".join(path): leaf for path, leaf in ocp.tree.to_flat_dict(abstract).items()}
    where = f"checkpoint {folder}"
    for name in sorted(stored.keys() | wanted.keys() if whole else wanted):
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


def newest_intact(path: epath.PathLike, *, item: str = "") -> epath.Path:
    """Return the newest checkpoint at a path whose `item` is intact (all items, if it is empty).

    Newer, damaged checkpoints are logged.
    """
    return _intact(path, item=item, count=1)[0]


def _intact(path: epath.PathLike, *, item: str, count: int) -> list[epath.Path]:
    """Return the newest `count` intact checkpoints, or all if there are fewer; at least one.

    Raises:
        CheckpointError: there is no checkpoint (DamagedCheckpointError: none is intact), or folders
            were renamed.
    """
    candidates = [epath.Path(name) for name in from_first_process(lambda: _candidates(path))]
    intact: list[epath.Path] = []
    problems: list[str] = []
    for candidate in candidates:
        if len(intact) == count:
            break
        problem = manifest.damage(candidate, within=item)
        if problem is None:
            from_first_process(functools.partial(_check_name, candidate, requested=path))
            intact.append(candidate)
        else:
            problems.append(f"{candidate} is damaged: {problem}")
    if not intact:
        where = paths.absolute(path)
        raise DamagedCheckpointError(f"no intact checkpoint at {where}: {'; '.join(problems)}")
    for problem in problems:
        logging.error("checkpoint %s; using the one before", problem)
    return intact


def _candidates(path: epath.PathLike) -> list[str]:
    """Return the checkpoints at a path, newest first, whether intact or not."""
    path = paths.absolute(locate(path))
    if (path / manifest.NAME).exists() or (path / PARAMS).exists():
        return [str(path)]
    folder = path / "checkpoints" if checkpoint_steps(path / "checkpoints") else path
    if not (steps := checkpoint_steps(folder)):
        raise CheckpointError(_explain_absence(path))
    return [str(folder / str(step)) for step in reversed(steps)]


def _check_name(folder: epath.Path, *, requested: epath.PathLike) -> None:
    """Check that a folder is named after its step, unless the user gave this very folder.

    Raises:
        CheckpointError: folders were renamed, so the newest by name may not be the newest.
    """
    if folder == paths.absolute(requested) or _step(folder) in (None, int(folder.name)):
        return
    steps = {step: _step(folder.parent / str(step)) for step in checkpoint_steps(folder.parent)}
    wrong = (
        f"{name} is of step {step}" for name, step in steps.items() if step not in (None, name)
    )
    raise CheckpointError(
        f"checkpoints in {folder.parent} have been renamed: {', '.join(wrong)}; give each folder "
        "the name of its step"
    )


def _step(folder: epath.Path) -> int | None:
    """Return the step in a checkpoint's metadata; None if it is missing or not readable."""
    try:
        return json.loads((folder / METADATA / "metadata.json").read_text()).get("step")
    except (OSError, ValueError):
        return None


def _explain_absence(path: epath.Path) -> str:
    """Explain that there is no checkpoint at a path, and suggest the nearest name."""
    if path.exists():
        return f"no checkpoint at {path}: it contains no finished one, a folder named by its step"
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


def agreed_steps(folder: epath.Path) -> list[int]:
    """Return `checkpoint_steps` of the first process: shared storage may show others fewer."""
    return from_first_process(lambda: checkpoint_steps(folder))


def all_but_params(state: Any) -> dict[str, Any]:
    """Return the fields that a checkpoint stores under TRAINING: all but `params` and None."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {k: value for k, value in fields.items() if k != PARAMS and value is not None}


def _near(name: str, others: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(others), n=1)
    return f"; nearest is {close[0]}" if close else ""
