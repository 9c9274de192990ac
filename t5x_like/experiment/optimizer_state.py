"""Read the optimizer state of a run from a T5X checkpoint, or write it as one.

Adafactor's second moments and the moments of Adam, which T5X takes from optax, can be read and
written.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import optax

from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment.run import Run
from t5x_like.hf.weight_map import Piece
from t5x_like.pretrained import t5x, t5x_optimizers
from t5x_like.pretrained.t5x import T5XCheckpoint
from t5x_like.pretrained.t5x_files import StoredArrays
from t5x_like.training.layer_tensors import two_sides
from t5x_like.training.optimizers import CLIPS, Factored, FactoredRmsState
from t5x_like.training.step import TrainState

_NODES = (FactoredRmsState, optax.ScaleByAdamState, optax.ScaleByScheduleState)
# {optimizer: {a setting that T5X's lacks, and that changes its updates: the value without effect}}
_NOT_IN_T5X: dict[str, dict[str, float]] = {
    "adamw": {},
    "adafactor": {"weight_decay": 0, "clip_value": 0, "clip_sum_value": 0},
}


def find(run: Run) -> T5XCheckpoint:
    """Return the T5X checkpoint that a run's `initialize` names.

    Raises:
        ValueError: the folder is not a T5X checkpoint, or it is a Switch Transformer's and the
            optimizer is not Adam.
    """
    source, folder = run.source, run.settings.initialize
    if not isinstance(source, T5XCheckpoint):
        raise ValueError(
            f"initialize_optimizer=True: initialize={folder!r} must be a checkpoint of T5X"
        )
    # T5X factors Adafactor's moments of experts by special rules.
    if source.system == "switch" and run.settings.optimizer.get("name") != "adamw":
        raise ValueError(
            f"initialize_optimizer=True: initialize={folder!r} is a Switch Transformer, whose "
            "optimizer state is read only for Adam (optimizer.name='adamw'); set it to False"
        )
    return source


def read(state: TrainState, run: Run, *, shapes: TrainState, axes: TrainState) -> TrainState:
    """Return the state with the step and the moments of a T5X checkpoint.

    Args:
        state: the state before the first step, with the checkpoint's parameters.
        shapes: the shapes and shardings of the state.
        axes: the logical axes of the state.

    Raises:
        ValueError: the folder is not a T5X checkpoint, or has as many steps as the run; the
            optimizer is neither Adam nor Adafactor without momentum; or the checkpoint's optimizer
            is another, or a setting in the checkpoint differs.
    """
    source, optimizer, steps = find(run), run.settings.optimizer, run.settings.train.steps
    stored = StoredArrays(source.folder, part="state")
    step = t5x_optimizers.read_step(stored)
    if step >= steps:
        raise ValueError(
            f"train.steps={steps} must be more than the {step} steps of the checkpoint, which count"
        )
    params = flax.traverse_util.flatten_dict(shapes.params, sep="/")
    files = _Files(source, stored, step, params, optimizer)

    def of_node(node: Any) -> Any:
        if isinstance(node, optax.ScaleByScheduleState):
            return optax.ScaleByScheduleState(_number(step, node.count))
        if isinstance(node, FactoredRmsState):
            return files.adafactor(node, axes=axes)
        if isinstance(node, optax.ScaleByAdamState) and optimizer["name"] == "adamw":
            return files.adam(node)
        raise ValueError(
            "initialize_optimizer=True: the optimizer has more state than Adafactor's second "
            "moments or Adam's two moments; train with adafactor or adamw, without momentum, "
            "unfreezing and schedules of the weight decay"
        )

    opt_state = jax.tree.map(
        of_node, shapes.opt_state, is_leaf=lambda node: isinstance(node, _NODES)
    )
    return state.replace(step=_number(step, shapes.step), opt_state=opt_state)


@dataclasses.dataclass(frozen=True)
class _Files:
    """The optimizer state in the files of a T5X checkpoint.

    Attributes:
        params: shapes of the parameters, by path.
        optimizer: the optimizer settings of the run.
    """

    source: T5XCheckpoint
    stored: StoredArrays
    step: int
    params: Mapping[str, Any]
    optimizer: Mapping[str, Any]

    @functools.cached_property
    def parts(self) -> dict[str, list[Piece]]:
        """The pieces in the checkpoint of each parameter."""
        return self.source.parts(self.params)

    def adafactor(self, node: FactoredRmsState, *, axes: TrainState) -> FactoredRmsState:
        """Read Adafactor's state, with the shapes of `node`."""
        t5x_optimizers.check_momentum(self.stored)
        specs = flax.traverse_util.flatten_dict(axes.params, sep="/")

        def moment(path: str, leaf: Any) -> Any:
            read = functools.partial(t5x_optimizers.read_moment, self.stored, self.parts[path])
            if not isinstance(leaf, Factored):
                return read(leaf, averaged=())
            sides = two_sides(self.params[path].shape, specs[path], min_size=1)
            assert sides is not None, f"{path} is factored"
            return Factored(
                *(read(mean, averaged=side) for mean, side in zip(leaf, sides, strict=True))
            )

        moments = _map_trained(moment, node.second_moment)
        return FactoredRmsState(_number(self.step, node.step), moments)

    def adam(self, node: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        """Read Adam's state, with the shapes of `node`."""
        trained = [path for path, leaf in _flat(node.nu).items() if _is_trained(leaf)]
        adam = t5x_optimizers.find_adam(self.stored, self.parts[trained[0]][0].tensor)
        names = {piece.tensor for pieces in self.parts.values() for piece in pieces}
        adam.check(names, self.optimizer, step=self.step)

        def moments(kind: str, tree: Any) -> Any:
            return _map_trained(lambda path, leaf: adam.read(kind, self.parts[path], leaf), tree)

        count = _number(adam.count, node.count)
        return optax.ScaleByAdamState(count, moments("mu", node.mu), moments("nu", node.nu))


def check_written(shapes: TrainState, *, settings: RunSettings, axes: TrainState) -> None:
    """Check that `write` can write a run.

    Args:
        shapes: the shapes of its state.
        settings: the settings of the run.
        axes: the logical axes of its state.

    Raises:
        ValueError: see `write`.
    """
    t5x.check_written(settings.system, settings.model)
    optimizer = settings.optimizer
    node, _ = _nodes(shapes.opt_state, optimizer)
    moments = node.second_moment if isinstance(node, FactoredRmsState) else node.nu
    if not all(map(_is_trained, _flat(moments).values())):
        raise ValueError(
            f"the run has frozen parameters, and T5X's {optimizer['name']} keeps moments of all: "
            "--format=t5x writes only the parameters"
        )
    for name, without in _NOT_IN_T5X[optimizer["name"]].items():
        if (value := optimizer.get(name)) not in (without, None):
            raise ValueError(
                f"optimizer.{name}={value!r}: T5X's {optimizer['name']} has no such setting, and "
                "would train otherwise; --format=t5x writes only the parameters"
            )
    if isinstance(node, FactoredRmsState):
        _check_adafactor(node, shapes, settings=settings, axes=axes)


def _check_adafactor(
    node: FactoredRmsState, shapes: TrainState, *, settings: RunSettings, axes: TrainState
) -> None:
    if settings.system == "switch":
        raise ValueError(
            "optimizer.name='adafactor': T5X factors the moments of experts by special rules, so a "
            "Switch Transformer's state is written only for adamw; --format=t5x writes the "
            "parameters"
        )
    params = _flat(shapes.params)
    parts = t5x.parts_of(settings.system, settings.model, params)
    for path, moment in _flat(node.second_moment).items():
        factored = isinstance(moment, Factored)
        t5x_optimizers.check_factored(path, params[path].shape, parts[path], factored=factored)


def write(
    state: TrainState, folder: pathlib.Path, *, settings: RunSettings, axes: TrainState
) -> None:
    """Write the parameters, the step and the optimizer's moments as a T5X checkpoint.

    T5X restores the state of `adafactor` with its Adafactor, and of `adamw` with
    `optimizers.adamw` or, for a run with `optimizer.clip_norm`, with `optimizers.chain` of
    `optax.clip_by_global_norm` and `optax.adamw`. The learning rate of Adam must be an optax
    schedule there, or a number for a run with a constant rate.

    Args:
        folder: the folder in which checkpoint_STEP is written.
        settings: the settings of the run.
        axes: the logical axes of the state.

    Raises:
        ValueError: the optimizer is neither Adam nor Adafactor, has more state than T5X's or other
            updates, or does not train all parameters; T5X factors other moments; or T5X has no such
            network.
    """
    check_written(state, settings=settings, axes=axes)
    node, schedule = _nodes(state.opt_state, settings.optimizer)
    step = int(state.step)
    optimizer: t5x_optimizers.Adam | t5x_optimizers.Adafactor
    if isinstance(node, FactoredRmsState):
        # T5X's Adafactor has no count besides the step. With train.on_nonfinite=skip_step there may
        # be fewer updates than steps.
        step = int(node.step)
        optimizer = _adafactor(node, state.params, axes=axes)
    else:
        optimizer = _adam(node, schedule, settings.optimizer)
    t5x.save(
        state.params,
        folder,
        system=settings.system,
        config=settings.model,
        step=step,
        optimizer=optimizer,
    )


def _adafactor(
    node: FactoredRmsState, params: Any, *, axes: TrainState
) -> t5x_optimizers.Adafactor:
    shapes, specs = _flat(params), _flat(axes.params)
    moments: dict[str, Any] = {}
    for path, moment in _flat(node.second_moment).items():
        moments[path] = [(moment, ())]
        if isinstance(moment, Factored):
            sides = two_sides(shapes[path].shape, specs[path], min_size=1)
            assert sides is not None, f"{path} is factored"
            moments[path] = list(zip(moment, sides, strict=True))
    return t5x_optimizers.Adafactor(moments)


def _adam(
    node: optax.ScaleByAdamState,
    schedule: optax.ScaleByScheduleState,
    settings: Mapping[str, Any],
) -> t5x_optimizers.Adam:
    constant = settings["schedule"] == "constant" and not settings.get("warmup_steps")
    return t5x_optimizers.Adam(
        mu=node.mu,
        nu=node.nu,
        count=int(node.count),
        schedule=None if constant else int(schedule.count),
        clipped=any(settings.get(name) for name in CLIPS),
    )


def _nodes(
    opt_state: Any, settings: Mapping[str, Any]
) -> tuple[optax.ScaleByAdamState | FactoredRmsState, optax.ScaleByScheduleState]:
    """Return the moments and the schedule of an optimizer state that T5X's Adam or Adafactor has.

    Raises:
        ValueError: the optimizer is another, or has more state.
    """
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, _NODES))
    moments = [
        node for node in nodes if isinstance(node, optax.ScaleByAdamState | FactoredRmsState)
    ]
    schedules = [node for node in nodes if isinstance(node, optax.ScaleByScheduleState)]
    known = settings["name"] in _NOT_IN_T5X
    if not known or (len(moments), len(schedules), len(nodes)) != (1, 1, 2):
        raise ValueError(
            f"optimizer.name={settings['name']!r}: only the state of adamw and adafactor, without "
            "momentum, unfreezing and schedules of the weight decay, can be written; --format=t5x "
            "writes the parameters"
        )
    return moments[0], schedules[0]


def _map_trained(change: Callable[[str, Any], Any], tree: Any) -> Any:
    """Apply `change(path, leaf)` to the leaves of trained parameters."""
    leaves = {
        path: change(path, leaf) if _is_trained(leaf) else leaf
        for path, leaf in _flat(tree).items()
    }
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def _is_trained(moment: Any) -> bool:
    return not isinstance(moment, optax.MaskedNode)


def _flat(tree: Any) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(tree, sep="/")


def _number(value: int, leaf: Any) -> jax.Array:
    return jax.device_put(np.asarray(value, leaf.dtype), leaf.sharding)
