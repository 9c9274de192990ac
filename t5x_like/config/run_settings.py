"""Every setting of a run with its type, default and meaning, as frozen dataclasses.

A setting that is a mapping holds the arguments of a function, which checks them itself.
"""

import collections.abc
import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar

from t5x_like.names import choose, hint

Section = TypeVar("Section")
Arguments = Mapping[str, Any]

LARGEST = 2**31 - 1  # the maximum of every setting with an `AtLeast`
WEIGHTS = ("float32", "bfloat16", "int8")  # dtypes of the parameters of a model that predicts
# Settings that map names chosen by the user to mappings of settings.
_NAMED = ("tasks", "phases", "evaluate.measures", "evaluate.averages")
_KINDS = {bool: "True or False", int: "a whole number", float: "a number"}
_KINDS |= {str: "a text", tuple: "a tuple"}
_RENAMED = {"score": "evaluate.measures: name -> kind and settings (docs/evaluation.md)"}


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """The minimum of a setting."""

    value: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The data that a run reads, and how text becomes batches."""

    module: Annotated[str, "the file that registers the data tasks (data/README.md)"] = "data/c4.py"
    settings: Annotated[
        Arguments,
        "settings of data.module, arguments of its register() or corpora()",
    ] = field(default_factory=dict)
    driver: Annotated[
        str,
        "'seqio' or 'grain'; '': seqio where data.module registers tasks (docs/data.md)",
    ] = ""
    task: Annotated[str, "task or mixture to train on"] = ""
    tokenized: Annotated[
        str,
        "folder of `tokenize`, read in place of tokenizing (docs/data.md)",
    ] = ""
    vocabulary: Annotated[
        str,
        "file or folder: a .model, vocab.txt, vocab.json or tokenizer.json; or 'bytes'",
    ] = ""
    objective: Annotated[
        str,
        "how text becomes inputs and targets, a name in t5x_like.objectives",
    ] = "span_corruption"
    objective_settings: Annotated[
        Arguments,
        "settings of the objective",
    ] = field(default_factory=dict)
    converter_settings: Annotated[
        Arguments,
        "settings of the converter",
    ] = field(default_factory=dict)
    converter: Annotated[
        str,
        "how inputs and targets become a batch, a name in t5x_like.batches.converters",
    ] = "encoder_decoder"
    lengths: Annotated[
        Mapping[str, int],
        "tokens per row",
    ] = field(default_factory=lambda: {"inputs": 512, "targets": 114})
    pack: Annotated[bool, "pack several short examples into a row"] = False
    open_rows: Annotated[
        int,
        "rows that examples may still be packed into: more, less padding",
        AtLeast(1),
    ] = 16
    continue_rows: Annotated[
        bool,
        "row r of the next batch continues row r of this one, through documents in their order",
    ] = False
    batch_size: Annotated[int, "rows per step, over all devices", AtLeast(1)] = 128
    shards: Annotated[
        int,
        "pieces that the data is read in, for processes to share; 0: one per device with rows",
        AtLeast(0),
    ] = 0
    shuffle_buffer: Annotated[int, "documents in the shuffle buffer", AtLeast(1)] = 10000
    allow_changed: Annotated[
        bool,
        "resume although the data files changed (docs/checkpoints.md)",
    ] = False
    seed: Annotated[int, "seed of shuffling and of the objective's random choices", AtLeast(0)] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The steps of a run: how many, how each is computed, and when to stop early."""

    steps: Annotated[int, "optimizer steps in total", AtLeast(1)] = 1000
    phases: Annotated[tuple[str, ...], "the names in `phases`, in the order of the run"] = ()
    microbatches: Annotated[
        int,
        "parts of a batch whose gradients are accumulated one by one",
        AtLeast(1),
    ] = 1
    minibatches: Annotated[
        int,
        "parts of a prepared batch (PPO), with an optimizer update for each",
        AtLeast(1),
    ] = 1
    inner_epochs: Annotated[
        int,
        "passes over a prepared batch, each in another order",
        AtLeast(1),
    ] = 1
    log_every: Annotated[int, "steps between log lines", AtLeast(1)] = 100
    trackers: Annotated[
        tuple[str, ...],
        "services that get the settings and the metrics, too: wandb, mlflow (docs/checkpoints.md)",
    ] = ()
    seed: Annotated[int, "seed of the initial parameters and of dropout", AtLeast(0)] = 0
    random_bits: Annotated[
        Literal["threefry", "unsafe_rbg"],
        "the generator behind dropout: threefry, the same numbers on every mesh; unsafe_rbg, "
        "the hardware's, faster on TPUs, other numbers on every mesh",
    ] = "threefry"
    sequence_parallel: Annotated[
        bool,
        "shard activations between layers by position over `model`",
    ] = False
    compiler: Annotated[
        str,
        "preset of XLA's options for the step (docs/accelerators.md)",
    ] = "default"
    profile_at: Annotated[
        int,
        "first step whose profile goes to <workdir>/profile; 0: none",
        AtLeast(0),
    ] = 0
    profile_steps: Annotated[int, "steps in the profile", AtLeast(1)] = 3
    on_nonfinite: Annotated[
        Literal["stop", "skip_step", "skip_data"],
        "what a NaN or infinite loss or gradient does: stop the run, exit status 3; "
        "skip_step: keep the parameters; skip_data: go on without the batches since the "
        "newest checkpoint",
    ] = "stop"
    step_timeout: Annotated[
        float,
        "seconds after which a run in which no step has ended prints the stacks of all "
        "threads and ends, with exit status 4; compilation, evaluation and checkpoints do not "
        "count; 0: never",
        AtLeast(0),
    ] = 0.0
    pause_timeout: Annotated[
        float,
        "the same for one compilation, evaluation or checkpoint",
        AtLeast(0),
    ] = 0.0
    patience: Annotated[
        int,
        "stop after so many evaluations without a better checkpoint.best; 0: no",
    ] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshSettings:
    """The size of each axis of the device mesh."""

    data: Annotated[
        int,
        "data parallelism: copies of the model; -1: all remaining devices; on several TPU slices a "
        "multiple of their number",
    ] = -1
    fsdp: Annotated[
        int,
        "data parallelism with sharded parameters: parts that they are sharded into",
    ] = 1
    expert: Annotated[int, "parts that the experts are sharded into"] = 1
    model: Annotated[int, "tensor parallelism: parts that each layer is sharded into"] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """When checkpoints are written, and which are kept."""

    every: Annotated[int, "steps between checkpoints", AtLeast(0)] = 1000
    keep: Annotated[int, "newest checkpoints to keep", AtLeast(1)] = 3
    keep_every: Annotated[
        int,
        "keep checkpoints at multiples of this for good; 0: none",
        AtLeast(0),
    ] = 0
    best: Annotated[
        str,
        "keep the checkpoint with the best value of this number of the evaluations, too: "
        "TASK/NUMBER, such as pydocs/loss, or an average, such as glue/average",
    ] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """The measures of an evaluation, and when they are taken."""

    every: Annotated[int, "steps between evaluations; 0: only at the end", AtLeast(0)] = 1000
    batches: Annotated[int, "batches per evaluation; 0: the whole split", AtLeast(0)] = 20
    tasks: Annotated[tuple[str, ...], "tasks to evaluate on; empty: the training task"] = ()
    measures: Annotated[
        Arguments,
        "what evaluate measures: name -> `kind` (default: the name), loss, predictions, "
        "generation, squad, translation, documents, last_word, choice, in_context, rewards, "
        "toxicity, replies or benchmark (the one of the data's task), and its settings; empty: the "
        "loss, and what goes with the task and the objective; with `every`, training measures "
        "it, too, at multiples of so many steps (docs/metrics.md)",
    ] = field(default_factory=dict)
    averages: Annotated[
        Arguments,
        "means over tasks: name -> the numbers of each task, as `{'mrpc': "
        "('mrpc/generation/f1', 'mrpc/generation/accuracy')}`, where several numbers of a "
        "task count by their mean; the result is NAME/average",
    ] = field(default_factory=dict)
    predictions: Annotated[str, "JSON Lines file for the predictions behind the measures"] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank matrices beside frozen kernels (docs/fine_tuning.md)."""

    rank: Annotated[
        int,
        "columns of A and rows of B; kernels then stay as they are, and only A, B and the modules "
        "in optimizer.trained are trained; 0: no LoRA",
        AtLeast(0),
    ] = 0
    alpha: Annotated[float, "the product A B is added to a kernel alpha / rank times"] = 16.0
    targets: Annotated[
        tuple[str, ...],
        "the linear layers that get A and B: names in their paths, '*' for any text, such as "
        "('query', 'value') or ('*',)",
    ] = ("*attention",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostSettings:
    """Assumptions about energy, emissions and price of a run (docs/plans.md)."""

    watts: Annotated[
        float, "watts of a chip; 0: the published mean of its kind, if there is one", AtLeast(0)
    ] = 0.0
    pue: Annotated[
        float, "energy of the data center as a multiple of its machines'", AtLeast(1)
    ] = 1.1
    kg_per_kwh: Annotated[
        float, "kilograms of CO2e of a kWh; as for GPT-3 in Patterson et al. 2021", AtLeast(0)
    ] = 0.429
    price: Annotated[float, "price of a chip and hour; 0: not known", AtLeast(0)] = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All settings of a run, as a config has them."""

    system: Annotated[
        str,
        "the model: a module of t5x_like.systems, or a Python file of yours with a System "
        "named SYSTEM (my_model.py), or with another name (my_model.py:SMALL); '': the model "
        "in the folder `initialize`",
    ] = "t5"
    workdir: Annotated[str, "folder of the run: checkpoints, logs, config.json"] = ""
    compilation_cache: Annotated[
        str,
        "folder of compiled programs, for the next start of the command: auto, one in the "
        "user's cache ($T5X_LIKE_CACHE, or ~/.cache/t5x_like); '': none; "
        "JAX_COMPILATION_CACHE_DIR goes first",
    ] = "auto"
    initialize: Annotated[
        str,
        "folder of the initial parameters: a run, a checkpoint or a folder in Hugging Face's "
        "format, or a model of its hub, OWNER/NAME or OWNER/NAME@REVISION; a head that it lacks is "
        "randomly initialized",
    ] = ""
    initialize_layers: Annotated[
        int,
        "how many of a tower's layers, the first ones, are read from `initialize`; the others are "
        "randomly initialized; -1: all",
    ] = -1
    initialize_optimizer: Annotated[
        bool,
        "go on from the step and the optimizer's state of the T5X checkpoint in `initialize`, too",
    ] = False
    model: Annotated[
        Arguments,
        "sizes and other settings of the model, see SIZES in t5x_like/systems/*.py",
    ] = field(default_factory=dict)
    loss: Annotated[
        Arguments,
        "settings of the loss: z_loss, label_smoothing, ...",
    ] = field(default_factory=dict)
    data: DataSettings = field(default_factory=DataSettings)
    tasks: Annotated[
        Arguments,
        "several tasks in one run, each batch from one of them: name -> `model`, with its "
        "head and labels; `share`, its weight in the choice of each step's task (default 1), "
        "or `batches`, how many it has of an epoch, whose order is shuffled, `auto` for one "
        "pass; `data` and `evaluate`, changes of the settings here; `loss`, `predict` and "
        "`decode`, in their place",
    ] = field(default_factory=dict)
    train: TrainSettings = field(default_factory=TrainSettings)
    phases: Annotated[
        Arguments,
        "parts of the run: name -> steps, and changed settings of data, such as lengths or "
        "batch_size; after a change of batch_size alone the data continues without a restart",
    ] = field(default_factory=dict)
    optimizer: Annotated[
        Arguments,
        "settings of the optimizer and its schedule; frozen, trained, unfreeze_steps: what is "
        "trained, and when; layer_decay: the rate of a layer as a share of the next layer's",
    ] = field(default_factory=lambda: {"name": "adafactor"})
    lora: LoraSettings = field(default_factory=LoraSettings)
    mesh: MeshSettings = field(default_factory=MeshSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    cost: CostSettings = field(default_factory=CostSettings)
    predict: Annotated[
        Arguments,
        "settings of an encoder's predictions: `top` of masked tokens; `no_answer`, "
        "`null_threshold` and `longest_answer` of question answering",
    ] = field(default_factory=dict)
    decode: Annotated[
        Arguments,
        "settings of generation, named as in Hugging Face: num_beams, do_sample, top_p, ...",
    ] = field(default_factory=lambda: {"max_new_tokens": 114})
    weights: Annotated[
        str,
        "dtype of the weights that infer and evaluate load: float32, bfloat16 or int8, kernels and "
        "embeddings in 8 bits",
    ] = "float32"
    dialog: Annotated[
        Arguments,
        "settings of a dialog model, inference/dialog_model.py; empty: none",
    ] = field(default_factory=dict)


def documentation(kind: type = RunSettings, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield each setting's dotted name, default and meaning."""
    hints = typing.get_type_hints(kind, include_extras=True)
    defaults = kind()
    for setting in dataclasses.fields(kind):
        name, default = f"{prefix}{setting.name}", getattr(defaults, setting.name)
        if dataclasses.is_dataclass(default):
            yield from documentation(hints[setting.name], f"{name}.")
        else:
            yield name, default, hints[setting.name].__metadata__[0]


def read(values: Mapping[str, Any]) -> RunSettings:
    """Make the settings of a run from plain values; missing settings get their defaults.

    Raises:
        ValueError: a setting is unknown (the message suggests the nearest known name), has another
            type than its default, or is out of range.
    """
    settings = _read(RunSettings, values, prefix="")
    train = settings.train
    if train.profile_at > train.steps:
        raise ValueError(
            f"train.profile_at={train.profile_at} must be at most train.steps={train.steps}"
        )
    choose("weights", settings.weights, dict.fromkeys(WEIGHTS))
    _check_lora(settings.lora)
    return settings


def _check_lora(lora: LoraSettings) -> None:
    """Check that the settings of LoRA have an effect, and that alpha and targets can be used."""
    if not lora.rank:
        for setting in dataclasses.fields(lora):
            if (value := getattr(lora, setting.name)) != setting.default:
                raise ValueError(
                    f"lora.{setting.name}={value!r} has no effect with lora.rank=0: set lora.rank "
                    "to 1 or more, such as 8"
                )
    if not 0 < lora.alpha < float("inf"):
        raise ValueError(f"lora.alpha={lora.alpha} must be above 0")
    if not lora.targets or not all(isinstance(name, str) and name for name in lora.targets):
        raise ValueError(
            f"lora.targets={lora.targets!r} must be names of linear layers, such as "
            "('query', 'value')"
        )


def _read(kind: type[Section], values: Mapping[str, Any], *, prefix: str) -> Section:
    hints = typing.get_type_hints(kind, include_extras=True)
    settings = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in hints:
            check_renamed(key)
            known = [setting for setting, _, _ in documentation()]
            raise ValueError(f"the config has an unknown setting {key!r}.{hint(key, known)}")
        if not dataclasses.is_dataclass(hints[name]):
            settings[name] = _checked(key, value, hints[name])
        elif isinstance(value, Mapping):
            settings[name] = _read(hints[name], value, prefix=f"{key}.")
        else:
            raise ValueError(f"{key}={value!r} must be a dict of settings")
    return kind(**settings)


def changed(section: Section, changes: Mapping[str, Any], *, prefix: str) -> Section:
    """Return a section with some of its settings changed.

    Args:
        prefix: prepended to the names of settings in error messages, such as "data.".

    Raises:
        ValueError: a value has another type than its setting.
    """
    hints = typing.get_type_hints(type(section), include_extras=True)
    converted = {
        name: _checked(f"{prefix}{name}", value, hints[name]) for name, value in changes.items()
    }
    return dataclasses.replace(section, **converted)  # type: ignore[type-var]


def _checked(key: str, value: Any, annotation: Any) -> Any:
    """Return a value converted to the type of its setting.

    Raises:
        ValueError: it has another type, is out of range, or is not among the allowed names.
    """
    kind: Any = typing.get_origin(annotation.__origin__) or annotation.__origin__
    if kind is collections.abc.Mapping:
        parts = {key: value}
        if isinstance(value, Mapping) and key in _NAMED:
            parts |= {f"{key}.{name}": part for name, part in value.items()}
        for name, part in parts.items():
            if not isinstance(part, Mapping):
                raise ValueError(f"{name}={part!r} must be a dict of settings")
        (_, kind_of_values) = typing.get_args(annotation.__origin__)
        for name, part in value.items() if kind_of_values is int else ():
            if type(part) is not int:
                raise ValueError(f"{key}.{name}={part!r} must be {_KINDS[int]}")
        return value
    if kind is Literal:
        return choose(key, value, {name: name for name in typing.get_args(annotation.__origin__)})
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if type(value) is not kind:
        raise ValueError(f"{key}={value!r} must be {_KINDS[kind]}")
    for least in (bound.value for bound in annotation.__metadata__ if isinstance(bound, AtLeast)):
        if not least <= value <= LARGEST:
            limit = f"{least} or more" if value < least else f"at most {LARGEST}"
            raise ValueError(f"{key}={value} must be {limit}")
    return value


def check_renamed(key: str) -> None:
    """Raise a ValueError with the new name if a setting has been renamed."""
    first = key.partition(".")[0]
    if first in _RENAMED:
        raise ValueError(f"the setting {first!r} is now {_RENAMED[first]}")


def to_dict(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as the JSON values of config.json."""
    return json.loads(json.dumps(dataclasses.asdict(settings), default=str))
