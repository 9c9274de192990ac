"""One training step and one evaluation step for all systems, pure, for the caller to jit."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from t5x_like.training import metrics as metrics_lib
from t5x_like.training.metrics import Metrics
from t5x_like.training.state import TrainState

Batch = dict[str, Array]
Sums = dict[str, tuple[Array, Array]]
# (params, batch, key or None for evaluation) -> (loss sum, weight, metrics as (sum, weight)).
Loss = Callable[[Any, Batch, Array | None], tuple[Array, Array, Sums]]


def make_train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    schedule: optax.Schedule,
    microbatches: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Makes `step(state, batch) -> (state, metrics)`.

    The gradient is that of (sum of the losses of the whole batch) / (sum of its weights), however
    many microbatches it is summed over: a microbatch with fewer target tokens counts less, and
    without dropout the step is that of the undivided batch up to float rounding.

    The metrics are the loss's own, with `loss` (z-loss and smoothing in it), `perplexity`,
    `grad_norm` (before clipping), `param_norm` (before the step) and `learning_rate`.

    A batch without weights makes no gradient; its metrics have count 0. A loss or gradient that is
    not finite goes through to `loss` and `grad_norm`, for `metrics.require_finite` to stop the run.

    Raises:
        ValueError: microbatches is below 1, or (when traced) does not divide the batch.
    """
    if microbatches < 1:
        raise ValueError(f"train.microbatches is {microbatches}; it must be 1 or more")

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        total = _accumulate(loss, state.params, batch, key, microbatches=microbatches)
        # Where nothing has a weight the sum is 0 as well.
        divisor = jnp.where(total.weight == 0, 1.0, total.weight)
        gradient = jax.tree.map(lambda g: g / divisor, total.gradient)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = metrics_lib.from_sums({"loss": (total.loss, total.weight), **total.sums})
        values = {
            "grad_norm": optax.tree.norm(gradient),
            "param_norm": optax.tree.norm(state.params),
            "learning_rate": schedule(state.step),
        }
        metrics |= {name: metrics_lib.from_value(value) for name, value in values.items()}
        new = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
        return new, metrics

    return step


def make_eval_step(loss: Loss) -> Callable[[Any, Batch], Metrics]:
    """Makes `step(params, batch) -> metrics`, without dropout."""

    def step(params: Any, batch: Batch) -> Metrics:
        loss_sum, weight, sums = loss(params, batch, None)
        return metrics_lib.from_sums({"loss": (loss_sum, weight), **sums})

    return step


class _Total(NamedTuple):
    """Sums over a batch: gradient (of the loss sum, float32), loss, weight, metrics."""

    gradient: Any
    loss: Float[Array, ""]
    weight: Float[Array, ""]
    sums: Sums


def _accumulate(loss: Loss, params: Any, batch: Batch, key: Array, *, microbatches: int) -> _Total:
    """Sums over the microbatches, one at a time, so that only one's activations are alive."""

    def one(microbatch: Batch, key: Array) -> _Total:
        def loss_sum(params: Any):
            value, weight, sums = loss(params, microbatch, key)
            return value, (weight, sums)

        (value, (weight, sums)), gradient = jax.value_and_grad(loss_sum, has_aux=True)(params)
        gradient = jax.tree.map(lambda g: g.astype(jnp.float32), gradient)
        return _Total(gradient, value, weight, sums)

    if microbatches == 1:
        return one(batch, key)

    def add(gradient: Any, xs: tuple[Batch, Array]) -> tuple[Any, Any]:
        total = one(*xs)
        return jax.tree.map(jnp.add, gradient, total.gradient), total[1:]

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    xs = (_split(batch, microbatches), jax.random.split(key, microbatches))
    gradient, rest = jax.lax.scan(add, zeros, xs)
    return _Total(gradient, *jax.tree.map(lambda x: jnp.sum(x, axis=0), rest))


def _split(batch: Batch, microbatches: int) -> Batch:
    """Turns [B, ...] into [M, B/M, ...]; row i goes to microbatch i mod M.

    Interleaved, every device's block of rows gives a share to every microbatch, so that a batch
    sharded over devices is not moved between them.
    """

    def split(x: Array) -> Array:
        rows, remainder = divmod(x.shape[0], microbatches)
        if remainder:
            raise ValueError(
                f"train.microbatches is {microbatches}, which does not divide the batch of "
                f"{x.shape[0]} (data.batch_size)"
            )
        return x.reshape(rows, microbatches, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, batch)
