"""The held-out loss of a model, and the held-out rewards of a reward model."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from t5x_like import stop_signal
from t5x_like.evaluation.measure import Measure, Measured
from t5x_like.experiment import data_side
from t5x_like.experiment.model_side import TaskProgram
from t5x_like.losses import preferences
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

    model: TaskProgram
    params: PyTree
    batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class HeldOutLoss(Measure):
    """The loss and its metrics over all held-out batches, and the unigram entropy of targets."""

    needs: ClassVar[tuple[str, ...]] = ("held_out",)

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`; losses and their metrics have these names, or TERM/NAME."""
        smaller = dict.fromkeys(_SMALLER, True) | dict.fromkeys(_LARGER, False)
        return smaller | {f"*/{name}": value for name, value in smaller.items()}

    def measure(self, held_out: HeldOut) -> Measured:
        """Return the training metrics, and `unigram_entropy` in nats if there are targets."""
        counts = data_side.target_counts(held_out.batches(), size=held_out.vocab_size)
        results, _ = metrics.split(held_out.model.measure(held_out.params, held_out.batches()))
        if counts.any():
            results["unigram_entropy"] = data_side.unigram_entropy(counts)
        return results, []


@dataclasses.dataclass(frozen=True)
class Rewards(Measure):
    """The mean and the standard deviation of a reward model's rewards (Ouyang et al. 2022, 3.5).

    For demonstrations, with `data.objective_settings.responses` 1, they are the `shift` and `scale`
    that normalize the reward model's rewards of demonstrations to mean 0 and deviation 1.
    """

    needs: ClassVar[tuple[str, ...]] = ("held_out",)

    def directions(self) -> Mapping[str, bool]:
        """Return {}: rewards of different reward models cannot be compared."""
        return {}

    def measure(self, held_out: HeldOut) -> Measured:
        """Return `mean` and `deviation` over all responses, and their number `responses`.

        Raises:
            ValueError: the batches are not comparisons, or have no responses.
        """
        module = held_out.model.module

        @jax.jit
        def sums(params: PyTree, batch: Mapping[str, Array]) -> Array:
            rewards = module.apply({"params": params}, preferences.rows(batch))
            is_response = batch["ranks"].reshape(-1) > 0
            powers = jnp.stack([jnp.ones_like(rewards), rewards, jnp.square(rewards)])
            return jnp.sum(jnp.where(is_response, powers, 0.0), axis=1)

        total = np.zeros(3)
        for batch in held_out.batches():
            if "ranks" not in batch:
                raise ValueError("rewards are measured on data.objective='comparisons'")
            total += np.asarray(sums(held_out.params, held_out.model.put(batch)), np.float64)
            stop_signal.between_batches()
        if not total[0]:
            raise ValueError("there are no held-out responses whose rewards could be measured")
        mean, square = total[1:] / total[0]
        deviation = float(np.sqrt(max(square - mean**2, 0.0)))
        return {"mean": mean, "deviation": deviation, "responses": total[0]}, []
