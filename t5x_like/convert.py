"""Convert weights between Hugging Face folders, our checkpoints and T5X's, or to StableHLO.

    python -m t5x_like.convert --from=FOLDER --to=FOLDER
        [--format=hf|t5x_like|t5x|t5x_training|stablehlo] [--dtype=float32] [--system=NAME]
        [--average=5] [--sizes=batch=8,length=128] [--gin=FILE --gin.NAME=VALUE]

--from names a Hugging Face folder with config.json and model.safetensors or its shards, one of our
checkpoints, a run (then its newest checkpoint), or a checkpoint of T5X's T5 (docs/checkpoints.md),
which may be written t5x:FOLDER. The output contains the parameters and the
model's settings, but no optimizer state. --system names the system to read a Hugging Face folder
as, where several systems share its model_type: `unilm` for a folder of `bert`. --average=N averages
the newest N checkpoints of a run.

--gin=FILE names the gin file of a T5X checkpoint's network: the settings that are not in the
checkpoint (the dropout) are taken from it, and all others must be those of the checkpoint.

--format=t5x_training writes the newest checkpoint of a run with adamw for T5X to go on with: the
parameters, the step and Adam's moments (docs/checkpoints.md).

--format=stablehlo writes programs that JAX runs without this package (docs/serving.md). Their batch
and lengths are open; --sizes fixes those of a network that cannot run with open ones.
"""

import dataclasses
import functools
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like.config import one_line_errors
from t5x_like.experiment import command_line, gin_files
from t5x_like.names import choose

if TYPE_CHECKING:
    from t5x_like.experiment.gin_files import Bindings
    from t5x_like.pretrained import Pretrained


@dataclasses.dataclass(frozen=True)
class _Weights:
    """A train state with only the fields that a checkpoint needs."""

    params: Any
    step: Any


def convert(
    source: pathlib.Path,
    target: pathlib.Path,
    *,
    form: str,
    dtype: str,
    system: str | None = None,
    average: int = 1,
    sizes: str = "",
    described: "Bindings | None" = None,
) -> None:
    """Read a model in any of the formats and write it to an empty or new folder.

    Args:
        form: the format to write: `hf`, `t5x_like` or `t5x` for a checkpoint of step 0,
            `t5x_training` for one with the step and the optimizer's state, or `stablehlo` for
            programs.
        dtype: the dtype of the written parameters, `float32` or `bfloat16`.
        system, average: see `from_pretrained`.
        sizes: of programs, such as "batch=8,length=128"; those that are not named stay open.
        described: gin files of the network.

    Raises:
        ValueError: a flag is wrong, the source contains no model or another one than the gin files
            describe, the target is not empty, or the format has no such network or optimizer.
    """
    write = choose("--format", form, {**FORMATS, _TRAINING: _write_t5x})
    if sizes:
        if form != "stablehlo":
            raise ValueError(f"--sizes={sizes!r} has no effect with --format={form}")
        write = functools.partial(_write_programs, sizes=_parsed(sizes))
    command_line.check_folder("--to", target)
    if target.is_dir() and any(target.iterdir()):
        raise ValueError(f"--to={str(target)!r} is not empty: choose a new folder")
    if form == _TRAINING:
        if (dtype, system, average, described) != ("float32", None, 1, None):
            raise ValueError(
                f"--format={form} writes the state of a run as it is: give no --dtype, --system, "
                "--average and --gin"
            )
        return _convert_training(source, target)
    # JAX takes seconds to import: after the arguments have been checked, and not for --help.
    from t5x_like.pretrained import from_pretrained

    settings = {} if described is None else _described_settings(described, source)
    model = from_pretrained(source, system=system, param_dtype=dtype, average=average, **settings)
    write(model, target)


def _described_settings(bindings: "Bindings", source: pathlib.Path) -> dict[str, Any]:
    """The settings in gin files that the folder of a model does not have.

    Raises:
        ValueError: the other settings differ.
    """
    from t5x_like.experiment import t5x_runs
    from t5x_like.pretrained.weight_source import open_source

    system, settings = t5x_runs.network(bindings)
    found = open_source(source)
    kept = {name: value for name, value in found.config.items() if name not in _NOT_IN_WEIGHTS}
    for name, value in {"system": found.system, **kept}.items():
        expected = {"system": system, **settings}.get(name, value)
        if value != expected:
            raise ValueError(f"{source} has {name}={value!r}, and the gin files {expected!r}")
    return {"dropout": settings["dropout"]}


