"""The mean and deviation of held-out rewards, with which a reward model is normalized."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from t5x_like import stop_signal
from t5x_like.evaluation.held_out import HeldOut
from t5x_like.evaluation.measure import Measure, Measured
from t5x_like.losses import preferences


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
            there = batch["ranks"].reshape(-1) > 0
            powers = jnp.stack([jnp.ones_like(rewards), rewards, jnp.square(rewards)])
            return jnp.sum(jnp.where(there, powers, 0.0), axis=1)

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
