"""One training step and one evaluation step for all systems, pure, for the caller to jit."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from t5x_like import names, partitioning
from t5x_like.training import metrics as metrics_lib
from t5x_like.training.metrics import Metrics
from t5x_like.training.state import TrainState

Batch = Mapping[str, Array]
Sums = dict[str, tuple[Array, Array]]
# (params, batch, key or None for evaluation) -> (loss sum, weight, metrics as (sum, weight)). With
# a memory it is called with `carry=` too, and returns ((loss sum, weight, metrics), next memory).
Loss = Callable[..., Any]
# (state, batch, key) -> the batch that the loss reads.
Prepare = Callable[[TrainState, Batch, Array], Batch]

SKIPPED = "steps_skipped"

# `threefry` gives the same numbers on every mesh and device; `unsafe_rbg` is the generator of the
# hardware, faster on TPUs, whose numbers depend on both, and whose keys are not mixed as well.
RANDOM_BITS = ("threefry", "unsafe_rbg")

# Folded into the key of a state to get the keys of `prepare` and of the order of rows: larger than
# the number of any step, with which the same key is folded for dropout.
_PREPARING, _SHUFFLING = 2**32 - 1, 2**32 - 2


def make_train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    schedule: optax.Schedule,
    microbatches: int = 1,
    minibatches: int = 1,
    inner_epochs: int = 1,
    shardings: PyTree = None,
    task: str = "",
    skip_nonfinite: bool = False,
    random_bits: str = "threefry",
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Make `step(state, batch) -> (state, metrics)`.

    It is the gradient of (sum of the losses of the whole batch) / (sum of its weights), however
    many microbatches it is summed over: a microbatch with fewer target tokens counts less, and
    without dropout the step equals the undivided batch's up to float rounding.

    A memory in the state (`TrainState.carry`) goes through the loss; row r of a microbatch gets the
    memory of the same row of the batch.

    The metrics are the loss's own, with `loss` (z-loss and smoothing included), `perplexity`,
    `grad_norm` (before clipping), `param_norm` (before the step) and `learning_rate`, and for
    batches with segments `filled`, the share of their places that are not padding.

    A batch without weights has no gradient, and its metrics have count 0. A loss or gradient that
    is not finite is passed on to `loss` and `grad_norm`, for `metrics.require_finite` to stop the
    run.

    With minibatches the optimizer updates the parameters several times in one step. The metrics are
    then those of all updates together.

    Args:
        minibatches: parts that the rows of a batch are divided into, in random order, an update of
            the optimizer for each. Such a loss has no memory.
        inner_epochs: how often a step goes through the batch, each time in another order.
        shardings: of the parameters. Their gradients get them at once, so that devices which share
            a parameter exchange parts of its gradient, and never the whole; None on one device.
        task: whose loss it is, in a run of several; the parameters of the heads of other tasks, and
            their optimizer state, stay as they are.
        skip_nonfinite: whether a step whose loss or gradient is not finite changes nothing but the
            number of the step. Its metrics have count 0, but for `steps_skipped`, the share of
            such steps.
        random_bits: the generator behind dropout and other noise of the loss, a name in
            RANDOM_BITS.

    Raises:
        ValueError: microbatches is below 1, or (when traced) does not divide the batch; there is
            no such generator.
    """
    names.choose("train.random_bits", random_bits, dict.fromkeys(RANDOM_BITS))
    parts = {"microbatches": microbatches, "minibatches": minibatches, "inner_epochs": inner_epochs}
    for name, number in parts.items():
        if number < 1:
            raise ValueError(f"train.{name} is {number}; it must be 1 or more")
    updates_a_step = minibatches * inner_epochs
    update = functools.partial(
        _update,
        loss,
        optax.with_extra_args_support(optimizer).update,
        rate=lambda step, number: schedule(step * updates_a_step + number),
        microbatches=microbatches,
        shardings=shardings,
        task=task,
    )

    def update_if_finite(state: TrainState, *rest: Any) -> tuple[TrainState, Metrics]:
        new, metrics = update(state, *rest)
        return _unless_nonfinite(state, new, metrics) if skip_nonfinite else (new, metrics)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        if random_bits == "unsafe_rbg":
            key = _hardware_key(key)
        if updates_a_step == 1:
            new, metrics = update_if_finite(state, batch, key, 0)
        else:
            order = _order(state, batch, minibatches=minibatches, inner_epochs=inner_epochs)
            new, metrics = _over_minibatches(update_if_finite, state, batch, key, order=order)
        return new.replace(step=state.step + 1), metrics

    return step


