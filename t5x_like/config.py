"""Configs: what can be set, how a command reads it, and one clear line where it is wrong."""

import ast
import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

from t5x_like.names import choose, hint

# Every setting, its default and its meaning. Those that are dicts take what the function that
# reads them takes, and it checks them.
SETTINGS: dict[str, tuple[Any, str]] = {
    "system": (
        "t5",
        "the model: a module of t5x_like.systems, or a Python file of yours with a System named "
        "SYSTEM (my_model.py), or with another name (my_model.py:SMALL)",
    ),
    "workdir": ("", "folder of the run: checkpoints, logs, config.json"),
    "initialize": (
        "",
        "folder to start the parameters from, as from_pretrained reads it: a run, a checkpoint or "
        "Hugging Face's; a head that it lacks is drawn at random",
    ),
    "model": ({}, "settings of the system, one of its SIZES"),
    "loss": ({}, "settings of the system's loss: z_loss, label_smoothing"),
    "data.module": ("data/c4.py", "the file that registers the tasks"),
    "data.settings": ({}, "what the module's register() takes besides"),
    "data.task": ("", "task or mixture to train on"),
    "data.vocabulary": ("", "a .model, vocab.txt, vocab.json, tokenizer.json, or 'bytes'"),
    "data.objective": ("span_corruption", "how text becomes inputs and targets"),
    "data.objective_settings": ({}, "settings of the objective"),
    "data.converter_settings": ({}, "settings of the converter"),
    "data.converter": ("encoder_decoder", "how inputs and targets become a batch"),
    "data.lengths": ({"inputs": 512, "targets": 114}, "tokens a row"),
    "data.pack": (False, "several short documents in a row"),
    "data.batch_size": (128, "examples a step, over all devices"),
    "data.shards": (
        0,
        "pieces that the data is cut into, whatever the processes; 0: as many as batch slices",
    ),
    "data.shuffle_buffer": (10_000, "documents among which to shuffle"),
    "data.seed": (0, "of shuffling and of the objective"),
    "tasks": (
        {},
        "several tasks in one run, each batch from one of them: name -> `model`, with its head and "
        "labels; `share`, its weight in the choice of each step's task (default 1); `data` and "
        "`evaluate`, changes of the settings here; `loss`, `predict` and `decode`, in their place",
    ),
    "train.steps": (1000, "optimizer steps in all"),
    "train.phases": ((), "the names in `phases`, in the order that they are run in"),
    "phases": (
        {},
        "parts of the run: name -> steps, and what changes of data.*, such as lengths, batch_size; "
        "one that changes its batch_size alone reads on where the one before stopped",
    ),
    "train.microbatches": (1, "parts of a batch that are computed one after the other"),
    "train.log_every": (100, "steps between log lines"),
    "train.seed": (0, "of the parameters and of dropout"),
    "optimizer": (
        {"name": "adafactor"},
        "settings of the optimizer and its schedule; frozen: paths of parameters that stay",
    ),
    "mesh.data": (-1, "copies of the model; -1: all devices that are left"),
    "mesh.fsdp": (1, "parts that the copies share their parameters in"),
    "mesh.expert": (1, "parts that experts are spread over"),
    "mesh.model": (1, "parts that each layer is cut into"),
    "checkpoint.every": (1000, "steps between checkpoints"),
    "checkpoint.keep": (3, "newest checkpoints to keep"),
    "checkpoint.keep_every": (0, "keep each checkpoint at a multiple of this for good; 0: none"),
    "evaluate.every": (1000, "steps between evaluations; 0: only at the end"),
    "evaluate.batches": (20, "batches an evaluation; 0: the whole split"),
    "evaluate.tasks": ((), "tasks to evaluate on; empty: the one trained on"),
    "score": (
        {},
        "what evaluate measures in place of the loss: `kind`, documents, last_word, choice or "
        "in_context, and its settings: stride; blank; shots, template, by, ... (scoring.py; "
        "configs/pretrained.py has them all)",
    ),
    "predict": (
        {},
        "settings of what an encoder says of a text: top, of masked tokens; no_answer, "
        "null_threshold, longest_answer, of questions",
    ),
    "decode": (
        {"max_new_tokens": 114},
        "settings of generate, by Hugging Face's names: num_beams, do_sample, top_p, ...",
    ),
}


def defaults() -> ml_collections.ConfigDict:
    """A config with every setting at its default, which a file in configs/ then fills."""
    tree: dict[str, Any] = {}
    for key, (value, _) in SETTINGS.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return ml_collections.ConfigDict(tree)


