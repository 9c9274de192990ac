"""Kaplan's form of the loss: L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D."""

import dataclasses

import numpy as np
from scipy import optimize

from t5x_like.scaling_laws.law import SIX_N_D, TrainingCompute, Vector

PUBLISHED_A = 0.73  # N_opt ~ C^0.73: Kaplan et al. 2020, quoted in table 2 of Hoffmann et al. 2022


@dataclasses.dataclass(frozen=True)
class KaplanLaw:
    """Kaplan et al. 2020, equation 1.5. It has no irreducible loss.

    Attributes:
        alpha_n, alpha_d: exponents of N and D.
        n_c, d_c: their scales.
        error: the root mean square of log L(N, D) - log L over the runs.
    """

    alpha_n: float
    alpha_d: float
    n_c: float
    d_c: float
    error: float

    @property
    def a(self) -> float:
        """The exponent of N_opt ~ C^a by this law, for C = 6 N D."""
        return self.exponent(SIX_N_D)

    def exponent(self, compute: TrainingCompute) -> float:
        """Return the exponent of N_opt ~ C^a by this law, for C = k N^s D."""
        return self.alpha_d / (self.alpha_n + compute.s * self.alpha_d)


def fit(n: Vector, d: Vector, loss: Vector) -> KaplanLaw:
    """Fit the law by least squares of the logarithm of the loss.

    Args:
        n: parameters of each run.
        d: tokens.
        loss: nats.
    """
    log_n, log_d, log_loss = np.log(n), np.log(d), np.log(loss)
    middle_n, middle_d = log_n.mean(), log_d.mean()

    def error(point: Vector) -> Vector:
        log_alpha_d, log_ratio, of_n, of_d = point
        terms = (
            of_n - np.exp(log_ratio) * (log_n - middle_n),
            of_d - (log_d - middle_d),
        )
        return np.exp(log_alpha_d) * np.logaddexp(*terms) - log_loss

    best = min(
        (
            # Starts at which each of the two terms is half of the middle run's loss.
            optimize.least_squares(
                error,
                [np.log(alpha), np.log(ratio), *[log_loss.mean() / alpha - np.log(2)] * 2],
                xtol=1e-12,
                ftol=1e-12,
            )
            for alpha in (0.05, 0.1, 0.3)
            for ratio in (0.5, 1.0, 2.0)
        ),
        key=lambda found: found.cost,
    )
    log_alpha_d, log_ratio, of_n, of_d = best.x
    alpha_d, ratio = np.exp(log_alpha_d), np.exp(log_ratio)
    return KaplanLaw(
        alpha_n=float(ratio * alpha_d),
        alpha_d=float(alpha_d),
        n_c=float(np.exp(of_n / ratio + middle_n)),
        d_c=float(np.exp(of_d + middle_d)),
        error=float(np.sqrt(np.mean(best.fun**2))),
    )
