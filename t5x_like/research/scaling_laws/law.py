"""Parametric scaling laws: L(N, D) = E + A / N^alpha + B / D^beta, its optima, and Kaplan's form.

The optimum depends on how FLOPs grow with N and D: C = 6 N D, or C = k N^s D fitted to runs.
Kaplan's form is L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy import optimize

Vector = Float[np.ndarray, " R"]  # one value per run


@dataclasses.dataclass(frozen=True)
class TrainingCompute:
    """The FLOPs of training, C = k N^s D. The usual C = 6 N D has k = 6 and s = 1.

    Counted FLOPs grow more slowly than N D if N excludes embeddings, since the share of the output
    layer and attention falls with the size; they may grow faster if N counts tables that are only
    looked up.
    """

    k: float = 6.0
    s: float = 1.0

    def flops(self, parameters: Vector | float, tokens: Vector | float) -> Vector:
        """Return the FLOPs of each run."""
        return self.k * np.asarray(parameters, float) ** self.s * np.asarray(tokens, float)

    def tokens(self, flops: Vector | float, parameters: Vector | float) -> Vector:
        """Return the tokens for given FLOPs and parameters."""
        return np.asarray(flops, float) / self.flops(parameters, 1.0)


SIX_N_D = TrainingCompute()


def fit_compute(n: Vector, d: Vector, c: Vector) -> TrainingCompute:
    """Fit C = k N^s D by least squares of log C.

    Args:
        n: parameters of each run, of two sizes or more.
        d: tokens.
        c: FLOPs.

    Raises:
        ValueError: FLOPs do not grow with the parameters.
    """
    middle = np.log(n).mean()
    s, level = np.polyfit(np.log(n) - middle, np.log(c / d), 1)
    if s <= 0:
        raise ValueError(
            f"the FLOPs of the runs grow as N^{s:.2f} D, and not with N: check their N, D and C"
        )
    return TrainingCompute(k=float(np.exp(level - s * middle)), s=float(s))


@dataclasses.dataclass(frozen=True)
class Law:
    """The loss of a network with N parameters after D tokens, E + A / N^alpha + B / D^beta in nats.

    Hoffmann et al. 2022 (Chinchilla), equation 2 and section 3.3. Optima assume C = 6 N D FLOPs,
    unless another relation is given.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: Vector | float, tokens: Vector | float) -> Vector:
        """Return the loss in nats of each run."""
        n, d = np.asarray(parameters, float), np.asarray(tokens, float)
        return self.E + self.A * n**-self.alpha + self.B * d**-self.beta

    @property
    def a(self) -> float:
        """The exponent of N_opt ~ C^a for C = 6 N D."""
        return self.exponents(SIX_N_D)[0]

    @property
    def b(self) -> float:
        """The exponent of D_opt ~ C^b for C = 6 N D."""
        return self.exponents(SIX_N_D)[1]

    def exponents(self, compute: TrainingCompute) -> tuple[float, float]:
        """Return the exponents a and b of N_opt ~ C^a and D_opt ~ C^b for C = k N^s D.

        With D = C / (k N^s), the loss is E + A N^-alpha + B (k / C)^beta N^(s beta). Its derivative
        is 0 if N^(alpha + s beta) = alpha A / (s beta B) (C / k)^beta.
        """
        total = self.alpha + compute.s * self.beta
        return self.beta / total, self.alpha / total

    def optimum(self, flops: float, compute: TrainingCompute = SIX_N_D) -> tuple[float, float]:
        """Return the parameters and tokens with the least loss for a budget (equation 4)."""
        ratio = self.alpha * self.A / (compute.s * self.beta * self.B)
        scale = ratio ** (1 / (self.alpha + compute.s * self.beta))
        n = scale * (flops / compute.k) ** self.exponents(compute)[0]
        return n, float(compute.tokens(flops, n))

    def flops_for(self, loss: float) -> float:
        """Return the least FLOPs that reach a loss, for C = 6 N D.

        Raises:
            ValueError: the loss is E or less, which no budget reaches.
        """
        if loss <= self.E:
            raise ValueError(f"a loss of {loss} is not above E={self.E}: no budget reaches it")
        # Along the optimum both terms fall as C^-g, so that L - E is a power of C.
        power = self.alpha * self.beta / (self.alpha + self.beta)
        at_one = float(self.loss(*self.optimum(1.0))) - self.E
        return (at_one / (loss - self.E)) ** (1 / power)


# The constants printed by Hoffmann et al. (equation 10), and by Besiroglu et al. 2024
# (arXiv:2404.10102), who fitted the same points to convergence. The printed A, B, alpha and beta
# are rounded: the first law gives a = 0.4516, while its paper has 0.46.
PUBLISHED = {
    "hoffmann": Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
    "besiroglu": Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
}


KAPLAN_A = 0.73  # N_opt ~ C^0.73: Kaplan et al. 2020, quoted in table 2 of Hoffmann et al. 2022


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


def fit_kaplan(n: Vector, d: Vector, loss: Vector) -> KaplanLaw:
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
        key=lambda fit: fit.cost,
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
