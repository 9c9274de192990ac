"""The model side of a run: network, mesh, optimizer and jitted steps, made from a config."""

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from t5x_like import checkpoints, names, partitioning, paths, stop_signal, systems, vocabularies
from t5x_like.config.run_settings import LoraSettings, RunSettings
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.experiment import optimizer_state
from t5x_like.experiment.run import Part, Run
from t5x_like.nn import lora
from t5x_like.nn.linear import LORA_A, LORA_B
from t5x_like.nn.stack import logical_axes
from t5x_like.pretrained import Pretrained
from t5x_like.pretrained.loading import HEAD, load, load_part
from t5x_like.pretrained.weight_source import (
    Leaves,
    Source,
    data_settings,
    implied_generation,
    open_source,
)
from t5x_like.systems.system import Task
from t5x_like.training import (
    compiler,
    flops,
    frozen,
    layer_rates,
    metrics,
    optimizers,
    several_tasks,
    step,
)
from t5x_like.training.metrics import Metrics
from t5x_like.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class ParameterReader:
    """Reads the parameters of a run's network.

    Attributes:
        run: the run; its `source` is the folder to read.
        network: the network with the heads of all tasks.
        mesh: the mesh to place the parameters on.
        matrices: the LoRA matrices to read with `others`.
    """

    run: Run
    network: nn.Module
    mesh: Mesh
    matrices: Leaves

    def __call__(self, part: str, *, system: str, folder: str = "") -> PyTree:
        """See `systems.system.ReadPart`."""
        source = open_source(paths.path(folder)) if folder else self._source
        if folder:
            vocabulary = self.run.settings.data.vocabulary
            _check_vocabulary(source, folder, part=part, vocabulary=vocabulary)
        return load_part(
            source, self.network, part=part, system=system, dtype=np.float32, mesh=self.mesh
        )

    def others(self, *parts: str) -> PyTree:
        """See `systems.system.ReadPart`."""
        return load(
            self._source,
            self.network,
            system=self.run.settings.system,
            config=self.run.network,
            dtype=np.float32,
            mesh=self.mesh,
            seed=self.run.settings.train.seed,
            without=parts,
            matrices=self.matrices,
        )

    @property
    def _source(self) -> Source:
        assert self.run.source is not None, "a run that reads parameters has `initialize`"
        return self.run.source


def _check_vocabulary(source: Source, folder: str, *, part: str, vocabulary: str) -> None:
    """Check that a part from another folder was trained with this run's vocabulary.

    Raises:
        ValueError: the folder is a run with another vocabulary, even if of the same size.
    """
    stored = data_settings(source).get("vocabulary", "")
    if not vocabulary or not stored or vocabulary == stored:
        return
    try:
        other = vocabularies.load(stored)
    except ValueError:  # the file was moved, so that it cannot be compared
        return
    if other != vocabularies.load(vocabulary):
        raise ValueError(
            f"the {part} in {folder} was trained with data.vocabulary={stored!r}, which is another "
            f"vocabulary than this run's, {vocabulary!r}: both read the same tokens"
        )


