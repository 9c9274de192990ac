"""The compute-optimal frontier as power laws of the budget: N_opt ~ C^a and D_opt ~ C^b."""

import dataclasses

import numpy as np

from t5x_like.scaling_laws.law import Vector


@dataclasses.dataclass(frozen=True)
class Frontier:
    """N_opt = n_scale C^a and D_opt = d_scale C^b.

    Attributes:
        flops, parameters, tokens: the fitted points.
    """

    a: float
    b: float
    n_scale: float
    d_scale: float
    flops: Vector
    parameters: Vector
    tokens: Vector

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens with the least loss for a budget of FLOPs."""
        return self.n_scale * flops**self.a, self.d_scale * flops**self.b


def regress(flops: Vector, parameters: Vector, tokens: Vector) -> Frontier | None:
    """Fit the frontier to points by least squares in logarithms; None for a single budget."""
    if len(flops) < 2 or np.ptp(np.log(flops)) < np.log(1.5):
        return None
    a, log_n = np.polyfit(np.log(flops), np.log(parameters), 1)
    b, log_d = np.polyfit(np.log(flops), np.log(tokens), 1)
    scales = {"n_scale": float(np.exp(log_n)), "d_scale": float(np.exp(log_d))}
    return Frontier(float(a), float(b), **scales, flops=flops, parameters=parameters, tokens=tokens)
