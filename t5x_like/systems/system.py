"""The contract of systems: a system declares its sizes, its network and its tasks."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import PyTree

from t5x_like.models.attention.selection import select_core
from t5x_like.models.compute import Compute
from t5x_like.models.quantized_product import select_product
from t5x_like.models.types import Batch
from t5x_like.names import hint

Config = Mapping[str, Any]  # the settings of a config's `model`
Other = TypeVar("Other", bound="ModelConfig")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ModelConfig(Mapping[str, Any]):
    """The settings of a network: a config's `model`, with types. A system has a subclass.

    It is a mapping, too, to make a config's `model` of: `SIZES["base"] | {"layers": 2}` is a dict.

    Attributes:
        vocab_size: the number of token ids, which is compared with the vocabulary of the data.
        dtype: of the computation, `float32` or `bfloat16`.
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

    def __or__(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **changes}

    def __ror__(self, others: Mapping[str, Any]) -> dict[str, Any]:
        return {**others, **self}

    @property
    def compute(self) -> Compute:
        """How the modules of the network compute, by the settings that the class has.

        Raises:
            ValueError: no such `attention` or `quantization`.
        """
        names = ("dropout", "dropout_broadcast", "loop", "remat")
        given: dict[str, Any] = {name: self[name] for name in names if name in self}
        if "embedding_lookup" in self:
            given["lookup"] = self["embedding_lookup"]
        if "attention" in self:
            given["core"] = select_core(self["attention"])
        if "quantization" in self:
            given["product"] = select_product(self["quantization"])
        return Compute(dtype=jnp.dtype(self.dtype), **given)

    def to(self, kind: type[Other], **changes: Any) -> Other:
        """Return the settings of another class: those that it has, too, and `changes`."""
        shared = {name: self[name] for name in kind.__dataclass_fields__ if name in self}
        return kind(**{**shared, **changes})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LayersConfig(ModelConfig):
    """The settings of a network of layers.

    Attributes:
        loop: `scan` the layers, `unroll` them, or `auto`: see `models.compute.Compute`.
        remat: what the backward pass computes again: see the same.
        embedding_lookup: `gather` or `one_hot`: see the same.
    """

    loop: str = "auto"
    remat: str = "none"
    embedding_lookup: str = "gather"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AttentionConfig(LayersConfig):
    """The settings of a network of layers with attention.

    Attributes:
        attention: the implementation of attention: see `models.attention.selection`.
    """

    attention: str = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DropoutConfig:
    """Dropout in training.

    Attributes:
        dropout: the probability.
        dropout_broadcast: whether the positions of a row share the mask.
    """

    dropout: float = 0.1
    dropout_broadcast: bool = False


# loss(module, params, batch, rng, **settings) -> LossSums: the sum over the batch, the sum of the
# weights, and metrics as (sum, weight). `rng` is the key of dropout and of sampling, None in
# evaluation; `settings` are those of a config's `loss` that it has as keyword arguments, all but
# those that only `Task.prepare` has. Where the task has a `carry`, the loss gets `carry=`, too, and
# returns (LossSums, carry).
Loss = Callable[..., Any]


