"""Metrics as (total, count) pairs that merge over microbatches, steps and evaluation batches."""

import math
from collections.abc import Iterable, Mapping

import flax
import jax
import jax.numpy as jnp
import numpy as np
from clu.metrics import Average
from jaxtyping import Array

Metrics = dict[str, Average]


@flax.struct.dataclass
class Perplexity(Average):
    """The exponential of the mean cross-entropy in nats, over all tokens merged so far.

    It is exp(total / count) of the merged sums, not a mean of the perplexities of the steps.
    """

    def compute(self) -> Array:
        """Returns exp(total / count)."""
        return jnp.exp(super().compute())


def from_sums(sums: Mapping[str, tuple[Array, Array]]) -> Metrics:
    """Makes metrics of the (sum, weight) pairs of a loss; of `cross_entropy`, `perplexity` too."""
    metrics: Metrics = {
        name: Average(total=total, count=count) for name, (total, count) in sums.items()
    }
    if "cross_entropy" in sums:
        total, count = sums["cross_entropy"]
        metrics["perplexity"] = Perplexity(total=total, count=count)
    return metrics


def from_value(value: Array) -> Average:
    """One step's value, such as a norm: merging gives the mean over the steps."""
    return Average(total=jnp.asarray(value, jnp.float32), count=jnp.ones((), jnp.float32))


def merge(metrics: Iterable[Metrics]) -> Metrics:
    """Adds totals and counts, name by name: sums first, division last.

    Works on device arrays, and without a dispatch a metric on what `jax.device_get` fetched.

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


def compute(metrics: Metrics) -> dict[str, float]:
    """Fetches the metrics in one transfer and returns their values, NaN where the count is 0."""
    host = jax.device_get(metrics)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: float(metric.compute()) for name, metric in host.items()}


def require_finite(values: Mapping[str, float], *, step: int) -> None:
    """Stops a run whose loss or norms are no longer numbers, as every later step would be too.

    A NaN in one step survives merging, so checking each log interval, and before a checkpoint is
    written, misses none.

    Raises:
        FloatingPointError: `loss`, `grad_norm` or `param_norm` is NaN or infinite.
    """
    watched = {name: values[name] for name in ("loss", "grad_norm", "param_norm") if name in values}
    broken = [f"{name} is {value}" for name, value in watched.items() if not math.isfinite(value)]
    if broken:
        raise FloatingPointError(
            f"{', '.join(broken)} at or shortly before step {step}. Likely causes: "
            "optimizer.learning_rate too high or optimizer.warmup_steps too few; a batch without "
            "any target of non-zero weight; token ids beyond the model's vocabulary."
        )


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
    """Rates over `steps` steps that took `seconds`.

    `flops_per_step` are the model FLOPs of one optimizer step (`flops.training`) and `peak_flops`
    the FLOP/s of all devices together: their ratio is the model FLOPs utilization of Chowdhery et
    al. 2022 (PaLM), appendix B, left out where either is unknown.
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
