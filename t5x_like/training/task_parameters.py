"""Optimizers of a run of several tasks: a step changes only the head of its task."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5x_like.training import frozen

HEAD = "head"  # the name of a network's head in its parameters
SHARED = ""  # the owner of the parameters that all tasks train


def owners(axes: Any, *, tasks: Iterable[str]) -> Any:
    """Return the task of each parameter: a tree like `axes` of task names, or SHARED.

    Args:
        axes: the logical axes of the parameters, see `optimizers.build`. The parameters of the head
            of task x are under HEAD/x.
    """
    folders = {task: f"{HEAD}/{task}/" for task in tasks}

    def owner(keys: Any, _: Any) -> str:
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        return next((t for t, folder in folders.items() if f"{path}/".startswith(folder)), SHARED)

    return jax.tree.map_with_path(owner, axes)


class TaskStates(NamedTuple):
    """The optimizer state of the shared parameters, and {task: state of its head}."""

    shared: Any
    heads: dict[str, Any]


def by_task(
    make: Callable[[Any], optax.GradientTransformation], axes: Any, *, owners: Any
) -> optax.GradientTransformationExtraArgs:
    """Make an optimizer that updates each head only in the steps of its task.

    Adam's bias correction and Adafactor's decay depend on the number of updates of a parameter,
    which for a head is the number of steps of its task. The `update` function needs `task=`.

    Args:
        make: a function from axes to the optimizer of the parameters with these axes.
        owners: the task of each parameter, see `owners`.
    """
    names = {SHARED} | set(jax.tree.leaves(owners))
    masks = {name: jax.tree.map(lambda owner, name=name: owner == name, owners) for name in names}
    parts = {
        name: frozen.leave_out(make(frozen.select(axes, trained=mask)), trained=mask)
        for name, mask in masks.items()
    }

    def init(params: Any) -> TaskStates:
        states = {name: part.init(params) for name, part in parts.items()}
        return TaskStates(states.pop(SHARED), states)

    def update(
        gradients: Any, state: TaskStates, params: Any = None, *, task: str, **_: Any
    ) -> tuple[Any, TaskStates]:
        updates, shared = parts[SHARED].update(gradients, state.shared, params)
        if task not in state.heads:  # its head, if any, is frozen
            return updates, TaskStates(shared, state.heads)
        own, head = parts[task].update(gradients, state.heads[task], params)
        updates = jax.tree.map(lambda mine, x, y: x if mine else y, masks[task], own, updates)
        return updates, TaskStates(shared, state.heads | {task: head})

    return optax.GradientTransformationExtraArgs(init, update)


def keep_absent_heads(*, owners: Any) -> optax.GradientTransformationExtraArgs:
    """Set the updates of the heads of other tasks, including weight decay, to zero."""

    def update(
        updates: Any, state: Any, params: Any = None, *, task: str, **_: Any
    ) -> tuple[Any, Any]:
        def keep(owner: str, update: Any) -> Any:
            # Adding -0.0 keeps every number bit for bit; adding 0.0 would turn -0.0 into 0.0.
            return update if owner in (SHARED, task) else jnp.full_like(update, -0.0)

        return jax.tree.map(keep, owners, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
