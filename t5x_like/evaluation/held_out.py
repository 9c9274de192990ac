"""The held-out loss of a model: the training metrics over the batches of a held-out split."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import numpy as np
from jaxtyping import PyTree

from t5x_like.evaluation.measure import Measure, Measured
from t5x_like.experiment import data_side
from t5x_like.experiment.model_side import Experiment
from t5x_like.training import metrics

_SMALLER = ("loss", "cross_entropy", "perplexity", "squared_error", "absolute_error")
_LARGER = ("accuracy", "exact", "precision", "recall")


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A model with its loss, and the held-out batches of a task.

    Attributes:
        batches: starts a pass over this process's rows of each batch.
        vocab_size: vocabulary size of the targets.
    """

    model: Experiment
    params: PyTree
    batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class Loss(Measure):
    """The loss and its metrics over all held-out batches, and the unigram entropy of targets."""

    needs: ClassVar[tuple[str, ...]] = ("held_out",)

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`; losses and their metrics have these names, or TERM/NAME."""
        smaller = dict.fromkeys(_SMALLER, True) | dict.fromkeys(_LARGER, False)
        return smaller | {f"*/{name}": value for name, value in smaller.items()}

    def measure(self, held_out: HeldOut) -> Measured:
        """Return the training metrics, and `unigram_entropy` in nats if there are targets."""
        counts = data_side.target_counts(held_out.batches(), size=held_out.vocab_size)
        found, _ = metrics.split(held_out.model.measure(held_out.params, held_out.batches()))
        if counts.any():
            found["unigram_entropy"] = data_side.unigram_entropy(counts)
        return found, []
