"""The contract of systems: a system declares its sizes, its network and its tasks.

Also the tasks that all encoders share.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import PyTree

from t5x_like.losses import fine_tuning
from t5x_like.names import hint
from t5x_like.nn.attention.kernels import select_core
from t5x_like.nn.compute import Batch, Compute
from t5x_like.nn.linear import Initializer
from t5x_like.nn.matrix_product import select_product

Config = Mapping[str, Any]  # the settings of a config's `model`
Ends = int | Sequence[int] | None  # the end token of texts, several, or none
Other = TypeVar("Other", bound="ModelConfig")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ModelConfig(Mapping[str, Any]):
    """The settings of a network: a config's `model`, with types. Each system has a subclass.

    It is also a mapping, so that a config's `model` can be made from it: `SIZES["base"] |
    {"layers": 2}` is a dict.

    Attributes:
        vocab_size: the number of token ids, which is compared with the vocabulary of the data.
        dtype: the type of the computation, `float32` or `bfloat16`.
    """

    vocab_size: int
    dtype: str = "float32"

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)

    def check_unread(self, *names: str, because: str) -> None:
        """Check that settings which the network does not read have their defaults.

        Args:
            because: the setting with which they have no effect, "model.pattern='banded'".

        Raises:
            ValueError: a setting has another value than its default.
        """
        for name in names:
            default = self.__dataclass_fields__[name].default
            if self[name] != default:
                raise ValueError(
                    f"model.{name}={self[name]!r} has no effect with {because}: leave it at its "
                    f"default, {default!r}"
                )

    def __or__(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **changes}

    def __ror__(self, others: Mapping[str, Any]) -> dict[str, Any]:
        return {**others, **self}

    @property
    def compute(self) -> Compute:
        """The `Compute` of the network's modules, from the settings that concern it.

        Raises:
            ValueError: `attention` or `quantization` is unknown.
        """
        names = ("dropout", "dropout_broadcast", "loop", "remat")
        arguments: dict[str, Any] = {name: self[name] for name in names if name in self}
        if "embedding_lookup" in self:
            arguments["lookup"] = self["embedding_lookup"]
        if "attention" in self:
            arguments["core"] = select_core(self["attention"])
        if "quantization" in self:
            arguments["product"] = select_product(self["quantization"])
        return Compute(dtype=jnp.dtype(self.dtype), **arguments)

    def to(self, kind: type[Other], **changes: Any) -> Other:
        """Convert to another class: keep the settings that both classes have, apply `changes`."""
        shared = {name: self[name] for name in kind.__dataclass_fields__ if name in self}
        return kind(**{**shared, **changes})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LayersConfig(ModelConfig):
    """The settings of a network of layers: see `nn.compute.Compute`.

    Attributes:
        loop: `scan` the layers, `unroll` them, or `auto`.
        remat: what the backward pass recomputes.
        embedding_lookup: `gather` or `one_hot`, called `lookup` in `Compute`.
    """

    loop: str = "auto"
    remat: str = "none"
    embedding_lookup: Literal["gather", "one_hot"] = "gather"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AttentionConfig(LayersConfig):
    """The settings of a network of layers with attention.

    Attributes:
        attention: the name of the implementation of attention: see `nn.attention.kernels`.
    """

    attention: str = "auto"


def head_width(config: Mapping[str, Any]) -> int:
    """Return the width of a head, which is `d_model` divided by `heads`.

    Raises:
        ValueError: the heads do not divide the model's width.
    """
    heads, width = config["heads"], config["d_model"]
    if width % heads:
        raise ValueError(
            f"model.heads={heads} must divide model.d_model={width}: each head has an equal part"
        )
    return width // heads


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DropoutConfig:
    """The settings of dropout in training.

    Attributes:
        dropout: the probability of dropping an activation.
        dropout_broadcast: whether all positions of a row share one dropout mask.
    """

    dropout: float = 0.1
    dropout_broadcast: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InitConfig(ModelConfig):
    """The setting of BERT's initialization (Devlin et al. 2018; 0.02 in their code).

    Attributes:
        initializer_range: the standard deviation of the weights. 0.02 is made for a width of 768: a
            network 128 wide learns little about context in some hundred steps, and much with
            0.02 * (768 / 128)^0.5.
    """

    initializer_range: float = 0.02

    @property
    def init(self) -> Initializer:
        """The initializer of all weights."""
        return nn.initializers.truncated_normal(self.initializer_range)


EARLIER_INIT = {"initializer_range": 0.02}  # of runs before it was a setting


# loss(module, params, batch, rng, **settings) -> LossSums: the sum over the batch, the sum of the
# weights, and metrics as (sum, weight). `rng` is the key of dropout and of sampling, None in
# evaluation; `settings` are a config's `loss`, without the settings that only `Task.prepare`
# accepts as keyword arguments. If the task has a `carry`, the loss also gets `carry=`, and returns
# (LossSums, carry).
Loss = Callable[..., Any]


class ReadPart(Protocol):
    """Reads the parameters that a run starts from."""

    def __call__(self, part: str, *, system: str, folder: str = "") -> PyTree:
        """Read the parameters of the submodule `part`, which is a network of `system`.

        Args:
            folder: the folder to read, by default the folder that the run starts from.
        """

    def others(self, *parts: str) -> PyTree:
        """Read all parameters except the submodules `parts`, as a run without `Task.start` does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a network is trained on under one head, and how its outputs are used.

    Attributes:
        loss: see `Loss` above.
        prediction: how the outputs become an answer, a name in t5x_like.inference: `text`,
            `masked_tokens`, `classes`, ...; empty for a network that predicts nothing by itself.
        measures: evaluators that run by default, names in t5x_like.evaluation.
        objective: the only objective whose examples the head can read; empty for any that fits.
        check: (settings of the network, settings of the objective) raises ValueError if they do not
            fit. None: they always do.
        start: (module, settings, read) -> parameters (unboxed), for a network that is initialized
            from a different network, such as a student from its teacher. Top-level submodules that
            it does not return are randomly initialized. None: all parameters are read from a folder
            of the same network, or randomly initialized.
        start_required: whether the run needs a folder to start from (`initialize`).
        carry: (module, batch) -> the memory before the first batch, for a network that keeps a
            memory from batch to batch: arrays [B, ...], where row r belongs to row r of the
            batches. It may depend only on the shapes of the batch. The data need
            `data.continue_rows`.
        prepare: (module, state, batch, rng, **settings) -> batch: work before each step that needs
            the newest parameters (`state.params`), such as sampling, rewards, or the answers of a
            teacher. It is compiled as a separate program. The state has no optimizer state and no
            memory; in evaluation the rng is the same each time. `settings` are the settings of a
            config's `loss` that it has as keyword arguments. A step may then update the parameters
            several times (`train.minibatches`, `train.inner_epochs`).
    """

    loss: Loss
    prediction: str = ""
    measures: tuple[str, ...] = ()
    objective: str = ""
    check: Callable[[Config, Config], None] | None = None
    start: Callable[[Any, Any, ReadPart], PyTree] | None = None
    start_required: bool = False
    carry: Callable[[Any, Batch], PyTree] | None = None
    prepare: Callable[..., Batch] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a network is initialized from a folder that lacks some of its parameters.

    Attributes:
        complete: whether the folder has the same parameters: then all are read, and none may be
            left over. Otherwise the network may have parameters that the folder lacks, and
            parameters of the folder that the network lacks are not read.
        new: patterns of paths. If the folder lacks a parameter whose path begins like this, it is
            randomly initialized ("*" matches any text). `head/` need not be listed.
        first_rows: {path of an embedding table: its number of rows in the folder}. If the folder's
            table has fewer rows than the network's, the other rows are randomly initialized.
        copied_rows: {path of an embedding table: (row, ...)}. If the folder's table has another
            number of rows, row r of the network's table is a copy of the r-th row listed.
        sums: {path: (path, ...)}. If the folder lacks a parameter, it is initialized with the sum
            of the listed parameters of the folder (a copy, if only one is listed).
    """

    complete: bool
    new: tuple[str, ...] = ()
    first_rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    copied_rows: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    sums: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def adaptation(
    source: Config,
    config: Config,
    *,
    structure: tuple[str, ...] = ("head", "labels"),
    **attributes: Any,
) -> Adaptation:
    """Return an `Adaptation` that is `complete` if system and `structure` are the same.

    Args:
        source, config: see `System.adapt`.
        structure: the settings that decide which parameters a network has, apart from their shapes.
        attributes: the other attributes of the `Adaptation`.
    """
    complete = all(source.get(name) == config.get(name) for name in ("system", *structure))
    return Adaptation(complete=complete, **attributes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """The declaration of a paper's model.

    Attributes:
        name: the name of its module in t5x_like.systems, and the value of a config's `system`.
        sizes: the paper's table of sizes, {name: `ModelConfig`}, all of one class. (A system that
            is only tried out may have dicts.)
        build: the settings -> the network, a Linen module. The network declares `sides`, the sides
            of a batch that it reads ("encoder", "decoder"), and `generates`, whether it has
            `prefill` and `extend`; its `example_batch()` returns a batch to initialize it with.
        older_defaults: {setting that was added to the system later: the value that describes
            earlier runs, whose config.json lacks the setting}. `systems.complete` adds them.
        tasks: {`head` of the settings: `Task`}; a system without heads has the key "". In a run of
            several tasks the `head` that `build` gets is {task: {"head", "labels"}}, and it makes
            all heads, with the parameters of task x under head/x; the network then has a
            field `task`, and `module.clone(task=x)` runs the head of x.
        generation: generation settings that follow from the model's settings: {name of a token id,
            such as `eos_token_id`: the model setting that has it}.
        adapt: (settings of the folder that a run starts from, settings of the run) -> how to make
            the parameters that the folder lacks. Both have the name of the system as `system`.
        policy: name of the submodule to export. The others exist only for training; loading the
            run's folder returns this submodule. The model setting of the same name has its `system`
            and its settings.
        average: name of the submodule to export instead of `policy`: the average of its parameters.
    """

    name: str
    sizes: Mapping[str, Config]
    build: Callable[[Any], nn.Module]
    tasks: Mapping[str, Task]
    older_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adapt: Callable[[Config, Config], Adaptation] = adaptation
    policy: str = ""
    average: str = ""

    @property
    def result(self) -> str:
        """The submodule that loading a run's folder returns; empty for the whole network."""
        return self.average or self.policy

    def task(self, config: Config) -> Task:
        """Return the task of the head that `config` names.

        Raises:
            ValueError: the system has no task for this head; the message lists its heads.
        """
        head = config.get("head", "")
        if head not in self.tasks:
            raise ValueError(
                f"model.head={head!r}: the system {self.name} is not trained with this head."
                f"{hint(head, self.tasks)}"
            )
        return self.tasks[head]


ENCODER_TASKS: dict[str, Task] = {
    "classification": Task(
        loss=partial(fine_tuning.loss, "classification"),
        prediction="classes",
        measures=("predictions",),
    ),
    "multiple_choice": Task(
        loss=partial(fine_tuning.loss, "multiple_choice"),
        prediction="encoder_choices",
        measures=("predictions",),
    ),
    "regression": Task(
        loss=partial(fine_tuning.loss, "regression"),
        prediction="number",
        measures=("predictions",),
    ),
    "tagging": Task(
        loss=partial(fine_tuning.loss, "tagging"),
        prediction="tags",
        measures=("predictions",),
    ),
    "question_answering": Task(
        loss=partial(fine_tuning.loss, "question_answering"),
        prediction="answers",
        measures=("squad",),
    ),
}