@dataclasses.dataclass(frozen=True)
class TaskProgram:
    """The program of one task of a run: network, loss, optimizer and shardings.

    It is made from a config without allocating memory.

    The tasks of a run have the same network, mesh, shapes, axes, optimizer and schedule.

    Attributes:
        run: the run that the network, mesh and optimizer belong to.
        part: the task.
        network: the network with the heads of all tasks.
        module: the network with the head of this task.
        mesh, layout: the devices, and the context in which to trace and run programs for them.
        shapes, axes: the train state without a memory, as trees of ShapeDtypeStructs and of
            PartitionSpecs of logical axis names.
        loss: (params, batch, key or None) -> (loss sum, weight, metrics); with a memory also takes
            `carry=`, and returns ((loss sum, weight, metrics), next memory).
        prepare: (state, batch, key) -> the batch that the loss reads; None if it reads the batch as
            it is.
        optimizer, schedule: from `training.optimizers`.
        start: see `systems.system.Task`; from the first task that has it.
        has_memory: whether some task of the run passes a memory from batch to batch.
    """

    run: Run
    part: Part
    network: nn.Module
    module: nn.Module
    mesh: Mesh
    layout: Callable[[], Any]
    shapes: TrainState
    axes: TrainState
    loss: Callable[..., Any]
    prepare: step.Prepare | None
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    start: Callable[..., PyTree] | None
    has_memory: bool

    @property
    def name(self) -> str:
        """The name of the task, "" in a run with one task."""
        return self.part.name

    @property
    def task(self) -> Task:
        """The system's `Task`: how the head is trained."""
        return self.part.task

    @property
    def shardings(self) -> TrainState:
        """The shardings of the state without a memory."""
        return partitioning.shardings(self.mesh, self.axes)

    @property
    def abstract_state(self) -> TrainState:
        """The shapes and shardings of the state without a memory."""
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            self.shapes,
            self.shardings,
        )

    def abstract_state_on(self, batch: Mapping[str, Any]) -> TrainState:
        """Return the shapes and shardings of the state for a global batch, memory included."""
        carry = self.abstract_carry(batch)
        if self.name and carry is not None:
            carry = {self.name: carry}
        return self.abstract_state.replace(carry=carry)

    def abstract_carry(self, batch: Mapping[str, Any]) -> PyTree:
        """Return the shapes and shardings of the memory for a global batch, or None."""
        sharding = partitioning.batch_sharding(self.mesh)
        with self.layout():
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
                jax.eval_shape(self._carry, batch),
            )

    def initial_carry(self, batch: Mapping[str, Array]) -> PyTree:
        """Return the memory before the first batch, sharded like the batch's rows, or None."""
        if self.task.carry is None:
            return None
        sharding = partitioning.batch_sharding(self.mesh)
        with self.layout():
            return jax.jit(self._carry, out_shardings=sharding)(batch)

    def _carry(self, batch: Mapping[str, Array]) -> PyTree:
        return None if self.task.carry is None else self.task.carry(self.module, batch)

    def initial_state(self, *, seed: int | None = None) -> TrainState:
        """Return the state before the first step, without a memory.

        Each device initializes or reads only its own shards.

        Args:
            seed: seed of random parameters and of dropout; None for `train.seed`.

        Raises:
            ValueError: the folder in `initialize` lacks this model's parameters or, with
                `initialize_optimizer`, its optimizer state.
        """
        seed = self.run.settings.train.seed if seed is None else seed
        leaves, tree = jax.tree.flatten(self._pretrained() if self.run.settings.initialize else {})
        # Two parameters may start as the same array, which can be donated only once.
        keys, arrays = [id(leaf) for leaf in leaves], {id(leaf): leaf for leaf in leaves}

        def create(arrays: Mapping[int, Array]) -> TrainState:
            params = jax.tree.unflatten(tree, [arrays[key] for key in keys])
            return self._create(params, seed=seed)

        with self.layout():
            state = jax.jit(create, out_shardings=self.shardings, donate_argnums=0)(arrays)
        if self.run.settings.initialize_optimizer:
            shapes = self.abstract_state
            state = optimizer_state.read(state, self.run, shapes=shapes, axes=self.axes)
        self.run.close_source()
        return state

    def _create(self, params: PyTree, *, seed: int) -> TrainState:
        layers = self.run.settings.initialize_layers
        if layers >= 0 or self.shapes.params.keys() - params.keys():
            initial = nn.unbox(_init(self.network, seed=seed))
            params = initial | params  # parts that are not read from a folder
            if layers >= 0:
                params = layer_rates.first_layers(
                    params, initial, axes=self.axes.params, layers=layers
                )
        if self.run.settings.lora.rank:
            params = lora.initialize(params, self.shapes.params, seed=seed)
        return step.create_state(params, optimizer=self.optimizer, seed=seed)

    def _pretrained(self) -> PyTree:
        """Read the parameters in `initialize`, or derive them from it (`Task.start`).

        A head that the folder lacks is randomly initialized.
        """
        read = ParameterReader(self.run, self.network, self.mesh, self._known_matrices())
        if self.start is not None:
            settings = systems.settings(self.part.system, self.run.network)
            return self.start(self.network, settings, read)
        return read.others()

    def check_start(self, resumed: pathlib.Path | None) -> None:
        """Check that the network fits the checkpoints that a run resumes, or its initial folder.

        Args:
            resumed: the folder of the checkpoints; None if the run starts.

        Raises:
            ValueError: see `checkpoints.check_params`, or `_known_matrices`.
        """
        if resumed is not None:
            checkpoints.check_params(resumed, self.abstract_state.params)
        else:
            self._known_matrices()

    def _known_matrices(self) -> Leaves:
        """Return the shapes of the LoRA matrices that this run continues from the initial folder.

        A network with a `Task.start` continues none: they are added to the kernels.

        Raises:
            ValueError: the folder's matrices have another rank or alpha; or a head that the folder
                lacks, and that is randomly initialized, would not be trained.
        """
        folder, settings = self.run.settings.initialize, self.run.settings.lora
        if not settings.rank or self.start is not None:
            return {}
        source = self.run.source
        assert source is not None, "a run with LoRA has `initialize`"
        wanted = flax.traverse_util.flatten_dict(self.abstract_state.params, sep="/")
        matrices = {path: leaf for path, leaf in wanted.items() if lora.is_matrix(path)}
        base = {path: leaf for path, leaf in wanted.items() if path not in matrices}
        known = source.available(wanted if source.lora else base)
        for path, is_trained in flax.traverse_util.flatten_dict(self.trained, sep="/").items():
            if path.startswith(HEAD) and not is_trained and path not in known:
                raise ValueError(
                    f"lora.rank={settings.rank} does not train {path}, which initialize={folder!r} "
                    "lacks, so that it would stay random: set optimizer.trained=('head',)"
                )
        for name, value in source.lora.items():
            if value != getattr(settings, name):
                raise ValueError(
                    f"lora.{name}={getattr(settings, name)}: initialize={folder!r} has LoRA "
                    f"matrices with lora.{name}={value}: set it, or merge them first: python -m "
                    "t5x_like.convert --from=FOLDER --to=FOLDER"
                )
        return {path: leaf for path, leaf in matrices.items() if path in known}

    @property
    def trained(self) -> PyTree:
        """The mask of the trained parameters, see `frozen.trainable`; None if all are trained."""
        return frozen.mask_of(_with_lora(self.run.settings).optimizer, self.shapes.params)

    @functools.cached_property
    def train_step(self) -> Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, Metrics]]:
        """The training step, which donates its input state.

        It runs the program `update`, after `prepare_step` if the task prepares its batches.
        """
        if self.prepare is None:
            return self.update

        def prepare_and_update(
            state: TrainState, batch: Mapping[str, Array]
        ) -> tuple[TrainState, Metrics]:
            return self.update(state, self.prepare_step(_read_only(state), batch))

        return prepare_and_update

    @functools.cached_property
    def update(self) -> Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, Metrics]]:
        """The jitted update on a batch (prepared, if the task does so); it donates the state."""
        train = self.run.settings.train
        update = step.make_train_step(
            self.loss,
            self.optimizer,
            schedule=self.schedule,
            microbatches=train.microbatches,
            minibatches=train.minibatches,
            inner_epochs=train.inner_epochs,
            shardings=self.shardings.params,
            task=self.name,
            skip_nonfinite=train.on_nonfinite == "skip_step",
            random_bits=train.random_bits,
        )
        memory = partitioning.batch_sharding(self.mesh) if self.has_memory else None
        out = (self.shardings.replace(carry=memory), self._everywhere)
        options = self._compiler_options
        return jax.jit(update, donate_argnums=0, out_shardings=out, compiler_options=options)

    @functools.cached_property
    def prepare_step(self) -> Callable[[TrainState, Mapping[str, Array]], dict[str, Array]]:
        """The jitted `Task.prepare`; its state has neither optimizer state nor memory."""
        assert self.prepare is not None
        prepare_step = step.make_prepare_step(self.prepare)
        out, options = partitioning.batch_sharding(self.mesh), self._compiler_options
        return jax.jit(prepare_step, out_shardings=out, compiler_options=options)

    @property
    def _compiler_options(self) -> compiler.Options:
        return compiler.options(
            self.run.settings.train.compiler, self.mesh.devices.flat[0].platform
        )

    def programs(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, tuple[Any, ...]]:
        """Return {name: (jitted program of a step, *shapes of its arguments)}.

        The names are `update`, and `prepare` if the task prepares its batches.

        Args:
            batch: the shapes and shardings of a global batch, before it is prepared.
        """
        state = self.abstract_state_on(batch)
        if self.prepare is None:
            return {"update": (self.update, state, batch)}
        prepare = (self.prepare_step, _read_only(state), batch)
        sharding = partitioning.batch_sharding(self.mesh)
        with self.layout():
            prepared = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
                jax.eval_shape(*prepare),
            )
        return {"prepare": prepare, "update": (self.update, state, prepared)}

    @functools.cached_property
    def eval_step(self) -> Callable[..., tuple[Metrics, PyTree]]:
        """The jitted evaluation step, see `training.step.make_eval_step`."""
        memory = None if self.task.carry is None else partitioning.batch_sharding(self.mesh)
        eval_step = step.make_eval_step(self.loss, prepare=self.prepare)
        return jax.jit(eval_step, out_shardings=(self._everywhere, memory))

    def measure(
        self, params: PyTree, batches: Iterable[Mapping[str, np.ndarray]]
    ) -> dict[str, Any]:
        """Return the metrics of the parameters over all batches; call it within the layout.

        A memory is passed from each batch to the next.

        Args:
            batches: this process's rows of each batch.

        Returns:
            See `metrics.compute`.
        """
        return metrics.compute(metrics.merge(self._measure_each(params, batches)))

    def metric_names(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> list[str]:
        """Return the names of the loss's metrics, from the shapes of a global batch."""
        memory, step = self.abstract_carry(batch), np.int32(0)
        metrics, _ = jax.eval_shape(self.eval_step, self.shapes.params, batch, memory, step)
        return list(metrics)

    def _measure_each(
        self, params: PyTree, batches: Iterable[Mapping[str, np.ndarray]]
    ) -> Iterator[Metrics]:
        carry: PyTree = None
        for number, batch in enumerate(map(self.put, batches)):
            carry = carry if number else self.initial_carry(batch)
            metrics, carry = self.eval_step(params, batch, carry, np.int32(number))
            yield metrics
            stop_signal.between_batches()

    def flops(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> int:
        """Return the model FLOPs of a training step on a global batch, without `Task.prepare`."""
        return self.run.settings.train.inner_epochs * self._flops_of_pass(batch)

    def _flops_of_pass(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> int:
        key = jax.random.key(0)  # as in training: without a key a loss may compute more
        shapes, memory = self.shapes, self.abstract_carry(batch)
        if self.prepare is not None:
            batch = jax.eval_shape(self.prepare, shapes, batch, key)
        if memory is None:
            return flops.training(lambda p, b: self.loss(p, b, key), shapes.params, batch)
        return flops.training(
            lambda p, b, m: self.loss(p, b, key, carry=m), shapes.params, batch, memory
        )

    @property
    def _everywhere(self) -> NamedSharding:
        """The sharding of metrics: replicated, so that any process can fetch them."""
        return NamedSharding(self.mesh, PartitionSpec())

    def pretrained(self, params: PyTree) -> Pretrained:
        """Return this task's network with the given parameters, to predict and to generate."""
        generation = implied_generation(self.part.system, self.part.model)
        return Pretrained(
            self.module,
            params,
            system=self.part.system,
            config=dict(self.part.model),
            generation=GenerationSettings(**generation),
            mesh=self.mesh,
        )

    def policy(self, params: PyTree) -> PyTree:
        """Return the policy's parameters (`System.result`); without a policy all parameters."""
        part = self.run.system.result
        return params[part] if part else params

    def read_by_network(self, params: PyTree) -> PyTree:
        """Return the parameters as the network reads them, see `nn.lora.scaled`."""
        return _scaled(self.run.settings.lora, params)

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, Array]:
        """Put this process's rows of a batch onto the mesh, as global arrays."""
        return partitioning.shard_batch(batch, self.mesh)


def build(run: Run, *, devices: Sequence[jax.Device] | None = None) -> TaskProgram:
    """Make the model side of a run with one task, without compiling or allocating anything.

    Args:
        devices: the devices to lay it out on, which need not be attached; None for all of JAX's.

    Raises:
        ValueError: the run has several tasks; see also `build_tasks`.
    """
    if tasks := run.settings.tasks:
        raise ValueError(
            f"this run has several tasks, {', '.join(tasks)}: `build_tasks` makes each"
        )
    return build_tasks(run, devices=devices)[""]


def build_tasks(run: Run, *, devices: Sequence[jax.Device] | None = None) -> dict[str, TaskProgram]:
    """Make the model side of each task of a run, {task: model}, {"": model} if it has only one.

    Nothing is compiled or allocated.

    Args:
        devices: see `build`.

    Raises:
        ValueError: a setting does not exist, or does not fit the others or the devices.
    """
    heads = run.heads
    settings = _with_lora(run.settings)
    compiler.find(settings.train.compiler)
    network = systems.build(settings.system, run.network)
    for part in run.parts:
        _check_task(run, part)
    mesh = partitioning.make_mesh(dataclasses.asdict(settings.mesh), devices=devices)
    cuts = {"sequence_parallel": settings.train.sequence_parallel}
    boxed = jax.eval_shape(lambda: _init(network, seed=0))
    params, params_axes = _extended(settings, network, nn.unbox(boxed), logical_axes(boxed))
    _check_layers(settings, params, params_axes)
    optimizer, schedule = _optimizer(settings.optimizer, params_axes, tasks=heads)
    shapes = jax.eval_shape(lambda p: step.create_state(p, optimizer=optimizer, seed=0), params)
    axes = step.logical_axes(shapes, axes=params_axes)
    partitioning.check_divisible(mesh, shapes, axes)
    make = functools.partial(
        TaskProgram,
        run=run,
        network=network,
        mesh=mesh,
        layout=functools.partial(partitioning.layout, mesh, **cuts),
        shapes=shapes,
        axes=axes,
        optimizer=optimizer,
        schedule=schedule,
        start=next((part.task.start for part in run.parts if part.task.start is not None), None),
        has_memory=any(part.task.carry is not None for part in run.parts),
    )
    loss = functools.partial(_loss, settings, axes=params_axes)
    models = {}
    for part in run.parts:
        module = network.clone(task=part.name) if heads else network
        models[part.name] = make(
            part=part,
            module=module,
            loss=loss(part, module),
            prepare=_prepare(settings, part, module),
        )
    return models


def _with_lora(settings: RunSettings) -> RunSettings:
    """Return the settings of a run with LoRA, whose optimizer trains only A, B and `trained`."""
    if not settings.lora.rank:
        return settings
    if settings.initialize_optimizer:
        raise ValueError(
            f"lora.rank={settings.lora.rank} with initialize_optimizer=True: the optimizer state "
            "in the folder belongs to kernels, which LoRA does not train: set one of them"
        )
    trained = settings.optimizer.get("trained") or ()
    if isinstance(trained, tuple | list):  # another type is an error of the optimizer's
        trained = (*trained, LORA_A, LORA_B)
    return dataclasses.replace(settings, optimizer={**settings.optimizer, "trained": trained})


def _extended(
    settings: RunSettings, network: nn.Module, params: PyTree, axes: PyTree
) -> tuple[PyTree, PyTree]:
    """Add LoRA's matrices, if any, to the shapes and axes of the parameters not in `frozen`."""
    if not settings.lora.rank:
        return params, axes
    layers = lora.linear_layers(network, params)
    stay = settings.optimizer.get("frozen") or ()
    chosen = lora.choose_layers(layers, settings.lora.targets, frozen=stay)
    return lora.extend(
        params, axes, {path: layers[path] for path in chosen}, rank=settings.lora.rank
    )


def _scaled(settings: LoraSettings, params: PyTree) -> PyTree:
    """Return the parameters as the network reads them, see `nn.lora.scaled`."""
    if not settings.rank:
        return params
    scale = lora.scale_of(rank=settings.rank, alpha=settings.alpha)
    return lora.scaled(params, scale=scale)


def _optimizer(
    settings: Mapping[str, Any], axes: PyTree, *, tasks: Collection[str]
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Build the optimizer and schedule of a run; `tasks` are the tasks with separate heads."""
    owners = several_tasks.owners(axes, tasks=tasks) if tasks else None
    return optimizers.build(settings, axes=axes, owners=owners)


def _read_only(state: TrainState) -> TrainState:
    """Return the part of a state that `Task.prepare` reads."""
    return state.replace(opt_state=None, carry=None)


def _init(module: nn.Module, *, seed: int) -> PyTree:
    """Return randomly initialized parameters, boxed with their logical axes."""
    return module.init(jax.random.key(seed), module.example_batch())["params"]


def _check_layers(settings: RunSettings, params: PyTree, axes: PyTree) -> None:
    """Check the setting `initialize_layers`.

    Raises:
        ValueError: it is set without a folder, beside LoRA, or above the number of layers.
    """
    layers = settings.initialize_layers
    if layers < -1:
        raise ValueError(f"initialize_layers={layers} must be 0 or more, or -1 for all layers")
    if layers == -1:
        return
    if not settings.initialize or settings.lora.rank:
        advice = (
            "LoRA does not train new layers" if settings.initialize else "initialize is not set"
        )
        raise ValueError(f"initialize_layers={layers}: {advice}; set -1")
    jax.eval_shape(lambda p: layer_rates.first_layers(p, p, axes=axes, layers=layers), params)


def _check_task(run: Run, part: Part) -> None:
    """Check that a run has the settings that the system needs to train a task.

    Raises:
        ValueError: the system does not train this head, or the run lacks a setting for it.
    """
    task = part.task
    if task.start_required and not run.settings.initialize:
        raise ValueError("initialize is not set: name the folder of the model to start from")
    _check_minibatches(run, part)
    objective = part.data.objective
    if task.objective and objective != task.objective:
        where = f"tasks.{part.name}." if part.name else ""
        head = part.model.get("head")
        network = f"the head {head!r}" if head else f"this {part.system}"
        raise ValueError(
            f"{where}data.objective={objective!r}: {network} reads the examples of "
            f"{task.objective!r} alone"
        )
    if task.check is not None:
        task.check(part.model, part.text.examples.settings)


def _check_minibatches(run: Run, part: Part) -> None:
    for name in ("minibatches", "inner_epochs"):
        number = getattr(run.settings.train, name)
        if number > 1 and (part.task.prepare is None or part.task.carry is not None):
            raise ValueError(
                f"train.{name}={number}: a step of this {part.system} has one update, "
                "since it prepares no batches (PPO does), or remembers them: set it to 1, and "
                "train.microbatches to accumulate gradients"
            )


def _loss(run: RunSettings, part: Part, module: nn.Module, *, axes: PyTree) -> Callable[..., Any]:
    """Bind the loss of a task to its settings.

    Args:
        run: the settings of the run, from which the frozen parameters follow.
    """
    task = part.task
    of_loss, of_prepare = _keywords(task.loss), _keywords(task.prepare)
    settings = {
        name: value
        for name, value in part.loss.items()
        if name in of_loss or name not in of_prepare
    }
    # The arguments that are not settings: module, parameters, batch, key and perhaps a memory.
    arguments = (*list(inspect.signature(task.loss).parameters)[:4], "carry")
    names.check_settings("loss", task.loss, settings, given=arguments)
    bound = functools.partial(task.loss, module, **settings)

    def scaled_loss(params: PyTree, *rest: Any, **keywords: Any) -> Any:
        return bound(_scaled(run.lora, params), *rest, **keywords)

    trained = frozen.mask_of(run.optimizer, axes)
    return scaled_loss if trained is None else frozen.without_gradient(scaled_loss, trained=trained)


def _prepare(run: RunSettings, part: Part, module: nn.Module) -> Callable[..., Any] | None:
    """Bind the `Task.prepare` of a task to its settings; None if it has no `prepare`."""
    task = part.task
    if task.prepare is None:
        return None
    keywords = _keywords(task.prepare)
    settings = {name: value for name, value in part.loss.items() if name in keywords}
    arguments = list(inspect.signature(task.prepare).parameters)[:4]
    names.check_settings("loss", task.prepare, settings, given=arguments)
    bound = functools.partial(task.prepare, module, **settings)

    def scaled_prepare(state: TrainState, *rest: Any) -> Any:
        return bound(state.replace(params=_scaled(run.lora, state.params)), *rest)

    return scaled_prepare


def _keywords(function: Callable[..., Any] | None) -> set[str]:
    """Return the names of the keyword-only arguments."""
    if function is None:
        return set()
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
