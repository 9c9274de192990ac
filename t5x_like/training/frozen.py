"""Parameters that a run leaves as they are: named by their paths, without gradient or memory."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t5x_like.names import hint


def trainable(tree: Any, *, frozen: Sequence[str]) -> Any:
    """A tree like `tree` of booleans: which of the parameters are trained.

    Args:
        tree: the parameters or something of their structure, such as their logical axes.
        frozen: paths of parameters or of folders of them, `teacher` or `encoder/layers`. Scanned
            layers are one parameter: they are frozen together or not at all.

    Raises:
        ValueError: a path without parameters, with the nearest that has some; or none is left.
    """
    if isinstance(frozen, str):
        raise ValueError(f"optimizer.frozen={frozen!r} must be a tuple of paths: ({frozen!r},)")
    paths = [_path(keys) for keys, _ in jax.tree.leaves_with_path(tree)]
    for prefix in frozen:
        if not any(_under(path, prefix) for path in paths):
            near = hint(prefix, _siblings(prefix, paths))
            raise ValueError(f"optimizer.frozen has {prefix!r}, but no parameter is there.{near}")

    def is_trained(keys: Any, _: Any) -> bool:
        return not any(_under(_path(keys), prefix) for prefix in frozen)

    mask = jax.tree.map_with_path(is_trained, tree)
    if not any(jax.tree.leaves(mask)):
        raise ValueError(f"optimizer.frozen={tuple(frozen)!r} leaves no parameter to train")
    return mask


def select(tree: Any, *, trained: Any) -> Any:
    """The tree with `optax.MaskedNode`, which holds no array, in place of what is frozen."""
    return jax.tree.map(lambda keep, leaf: leaf if keep else optax.MaskedNode(), trained, tree)


def without_gradient(loss: Callable[..., Any], *, trained: Any) -> Callable[..., Any]:
    """The loss, a function of the parameters first, whose gradient by what is frozen is 0.

    So it is not computed, and counts in no norm of the gradient.
    """

    def stopped(params: Any, *rest: Any, **settings: Any) -> Any:
        params = jax.tree.map(
            lambda keep, param: param if keep else jax.lax.stop_gradient(param), trained, params
        )
        return loss(params, *rest, **settings)

    return stopped


def leave_out(
    optimizer: optax.GradientTransformation, *, trained: Any
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of the trained parameters alone, which knows nothing of the others.

    Args:
        optimizer: sees trees made by `select`, and has state for what is in them.
        trained: from `trainable`; the updates of what is not are 0.
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        return optimizer.init(select(params, trained=trained))

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        own = [
            None if tree is None else select(tree, trained=trained) for tree in (gradients, params)
        ]
        updates, state = inner.update(own[0], state, own[1], **extra)
        updates = jax.tree.map(
            lambda keep, new, old: new if keep else jnp.zeros_like(old), trained, updates, gradients
        )
        return updates, state

    return optax.GradientTransformationExtraArgs(init, update)


def _path(keys: Any) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def _under(path: str, prefix: str) -> bool:
    return f"{path}/".startswith(f"{prefix.rstrip('/')}/")


def _siblings(prefix: str, paths: Sequence[str]) -> set[str]:
    """What there is beside the first part of a path that does not exist."""
    parts = prefix.split("/")
    depth = next(
        n for n in range(len(parts)) if not any(_under(p, "/".join(parts[: n + 1])) for p in paths)
    )
    parent = "/".join(parts[:depth])
    beside = paths if not depth else [path for path in paths if _under(path, parent)]
    return {"/".join(path.split("/")[: depth + 1]) for path in beside}
