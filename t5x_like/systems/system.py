"""The contract of systems: a system declares its sizes, its network and its tasks."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import flax.linen as nn
from jaxtyping import PyTree

from t5x_like.models.types import Batch
from t5x_like.names import hint

Config = Mapping[str, Any]  # the settings of a config's `model`

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
        start: (module, config, read) -> parameters (unboxed), for a network that is initialized
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
    start: Callable[[Any, Config, ReadPart], PyTree] | None = None
    start_required: bool = False
    carry: Callable[[Any, Batch], PyTree] | None = None
    prepare: Callable[..., Batch] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """The declaration of a paper's model.

    Attributes:
        name: the name of its module in t5x_like.systems, and the value of a config's `system`.
        sizes: the paper's table: settings of `build` by the name of the size. All sizes have the
            same settings; `vocab_size`, the number of token ids, is one of them: it is compared
            with the vocabulary of the data.
        build: settings -> the network, a Linen module. It declares `sides`, those of a batch that
            it reads ("encoder", "decoder"), and `generates`, whether it has `prefill` and `extend`;
            its `example_batch()` is a batch to initialize it with.
        later: settings that were added to the system later -> the value that describes earlier
            runs, whose config.json lacks the setting. `systems.complete` adds them.
        tasks: by the `head` of the settings; a system without heads has one, "".
        generation: generation settings that follow from the model's settings: `eos_token_id` ->
            the model setting with this id.
        structure: the settings that decide which parameters a network has, apart from their shapes.
        new_parameters: beginnings of the paths of parameters that are randomly initialized where
            the folder that a run starts from lacks them, "*" for any text; `head/` need not be
            listed. It needs another `structure`: a folder of the same is complete.
        new_rows: embedding tables, by path, that may have fewer rows in that folder -> the
            settings of its model whose sum is the number of rows. The rest is randomly initialized.
        copied_rows: embedding tables, by path, that may have fewer rows in that folder -> a
            function of the settings of its model and the number of rows here: for each row here
            the row there that it is a copy of.
        sums: parameters, by path, that a folder may lack -> those there whose sum they are: of a
            network of two that were trained together, and share parameters in part; or one
            alone, of which they begin as a copy.
        heads: for runs of several tasks, the path of the heads in the parameters: the head of task
            x is <heads>/x, and no other task reads it. The network then has a field `task`,
            and `module.clone(task=x)` runs the head of x; `build` gets as `head` a mapping of the
            tasks, x -> {"head", "labels"}, and initialization makes all heads.
        policy: the submodule for which the others are there in training alone. The folder of a run
            is read as a model of this network, whose `system` and settings the setting of the same
            name has.
        average: the submodule that is read in place of `policy`: the average of its parameters.
    """

    name: str
    sizes: Mapping[str, Mapping[str, Any]]
    build: Callable[[Config], nn.Module]
    tasks: Mapping[str, Task]
    later: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation: Mapping[str, str] = dataclasses.field(default_factory=dict)
    structure: tuple[str, ...] = ("head", "labels")
    new_parameters: tuple[str, ...] = ()
    new_rows: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    copied_rows: Mapping[str, Callable[[Config, int], tuple[int, ...]]] = dataclasses.field(
        default_factory=dict
    )
    sums: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    heads: str = "head"
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
