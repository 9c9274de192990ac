"""Frozen parameters, selected by path: they have no gradient, optimizer state or update."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t5x_like.names import hint


def mask_of(settings: Mapping[str, Any], tree: Any) -> Any:
    """Return the mask of `trainable` for an optimizer's settings; None if all are trained.

    The parameters of a `moving_average` are frozen too.
    """
    chosen = {name: settings.get(name) or () for name in ("frozen", "trained")}
    if averages := settings.get("moving_average"):
        chosen["frozen"] = (*chosen["frozen"], *averages)
    return trainable(tree, **chosen) if any(chosen.values()) else None


def trainable(tree: Any, *, frozen: Sequence[str] = (), trained: Sequence[str] = ()) -> Any:
    """Return a mask of the trained parameters: a tree of booleans like `tree`.

    Args:
        tree: the parameters or a tree of the same structure, such as their logical axes.
        frozen: paths of parameters, or of modules with all their parameters, such as `teacher` or
            `encoder/layers`. Scanned layers are one parameter: frozen together or not at all.
        trained: names of modules at any depth; only parameters in them are trained. "*" matches
            any text: `adapter`, `*norm`. Empty: all parameters are trained.

    Raises:
        ValueError: a path or name matches no parameters, or no parameter is left to train.
    """
    for setting, value in (("frozen", frozen), ("trained", trained)):
        if isinstance(value, str):
            kind = "paths" if setting == "frozen" else "names"
            raise ValueError(
                f"optimizer.{setting}={value!r} must be a tuple of {kind}: ({value!r},)"
            )
    paths = [_path(keys) for keys, _ in jax.tree.leaves_with_path(tree)]
    for prefix in frozen:
        if not any(under(path, prefix) for path in paths):
            near = hint(prefix, _siblings(prefix, paths))
            raise ValueError(f"optimizer.frozen has {prefix!r}, but no parameter is there.{near}")
    for name in trained:
        if not any(_within(path, name) for path in paths):
            near = hint(name, {part for path in paths for part in path.split("/")})
            raise ValueError(f"optimizer.trained has {name!r}, but no module has this name.{near}")

    def is_trained(keys: Any, _: Any) -> bool:
        path = _path(keys)
        chosen = not trained or any(_within(path, name) for name in trained)
        return chosen and not any(under(path, prefix) for prefix in frozen)

    mask = jax.tree.map_with_path(is_trained, tree)
    if not any(jax.tree.leaves(mask)):
        settings = f"optimizer.frozen={tuple(frozen)!r}"
        if trained:
            settings += f" with optimizer.trained={tuple(trained)!r}"
        raise ValueError(f"{settings} leaves no parameter to train")
    return mask


def select(tree: Any, *, trained: Any) -> Any:
    """Replace the frozen leaves of a tree by `optax.MaskedNode`, which contains no array."""
    return jax.tree.map(lambda keep, leaf: leaf if keep else optax.MaskedNode(), trained, tree)


def without_gradient(loss: Callable[..., Any], *, trained: Any) -> Callable[..., Any]:
    """Wrap a loss so that no gradient is computed for frozen parameters; it is 0.

    Args:
        loss: a function whose first argument is the parameters.
        trained: the mask of `trainable`.
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
    """Restrict an optimizer to the trained parameters; the updates of the others are 0.

    Args:
        optimizer: is called with trees made by `select`, so it has state only for the trained
            parameters.
        trained: the mask of `trainable`.
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        return optimizer.init(select(params, trained=trained))

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        trained_gradients, trained_params = (
            None if tree is None else select(tree, trained=trained) for tree in (gradients, params)
        )
        updates, state = inner.update(trained_gradients, state, trained_params, **extra)
        updates = jax.tree.map(
            lambda keep, new, old: new if keep else jnp.zeros_like(old), trained, updates, gradients
        )
        return updates, state

    return optax.GradientTransformationExtraArgs(init, update)


def _path(keys: Any) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def under(path: str, prefix: str) -> bool:
    """Return whether `path` is `prefix` or below it."""
    return f"{path}/".startswith(f"{prefix.rstrip('/')}/")


def _within(path: str, name: str) -> bool:
    """Return whether a parameter is in a module whose name matches the pattern `name`."""
    return any(fnmatch.fnmatchcase(part, name) for part in path.split("/"))


def _siblings(prefix: str, paths: Sequence[str]) -> set[str]:
    """Return the existing alternatives to the first part of `prefix` that does not exist."""
    parts = prefix.split("/")
    depth = next(
        n for n in range(len(parts)) if not any(under(p, "/".join(parts[: n + 1])) for p in paths)
    )
    parent = "/".join(parts[:depth])
    beside = paths if not depth else [path for path in paths if under(path, parent)]
    return {"/".join(path.split("/")[: depth + 1]) for path in beside}