def _update(
    loss: Loss,
    optimize: Callable[..., tuple[Any, Any]],
    state: TrainState,
    batch: Batch,
    key: Array,
    number: Int[Array, ""] | int,
    *,
    rate: Callable[..., Array],
    microbatches: int,
    shardings: PyTree,
    task: str,
) -> tuple[TrainState, Metrics]:
    """Update the parameters once; `number` counts the updates of a step."""
    memory = _memory(state.carry, task)
    sums = functools.partial(_sums, loss, state.params, shardings)
    total, memory = _accumulate(
        sums, (batch, memory), key, params=state.params, microbatches=microbatches
    )
    gradient = total.gradient
    if microbatches > 1:
        gradient = jax.tree.map(lambda g: g * _share(total.weight), gradient)
    gradient = _sharded(gradient, shardings)
    given = {"task": task, "weight": total.weight}
    updates, opt_state = optimize(gradient, state.opt_state, state.params, **given)
    params = optax.apply_updates(state.params, updates)
    metrics = metrics_lib.from_sums({"loss": (total.loss, total.weight), **total.sums})
    values = {
        "grad_norm": _norm(gradient),
        "param_norm": _norm(state.params),
        "learning_rate": rate(state.step, number),
    }
    metrics |= {name: metrics_lib.from_value(value) for name, value in values.items()}
    metrics |= metrics_lib.from_sums(_filled(batch))
    carry = _with_memory(state.carry, task, memory)
    return state.replace(params=params, opt_state=opt_state, carry=carry), metrics


def _norm(tree: PyTree) -> Float[Array, ""]:
    """The norm of all numbers of a tree together.

    Behind a barrier on a CPU: XLA would otherwise share the squares with Adam's second moment, and
    so write an array of them, in place of two sums that write nothing.
    """
    return optax.tree.norm(
        jax.lax.optimization_barrier(tree) if partitioning.platform() == "cpu" else tree
    )


def _order(
    state: TrainState, batch: Batch, *, minibatches: int, inner_epochs: int
) -> Int[Array, "U R"]:
    """The rows of each update's minibatch: all rows once in an epoch, in random order."""
    rows = len(next(iter(batch.values())))
    if rows % minibatches:
        raise ValueError(
            f"train.minibatches is {minibatches}, which does not divide the batch of {rows} "
            "(data.batch_size)"
        )
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), _SHUFFLING)
    keys = jax.random.split(jax.random.fold_in(key, state.step), inner_epochs)
    orders = jax.vmap(lambda key: jax.random.permutation(key, rows))(keys)
    return orders.reshape(inner_epochs * minibatches, -1)


def _over_minibatches(
    update: Callable[..., tuple[TrainState, Metrics]],
    state: TrainState,
    batch: Batch,
    key: Array,
    *,
    order: Int[Array, "U R"],
) -> tuple[TrainState, Metrics]:
    """Update the state with some rows of the batch after the others; the metrics add up."""

    def one(state: TrainState, xs: tuple[Array, Array, Array]) -> tuple[TrainState, Metrics]:
        number, rows, key = xs
        return update(state, jax.tree.map(lambda x: _spread(x[rows]), batch), key, number)

    updates = len(order)
    keys = jax.random.split(key, updates)
    state, metrics = jax.lax.scan(one, state, (jnp.arange(updates), order, keys))
    return state, jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)


def _spread(rows: Array) -> Any:
    """Rows as the devices of the mesh share those of a batch."""
    return nn.with_logical_constraint(rows, ("activation_batch", *[None] * (rows.ndim - 1)))


def _filled(batch: Batch) -> Sums:
    """`filled`, the share of the places of the rows that hold a token, where segments show it."""
    rows = [x for name, x in batch.items() if name.endswith("_segment_ids")]
    if not rows:
        return {}
    tokens = jnp.stack([jnp.sum(x > 0, dtype=jnp.float32) for x in rows])
    return {"filled": (jnp.sum(tokens), jnp.float32(sum(x.size for x in rows)))}


def _hardware_key(key: Array) -> Array:
    """A key of JAX's `unsafe_rbg` from one of threefry, as JAX makes them from a seed."""
    half = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.concatenate([half, half]), impl="unsafe_rbg")


def _unless_nonfinite(
    state: TrainState, new: TrainState, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    """The result of an update; the state before it where it is not finite."""
    watched = jnp.stack([metrics[name].total for name in ("loss", "grad_norm")])
    finite = jnp.all(jnp.isfinite(watched))
    new = jax.tree.map(lambda x, before: jnp.where(finite, x, before), new, state)
    metrics = jax.tree.map(lambda x: jnp.where(finite, x, 0), metrics)
    return new, metrics | {SKIPPED: metrics_lib.from_value(~finite)}


def make_prepare_step(prepare: Prepare) -> Callable[[TrainState, Batch], Batch]:
    """Make `step(state, batch) -> batch`, which completes a batch before `make_train_step`'s.

    It is a program of its own: sampling and scoring then hold no memory when the optimizer works,
    and the state, which it only reads, can be donated to the update.
    """
    return functools.partial(_prepared, prepare)


def make_eval_step(
    loss: Loss, *, prepare: Prepare | None = None
) -> Callable[..., tuple[Metrics, PyTree]]:
    """Make `step(params, batch, carry=None, number=0) -> (metrics, carry)`, without dropout.

    `carry` is the memory before the batch, None for a task without one. `number` counts the batches
    of the evaluation: `prepare` gets another key for each, the same in every evaluation, and a
    state that holds the parameters alone.
    """

    def step(
        params: Any, batch: Batch, carry: PyTree = None, number: Int[Array, ""] | int = 0
    ) -> tuple[Metrics, PyTree]:
        rng = jax.random.key_data(jax.random.key(0))
        state = TrainState(step=jnp.int32(number), params=params, opt_state=None, rng=rng)
        batch = _prepared(prepare, state, batch)
        (loss_sum, weight, sums), carry = _apply(loss, params, batch, None, carry)
        return metrics_lib.from_sums({"loss": (loss_sum, weight), **sums}), carry

    return step


def _prepared(prepare: Prepare | None, state: TrainState, batch: Batch) -> Batch:
    if prepare is None:
        return batch
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), _PREPARING)
    return prepare(state, batch, jax.random.fold_in(key, state.step))