def _write_hugging_face(model: "Pretrained", target: pathlib.Path) -> None:
    model.save_pretrained(target)


def _write_checkpoint(model: "Pretrained", target: pathlib.Path) -> None:
    import jax.numpy as jnp

    from t5x_like.checkpoints import Checkpoints

    metadata: dict[str, Any] = {
        "config": {"system": model.system, "model": model.config},
        "generation": dataclasses.asdict(model.generation),
        "model_type": model.model_type,
        "labels": {task: dataclasses.asdict(own) for task, own in model.labels.items()},
    }
    with Checkpoints(target / "checkpoints", metadata=metadata) as checkpoints:
        checkpoints.save(0, _Weights(params=model.params, step=jnp.zeros((), jnp.int32)))


def _write_t5x(model: "Pretrained", target: pathlib.Path) -> None:
    from t5x_like.pretrained import t5x

    t5x.save(model.params, target, system=model.system, config=model.config)


def _convert_training(source: pathlib.Path, target: pathlib.Path) -> None:
    """Write the newest checkpoint of a run as one of T5X, with its step and optimizer state."""
    from t5x_like import checkpoints, config, paths
    from t5x_like.config.run_settings import MeshSettings
    from t5x_like.experiment import model_side, optimizer_state
    from t5x_like.experiment.run import Run

    folder = paths.path(checkpoints.locate(paths.path(source)))
    stored = checkpoints.read_metadata(folder)
    if "data_shards" not in stored:
        raise ValueError(f"--format={_TRAINING}: {source} has converted weights, and no run")
    of_run = Run(config.of_stored(stored["config"]))
    model = model_side.build(of_run.replace(mesh=MeshSettings()))  # of this machine
    optimizer_state.check_written(model.shapes, settings=of_run.settings)
    newest = checkpoints.newest_intact(folder)
    state, _ = checkpoints.restore_state(newest, model.abstract_state)
    optimizer_state.write(state, target, settings=of_run.settings)


def _write_programs(
    model: "Pretrained", target: pathlib.Path, sizes: Mapping[str, int] | None = None
) -> None:
    from t5x_like.pretrained import stablehlo

    stablehlo.save(model, target, sizes=sizes or {})


def _parsed(sizes: str) -> dict[str, int]:
    """The sizes in "batch=8,length=128"."""
    found = re.fullmatch(r"\w+=[1-9]\d*(,\w+=[1-9]\d*)*", sizes)
    if not found:
        raise ValueError(f"--sizes={sizes!r} must be written batch=8,length=128")
    pairs = (one.split("=") for one in sizes.split(","))
    return {name: int(value) for name, value in pairs if choose("--sizes", name, _SIZES)}


FORMATS: dict[str, Callable[["Pretrained", pathlib.Path], None]] = {
    "hf": _write_hugging_face,
    "t5x_like": _write_checkpoint,
    "t5x": _write_t5x,
    "stablehlo": _write_programs,
}
_TRAINING = "t5x_training"  # of the whole state of a run, and not of a model
# Settings that no array shows. The dtype of the computation is no property of the weights.
_NOT_IN_WEIGHTS = ("dropout", "dtype")
# The sizes of programs that may be fixed; slots are those of the key-value cache, for a prompt and
# its continuation.
_SIZES = {name: name for name in ("batch", "length", "target_length", "slots")}


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.convert")
    parser.add_argument("--from", dest="source", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--to", dest="target", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--format", default="hf", help="hf (default), t5x_like, t5x, t5x_training or stablehlo"
    )
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    parser.add_argument("--system", metavar="NAME", help="system to read the folder as")
    parser.add_argument("--average", type=int, default=1, help="newest checkpoints to average")
    parser.add_argument("--sizes", default="", help="fixed sizes of stablehlo: batch=8,length=128")
    parser.add_argument("--gin", default="", metavar="FILE", help="of a T5X checkpoint's network")
    with one_line_errors():
        files, changes, arguments = gin_files.split(arguments)
    given = parser.parse_args(arguments)
    with one_line_errors():
        described = gin_files.Bindings(files, changes) if files else None
        convert(
            given.source,
            given.target,
            form=given.format,
            dtype=given.dtype,
            system=given.system,
            average=given.average,
            sizes=given.sizes,
            described=described,
        )
        print(f"{given.source} -> {given.target} ({given.format}, {given.dtype})")


if __name__ == "__main__":
    main(sys.argv[1:])
