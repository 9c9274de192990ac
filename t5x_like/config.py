"""Configs: every setting with its default and meaning, their checks, and the phases of a run."""

import contextlib
import copy
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from t5x_like import paths
from t5x_like.names import choose, hint, note_code

# Every setting, its default and its meaning. A setting that is a dict takes the arguments of the
# function that it is passed to, which checks them.
SETTINGS: dict[str, tuple[Any, str]] = {
    "system": (
        "t5",
        "the model: a module of t5x_like.systems, or a Python file of yours with a System named "
        "SYSTEM (my_model.py), or with another name (my_model.py:SMALL); '': the model in the "
        "folder `initialize`",
    ),
    "workdir": ("", "folder of the run: checkpoints, logs, config.json"),
    "compilation_cache": (
        "auto",
        "folder of compiled programs, for the next start of the command: auto, one in the user's "
        "cache ($T5X_LIKE_CACHE, or ~/.cache/t5x_like); '': none; JAX_COMPILATION_CACHE_DIR goes "
        "first",
    ),
    "initialize": (
        "",
        "folder of the initial parameters: a run, a checkpoint or a folder in Hugging Face's "
        "format; a head that it lacks is randomly initialized",
    ),
    "initialize_optimizer": (
        False,
        "go on from the step and the optimizer's state of the T5X checkpoint in `initialize`, too",
    ),
    "model": ({}, "sizes and other settings of the model, see SIZES in t5x_like/systems/*.py"),
    "loss": ({}, "settings of the loss: z_loss, label_smoothing, ..."),
    "data.module": ("data/c4.py", "the file that registers the data tasks (data/README.md)"),
    "data.settings": ({}, "settings of data.module, arguments of its register()"),
    "data.task": ("", "task or mixture to train on"),
    "data.tokenized": ("", "folder of `tokenize`, read in place of tokenizing (docs/data.md)"),
    "data.vocabulary": (
        "",
        "file or folder: a .model, vocab.txt, vocab.json or tokenizer.json; or 'bytes'",
    ),
    "data.objective": (
        "span_corruption",
        "how text becomes inputs and targets, a name in t5x_like.preprocessing.objectives",
    ),
    "data.objective_settings": ({}, "settings of the objective"),
    "data.converter_settings": ({}, "settings of the converter"),
    "data.converter": (
        "encoder_decoder",
        "how inputs and targets become a batch, a name in t5x_like.batches.converters",
    ),
    "data.lengths": ({"inputs": 512, "targets": 114}, "tokens per row"),
    "data.pack": (False, "pack several short examples into a row"),
    "data.open_rows": (16, "rows that examples may still be packed into: more, less padding"),
    "data.continue_rows": (
        False,
        "row r of the next batch continues row r of this one, through documents in their order",
    ),
    "data.batch_size": (128, "rows per step, over all devices"),
    "data.shards": (
        0,
        "pieces that the data is read in, for processes to share; 0: one per device with rows",
    ),
    "data.shuffle_buffer": (10_000, "documents in the shuffle buffer"),
    "data.allow_changed": (False, "resume although the data files changed (docs/checkpoints.md)"),
    "data.seed": (0, "seed of shuffling and of the objective's random choices"),
    "tasks": (
        {},
        "several tasks in one run, each batch from one of them: name -> `model`, with its head and "
        "labels; `share`, its weight in the choice of each step's task (default 1), or `batches`, "
        "how many it has of an epoch, whose order is shuffled, `auto` for one pass; `data` and "
        "`evaluate`, changes of the settings here; `loss`, `predict` and `decode`, in their place",
    ),
    "train.steps": (1000, "optimizer steps in total"),
    "train.phases": ((), "the names in `phases`, in the order of the run"),
    "phases": (
        {},
        "parts of the run: name -> steps, and changed settings of data, such as lengths or "
        "batch_size; after a change of batch_size alone the data continues without a restart",
    ),
    "train.microbatches": (1, "parts of a batch whose gradients are accumulated one by one"),
    "train.minibatches": (1, "parts of a prepared batch (PPO), with an optimizer update for each"),
    "train.inner_epochs": (1, "passes over a prepared batch, each in another order"),
    "train.log_every": (100, "steps between log lines"),
    "train.seed": (0, "seed of the initial parameters and of dropout"),
    "train.random_bits": (
        "threefry",
        "the generator behind dropout: threefry, the same numbers on every mesh; unsafe_rbg, the "
        "hardware's, faster on TPUs, other numbers on every mesh",
    ),
    "train.sequence_parallel": (False, "shard activations between layers by position over `model`"),
    "train.compiler": ("default", "preset of XLA's options for the step (docs/accelerators.md)"),
    "train.profile_at": (0, "first step whose profile goes to <workdir>/profile; 0: none"),
    "train.profile_steps": (3, "steps in the profile"),
    "train.on_nonfinite": (
        "stop",
        "what a NaN or infinite loss or gradient does: stop the run, exit status 3; skip_step: "
        "keep the parameters; skip_data: go on without the batches since the newest checkpoint",
    ),
    "train.step_timeout": (
        0.0,
        "seconds after which a run in which no step has ended prints the stacks of all threads and "
        "ends, with exit status 4; compilation, evaluation and checkpoints do not count; 0: never",
    ),
    "train.pause_timeout": (0.0, "the same for one compilation, evaluation or checkpoint"),
    "train.patience": (0, "stop after so many evaluations without a better checkpoint.best; 0: no"),
    "optimizer": (
        {"name": "adafactor"},
        "settings of the optimizer and its schedule; frozen, trained, unfreeze_steps: what is "
        "trained, and when; layer_decay: the rate of a layer as a share of that of the next",
    ),
    "mesh.data": (-1, "data parallelism: copies of the model; -1: all remaining devices"),
    "mesh.fsdp": (1, "data parallelism with sharded parameters: parts that they are sharded into"),
    "mesh.expert": (1, "parts that the experts are sharded into"),
    "mesh.model": (1, "tensor parallelism: parts that each layer is sharded into"),
    "checkpoint.every": (1000, "steps between checkpoints"),
    "checkpoint.keep": (3, "newest checkpoints to keep"),
    "checkpoint.keep_every": (0, "keep checkpoints at multiples of this for good; 0: none"),
    "checkpoint.best": (
        "",
        "keep the checkpoint with the best value of this number of the evaluations, too: "
        "TASK/NUMBER, such as pydocs/loss, or an average, such as glue/average",
    ),
    "evaluate.every": (1000, "steps between evaluations; 0: only at the end"),
    "evaluate.batches": (20, "batches per evaluation; 0: the whole split"),
    "evaluate.tasks": ((), "tasks to evaluate on; empty: the training task"),
    "evaluate.measures": (
        {},
        "what evaluate measures: name -> `kind` (default: the name), loss, predictions, "
        "generation, squad, translation, documents, last_word, choice, in_context, rewards, "
        "replies or benchmark (the one of the data's task), and its settings; empty: the loss, and "
        "what goes with the task and the objective; with `every`, "
        "training measures it, too, at multiples of so many steps (docs/metrics.md)",
    ),
    "evaluate.averages": (
        {},
        "means over tasks: name -> the numbers of each task, as `{'mrpc': ('mrpc/generation/f1', "
        "'mrpc/generation/accuracy')}`, where several numbers of a task count by their mean; the "
        "result is NAME/average",
    ),
    "evaluate.predictions": ("", "JSON Lines file for the predictions behind the measures"),
    "predict": (
        {},
        "settings of an encoder's predictions: `top` of masked tokens; `no_answer`, "
        "`null_threshold` and `longest_answer` of question answering",
    ),
    "decode": (
        {"max_new_tokens": 114},
        "settings of generation, named as in Hugging Face: num_beams, do_sample, top_p, ...",
    ),
    "dialog": ({}, "settings of a dialog model, inference/dialog/dialog_settings.py; empty: none"),
}

