"""The optimizer's state of T5X's checkpoints as the state of a run that goes on from there."""

from typing import Any

import flax.traverse_util
import jax
import numpy as np
import optax

from t5x_like import paths
from t5x_like.pretrained.t5x import T5XCheckpoint
from t5x_like.pretrained.t5x_files import StoredArrays
from t5x_like.pretrained.t5x_moments import read_moment, read_step
from t5x_like.pretrained.weight_source import open_source
from t5x_like.training.factored_moments import Factored, FactoredRmsState
from t5x_like.training.layer_tensors import two_sides
from t5x_like.training.state import TrainState

_COUNTED = (FactoredRmsState, optax.ScaleByScheduleState)


def find(folder: str) -> T5XCheckpoint:
    """The checkpoint of T5X that is `initialize` of a run.

    Raises:
        ValueError: the folder is not one, or one of a Switch Transformer.
    """
    source = open_source(paths.path(folder)) if folder else None
    if not isinstance(source, T5XCheckpoint):
        raise ValueError(
            f"initialize_optimizer=True: initialize={folder!r} must be a checkpoint of T5X"
        )
    if source.system == "switch":  # the moments of experts are factored by rules of their own
        raise ValueError(
            f"initialize_optimizer=True: initialize={folder!r} is a Switch Transformer, of whose "
            "optimizer state nothing is read; set it to False"
        )
    return source


def read(
    state: TrainState, folder: str, *, shapes: TrainState, axes: TrainState, steps: int
) -> TrainState:
    """The state with the step and the second moments of Adafactor in a checkpoint of T5X.

    Args:
        state: before the first step, with the parameters of the checkpoint.
        folder: `initialize` of the run.
        shapes: the shapes and shardings of the state.
        axes: its logical axes.
        steps: of the run, those of the checkpoint included.

    Raises:
        ValueError: the folder is not a checkpoint of T5X, or has as many steps as the run; the
            optimizer has another state than Adafactor's second moments, or T5X's factors otherwise.
    """
    source = find(folder)
    stored = StoredArrays(source.folder, part="state")
    step = read_step(stored)
    if step >= steps:
        raise ValueError(
            f"train.steps={steps} must be more than the {step} steps of the checkpoint, which count"
        )

    def counted(leaf: Any) -> jax.Array:
        return jax.device_put(np.asarray(step, leaf.dtype), leaf.sharding)

    def of_node(node: Any) -> Any:
        if isinstance(node, optax.ScaleByScheduleState):
            return optax.ScaleByScheduleState(counted(node.count))
        if not isinstance(node, FactoredRmsState):
            raise ValueError(
                "initialize_optimizer=True: the optimizer has more state than Adafactor's second "
                "moments; train all parameters with adafactor, without momentum and averages"
            )
        moments = _moments(source, stored, node.second_moment, params=shapes.params, axes=axes)
        return FactoredRmsState(counted(node.step), moments)

    opt_state = jax.tree.map(
        of_node, shapes.opt_state, is_leaf=lambda node: isinstance(node, _COUNTED)
    )
    return state.replace(step=counted(shapes.step), opt_state=opt_state)


def _moments(
    source: T5XCheckpoint, stored: StoredArrays, moments: Any, *, params: Any, axes: TrainState
) -> Any:
    """The tree of the second moments."""
    flat, specs, wanted = (
        flax.traverse_util.flatten_dict(tree, sep="/") for tree in (params, axes.params, moments)
    )
    parts = source.parts(flat)
    found: dict[str, Any] = {}
    for path, moment in wanted.items():
        if isinstance(moment, Factored):
            sides = two_sides(flat[path].shape, specs[path], min_size=1)
            assert sides is not None, f"{path} is factored"
            found[path] = Factored(
                *(
                    read_moment(stored, parts[path], leaf, averaged=side)
                    for leaf, side in zip(moment, sides, strict=True)
                )
            )
        else:
            found[path] = read_moment(stored, parts[path], moment, averaged=())
    return flax.traverse_util.unflatten_dict(found, sep="/")
