"""Adam's moments in T5X's checkpoints: the state of an optax optimizer that T5X wraps.

T5X's OptaxWrapper (t5x/optimizers.py) keeps the state of a chain by the indices of its parts; parts
without a state are left out. `optimizers.adamw` has `param_states/0/mu/PARAMETER`,
`param_states/0/nu/PARAMETER` and `param_states/0/count`. A chain within a chain has two indices:
`param_states/1/0/mu/PARAMETER` after a clipping of the gradient's norm. A learning rate schedule
has another `count`.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jaxtyping import PyTree

from t5x_like.hf import weight_map
from t5x_like.hf.weight_map import Piece, Tensor
from t5x_like.pretrained.assembled import assembled, copy_part
from t5x_like.pretrained.t5x_files import StoredArrays

_MOMENTS = ("mu", "nu")
# The settings of optax's Adam that a checkpoint may contain -> (our setting, optax's default).
_SETTINGS = {
    "b1": ("b1", 0.9),
    "b2": ("b2", 0.999),
    "eps": ("epsilon", 1e-8),
    "eps_root": ("", 0.0),  # there is no such setting here: always 0
    "weight_decay": ("weight_decay", 0.0),
}


@dataclasses.dataclass(frozen=True)
class StoredAdam:
    """The state of optax's Adam in a checkpoint.

    Attributes:
        state: the optimizer's state in the files.
        place: the prefix of Adam's paths in it, "param_states/0/".
    """

    state: StoredArrays
    place: str

    @property
    def count(self) -> int:
        """Adam's step count, used to correct the bias of its moments."""
        return self._number(f"{self.place}count")

    def check(self, parameters: Collection[str], settings: Mapping[str, Any], *, step: int) -> None:
        """Check that training continues here like in T5X, as far as the files show.

        Args:
            parameters: the names of all parameters.
            settings: the settings of our `adamw`.
            step: the step of the run.

        Raises:
            ValueError: the optax chain keeps state besides Adam's moments, counts and settings, the
                count of a schedule is not the run's step, or a setting in the checkpoint differs
                from ours.
        """
        own = {f"{self.place}{kind}/{name}" for kind in _MOMENTS for name in parameters}
        own |= {"step", f"{self.place}count"}
        for name in sorted(set(self.state.names) - own):
            *_, parent, last = name.split("/")
            if last == "count":
                self._check_count(name, step)
            elif parent == "hyperparams":
                self._check_setting(name, settings)
            else:
                raise ValueError(
                    f"{self.state.folder}: the optimizer's state has {name} beside Adam's moments, "
                    "which no optimizer here keeps; set initialize_optimizer=False"
                )

    def read(self, kind: str, parts: list[Piece], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        """Read a moment of a parameter.

        Args:
            kind: `mu` or `nu`.
            parts: the pieces of the parameter.
            leaf: shape, dtype and sharding of the result.

        Raises:
            ValueError: the checkpoint has no such moment, or it has another shape, or for `mu`
                another dtype.
        """
        found = [_moment(part, f"{self.place}{kind}") for part in parts]
        for part in found:
            self._check_moment(part, kind, leaf)
        return assembled(leaf, found, self.state.read)

    def _check_moment(self, part: Piece, kind: str, leaf: jax.ShapeDtypeStruct) -> None:
        name, folder = part.tensor, self.state.folder
        if name not in self.state.names:
            raise ValueError(f"{folder}: the optimizer's state has no {name}")
        if (shape := self.state.shape(name)) != part.tensor_shape:
            raise ValueError(
                f"{folder}: {name} has shape {list(shape)}, and {list(part.tensor_shape)} is needed"
            )
        if kind == "mu" and (dtype := self.state.dtype(name)) != leaf.dtype:
            raise ValueError(
                f"{folder}: {name} is {dtype}, and optimizer.first_moment={leaf.dtype.name!r}: set "
                f"{dtype.name!r}"
            )

    def _check_count(self, name: str, step: int) -> None:
        if (count := self._number(name)) != step:
            raise ValueError(
                f"{self.state.folder}: {name} is {count}, and the run has {step} steps: its "
                "schedule of the learning rate began later than the run, and here none does"
            )

    def _check_setting(self, name: str, settings: Mapping[str, Any]) -> None:
        ours, default = _SETTINGS.get(key := name.rpartition("/")[2], ("", None))
        if default is None:  # the learning rate: its schedule comes from the config
            return
        given = settings.get(ours)
        value = np.float32(default if given is None else given)
        if (there := np.float32(self.state.read(name, ()))) != value:
            place = f"optimizer.{ours}={value:g}" if ours else f"{value:g} here"
            raise ValueError(f"{self.state.folder}: {key}={there:g} of its Adam, and {place}")

    def _number(self, name: str) -> int:
        if name not in self.state.names:
            raise ValueError(f"{self.state.folder}: the optimizer's state has no {name}")
        return int(self.state.read(name, ()))


def find(state: StoredArrays, parameter: str) -> StoredAdam:
    """Find the state of Adam in an optimizer's state.

    Args:
        parameter: the name of a parameter that it trained.

    Raises:
        ValueError: the state has no Adam, or several.
    """
    last = f"mu/{parameter}"
    places = [name.removesuffix(last) for name in state.names if name.endswith(f"/{last}")]
    if len(places) != 1:
        found = f"{len(places)} moments" if places else "no moment"
        raise ValueError(
            f"{state.folder}: the optimizer's state has {found} mu of {parameter}: "
            "optimizer.name='adamw' goes on from one Adam of optax alone"
        )
    return StoredAdam(state, places[0])


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam's state, to be written in the layout of T5X's `optimizers.adamw`.

    Attributes:
        mu, nu: the moments, trees like the parameters.
        count: Adam's step count.
        schedule: the step count of the learning rate schedule; None for a constant rate.
        clipped: whether T5X's optimizer is `optimizers.chain` of `optax.clip_by_global_norm` and
            `optax.adamw`.
    """

    mu: PyTree
    nu: PyTree
    count: int
    schedule: int | None
    clipped: bool

    def tensors(self, parts: Mapping[str, list[Piece]]) -> Iterator[Tensor]:
        """Yield the arrays of `param_states`, each computed when it is loaded.

        Args:
            parts: the pieces of each parameter.
        """
        place = "param_states/1" if self.clipped else "param_states"
        for kind, tree in zip(_MOMENTS, (self.mu, self.nu), strict=True):
            moments = {
                path: [_moment(part, f"{place}/0/{kind}") for part in own]
                for path, own in parts.items()
            }
            arrays = flax.traverse_util.flatten_dict(tree, sep="/")
            yield from weight_map.disassemble(arrays, moments, copy=copy_part)
        yield _scalar(f"{place}/0/count", self.count)
        if self.schedule is not None:
            yield _scalar(f"{place}/2/count", self.schedule)


def _moment(part: Piece, place: str) -> Piece:
    """Return the piece of a moment that belongs to a piece of a parameter."""
    return dataclasses.replace(part, tensor=f"{place}/{part.tensor}")


def _scalar(name: str, value: int) -> Tensor:
    return Tensor(name, (), np.dtype(np.int32), load=lambda: np.asarray(value, np.int32))
