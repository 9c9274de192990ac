"""Convert weights between Hugging Face folders, t5x_like and T5X checkpoints, or to StableHLO.

    python -m t5x_like.convert --from=FOLDER --to=FOLDER
        [--format=hf|t5x_like|t5x|t5x_training|stablehlo|peft] [--dtype=float32]
        [--system=NAME] [--average=5] [--sizes=batch=8,length=128] [--gin=FILE --gin.NAME=VALUE]
        [--tokens "<to-fr>" "<summarize>"]

--from names a Hugging Face folder (config.json and model.safetensors or its shards), one of our
checkpoints, a run (its newest checkpoint is read), or a checkpoint of T5X's T5
(docs/checkpoints.md), which may be written t5x:FOLDER. The output contains the parameters and the
model's settings, but no optimizer state. --system names the system that a Hugging Face folder is
read as, if several share its model_type: `unilm` for a folder of `bert`. --average=N averages the
newest N checkpoints of a run.

--tokens adds tokens to the model, such as those that name GPT-2's task at the end of a prompt: to
the vocabulary, each as one id, and to the embedding table and the output layer, where a new row is
the mean of the others (docs/folders.md). Fine-tune the written folder. With --format=t5x_like,
also for networks that Hugging Face does not have, the new vocabulary is its folder `vocabulary`.

--gin=FILE names the gin file of a T5X checkpoint's network. Settings that the checkpoint lacks (the
dropout rate) are read from it, and all others must equal the checkpoint's.

--format=t5x_training writes the newest checkpoint of a run with adafactor or adamw, so that T5X can
continue the training: the parameters, the step and the moments (docs/checkpoints.md).

--format=peft writes the LoRA matrices of a run, and a head that it trained, as an adapter that PEFT
loads beside the base model (docs/fine_tuning.md); the other formats have the matrices in the
kernels. --from may name such an adapter, too.

--format=stablehlo writes programs that JAX runs without this package (docs/serving.md). Their batch
size and lengths are symbolic; --sizes fixes them, for a network that cannot run with symbolic
sizes. With --dtype=int8 the weights have 8 bits, a quarter of the bytes; the programs compute in
float32, and the change of the outputs is printed.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like.config import one_line_errors
from t5x_like.experiment import command_line, gin_files
from t5x_like.names import choose

if TYPE_CHECKING:
    from t5x_like import paths
    from t5x_like.experiment.gin_files import Bindings
    from t5x_like.experiment.run import Run
    from t5x_like.pretrained import Pretrained


@dataclasses.dataclass(frozen=True)
class _Weights:
    """The part of a train state that a checkpoint of weights needs."""

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
    tokens: Sequence[str] = (),
    described: "Bindings | None" = None,
) -> None:
    """Read a model in any of the formats and write it to an empty or new folder.

    Args:
        form: the format to write: `hf`; `t5x_like` or `t5x`, a checkpoint of step 0;
            `t5x_training`, a checkpoint with the step and the optimizer state; `stablehlo`,
            programs; or `peft`, a run's LoRA matrices.
        dtype: the dtype of the written parameters, `float32`, `bfloat16`, or for programs `int8`.
        system, average: see `from_pretrained`.
        sizes: fixed sizes of programs, such as "batch=8,length=128"; the others stay symbolic.
        tokens: texts of new tokens, for a Hugging Face folder or a checkpoint of ours.
        described: bindings of the network's gin files.

    Raises:
        ValueError: a flag is wrong, the source contains no model or not the model that the gin
            files describe, the target is not empty, or the format does not support the network or
            optimizer.
    """
    choose("--dtype", dtype, _DTYPES)
    write = _writer(form, sizes=sizes, int8=dtype == "int8", tokens=tokens)
    dtype = "float32" if dtype == "int8" else dtype
    command_line.check_folder("--to", target)
    if target.is_dir() and any(target.iterdir()):
        raise ValueError(f"--to={str(target)!r} is not empty: choose a new folder")
    if form in _OF_RUNS:
        if (dtype, system, average, described) != ("float32", None, 1, None):
            raise ValueError(
                f"--format={form} writes the state of a run as it is: give no --dtype, --system, "
                "--average and --gin"
            )
        return _OF_RUNS[form](source, target)
    # JAX takes seconds to import: after the arguments have been checked, and not for --help.
    from t5x_like.pretrained import from_pretrained

    settings = {} if described is None else _described_settings(described, source)
    model = from_pretrained(source, system=system, param_dtype=dtype, average=average, **settings)
    write(model, target)


def _writer(form: str, *, sizes: str, int8: bool, tokens: Sequence[str]) -> Callable[..., None]:
    """Return the function that writes a format.

    Raises:
        ValueError: the format does not exist, or has no such option.
    """
    write = choose("--format", form, {**FORMATS, **dict.fromkeys(_OF_RUNS, _write_t5x)})
    if sizes and form != "stablehlo":
        raise ValueError(f"--sizes={sizes!r} has no effect with --format={form}")
    if int8 and form != "stablehlo":
        raise ValueError(f"--dtype=int8 is for --format=stablehlo, not {form}")
    if tokens and form not in _WITH_TOKENS:
        raise ValueError(f"--tokens is for --format={' or '.join(_WITH_TOKENS)}, not {form}")
    if form == "stablehlo":
        return functools.partial(_write_programs, sizes=_parsed(sizes), int8=int8)
    return functools.partial(_WITH_TOKENS[form], tokens=tokens) if tokens else write


def _described_settings(bindings: "Bindings", source: pathlib.Path) -> dict[str, Any]:
    """Return the settings of the gin files that the weights do not determine, such as dropout.

    Raises:
        ValueError: another setting differs from the folder's.
    """
    from t5x_like.experiment import t5x_runs
    from t5x_like.pretrained.weight_source import open_source

    system, settings = t5x_runs.network(bindings)
    weights = open_source(source)
    in_weights = {
        name: value for name, value in weights.config.items() if name not in _NOT_IN_WEIGHTS
    }
    for name, value in {"system": weights.system, **in_weights}.items():
        expected = {"system": system, **settings}.get(name, value)
        if value != expected:
            raise ValueError(f"{source} has {name}={value!r}, and the gin files {expected!r}")
    names = (name for name in _NOT_IN_WEIGHTS if name in settings and name != "dtype")
    return {name: settings[name] for name in names}


def _write_hugging_face(model: "Pretrained", target: pathlib.Path) -> None:
    model.save_pretrained(target)


def _write_with_tokens(model: "Pretrained", target: pathlib.Path, *, tokens: Sequence[str]) -> None:
    from t5x_like.pretrained import new_rows

    new_rows.save_with_tokens(model, target, tokens)


def _write_checkpoint_with_tokens(
    model: "Pretrained", target: pathlib.Path, *, tokens: Sequence[str]
) -> None:
    from t5x_like.pretrained import new_rows

    _write_checkpoint(new_rows.with_tokens(model, target / "vocabulary", tokens), target)


def _write_checkpoint(model: "Pretrained", target: pathlib.Path) -> None:
    import jax.numpy as jnp

    from t5x_like.checkpoints import Checkpoints

    metadata: dict[str, Any] = {
        "config": {"system": model.system, "model": model.config},
        "generation": dataclasses.asdict(model.generation),
        "token_ids": model.token_ids,
        "model_type": model.model_type,
        "labels": {
            task: dataclasses.asdict(task_labels) for task, task_labels in model.labels.items()
        },
        "vocabulary": _absolute(model.vocabulary),
    }
    with Checkpoints(target / "checkpoints", metadata=metadata) as checkpoints:
        checkpoints.save(0, _Weights(params=model.params, step=jnp.zeros((), jnp.int32)))


def _absolute(vocabulary: str) -> str:
    """Return the name of a vocabulary, with an absolute path if it is a file or folder."""
    is_local = "://" not in vocabulary and os.path.exists(vocabulary)
    return os.path.abspath(vocabulary) if is_local else vocabulary


def _write_t5x(model: "Pretrained", target: pathlib.Path) -> None:
    from t5x_like.pretrained import t5x

    t5x.save(model.params, target, system=model.system, config=model.config)


def _convert_training(source: pathlib.Path, target: pathlib.Path) -> None:
    """Write the newest checkpoint of a run in T5X's format, with step and optimizer state."""
    from t5x_like import checkpoints
    from t5x_like.config.run_settings import MeshSettings
    from t5x_like.experiment import model_side, optimizer_state

    folder, of_run = _run_of(source, form=_TRAINING)
    if of_run.settings.lora.rank:
        raise ValueError(
            f"--format={_TRAINING}: {source} has LoRA matrices, and T5X has none: --format=t5x "
            "writes the merged kernels"
        )
    model = model_side.build(of_run.replace(mesh=MeshSettings()))  # the mesh of this machine
    optimizer_state.check_written(model.shapes, settings=of_run.settings, axes=model.axes)
    newest = checkpoints.newest_intact(folder)
    state, _ = checkpoints.restore_state(newest, model.abstract_state)
    optimizer_state.write(state, target, settings=of_run.settings, axes=model.axes)


