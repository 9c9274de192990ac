"""How each layer changes the hidden states, and where its heads attend, in averages over texts.

Lan et al. 2019 (figure 1) compare the input and the output of each layer. Kovaleva et al. 2019
(section 4.1) name two frequent patterns of attention: a diagonal, where each token attends to
itself and its neighbours, and vertical stripes, where all tokens attend to the same few tokens.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.research.inspection.network_states import States

# Each query has three keys on the diagonal, and three stripes, so that the shares are comparable.
_DISTANCE, _STRIPES = 1, 3


@dataclasses.dataclass(frozen=True)
class LayerChange:
    """How each of N layers changes the hidden states: means over tokens.

    Attributes:
        l2: the L2 distance between a layer's input and its output.
        cosine: the cosine of the angle between the two.
        degrees: this angle.
    """

    l2: Float[np.ndarray, " N"]
    cosine: Float[np.ndarray, " N"]
    degrees: Float[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class AttentionShares:
    """The shares of attention in two patterns: means over queries, for H heads in N layers.

    A weight may be in both patterns.

    Attributes:
        diagonal: see `diagonal`.
        vertical: see `vertical`.
        uniform: both shares if each query attended equally to all keys that its mask allows.
    """

    diagonal: Float[np.ndarray, "N H"]
    vertical: Float[np.ndarray, "N H"]
    uniform: Float[np.ndarray, " 2"]


@dataclasses.dataclass(frozen=True)
class LayerStatistics:
    """Statistics of the layers for some texts, in which each token has the same weight.

    Attributes:
        texts: the number of texts.
        tokens: {`encoder` or `decoder`: the number of tokens}, {`cross`: the number of queries}.
        layers: {`encoder` or `decoder`: what its layers change}; {} if they carry something else.
        attention: {`encoder`, `decoder` or `cross`: the shares}; {} if layers return no scores.
    """

    texts: int
    tokens: dict[str, int]
    layers: dict[str, LayerChange]
    attention: dict[str, AttentionShares]

    def as_json(self) -> dict[str, Any]:
        """Return the fields with lists for arrays."""
        return _with_lists(dataclasses.asdict(self))


def of_texts(texts: Iterable[States]) -> LayerStatistics:
    """Return the statistics of the states of one or more texts.

    Raises:
        ValueError: the states have neither hidden states nor attention weights.
    """
    each = [_of_text(states) for states in texts]
    if not each[0].tokens:
        raise ValueError("the layers of this network return neither hidden states nor attention")
    tokens = {side: [statistics.tokens[side] for statistics in each] for side in each[0].tokens}
    return LayerStatistics(
        texts=len(each),
        tokens={side: sum(counts) for side, counts in tokens.items()},
        layers={
            side: _mean([statistics.layers[side] for statistics in each], tokens[side])
            for side in each[0].layers
        },
        attention={
            side: _mean([statistics.attention[side] for statistics in each], tokens[side])
            for side in each[0].attention
        },
    )


def _of_text(states: States) -> LayerStatistics:
    lengths = {side: weights.shape[2] for side, weights in states.attention.items()}
    lengths |= {side: hidden.shape[1] for side, hidden in states.hidden.items()}
    layers = {side: _change(hidden) for side, hidden in states.hidden.items()}
    attention = {side: _shares(weights) for side, weights in states.attention.items()}
    return LayerStatistics(1, lengths, layers, attention)


def _change(hidden: Float[np.ndarray, "N+1 T D"]) -> LayerChange:
    cosine = cosines(hidden[:-1], hidden[1:])
    degrees = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    l2 = np.linalg.norm(np.diff(np.asarray(hidden, np.float64), axis=0), axis=-1)
    return LayerChange(l2.mean(axis=1), cosine.mean(axis=1), degrees.mean(axis=1))


def _shares(weights: Float[np.ndarray, "N H T S"]) -> AttentionShares:
    allowed = np.any(weights > 0, axis=(0, 1))  # the softmax of a masked score is exactly 0
    uniform = allowed / allowed.sum(axis=-1, keepdims=True)
    return AttentionShares(
        diagonal=diagonal(weights),
        vertical=vertical(weights),
        uniform=np.array([diagonal(uniform), vertical(uniform)]),
    )


def cosines(
    first: Float[np.ndarray, "*B D"], second: Float[np.ndarray, "*B D"]
) -> Float[np.ndarray, "*B"]:
    """Return the cosines of the angles between vectors, in float64; 0 for a vector of zeros."""
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return np.sum(first * second, axis=-1) / np.maximum(lengths, np.finfo(np.float64).tiny)


def diagonal(weights: Float[np.ndarray, "*B T S"]) -> Float[np.ndarray, "*B"]:
    """Return the share of attention to the query's position and to the positions beside it."""
    queries, keys = np.indices(weights.shape[-2:])
    beside = np.abs(queries - keys) <= _DISTANCE
    return np.sum(weights, axis=(-2, -1), where=beside, dtype=np.float64) / weights.shape[-2]


def vertical(weights: Float[np.ndarray, "*B T S"]) -> Float[np.ndarray, "*B"]:
    """Return the share of attention to the three keys that get the most from all queries."""
    of_keys = weights.mean(axis=-2, dtype=np.float64)
    return np.sort(of_keys, axis=-1)[..., -_STRIPES:].sum(axis=-1)


def _mean(statistics: Sequence[Any], tokens: Sequence[int]) -> Any:
    """Return the means of all fields, weighted by numbers of tokens."""
    kind = type(statistics[0])
    return kind(
        *(
            np.average([getattr(entry, field.name) for entry in statistics], axis=0, weights=tokens)
            for field in dataclasses.fields(kind)
        )
    )


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_lists(element) for name, element in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