# The least value of each setting that is a number, where nothing else decides, and the largest.
LARGEST = 2**31 - 1
_LEAST = {
    **dict.fromkeys(("train.steps", "train.log_every", "train.profile_steps", "data.open_rows"), 1),
    **dict.fromkeys(("train.microbatches", "train.minibatches", "train.inner_epochs"), 1),
    **dict.fromkeys(("data.shuffle_buffer", "checkpoint.keep"), 1),
    **dict.fromkeys(("train.step_timeout", "train.pause_timeout", "train.profile_at"), 0),
    **dict.fromkeys(("train.seed", "data.seed", "data.shards", "evaluate.batches"), 0),
    **dict.fromkeys(("checkpoint.every", "checkpoint.keep_every", "evaluate.every"), 0),
}
# Settings with a part for each name that the user gives.
_NAMED = ("tasks", "phases", "evaluate.measures")
_KINDS = {bool: "True or False", int: "a whole number", float: "a number"}
_KINDS |= {str: "a text", tuple: "a tuple"}
_ON_NONFINITE = ("stop", "skip_step", "skip_data")

_RENAMED = {"score": "evaluate.measures: name -> kind and settings (docs/evaluation.md)"}


def defaults() -> ml_collections.ConfigDict:
    """A config with every setting at its default, for a file in configs/ to change."""
    return with_defaults({})


