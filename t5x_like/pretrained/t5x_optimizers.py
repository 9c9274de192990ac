"""Read and write the optimizer states of T5X's checkpoints: Adafactor's and Adam's moments.

Here they are in the layout of our parameters. Adam is an optax optimizer that T5X wraps.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jaxtyping import PyTree

from t5x_like.hf import weight_map
from t5x_like.hf.weight_map import AxisLayout, Piece, Tensor
from t5x_like.pretrained.assembled import assembled, copy_part
from t5x_like.pretrained.t5x_files import StoredArrays

_AXES = "ABCDEFG"  # axis names for a parameter that has the same layout in the file
_HIDDEN = "D"  # the hidden state's axis in the layouts of stacked layers
_KINDS = ("m", "v", "v_row", "v_col")  # of each parameter in the state of T5X's Adafactor


def read_step(state: StoredArrays) -> int:
    """Return the number of steps taken.

    Raises:
        ValueError: the checkpoint has no step, or a list of states rather than one state.
    """
    if "0/step" in state.names:
        raise ValueError(
            f"{state.folder}: the optimizer's state is a list of states, which do not name their "
            "parameters, as the first versions of Flax's MultiOptimizer wrote it: it cannot be read"
        )
    if "step" not in state.names:
        raise ValueError(f"{state.folder}: the optimizer's state has no step")
    return int(state.read("step", ()))


def check_momentum(state: StoredArrays) -> None:
    """Check that either all parameters have a momentum or none has.

    A MultiOptimizer of T5X has an Adafactor for each group of parameters, and writes their states
    like the state of a single optimizer. Checkpoints do not contain their settings; only the arrays
    show whether these differ.

    Raises:
        ValueError: some parameters have a momentum `m`, and others do not.
    """
    examples = {state.shape(name) == (1,): name for name in state.names if name.endswith("/m")}
    if len(examples) > 1:
        without, with_momentum = (
            examples[key].removeprefix("param_states/") for key in (True, False)
        )
        raise ValueError(
            f"{state.folder}: the optimizer's state has {with_momentum} and no {without}: of a "
            "MultiOptimizer with Adafactors of different settings nothing can be read"
        )


def read_moment(
    state: StoredArrays, parts: list[Piece], leaf: jax.ShapeDtypeStruct, *, averaged: Sequence[int]
) -> jax.Array:
    """Read the second moment of a parameter, or its means over the axes of one side.

    Args:
        state: the optimizer's state in the files.
        parts: the pieces of the parameter.
        leaf: shape, dtype and sharding of the result.
        averaged: the axes of our parameter that the moment is averaged over; empty for the whole
            moment.

    Raises:
        ValueError: the parameter is factored in only one of T5X's state and ours, or has no moments
            in the checkpoint.
    """
    moments = [_moment(part, averaged) for part in parts]
    for part in moments:
        _check(state, part, factored=bool(averaged))
    return assembled(leaf, moments, state.read)


def _moment(part: Piece, averaged: Sequence[int]) -> Piece:
    """Return the piece of the state that belongs to a piece of a parameter."""
    name = f"param_states/{part.tensor}"
    if not averaged:
        return dataclasses.replace(part, tensor=f"{name}/v")
    stacked, rank = len(part.index), len(part.tensor_shape)
    layout = part.layout or AxisLayout(tuple((axis,) for axis in _AXES[:rank]), tuple(_AXES[:rank]))
    gone = {axis for n, axis in enumerate(layout.ours) if n + stacked in averaged}
    remaining = [n for n, group in enumerate(layout.theirs) if not gone & set(group)]
    by_size = remaining == [int(np.argmin(part.tensor_shape))]
    is_row = by_size if rank == 2 else _HIDDEN not in gone
    return Piece(
        tensor=f"{name}/{'v_row' if is_row else 'v_col'}",
        tensor_shape=tuple(part.tensor_shape[n] for n in remaining),
        index=part.index,
        layout=AxisLayout(
            tuple(layout.theirs[n] for n in remaining),
            tuple(axis for axis in layout.ours if axis not in gone),
        ),
    )


def _check(state: StoredArrays, part: Piece, *, factored: bool) -> None:
    parameter, _, kind = part.tensor.removeprefix("param_states/").rpartition("/")
    if f"param_states/{parameter}" in state.empty:
        raise ValueError(
            f"{state.folder}: the optimizer's state of {parameter} is empty: no optimizer of its "
            "MultiOptimizer trained it; freeze it here too (optimizer.frozen)"
        )
    if part.tensor not in state.names:
        raise ValueError(
            f"{state.folder}: the optimizer's state has no {kind} of {parameter}: only the state "
            "of T5X's Adafactor can be read"
        )
    if state.shape(part.tensor) != part.tensor_shape:
        ours, theirs = ("factored", "not") if factored else ("not factored", "factored")
        raise ValueError(
            f"{state.folder}: {kind} of {parameter} has shape {list(state.shape(part.tensor))}, "
            f"and {list(part.tensor_shape)} is needed: the moments are {ours} here and {theirs} in "
            "the checkpoint (optimizer.min_dim_size_to_factor), or of another network"
        )


@dataclasses.dataclass(frozen=True)
class Adafactor:
    """Adafactor's second moments, to be written as the state of T5X's Adafactor.

    Attributes:
        moments: {path of a parameter: its moments, each with the axes of the parameter that it is
            averaged over}: a single moment averaged over no axes, or two means.
    """

    moments: Mapping[str, Sequence[tuple[jax.Array, Sequence[int]]]]

    def tensors(self, parts: Mapping[str, list[Piece]]) -> Iterator[Tensor]:
        """Yield the arrays of `param_states`, each computed when it is loaded.

        What T5X's Adafactor does not keep of a parameter is an array of a single zero there.

        Args:
            parts: the pieces of each parameter.
        """
        arrays: dict[str, jax.Array] = {}
        pieces: dict[str, list[Piece]] = {}
        for path, moments in self.moments.items():
            for number, (moment, averaged) in enumerate(moments):
                arrays[f"{path}/{number}"] = moment
                pieces[f"{path}/{number}"] = [_moment(part, averaged) for part in parts[path]]
        written = list(weight_map.disassemble(arrays, pieces, copy=copy_part))
        yield from written
        names = {tensor.name for tensor in written}
        for name in dict.fromkeys(part.tensor for group in parts.values() for part in group):
            for state in (f"param_states/{name}/{kind}" for kind in _KINDS):
                if state not in names:
                    yield Tensor(state, (1,), np.dtype(np.float32), load=_zero)


def _zero() -> np.ndarray:
    return np.zeros(1, np.float32)


def check_factored(
    path: str, shape: Sequence[int], parts: Sequence[Piece], *, factored: bool
) -> None:
    """Check that T5X's Adafactor factors the moments of a parameter if it is factored here.

    Like here, it factors a matrix whose sides are large enough. An array with all layers it factors
    whatever its size, if the hidden state is one of its axes.

    Raises:
        ValueError: T5X factors it and we do not, or the other way round.
    """
    stacked = [part for part in parts if len(part.tensor_shape) > 2]
    factored_by_t5x = [part.layout is not None and _HIDDEN in part.layout.ours for part in stacked]
    if any(theirs != factored for theirs in factored_by_t5x):
        words = ("not factored", "factored")
        raise ValueError(
            f"the second moments of {path} {list(shape)} are {words[factored]} here, and "
            f"{words[not factored]} by T5X, which stacks the layers: the run needs another "
            "optimizer.min_dim_size_to_factor from its beginning; --format=t5x writes only the "
            "parameters"
        )


_MOMENTS = ("mu", "nu")
# The settings of optax's Adam that a checkpoint may contain -> (our setting, optax's default).
_SETTINGS = {
    "b1": ("b1", 0.9),
    "b2": ("b2", 0.999),
    "eps": ("epsilon", 1e-8),
    "eps_root": ("", 0.0),  # not a setting here: always 0
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
        known = {f"{self.place}{kind}/{name}" for kind in _MOMENTS for name in parameters}
        known |= {"step", f"{self.place}count"}
        for name in sorted(set(self.state.names) - known):
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
        moments = [_adam_moment(part, f"{self.place}{kind}") for part in parts]
        for part in moments:
            self._check_moment(part, kind, leaf)
        return assembled(leaf, moments, self.state.read)

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
        setting = settings.get(ours)
        value = np.float32(default if setting is None else setting)
        if (stored := np.float32(self.state.read(name, ()))) != value:
            our_value = f"optimizer.{ours}={value:g}" if ours else f"{value:g} here"
            raise ValueError(f"{self.state.folder}: {key}={stored:g} of its Adam, and {our_value}")

    def _number(self, name: str) -> int:
        if name not in self.state.names:
            raise ValueError(f"{self.state.folder}: the optimizer's state has no {name}")
        return int(self.state.read(name, ()))


def find_adam(state: StoredArrays, parameter: str) -> StoredAdam:
    """Find the state of Adam in an optimizer's state.

    Args:
        parameter: the name of a parameter that it trained.

    Raises:
        ValueError: the state has no Adam, or several.
    """
    last = f"mu/{parameter}"
    prefixes = [name.removesuffix(last) for name in state.names if name.endswith(f"/{last}")]
    if len(prefixes) != 1:
        number = f"{len(prefixes)} moments" if prefixes else "no moment"
        raise ValueError(
            f"{state.folder}: the optimizer's state has {number} mu of {parameter}: "
            "optimizer.name='adamw' continues only from a single Adam of optax"
        )
    return StoredAdam(state, prefixes[0])


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
        prefix = "param_states/1" if self.clipped else "param_states"
        for kind, tree in zip(_MOMENTS, (self.mu, self.nu), strict=True):
            moments = {
                path: [_adam_moment(part, f"{prefix}/0/{kind}") for part in pieces]
                for path, pieces in parts.items()
            }
            arrays = flax.traverse_util.flatten_dict(tree, sep="/")
            yield from weight_map.disassemble(arrays, moments, copy=copy_part)
        yield _scalar(f"{prefix}/0/count", self.count)
        if self.schedule is not None:
            yield _scalar(f"{prefix}/2/count", self.schedule)


def _adam_moment(part: Piece, prefix: str) -> Piece:
    """Return the piece of a moment that belongs to a piece of a parameter."""
    return dataclasses.replace(part, tensor=f"{prefix}/{part.tensor}")


def _scalar(name: str, value: int) -> Tensor:
    return Tensor(name, (), np.dtype(np.int32), load=lambda: np.asarray(value, np.int32))