def _memory(carry: PyTree, task: str) -> PyTree:
    """The memory of a task, None if it has none."""
    return (carry or {}).get(task) if task else carry


def _with_memory(carry: PyTree, task: str, memory: PyTree) -> PyTree:
    """The `carry` of a state, with the next memory of a task."""
    if memory is None:
        return carry
    return {**carry, task: memory} if task else memory


def _apply(
    loss: Loss, params: Any, batch: Batch, key: Array | None, memory: PyTree
) -> tuple[Any, PyTree]:
    """The loss sums and the next memory."""
    if memory is None:
        return loss(params, batch, key), None
    return loss(params, batch, key, carry=memory)


class _Total(NamedTuple):
    """Sums over a batch: gradient (of the loss sum or its mean, float32), loss, weight, metrics."""

    gradient: Any
    loss: Float[Array, ""]
    weight: Float[Array, ""]
    sums: Sums


def _sums(
    loss: Loss,
    params: Any,
    shardings: PyTree,
    rows: tuple[Batch, PyTree],
    key: Array,
    *,
    mean: bool,
) -> tuple[_Total, PyTree]:
    """Sums over some rows, with the memory before them, and the memory after them.

    With `mean` the gradient is that of the mean loss. The loss is divided rather than its gradient,
    which would be read and written once more.
    """
    batch, memory = rows

    def loss_sum(params: Any):
        (value, weight, sums), after = _apply(loss, params, batch, key, memory)
        return value, (weight, sums, jax.lax.stop_gradient(after))

    value, pull_back, (weight, sums, after) = jax.vjp(loss_sum, params, has_aux=True)
    [gradient] = pull_back(_share(weight).astype(value.dtype) if mean else jnp.ones_like(value))
    gradient = _sharded(jax.tree.map(lambda g: g.astype(jnp.float32), gradient), shardings)
    return _Total(gradient, value, weight, sums), after


def _share(weight: Float[Array, ""]) -> Float[Array, ""]:
    """1 / weight. Where nothing has a weight the sum is 0 as well."""
    return 1.0 / jnp.where(weight == 0, 1.0, weight)


def _sharded(gradient: Any, shardings: PyTree) -> Any:
    return gradient if shardings is None else jax.lax.with_sharding_constraint(gradient, shardings)


def _accumulate(
    sums: Callable[..., tuple[_Total, PyTree]],
    rows: PyTree,
    key: Array,
    *,
    params: Any,
    microbatches: int,
) -> tuple[_Total, PyTree]:
    """Sums over the microbatches, one at a time, so that only one's activations are alive.

    The gradient of a single one is that of the mean loss.
    """
    if microbatches == 1:
        return sums(rows, key, mean=True)
    split = _split(rows, microbatches)

    def add(gradient: Any, xs: tuple[PyTree, Array]) -> tuple[Any, Any]:
        total, after = sums(*xs, mean=False)
        return jax.tree.map(jnp.add, gradient, total.gradient), (total[1:], after)

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    keys = jax.random.split(key, microbatches)
    gradient, (rest, after) = jax.lax.scan(add, zeros, (split, keys))
    rest = jax.tree.map(lambda x: jnp.sum(x, axis=0), rest)
    return _Total(gradient, *rest), _join(after)


def _split(rows: PyTree, microbatches: int) -> PyTree:
    """Turn arrays [B, ...] into [M, B/M, ...]; row i goes to microbatch i mod M.

    Interleaved, every device's block of rows gives a share to every microbatch, so that a batch
    sharded over devices is not moved between them.
    """

    def split(x: Array) -> Array:
        number, remainder = divmod(x.shape[0], microbatches)
        if remainder:
            raise ValueError(
                f"train.microbatches is {microbatches}, which does not divide the batch of "
                f"{x.shape[0]} (data.batch_size)"
            )
        return x.reshape(number, microbatches, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, rows)


def _join(parts: PyTree) -> PyTree:
    """Undo `_split`."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), parts)