def with_defaults(stored: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """A config of these settings, such as those of an older run, and the defaults of all others.

    Raises:
        ValueError: a value stands where a dict of settings belongs.
    """
    tree = copy.deepcopy(dict(stored))
    if score := tree.pop("score", {}):  # what older configs have for evaluate.measures
        tree["evaluate"]["predictions"] = score.pop("predictions", "")
        tree["evaluate"]["measures"] = {score["kind"]: score}
    for key, (value, _) in SETTINGS.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ValueError(f"{parent}={node!r} must be a dict of settings")
        node.setdefault(last, value)
    return ml_collections.ConfigDict(tree)


def check(config: ml_collections.ConfigDict) -> None:
    """Check the names of all settings, and the values that depend on nothing but the config.

    Raises:
        ValueError: an unknown setting, with the nearest known one, or a value out of range.
    """
    for key in config:
        _check_key(key, config[key])
    for key, least in _LEAST.items():
        section, name = key.split(".")
        if not least <= (value := config[section][name]) <= LARGEST:
            limit = f"{least} or more" if value < least else f"at most {LARGEST}"
            raise ValueError(f"{key}={value} must be {limit}")
    if (first := config.train.profile_at) > (last := config.train.steps):
        raise ValueError(f"train.profile_at={first} must be at most train.steps={last}")
    choose("train.on_nonfinite", config.train.on_nonfinite, dict.fromkeys(_ON_NONFINITE))
    for phase in phases(config):
        where = f"phases.{phase.name}: " if phase.name else ""
        batch_size = phase.settings.data.batch_size
        if batch_size < 1:
            raise ValueError(f"{where}data.batch_size={batch_size} must be 1 or more")
        parts = {name: config.train[name] for name in ("minibatches", "microbatches")}
        if batch_size % math.prod(parts.values()):
            found = "*".join(f"train.{name}={n}" for name, n in parts.items() if n > 1)
            raise ValueError(f"{where}{found} does not divide data.batch_size={batch_size}")


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run that has its own data settings.

    Attributes:
        name: the key in `phases`, "" for the only phase of a run without phases.
        settings: the config with the data settings of the phase.
        first, last: the number of steps taken when the phase begins, and when it ends.
        reading: the name of the phase at whose start the data was opened: the phase itself, or the
            one before it where only the batch size changes, and reading continues.
    """

    name: str
    settings: ml_collections.ConfigDict
    first: int
    last: int
    reading: str = ""


def phases(config: ml_collections.ConfigDict) -> list[Phase]:
    """The phases of a run in the order of `train.phases`; a run without phases is one.

    The order is a setting because a ConfigDict sorts its keys. A phase that changes nothing but
    `batch_size` continues reading where the phase before stopped; any other phase opens its data
    anew, in another order, because it has another `data.seed`.

    Raises:
        ValueError: `train.phases` does not list `phases`, the steps do not add up to `train.steps`,
            or a phase changes a setting that is not in `data` or cannot change.
    """
    names = tuple(config.train.phases)
    if sorted(names) != list(config.phases):
        raise ValueError(
            f"train.phases={names!r} must have each name in phases once, in the order of the run: "
            f"{', '.join(config.phases) or 'there are none'}"
        )
    if not names:
        return [Phase("", config, 0, config.train.steps)]
    parts: list[Phase] = []
    for name in names:
        changes = config.phases[name].to_dict()
        steps = changes.pop("steps", 0)
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(
                f"phases.{name}.steps={steps!r} must be 1 or more (the {len(names)} phases share "
                f"train.steps={config.train.steps})"
            )
        parts.append(
            _phase(config, name, changes, before=parts[-1] if parts else None, steps=steps)
        )
    if parts[-1].last != config.train.steps:
        sizes = " + ".join(f"{part.last - part.first} ({part.name})" for part in parts)
        raise ValueError(
            f"train.steps={config.train.steps} must be the sum of the phases' steps: "
            f"{sizes} = {parts[-1].last}"
        )
    return parts


def _phase(
    config: ml_collections.ConfigDict,
    name: str,
    changes: Mapping[str, Any],
    *,
    before: Phase | None,
    steps: int,
) -> Phase:
    if before is None:
        return Phase(name, _changed(config, name, changes), 0, steps, name)
    same = _changed(config, name, {"seed": before.settings.data.seed, **changes})
    last, of_data = before.last + steps, before.settings.data.to_dict()
    if same.data.to_dict() == of_data | {"batch_size": same.data.batch_size}:
        return Phase(name, same, before.last, last, before.reading)
    seed = config.data.seed + list(config.train.phases).index(name)
    return Phase(name, _changed(config, name, {"seed": seed, **changes}), before.last, last, name)


def phase_at(config: ml_collections.ConfigDict, *, step: int) -> Phase:
    """The phase in which a run takes this step; the last phase for any step after the end."""
    parts = phases(config)
    return next((part for part in parts if step <= part.last), parts[-1])


def _changed(
    config: ml_collections.ConfigDict, name: str, changes: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    """The config with the data settings of a phase."""
    # The parameters belong to one vocabulary, and a position in the data to one number of shards.
    allowed = dict.fromkeys(key for key in config.data if key not in ("vocabulary", "shards"))
    for key in changes:
        choose(f"phases.{name}", key, allowed)
    config = config.copy_and_resolve_references()
    with config.unlocked():
        try:
            config.data.update(changes)
        except (TypeError, ValueError) as error:
            raise ValueError(f"phases.{name}: {error}") from error
    return config


def _check_key(key: str, value: Any) -> None:
    if key in SETTINGS:
        _check_kind(key, value)
        return
    check_renamed(key)
    children = [name for name in SETTINGS if name.startswith(key + ".")]
    if not children or not isinstance(value, ml_collections.ConfigDict):
        raise ValueError(f"the config has an unknown setting {key!r}.{hint(key, SETTINGS)}")
    for name in value:
        _check_key(f"{key}.{name}", value[name])


def _check_kind(key: str, value: Any) -> None:
    """Raise ValueError for a value of another type than the setting's default."""
    if isinstance(SETTINGS[key][0], dict):
        parts = {key: value}
        if isinstance(value, ml_collections.ConfigDict) and key in _NAMED:
            parts |= {f"{key}.{name}": part for name, part in value.items()}
        for name, part in parts.items():
            if not isinstance(part, ml_collections.ConfigDict):
                raise ValueError(f"{name}={part!r} must be a dict of settings")
        return
    kind: Any = type(SETTINGS[key][0])
    if not (isinstance(value, tuple | list) if kind is tuple else type(value) is kind):
        raise ValueError(f"{key}={value!r} must be {_KINDS[kind]}")


def check_renamed(key: str) -> None:
    """Raise ValueError for a setting that has another name now, with that name."""
    first = key.partition(".")[0]
    if first in _RENAMED:
        raise ValueError(f"the setting {first!r} is now {_RENAMED[first]}")


def to_dict(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The config as plain JSON values."""
    return json.loads(config.to_json_best_effort())


def load(path: paths.Path | str) -> ml_collections.ConfigDict:
    """The config that a run wrote (config.json); settings newer than it have their defaults.

    Raises:
        ValueError: the file is not a JSON object of settings.
    """
    try:
        stored = json.loads(paths.path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(stored, dict):
        raise ValueError(f"{path} has a JSON {type(stored).__name__}, and no settings")
    note_code(stored, folder=path)
    return with_defaults(stored)


@contextlib.contextmanager
def one_line_errors(*kinds: type[Exception], status: int = 2) -> Iterator[None]:
    """Turn errors of these kinds into one line on standard error and an exit status.

    Without `kinds` it is the errors that wrong settings and files cause.
    """
    try:
        yield
    except kinds or (ValueError, OSError) as error:  # noqa: B030 - a tuple of classes
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(status)