def _convert_adapter(source: pathlib.Path, target: pathlib.Path) -> None:
    """Write the LoRA matrices in the newest checkpoint of a run for PEFT."""
    from t5x_like.experiment import adapters

    folder, of_run = _run_of(source, form=_ADAPTER)
    adapters.write(of_run, folder, target)


def _run_of(source: pathlib.Path, *, form: str) -> tuple["paths.Path", "Run"]:
    """Return the folder of a run's checkpoints, and the run."""
    from t5x_like import checkpoints, config, paths
    from t5x_like.experiment.run import Run

    folder = paths.path(checkpoints.locate(paths.path(source)))
    stored = checkpoints.read_metadata(folder)
    if "data_shards" not in stored:
        raise ValueError(f"--format={form}: {source} has converted weights, and no run")
    return folder, Run(config.of_stored(stored["config"]))


def _write_programs(
    model: "Pretrained",
    target: pathlib.Path,
    *,
    sizes: Mapping[str, int] | None = None,
    int8: bool = False,
) -> None:
    from t5x_like.pretrained import stablehlo

    change = stablehlo.save(model, target, sizes=sizes or {}, int8=int8)
    if int8:
        print(f"8-bit weights change an output by {change:.2%} of the largest one at most")


def _parsed(sizes: str) -> dict[str, int]:
    """Parse sizes written "batch=8,length=128"; "" for none."""
    if not sizes:
        return {}
    if not re.fullmatch(r"\w+=[1-9]\d*(,\w+=[1-9]\d*)*", sizes):
        raise ValueError(f"--sizes={sizes!r} must be written batch=8,length=128")
    pairs = (pair.split("=") for pair in sizes.split(","))
    return {name: int(value) for name, value in pairs if choose("--sizes", name, _SIZES)}


