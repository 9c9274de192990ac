"""Parameters that are moving averages of other parameters, updated without a gradient."""

from collections.abc import Mapping
from typing import Any

import jax
import optax

from t5x_like.names import hint
from t5x_like.training.frozen import under
from t5x_like.training.layer_places import by_path, path_of


def follow(averages: Mapping[str, str], *, decay: float, axes: Any) -> optax.GradientTransformation:
    """Update moving averages of parameters after each step.

    After an update from X to X', the average M of X becomes decay M + (1 - decay) X'. This must be
    the last transformation of a chain, since it needs the final updates of X.

    Args:
        averages: {path of an average: path of the averaged module or parameter}, such as
            {"average": "policy"}; both must have the same parameters.
        decay: in [0, 1).
        axes: the logical axes of all parameters, a tree of PartitionSpecs.

    Raises:
        ValueError: a path has no parameters, the parameters of a pair differ, or the decay is out
            of range.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"optimizer.moving_average_decay={decay} must lie in [0, 1)")
    followed = _followed(averages, axes)

    def update(updates: Any, params: Any) -> Any:
        old, new = by_path(params), by_path(updates)

        def move(keys: Any, own: Any) -> Any:
            source = followed.get(path := path_of(keys))
            if source is None:
                return own
            return (1 - decay) * (old[source] + new[source] - old[path])

        return jax.tree.map_with_path(move, updates)

    return optax.stateless(update)


def _followed(averages: Mapping[str, str], axes: Any) -> dict[str, str]:
    """Return {path of an average: path of the averaged parameter} for single parameters."""
    specs, found = by_path(axes), dict[str, str]()
    for average, source in averages.items():
        parts = [
            {path.removeprefix(prefix): spec for path, spec in specs.items() if under(path, prefix)}
            for prefix in (average, source)
        ]
        for prefix, part in zip((average, source), parts, strict=True):
            if not part:
                near = hint(prefix, {path.split("/")[0] for path in specs})
                raise ValueError(
                    f"optimizer.moving_average has {prefix!r}, but no parameter is there.{near}"
                )
        if parts[0] != parts[1]:
            raise ValueError(
                f"optimizer.moving_average: {average!r} cannot be the average of {source!r}, which "
                "has other parameters"
            )
        found |= {average + path: source + path for path in parts[0]}
    return found