class ReadPart(Protocol):
    """Reads the parameters that a run starts from."""

    def __call__(self, part: str, *, system: str, folder: str = "") -> PyTree:
        """The parameters of the submodule `part`, which is a network of `system`.

        Args:
            folder: where they are, if not in the folder that the run starts from.
        """

    def others(self, *parts: str) -> PyTree:
        """All parameters but those of some submodules, as a run without `Task.start` reads them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a network is trained on under one head, and how its outputs are used.

    Attributes:
        loss: see `Loss` above.
        prediction: how the outputs become an answer, a name in t5x_like.inference: `text`,
            `masked_tokens`, `classes`, ...; empty for a network that predicts nothing by itself.
        measures: evaluators that run by default, names in t5x_like.evaluation.
        objective: the only one whose examples the head can read; empty for any that fits.
        start: (module, settings, read) -> parameters (unboxed), for a network that is initialized
            from another one: a student from its teacher. Top-level parts that are missing there are
            randomly initialized. None: from a folder of the same network, or randomly.
        start_required: the run needs a folder to start from (`initialize`).
        carry: (module, batch) -> the memory before the first batch, for a network that remembers
            from batch to batch: arrays [B, ...], where row r belongs to row r of the batches. It
            depends on the shapes of the batch alone. Its data need `data.continue_rows`.
        prepare: (module, state, batch, rng, **settings) -> batch, work before each step that needs
            the newest parameters (`state.params`): sampling, rewards, the answers of a teacher. It
            is a jitted program of its own. The state has no optimizer state and no memory; in
            evaluation the rng is the same each time. `settings` are those of a config's `loss` that
            it has as keyword arguments. A step may then update the parameters several times
            (`train.minibatches`, `train.inner_epochs`).
    """

    loss: Loss
    prediction: str = ""
    measures: tuple[str, ...] = ()
    objective: str = ""
    start: Callable[[Any, Any, ReadPart], PyTree] | None = None
    start_required: bool = False
    carry: Callable[[Any, Batch], PyTree] | None = None
    prepare: Callable[..., Batch] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a network is initialized from a folder that lacks some of its parameters.

    Attributes:
        complete: whether the folder has the same parameters: all are read, and none may be left
            over. Otherwise parameters may be new, and others of the folder are not read.
        new: patterns of paths. If the folder lacks a parameter that begins like this, it is
            randomly initialized ("*" matches any text). `head/` need not be listed.
        first_rows: embedding tables by path -> the number of rows that they have in the folder, if
            it is smaller. The other rows are randomly initialized.
        copied_rows: embedding tables by path -> for each row here, the row of the folder's table
            that it is a copy of, if the folder's table has another number of rows.
        sums: {path: (path, ...)}. If the folder lacks a parameter, it is the sum of the listed
            parameters of the folder (a copy, if only one is listed).
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
    **made: Any,
) -> Adaptation:
    """Return the `Adaptation` of a system: a folder with the same head has all parameters.

    Args:
        source, config: see `System.adapt`.
        structure: the settings that decide which parameters a network has, apart from their shapes.
        made: attributes of the `Adaptation`.
    """
    complete = all(source.get(name) == config.get(name) for name in ("system", *structure))
    return Adaptation(complete=complete, **made)


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """The declaration of a paper's model.

    Attributes:
        name: the name of its module in t5x_like.systems, and the value of a config's `system`.
        sizes: the paper's table: a `ModelConfig` by the name of the size, all of one class. (A
            system that is only tried out may have dicts.)
        build: the settings -> the network, a Linen module. It declares `sides`, those of a batch
            that it reads ("encoder", "decoder"), and `generates`, whether it has `prefill` and
            `extend`; its `example_batch()` is a batch to initialize it with.
        later: settings that were added to the system later -> the value that describes earlier
            runs, whose config.json lacks the setting. `systems.complete` adds them.
        tasks: by the `head` of the settings; a system without heads has one, "". In a run of
            several tasks the `head` that `build` gets is {task: {"head", "labels"}}, and it makes
            all heads, with the parameters of task x under head/x; the network then has a
            field `task`, and `module.clone(task=x)` runs the head of x.
        generation: generation settings that follow from the model's settings: `eos_token_id` ->
            the model setting with this id.
        adapt: (settings of the folder that a run starts from, settings of the run) -> how to make
            the parameters that the folder lacks. Both have the name of the system as `system`.
        policy: the submodule for which the others are there in training alone. The folder of a run
            is read as a model of this network, whose `system` and settings the setting of the same
            name has.
        average: the submodule that is read in place of `policy`: the average of its parameters.
    """

    name: str
    sizes: Mapping[str, Config]
    build: Callable[[Any], nn.Module]
    tasks: Mapping[str, Task]
    later: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adapt: Callable[[Config, Config], Adaptation] = adaptation
    policy: str = ""
    average: str = ""

    @property
    def result(self) -> str:
        """The submodule that the folder of a run is read as; empty for the whole network."""
        return self.average or self.policy

    def task(self, config: Config) -> Task:
        """The task of the head that `config` names.

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
