"""A config made into a model, a mesh, an optimizer and jitted steps. Data comes from inputs.py."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax
import ml_collections
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from t5x_like import partitioning, systems
from t5x_like.pretrained.loading import load, load_part
from t5x_like.pretrained.weight_source import open_source
from t5x_like.systems.system import Task
from t5x_like.training import frozen, optimizers, state, step
from t5x_like.training.metrics import Metrics
from t5x_like.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The model side of a run: everything but data, made from a config without allocating memory.

    Attributes:
        module: the network.
        task: of its head: see `systems.system.Task`.
        mesh: the devices.
        shapes, axes: of the state, as trees of ShapeDtypeStructs and of PartitionSpecs of names.
        loss: (params, batch, key or None) -> (loss sum, weight, metrics).
        optimizer, schedule: as `training.optimizers` builds them.
    """

    config: ml_collections.ConfigDict
    module: nn.Module
    task: Task
    mesh: Mesh
    shapes: TrainState
    axes: TrainState
    loss: Callable[..., tuple[Array, Array, dict]]
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule

    @property
    def shardings(self) -> TrainState:
        """Where each part of the state lies."""
        return partitioning.shardings(self.mesh, self.axes)

    @property
    def abstract_state(self) -> TrainState:
        """The state's shapes and shardings, into which a checkpoint is restored."""
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            self.shapes,
            self.shardings,
        )

    def initial_state(self) -> TrainState:
        """The state before the first step, each device making or reading its own part of it.

        Raises:
            ValueError: the folder that `initialize` names does not have this model's parameters.
        """
        params = self._pretrained() if self.config.initialize else None
        with partitioning.layout(self.mesh):
            return jax.jit(self._create, out_shardings=self.shardings)(params)

    def _create(self, params: PyTree | None) -> TrainState:
        seed = self.config.train.seed
        if params is None:
            params = nn.unbox(_init(self.module, seed=seed))
        return state.create(params, optimizer=self.optimizer, seed=seed)

    def _pretrained(self) -> PyTree:
        """The parameters of the folder that `initialize` names, or what the task begins with.

        A head that the folder lacks is randomly initialized.
        """
        source = open_source(pathlib.Path(self.config.initialize).expanduser())
        model = self.config.model.to_dict()
        if self.task.start is not None:

            def read(part: str, *, system: str) -> PyTree:
                return load_part(
                    source, self.module, part=part, system=system, dtype=np.float32, mesh=self.mesh
                )

            return self.task.start(self.module, model, read)
        return load(
            source,
            self.module,
            system=self.config.system,
            config=model,
            dtype=np.float32,
            mesh=self.mesh,
            seed=self.config.train.seed,
        )

    @functools.cached_property
    def train_step(self) -> Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, Metrics]]:
        """The jitted training step; it consumes the state it is given."""
        train_step = step.make_train_step(
            self.loss,
            self.optimizer,
            schedule=self.schedule,
            microbatches=self.config.train.microbatches,
        )
        return jax.jit(
            train_step, donate_argnums=0, out_shardings=(self.shardings, self._everywhere)
        )

    @functools.cached_property
    def eval_step(self) -> Callable[[PyTree, Mapping[str, Array]], Metrics]:
        """The jitted evaluation step."""
        return jax.jit(step.make_eval_step(self.loss), out_shardings=self._everywhere)

    @property
    def _everywhere(self) -> NamedSharding:
        """That of metrics, whole on each device: any process can fetch them, arrays too."""
        return NamedSharding(self.mesh, PartitionSpec())

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, Array]:
        """This process's rows of a batch as global arrays on the mesh."""
        return partitioning.shard_batch(batch, self.mesh)


def build(
    config: ml_collections.ConfigDict, *, devices: Sequence[jax.Device] | None = None
) -> Experiment:
    """Makes the model side of a run and checks it, without compiling or allocating anything.

    Args:
        devices: to lay it out on, which need not be there to compile for; None for all of JAX's.

    Raises:
        ValueError: a setting that does not exist, or that does not fit the others or the devices.
    """
    model = config.model.to_dict()
    module = systems.build(config.system, model)
    task = systems.find(config.system).task(model)
    if task.start_required and not config.initialize:
        raise ValueError("initialize is not set: name the folder of the model to start from")
    mesh = partitioning.make_mesh(config.mesh.to_dict(), devices=devices)
    boxed = jax.eval_shape(lambda: _init(module, seed=0))
    params_axes = nn.get_partition_spec(boxed)
    optimizer, schedule = optimizers.build(config.optimizer.to_dict(), axes=params_axes)
    shapes = jax.eval_shape(lambda p: state.create(p, optimizer=optimizer, seed=0), nn.unbox(boxed))
    axes = state.logical_axes(shapes, axes=params_axes)
    partitioning.check_divisible(mesh, shapes, axes)
    loss: Callable[..., tuple[Array, Array, dict]]
    loss = functools.partial(task.loss, module, **config.loss.to_dict())
    if still := config.optimizer.get("frozen"):
        loss = frozen.without_gradient(loss, trained=frozen.trainable(params_axes, frozen=still))
    return Experiment(
        config=config,
        module=module,
        task=task,
        mesh=mesh,
        shapes=shapes,
        axes=axes,
        loss=loss,
        optimizer=optimizer,
        schedule=schedule,
    )


def _init(module: nn.Module, *, seed: int) -> PyTree:
    """The boxed parameters."""
    return module.init(jax.random.key(seed), module.example_batch())["params"]
