"""Runs drawn from a known scaling law, for tests of what recovers it."""

import numpy as np

from t5x_like.research.scaling_laws.law import SIX_N_D, Law, TrainingCompute
from t5x_like.research.scaling_laws.runs import TrainedRun


def scattered(law: Law, number: int, *, noise: float, seed: int = 0):
    """Parameters, tokens and losses of runs in the range of Hoffmann et al.'s."""
    rng = np.random.default_rng(seed)
    n = np.exp(rng.uniform(np.log(5e7), np.log(1.6e10), number))
    c = np.exp(rng.uniform(np.log(1e19), np.log(3e21), number))
    d = c / (6 * n)
    return n, d, law.loss(n, d) * np.exp(noise * rng.standard_normal(number))


def grid(
    law: Law,
    budgets=(1e18, 1e19, 1e20, 1e21, 1e22),
    *,
    sizes: int = 7,
    reach: float = 4.0,
    shift: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
    compute: TrainingCompute = SIX_N_D,
) -> list[TrainedRun]:
    """Runs of equal FLOPs, of sizes around the optimum times `shift`, up to `reach` away."""
    rng = np.random.default_rng(seed)
    runs = []
    for c in budgets:
        for n in law.optimum(c, compute)[0] * shift * np.geomspace(1 / reach, reach, sizes):
            d = float(compute.tokens(c, n))
            loss = float(law.loss(n, d) * np.exp(noise * rng.standard_normal()))
            runs.append(TrainedRun(f"{c:g} {n:g}", float(n), float(d), float(c), loss))
    return runs


def with_curves(law: Law, sizes, ends, *, noise: float = 0.0, seed: int = 0) -> list[TrainedRun]:
    """Runs of each size to several numbers of tokens, whose curves are the law's on the way.

    Args:
        noise: nats, of the points of the curves, which are then 100 of equal steps.
    """
    rng = np.random.default_rng(seed)
    runs = []
    for n in sizes:
        for d in ends:
            tokens = np.linspace(d / 100, d, 100) if noise else np.geomspace(d / 1000, d, 200)
            curve = (tokens, law.loss(n, tokens) + noise * rng.standard_normal(len(tokens)))
            runs.append(TrainedRun(f"{n} {d}", n, d, 6 * n * d, float(law.loss(n, d)), curve=curve))
    return runs
