"""Metrics as (total, count) pairs that merge over microbatches, steps and evaluation batches.

A total is a number or an array: in a network with M layers of E experts, the number of dropped
tokens is [M], and the load of the experts is [M, E].
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from clu.metrics import Average
from jaxtyping import Array, Float

Metrics = dict[str, Average]

CONSTANT = "constant_accuracy"
_WATCHED = ("loss", "grad_norm", "param_norm")


@flax.struct.dataclass
class Perplexity(Average):
    """The exponential of the mean cross-entropy in nats, over all tokens merged so far.

    It is exp(total / count) of the merged sums, not a mean of per-step perplexities.
    """

    def compute(self) -> Any:
        """Return exp(total / count)."""
        mean = super().compute()
        # NumPy on the host: a device would compute it only after the steps queued on it.
        return np.exp(mean) if isinstance(mean, np.generic | np.ndarray) else jnp.exp(mean)


@flax.struct.dataclass
class MostFrequent(Average):
    """The share of the most frequent class over all labels merged so far; `total` is [C].

    It is the accuracy of the best constant prediction, which does not read the input.
    """

    def compute(self) -> Any:
        """Return the largest share."""
        shares = super().compute()
        return np.max(shares) if isinstance(shares, np.ndarray) else jnp.max(shares)


def from_sums(sums: Mapping[str, tuple[Array, Array]]) -> Metrics:
    """Make metrics from a loss's (sum, weight) pairs; `cross_entropy` also gives `perplexity`.

    The sum of `constant_accuracy`, or of TERM/constant_accuracy, is [C], one number per class.
    """

    def kind(name: str) -> type[Average]:
        return MostFrequent if name.rpartition("/")[2] == CONSTANT else Average

    metrics: Metrics = {
        name: kind(name)(total=total, count=count) for name, (total, count) in sums.items()
    }
    if "cross_entropy" in sums:
        total, count = sums["cross_entropy"]
        metrics["perplexity"] = Perplexity(total=total, count=count)
    return metrics


def from_value(value: Array) -> Average:
    """Make a metric from one step's value, such as a norm; merging gives the mean over steps."""
    return Average(total=jnp.asarray(value, jnp.float32), count=jnp.ones((), jnp.float32))


def merge(metrics: Iterable[Metrics]) -> Metrics:
    """Add totals and counts by name; nothing is divided.

    The arrays may be on devices, or NumPy arrays from `jax.device_get`, which avoid one dispatch
    per metric.

    Raises:
        ValueError: there is nothing to merge, or two sets of names differ.
    """
    merged: Metrics | None = None
    for each in metrics:
        if merged is None:
            merged = each
        elif merged.keys() != each.keys():
            raise ValueError(f"metrics {sorted(merged)} cannot merge with {sorted(each)}")
        else:
            merged = {name: merged[name].merge(each[name]) for name in merged}
    if merged is None:
        raise ValueError("there are no metrics to merge: no step or evaluation batch was run")
    return merged


def compute(metrics: Metrics) -> dict[str, Any]:
    """Fetch the metrics in one transfer and return their values.

    A metric whose count is 0 is left out, such as the accuracy under a mask that no row has. A loss
    without a token is NaN, as `require_finite` expects. All values are numbers, except for the
    array in the last row:

        total      values
        []         NAME
        [M]        NAME, the mean over layers, and NAME/layer_0, ...
        [C]        NAME, the largest share (`MostFrequent`)
        [M, E]     for the experts' shares in each layer: NAME/layer_0/entropy in nats (log E for
                   equal shares), NAME/layer_0/busiest and NAME/layer_0/idlest, the largest and the
                   smallest share; and NAME, the array itself
    """
    host = jax.device_get(metrics)
    values: dict[str, Any] = {}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for name, metric in host.items():
            if not np.any(metric.count) and not _is_watched(name):
                continue
            value = np.asarray(metric.compute())
            values[name] = value if value.ndim == 2 else float(np.mean(value))
            for layer, row in enumerate(value if value.ndim else ()):
                here = f"{name}/layer_{layer}"
                values |= _of_shares(here, row) if row.ndim else {here: float(row)}
    return values


def _of_shares(name: str, shares: Float[np.ndarray, " E"]) -> dict[str, float]:
    """Return statistics of the shares of a layer's experts, which sum to 1."""
    logs = np.log(np.where(shares == 0, 1.0, shares))  # 0 log 0 is 0
    return {
        f"{name}/entropy": float(-np.sum(shares * logs)),
        f"{name}/busiest": float(np.max(shares)),
        f"{name}/idlest": float(np.min(shares)),
    }


def split(values: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Split values into numbers and arrays."""
    tables = {name: value for name, value in values.items() if np.ndim(value)}
    return {name: value for name, value in values.items() if name not in tables}, tables


def require_finite(values: Mapping[str, float], *, step: int) -> None:
    """Stop a run whose loss or norms are NaN or infinite, since later steps would be too.

    A NaN in one step survives merging, so it suffices to check each log interval, and before a
    checkpoint is written.

    Args:
        values: {name: value}, or {"<task>/<name>": value} in a run of several tasks.

    Raises:
        FloatingPointError: `loss`, `grad_norm` or `param_norm` is NaN or infinite.
    """
    watched = {name: value for name, value in values.items() if _is_watched(name)}
    broken = [f"{name} is {value}" for name, value in watched.items() if not math.isfinite(value)]
    if broken:
        raise FloatingPointError(
            f"{', '.join(broken)} at or shortly before step {step}. Likely causes: "
            "optimizer.learning_rate too high or optimizer.warmup_steps too few; a batch without "
            "any target of non-zero weight; token ids beyond the model's vocabulary; a row with "
            "more masked tokens than loss.predicted of its length."
        )


def _is_watched(name: str) -> bool:
    return name.rpartition("/")[2] in _WATCHED


def throughput(
    *,
    steps: int,
    seconds: float,
    tokens_per_step: float,
    examples_per_step: float,
    steps_left: int,
    flops_per_step: float | None = None,
    peak_flops: float | None = None,
) -> dict[str, float]:
    """Return the throughput of `steps` steps that took `seconds`, and the seconds left.

    `flops_per_step` are the model FLOPs of one optimizer step (`flops.training`) and `peak_flops`
    the peak FLOP/s of all devices together. They give the model FLOPs utilization (MFU) of
    Chowdhery et al. 2022 (PaLM), appendix B, which is omitted if either is unknown.
    """
    rate = steps / seconds
    rates = {
        "steps_per_second": rate,
        "tokens_per_second": rate * tokens_per_step,
        "examples_per_second": rate * examples_per_step,
        "seconds_left": steps_left / rate,
    }
    if flops_per_step and peak_flops:
        rates["model_flops_utilization"] = rate * flops_per_step / peak_flops
    return rates
