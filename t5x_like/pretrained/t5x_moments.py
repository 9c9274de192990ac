"""Read Adafactor's second moments from T5X's checkpoints, in the layout of our parameters.

If a parameter is not factored, T5X keeps `v`; otherwise `v_row` and `v_col`, each the mean over the
axes of the other. Unused arrays have the shape [1]. A matrix is factored by size: `v_row` belongs
to the smaller side, or to the first if both are equal. With stacked layers the axis of the hidden
state is the row, whatever the sizes.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from t5x_like.hf.weight_map import Layout, Piece
from t5x_like.pretrained.assembled import assembled
from t5x_like.pretrained.t5x_files import StoredArrays

_AXES = "ABCDEFG"  # axis names for a parameter that has the same layout in the file
_HIDDEN = "D"  # the hidden state's axis in the layouts of stacked layers


def read_step(state: StoredArrays) -> int:
    """Return the number of steps taken.

    Raises:
        ValueError: the checkpoint has no step, or a list of states rather than one state.
    """
    if "0/step" in state.names:
        raise ValueError(
            f"{state.folder}: the optimizer's state is a list of states, which do not name their "
            "parameters, as the first versions of Flax's MultiOptimizer wrote it: nothing of it "
            "can be read"
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
    found = {state.shape(name) == (1,): name for name in state.names if name.endswith("/m")}
    if len(found) > 1:
        without, with_momentum = (found[key].removeprefix("param_states/") for key in (True, False))
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
    found = [_moment(part, averaged) for part in parts]
    for part in found:
        _check(state, part, factored=bool(averaged))
    return assembled(leaf, found, state.read)


def _moment(part: Piece, averaged: Sequence[int]) -> Piece:
    """Return the piece of the state that belongs to a piece of a parameter."""
    name = f"param_states/{part.tensor}"
    if not averaged:
        return dataclasses.replace(part, tensor=f"{name}/v")
    stacked, rank = len(part.index), len(part.tensor_shape)
    layout = part.layout or Layout(tuple((axis,) for axis in _AXES[:rank]), tuple(_AXES[:rank]))
    gone = {axis for n, axis in enumerate(layout.ours) if n + stacked in averaged}
    kept = [n for n, group in enumerate(layout.theirs) if not gone & set(group)]
    by_size = kept == [int(np.argmin(part.tensor_shape))]
    is_row = by_size if rank == 2 else _HIDDEN not in gone
    return Piece(
        tensor=f"{name}/{'v_row' if is_row else 'v_col'}",
        tensor_shape=tuple(part.tensor_shape[n] for n in kept),
        index=part.index,
        layout=Layout(
            tuple(layout.theirs[n] for n in kept),
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
            f"{state.folder}: the optimizer's state has no {kind} of {parameter}: only that of "
            "T5X's Adafactor can be read"
        )
    if state.shape(part.tensor) != part.tensor_shape:
        here, there = ("factored", "not") if factored else ("not factored", "factored")
        raise ValueError(
            f"{state.folder}: {kind} of {parameter} has shape {list(state.shape(part.tensor))}, "
            f"and {list(part.tensor_shape)} is needed: the moments are {here} here and {there} in "
            "the checkpoint (optimizer.min_dim_size_to_factor), or of another network"
        )