def check(config: ml_collections.ConfigDict) -> None:
    """Checks names and ranges that need nothing but the config.

    Raises:
        ValueError: a key that no command reads, with the nearest that one does, or a bad value.
    """
    for key in config:
        _check_key(key, config[key])
    for key in ("steps", "microbatches", "log_every"):
        if config.train[key] < 1:
            raise ValueError(f"train.{key}={config.train[key]} must be 1 or more")
    for phase in phases(config):
        where = f"phases.{phase.name}: " if phase.name else ""
        batch_size = phase.settings.data.batch_size
        if batch_size < 1:
            raise ValueError(f"{where}data.batch_size={batch_size} must be 1 or more")
        if batch_size % config.train.microbatches:
            raise ValueError(
                f"{where}train.microbatches={config.train.microbatches} does not divide "
                f"data.batch_size={batch_size}"
            )


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run that has its own data settings.

    Attributes:
        name: its key in `phases`, "" for the only one of a run without phases.
        settings: the config, with the phase's `data`.
        first, last: the steps that are done when it begins, and when it ends.
        reading: the phase in which it was begun to read the data: its own, unless it differs from
            the one before in its batch size alone, and goes on where that one stopped.
    """

    name: str
    settings: ml_collections.ConfigDict
    first: int
    last: int
    reading: str = ""


def phases(config: ml_collections.ConfigDict) -> list[Phase]:
    """The parts of a run, in order: one, or those of `phases` as `train.phases` orders them.

    A ConfigDict has no order of its own, its keys are sorted: so there is a setting for it. A phase
    that changes nothing but `batch_size` reads on where the one before stopped; every other reads
    its data anew in another order, as its `data.seed` is another.

    Raises:
        ValueError: `train.phases` and `phases` differ, the steps do not add up to `train.steps`, or
            a phase changes what is no setting of `data` or cannot change.
    """
    names = tuple(config.train.phases)
    if sorted(names) != list(config.phases):
        raise ValueError(
            f"train.phases={names!r} must have each name in phases once, in the order that they "
            f"are run in: {', '.join(config.phases) or 'there are none'}"
        )
    if not names:
        return [Phase("", config, 0, config.train.steps)]
    parts: list[Phase] = []
    for name in names:
        changes = config.phases[name].to_dict()
        steps = changes.pop("steps", 0)
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"phases.{name}.steps={steps!r} must be 1 or more")
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
    """The phase that a run was in when it took this step, the last one for any beyond."""
    parts = phases(config)
    return next((part for part in parts if step <= part.last), parts[-1])


def _changed(
    config: ml_collections.ConfigDict, name: str, changes: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    """The config with the `data` of a phase."""
    # Parameters are of one vocabulary, and positions in the data of one number of shards.
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
        return
    children = [name for name in SETTINGS if name.startswith(key + ".")]
    if not children or not isinstance(value, ml_collections.ConfigDict):
        raise ValueError(f"the config has {key!r}, which nothing reads.{hint(key, SETTINGS)}")
    for name in value:
        _check_key(f"{key}.{name}", value[name])


def to_dict(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The config as plain JSON values."""
    return json.loads(config.to_json_best_effort())


def load(path: pathlib.Path | str) -> ml_collections.ConfigDict:
    """The config that a run wrote (config.json)."""
    return ml_collections.ConfigDict(json.loads(pathlib.Path(path).read_text()))


def run(main: Callable[[ml_collections.ConfigDict], None]) -> None:
    """Runs a command: reads `--config=FILE:SIZE --config.key=value ...` and calls `main`.

    Flags that are wrong end in one line on standard error and exit status 2.
    """
    holder = config_flags.DEFINE_config_file("config", None, "FILE or FILE:SIZE of the experiment")
    flags.mark_flag_as_required("config")
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS["config"])

    additions: dict[str, Any] = {}

    def parse(argv: list[str]) -> list[str]:
        if "--help" in argv:
            sys.stdout.write(f"{sys.modules['__main__'].__doc__}\n{_settings_help()}\n")
            sys.exit(0)
        try:
            argv, new = split_additions(argv)
            additions.update(new)
            sys.argv = argv  # where the flag --config looks for its settings
            return app.parse_flags_with_usage(argv)
        except (KeyError, AttributeError, TypeError) as error:  # a key that the config lacks
            with one_line_errors():
                raise ValueError(f"--config: {error.args[0]}") from error

    def with_config(argv: Sequence[str]) -> None:
        with one_line_errors():
            if len(argv) > 1:
                raise ValueError(f"{argv[1]!r} is no flag: settings are written --config.key=value")
            with holder.value.unlocked():
                holder.value.update_from_flattened_dict(additions)
            check(holder.value)
        main(holder.value)

    logging.set_verbosity(logging.WARNING)
    app.run(with_config, flags_parser=parse)


def split_additions(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """A command line without the settings that its config lacks, and those.

    The flags of ml_collections know a config's own settings alone, but what a task, an objective or
    an optimizer can be told is not all in every config. What reads them checks them.

    Returns:
        The rest, and of settings such as `data.settings.files`, in parts that take any, the values:
        literals of Python, or else strings.
    """
    file = next((word.partition("=")[2] for word in argv if word.startswith("--config=")), "")
    try:
        own = ConfigFileFlagParser("config").parse(file)
        own = {**own}  # a file that is not there fails only when it is read
    except Exception:  # whatever it is, the flag itself will tell it better
        return list(argv), {}
    free = [key for key, (value, _) in SETTINGS.items() if isinstance(value, dict)]
    rest, new = [], {}
    for word in argv:
        key, _, value = word.removeprefix("--config.").partition("=")
        parent, _, last = key.rpartition(".")
        if key == word or parent not in free or last in _part(own, parent):
            rest.append(word)
        else:
            new[key] = _literal(value)
    return rest, new


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    for name in key.split("."):
        config = config[name]
    return config


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@contextlib.contextmanager
def one_line_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Within it errors of these kinds are one line on standard error and exit status 2.

    Without any named, those that a user's settings and files cause.
    """
    try:
        yield
    except kinds or (ValueError, OSError) as error:  # noqa: B030 - it is a tuple of classes
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


def _settings_help() -> str:
    lines = [f"  --config.{key}={value!r}\n      {text}" for key, (value, text) in SETTINGS.items()]
    return "Settings and their defaults (a config file has its own):\n" + "\n".join(lines)