FORMATS: dict[str, Callable[["Pretrained", pathlib.Path], None]] = {
    "hf": _write_hugging_face,
    "t5x_like": _write_checkpoint,
    "t5x": _write_t5x,
    "stablehlo": _write_programs,
}
_WITH_TOKENS = {"hf": _write_with_tokens, "t5x_like": _write_checkpoint_with_tokens}
_TRAINING, _ADAPTER = "t5x_training", "peft"
# These read a run, and not only its model.
_OF_RUNS: dict[str, Callable[[pathlib.Path, pathlib.Path], None]] = {
    _TRAINING: _convert_training,
    _ADAPTER: _convert_adapter,
}
_DTYPES = dict.fromkeys(("float32", "bfloat16", "int8"))
# Settings that cannot be read off the weights.
_NOT_IN_WEIGHTS = ("dropout", "dtype", "architecture", "scaled_scores")
# The sizes of programs that may be fixed; `slots`: positions in the key-value cache, for a prompt
# and its continuation.
_SIZES = {name: name for name in ("batch", "length", "target_length", "slots")}


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m t5x_like.convert")
    parser.add_argument("--from", dest="source", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--to", dest="target", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument(
        "--format", help="hf (default), t5x_like, t5x, t5x_training, stablehlo or peft"
    )
    parser.add_argument(
        "--dtype", default="float32", help="float32, bfloat16, or int8 for stablehlo"
    )
    parser.add_argument("--system", metavar="NAME", help="system to read the folder as")
    parser.add_argument("--average", type=int, default=1, help="newest checkpoints to average")
    parser.add_argument("--sizes", default="", help="fixed sizes of stablehlo: batch=8,length=128")
    parser.add_argument("--tokens", nargs="+", default=(), metavar="TOKEN", help="tokens to add")
    parser.add_argument("--gin", default="", metavar="FILE", help="of a T5X checkpoint's network")
    with one_line_errors():
        gin, arguments = gin_files.split(arguments)
    options = parser.parse_args(arguments)
    with one_line_errors():
        described = gin_files.Bindings(gin) if gin.files else None
        _take_defaults(options, described)
        convert(
            options.source,
            options.target,
            form=options.format,
            dtype=options.dtype,
            system=options.system,
            average=options.average,
            sizes=options.sizes,
            tokens=options.tokens,
            described=described,
        )
        print(f"{options.source} -> {options.target} ({options.format}, {options.dtype})")


def _take_defaults(options: argparse.Namespace, described: "Bindings | None") -> None:
    """Fill in flags that are not set: from the gin files of T5X's export script, if they are given.

    Raises:
        ValueError: --from or --to is not set.
    """
    if described is not None:
        from t5x_like.experiment import t5x_runs

        if t5x_runs.exports(described):
            source, target = t5x_runs.checkpoint_path, t5x_runs.export_folder
            options.source = options.source or pathlib.Path(source(described))
            options.target = options.target or pathlib.Path(target(described))
            options.format = options.format or "stablehlo"
    options.format = options.format or "hf"
    for flag, folder in {"--from": options.source, "--to": options.target}.items():
        if folder is None:
            raise ValueError(f"{flag}=FOLDER is not set")


if __name__ == "__main__":
    main(sys.argv[1:])
