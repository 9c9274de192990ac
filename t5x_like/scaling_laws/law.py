"""The parametric scaling law L(N, D) = E + A / N^alpha + B / D^beta, and what is optimal by it."""

import dataclasses

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " R"]  # a value of each run


@dataclasses.dataclass(frozen=True)
class Law:
    """The loss of a network of N parameters after D tokens, E + A / N^alpha + B / D^beta in nats.

    Hoffmann et al. 2022 (Chinchilla), equation 2 and section 3.3. The optimum is that of
    C = 6 N D FLOPs.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: Vector | float, tokens: Vector | float) -> Vector:
        """The loss in nats of each run."""
        n, d = np.asarray(parameters, float), np.asarray(tokens, float)
        return self.E + self.A * n**-self.alpha + self.B * d**-self.beta

    @property
    def a(self) -> float:
        """The exponent of N_opt ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def b(self) -> float:
        """The exponent of D_opt ~ C^b."""
        return self.alpha / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """The parameters and tokens of the least loss for a budget of FLOPs (equation 4)."""
        ratio = self.alpha * self.A / (self.beta * self.B)
        scale = ratio ** (1 / (self.alpha + self.beta))
        return scale * (flops / 6) ** self.a, (flops / 6) ** self.b / scale

    def flops_for(self, loss: float) -> float:
        """The least FLOPs that reach a loss.

        Raises:
            ValueError: the loss is E or less, which no budget reaches.
        """
        if loss <= self.E:
            raise ValueError(f"a loss of {loss} is not above E={self.E}: no budget reaches it")
        # Along the optimum both terms fall as C^-g, so that L - E is a power of C.
        power = self.alpha * self.beta / (self.alpha + self.beta)
        at_one = float(self.loss(*self.optimum(1.0))) - self.E
        return (at_one / (loss - self.E)) ** (1 / power)


# The constants that Hoffmann et al. print (equation 10), and those of Besiroglu et al. 2024
# (arXiv:2404.10102), who fitted the same points to convergence. Printed A, B, alpha and beta are
# rounded: a of the first is 0.4516, where its paper has 0.46.
PUBLISHED = {
    "hoffmann": Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
    "besiroglu": Law(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
}
