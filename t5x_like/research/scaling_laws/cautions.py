"""Reasons not to trust a fit, each a sentence with the remedy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.research.scaling_laws import approaches
from t5x_like.research.scaling_laws.runs import TrainedRun, columns

_FEW_STEPS = 300  # a shorter run is mostly warmup and decay
_FEW = 20  # runs; Hoffmann et al. had over 400
_DECADES = 2.0
_BIAS = 0.01
# A cosine a quarter longer than the run is clearly worse (Hoffmann et al. 2022, appendix B).
_LONGER = 1.25
_UNITS = 4.0  # factor from 6 N D: more than embeddings and attention explain
_POWER = 0.05  # compute as N^1.05 D rather than N D changes the exponent a by about 0.01


def of_few_steps(steps: Mapping[str, float]) -> list[str]:
    """Warn of runs with too few steps, whose loss is limited by the number of updates."""
    few = {name: number for name, number in steps.items() if number < _FEW_STEPS}
    if not few:
        return []
    worst = min(few, key=lambda name: few[name])
    return [
        f"{len(few)} of {len(steps)} runs have fewer than {_FEW_STEPS} steps ({worst}: "
        f"{few[worst]:.0f}), so that updates limit their loss and not tokens; set a smaller "
        "data.batch_size, or leave them out"
    ]


def of_few_sizes(budgets: Sequence[float]) -> list[str]:
    """Warn of budgets with too few sizes for a parabola."""
    if not budgets:
        return []
    where = f"{min(budgets):.3g}" + f" to {max(budgets):.3g}" * (len(budgets) > 1)
    return [
        f"approach 2 leaves out {len(budgets)} budgets of fewer than {approaches.LEAST_SIZES} "
        f"sizes (C = {where}): add sizes, or keep their runs apart with --hold_out"
    ]


def of_runs(runs: Sequence[TrainedRun]) -> list[str]:
    """Return warnings about the runs, for any fit."""
    n, d, c, _ = columns(runs)
    cautions = []
    if len(runs) < _FEW:
        cautions.append(
            f"few points: 5 constants are fitted to {len(runs)} runs; {_FEW} or more are better"
        )
    decades = np.log10(c.max() / c.min())
    if decades < _DECADES - 1e-6:
        cautions.append(
            f"the runs span {decades:.1f} decades of FLOPs: below {_DECADES:g}, E and the exponents"
            " cannot be distinguished; add a larger or a smaller budget"
        )
    ratio = c / (6 * n * d)
    if ratio.max() > _UNITS or ratio.min() < 1 / _UNITS:
        cautions.append(
            f"C is {ratio.min():.2g} to {ratio.max():.2g} times 6 N D: check that N is parameters, "
            "D tokens and C FLOPs, without prefixes"
        )
    steps = {run.name: run.steps for run in runs if run.steps is not None}
    return cautions + _schedules(runs) + of_few_steps(steps)


def _schedules(runs: Sequence[TrainedRun]) -> list[str]:
    known = [run for run in runs if run.decay_tokens is not None]
    ratios = np.array([run.decay_tokens / run.d for run in known if run.decay_tokens is not None])
    off = (ratios >= _LONGER) | (ratios <= 1 / _LONGER)
    if not off.any():
        return []
    worst = known[int(np.argmax(np.abs(np.log(ratios))))]
    assert worst.decay_tokens is not None
    times = worst.decay_tokens / worst.d
    return [
        f"the learning rate of {int(off.sum())} of {len(known)} runs does not decay with the run "
        f"({worst.name}: over {times:.2g} times its tokens), which biases a towards Kaplan's; "
        "train with a cosine as long as the run"
    ]


def of_fits(runs: Sequence[TrainedRun], fits: Mapping[str, Any]) -> list[str]:
    """Return warnings about the fits `approach_1` to `variable_projection` of an analysis."""
    cautions = []
    if not approaches.has_curves(runs):
        cautions.append(
            "approach 1 has no training curves: it takes the best run of each budget, and a is as "
            "coarse as the grid of sizes"
        )
    profiles = approaches.profiles(runs)
    if fits["approach_2"] is None:
        cautions.append(
            f"approach 2 needs two budgets of 3 sizes or more with a minimum inside; there are "
            f"{sum(profile.inside for profile in profiles)} of {len(profiles)}"
        )
    else:
        cautions += _biases(fits["approach_2"]["minima"], profiles)
        cautions += of_few_sizes(_without_parabola(runs, profiles))
    cautions += _edges(profiles)
    for name in ("approach_3", "variable_projection"):
        if fits[name]["E"] < 1e-3:
            cautions.append(
                f"{name} finds E = 0, no irreducible loss: the runs are too small to show it, and "
                "the exponents are too low"
            )
    return cautions + of_compute(fits)


def of_compute(fits: Mapping[str, Any]) -> list[str]:
    """Warn if the FLOPs of the runs do not grow as C = 6 N D, which approach 3 assumes."""
    s, law = fits["compute"]["s"], fits["approach_3"]
    if abs(s - 1) < _POWER:
        return []
    return [
        f"the FLOPs of the runs grow as N^{s:.2f} D: a of approach 3 is {law['a']:.3f} for "
        f"C = 6 N D and {law['a_of_runs']:.3f} for these, as approaches 1 and 2 have them"
    ]


def _without_parabola(
    runs: Sequence[TrainedRun], profiles: Sequence[approaches.IsoFlopProfile]
) -> list[float]:
    """Return the FLOPs of the budgets that have no profile."""
    fitted = {number for profile in profiles for number in profile.numbers}
    groups = approaches.budgets(runs)
    return [runs[group[0]].c for group in groups if not fitted.intersection(group)]


def _edges(profiles: Sequence[approaches.IsoFlopProfile]) -> list[str]:
    off = [profile for profile in profiles if profile.best_at_edge or not profile.inside]
    if not off:
        return []
    where = ", ".join(f"{profile.flops:.3g}" for profile in off)
    return [
        f"the optimum is at the edge of the sizes at C = {where}: add sizes beyond, a minimum "
        "outside of them is not used"
    ]


def _biases(
    minima: Sequence[Mapping[str, Any]], profiles: Sequence[approaches.IsoFlopProfile]
) -> list[str]:
    """Warn of the budget with the largest bias, if it is 1% or more."""
    sizes = {profile.flops: profile.sizes for profile in profiles}
    used = [minimum for minimum in minima if minimum["used"] and np.isfinite(minimum["bias_of_N"])]
    if not used:
        return []
    worst = max(used, key=lambda minimum: abs(minimum["bias_of_N"]))
    if abs(worst["bias_of_N"]) < _BIAS:
        return []
    width = approaches.profile_width(sizes[worst["C"]])
    return [
        f"the grid is too wide or off the optimum for a parabola: over sizes x/÷ {width:.3g} at "
        f"C = {worst['C']:.3g}, approach 2's N is {worst['bias_of_N']:+.1%} off even without noise "
        "if approach 3's law holds; narrow the grid around the optimum, or use approach 3"
    ]
