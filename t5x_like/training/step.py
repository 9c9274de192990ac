"""The train state, and the training and evaluation steps of all systems.

The state is everything in a checkpoint except the position in the data. The steps are pure
functions, for the caller to jit.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree, UInt32

from t5x_like import names, partitioning
from t5x_like.training import metrics as metrics_lib
from t5x_like.training import optimizers
from t5x_like.training.metrics import Metrics


class TrainState(flax.struct.PyTreeNode):
    """The state of a run after `step` steps, all plain arrays.

    Attributes:
        step: the number of steps taken.
        params: the parameters.
        opt_state: the optimizer's state.
        rng: the raw data of a PRNG key that never changes. The random numbers of step s come from
            this key folded with s, so a resumed run uses the same numbers as an uninterrupted run.
        carry: the memory that is passed from batch to batch, arrays [B, ...]; in a run of several
            tasks {task: memory}. None for tasks without a memory.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    rng: UInt32[Array, "..."]
    carry: Any = None


def create_state(params: Any, *, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """Create the state before the first step, without a memory.

    It can be jitted, or traced by `jax.eval_shape` for the shapes.

    Args:
        params: plain (unboxed) arrays.
    """
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(jax.random.key(seed)),
    )


def logical_axes(state: TrainState, *, axes: Any) -> TrainState:
    """Return the logical axes of a state without a memory: a tree like `state` of PartitionSpecs.

    Args:
        state: the state or its shapes.
        axes: the logical axes of the parameters, see `optimizers.build`.
    """
    return state.replace(
        step=PartitionSpec(),
        params=optimizers.as_specs(axes),
        opt_state=optimizers.state_axes(state.opt_state, params=state.params, axes=axes),
        rng=PartitionSpec(),
    )


DeviceBatch = Mapping[str, Array]
Sums = dict[str, tuple[Array, Array]]
# (params, batch, key or None for evaluation) -> (loss sum, weight, {metric: (sum, weight)}). With a
# memory it is also called with `carry=`, and returns ((loss sum, weight, metrics), next memory).
StepLoss = Callable[..., Any]
# (state, batch, key) -> the batch that the loss reads.
Prepare = Callable[[TrainState, DeviceBatch, Array], DeviceBatch]

SKIPPED = "steps_skipped"

# `threefry` gives the same numbers on every mesh and device. `unsafe_rbg`, the hardware generator,
# is faster on TPUs, but its numbers depend on mesh and device, and its keys are mixed less well.
RANDOM_BITS = ("threefry", "unsafe_rbg")

# Folded into the key of a state for `prepare` and for the order of rows. For dropout the key is
# folded with the step instead, so these must be larger than any step.
_PREPARING, _SHUFFLING = 2**32 - 1, 2**32 - 2


def make_train_step(
    loss: StepLoss,
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
) -> Callable[[TrainState, DeviceBatch], tuple[TrainState, Metrics]]:
    """Make `step(state, batch) -> (state, metrics)`.

    It follows the gradient of (sum of the losses of the whole batch) / (sum of its weights), for
    any number of microbatches: a microbatch with fewer target tokens counts less, and without
    dropout the step equals the step of the undivided batch up to float rounding.

    A memory in the state (`TrainState.carry`) is passed through the loss; each row of a microbatch
    gets the memory of its row of the batch.

    The metrics are the metrics of the loss, `loss` (including z-loss and smoothing), `perplexity`,
    `grad_norm` (before clipping), `param_norm` (before the step), `learning_rate`, and for batches
    with segments `filled`, the share of positions that are not padding.

    A batch whose weights are all 0 has a gradient of 0, and its metrics have count 0. If the loss
    or gradient is not finite, so are `loss` and `grad_norm`, and `metrics.require_finite` stops the
    run.

    With several minibatches or inner epochs the optimizer updates the parameters several times in
    one step. The metrics are then summed over all updates.

    Args:
        loss: the loss function, see `StepLoss`.
        optimizer: the optimizer.
        schedule: the learning-rate schedule, for the metric `learning_rate`.
        microbatches: the number of parts of a batch (or minibatch) for gradient accumulation.
        minibatches: the number of parts that the rows of a batch are divided into, in random order;
            the optimizer makes an update for each. Not for a loss with a memory.
        inner_epochs: the number of passes over the batch in a step, each in a different order.
        shardings: the shardings of the parameters, applied to the gradients at once, so that
            devices exchange only parts of a sharded parameter's gradient; None on one device.
        task: the task of the loss, in a run of several tasks. The heads of other tasks and their
            optimizer state do not change.
        skip_nonfinite: whether a step whose loss or gradient is not finite changes only the step
            number. Its metrics have count 0, except for `steps_skipped`, the share of such steps.
        random_bits: the random generator of dropout and other noise, a name in RANDOM_BITS.

    Raises:
        ValueError: `microbatches`, `minibatches` or `inner_epochs` is below 1; when traced, one of
            the first two does not divide the batch; or the generator is unknown.
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

    def step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
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
    loss: StepLoss,
    optimize: Callable[..., tuple[Any, Any]],
    state: TrainState,
    batch: DeviceBatch,
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
    updates, opt_state = optimize(
        gradient, state.opt_state, state.params, task=task, weight=total.weight
    )
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
    """Return the global norm of a tree.

    On a CPU behind a barrier: XLA would otherwise share the squares with Adam's second moment, and
    so write them to memory, whereas two separate reductions write nothing.
    """
    return optax.tree.norm(
        jax.lax.optimization_barrier(tree) if partitioning.platform() == "cpu" else tree
    )


def _order(
    state: TrainState, batch: DeviceBatch, *, minibatches: int, inner_epochs: int
) -> Int[Array, "U R"]:
    """Return the rows of each update's minibatch: each epoch has all rows once, in random order."""
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
    batch: DeviceBatch,
    key: Array,
    *,
    order: Int[Array, "U R"],
) -> tuple[TrainState, Metrics]:
    """Update the state once per minibatch of rows, in sequence, and sum the metrics."""

    def update_once(
        state: TrainState, xs: tuple[Array, Array, Array]
    ) -> tuple[TrainState, Metrics]:
        number, rows, key = xs
        return update(state, jax.tree.map(lambda x: _spread(x[rows]), batch), key, number)

    updates = len(order)
    keys = jax.random.split(key, updates)
    state, metrics = jax.lax.scan(update_once, state, (jnp.arange(updates), order, keys))
    return state, jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)


def _spread(rows: Array) -> Any:
    """Shard rows over the devices of the mesh, like a batch."""
    return partitioning.constrain(rows, ("activation_batch", *[None] * (rows.ndim - 1)))


def _filled(batch: DeviceBatch) -> Sums:
    """Return the metric `filled`, the share of positions that are not padding, or {}.

    A row of targets that is not packed has no segments, but weights.
    """
    segments = [name for name in batch if name.endswith("_segment_ids")]
    if not segments:
        return {}
    weights = "decoder_loss_weights"
    if weights in batch and "decoder_segment_ids" not in segments:
        segments.append(weights)
    rows = [batch[name] for name in segments]
    tokens = jnp.stack([jnp.sum(x > 0, dtype=jnp.float32) for x in rows])
    return {"filled": (jnp.sum(tokens), jnp.float32(sum(x.size for x in rows)))}


def _hardware_key(key: Array) -> Array:
    """Convert a threefry key to an `unsafe_rbg` key, as JAX derives it from a seed."""
    half = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.concatenate([half, half]), impl="unsafe_rbg")


def _unless_nonfinite(
    state: TrainState, new: TrainState, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    """Return the result of an update; if it is not finite, the state before the update."""
    watched = jnp.stack([metrics[name].total for name in ("loss", "grad_norm")])
    finite = jnp.all(jnp.isfinite(watched))
    new = jax.tree.map(lambda x, before: jnp.where(finite, x, before), new, state)
    metrics = jax.tree.map(lambda x: jnp.where(finite, x, 0), metrics)
    return new, metrics | {SKIPPED: metrics_lib.from_value(~finite)}


def make_prepare_step(prepare: Prepare) -> Callable[[TrainState, DeviceBatch], DeviceBatch]:
    """Make `step(state, batch) -> batch`, which completes a batch before the training step.

    It is a separate program, so that sampling and scoring hold no memory during the update, and the
    state, which it only reads, can be donated to the update.
    """
    return functools.partial(_prepared, prepare)


def make_eval_step(
    loss: StepLoss, *, prepare: Prepare | None = None
) -> Callable[..., tuple[Metrics, PyTree]]:
    """Make `step(params, batch, carry=None, number=0) -> (metrics, carry)`, without dropout.

    `carry` is the memory before the batch; None for a task without a memory. `number` counts the
    batches of the evaluation: `prepare` gets a different key for each, the same in every
    evaluation, and a state without optimizer state.
    """

    def step(
        params: Any, batch: DeviceBatch, carry: PyTree = None, number: Int[Array, ""] | int = 0
    ) -> tuple[Metrics, PyTree]:
        rng = jax.random.key_data(jax.random.key(0))
        state = TrainState(step=jnp.int32(number), params=params, opt_state=None, rng=rng)
        batch = _prepared(prepare, state, batch)
        (loss_sum, weight, sums), carry = _apply(loss, params, batch, None, carry)
        return metrics_lib.from_sums({"loss": (loss_sum, weight), **sums}), carry

    return step


def _prepared(prepare: Prepare | None, state: TrainState, batch: DeviceBatch) -> DeviceBatch:
    if prepare is None:
        return batch
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), _PREPARING)
    return prepare(state, batch, jax.random.fold_in(key, state.step))


def _memory(carry: PyTree, task: str) -> PyTree:
    """Return the memory of a task; None if it has no memory."""
    return (carry or {}).get(task) if task else carry


def _with_memory(carry: PyTree, task: str, memory: PyTree) -> PyTree:
    """Return the `carry` of a state, with the next memory of a task."""
    if memory is None:
        return carry
    return {**carry, task: memory} if task else memory


def _apply(
    loss: StepLoss, params: Any, batch: DeviceBatch, key: Array | None, memory: PyTree
) -> tuple[Any, PyTree]:
    """Return the loss sums and the next memory."""
    if memory is None:
        return loss(params, batch, key), None
    return loss(params, batch, key, carry=memory)


class _Total(NamedTuple):
    """Sums over rows: gradient (float32, of the loss sum or mean), loss, weight and metrics."""

    gradient: Any
    loss: Float[Array, ""]
    weight: Float[Array, ""]
    sums: Sums


def _sums(
    loss: StepLoss,
    params: Any,
    shardings: PyTree,
    rows: tuple[DeviceBatch, PyTree],
    key: Array,
    *,
    mean: bool,
) -> tuple[_Total, PyTree]:
    """Return the sums over some rows, and the memory after them.

    `rows` is the batch and the memory before it. With `mean`, return the gradient of the mean loss;
    the cotangent of the loss is divided rather than the gradient, to save a pass over the gradient.
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
    """Return 1 / weight; 1 if the weight is 0, since the sum is then 0 as well."""
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
    """Sum over the microbatches in sequence, so that only one has activations in memory.

    With one microbatch it is the gradient of the mean loss; otherwise of the loss sum.
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
    """Reshape arrays [B, ...] to [M, B/M, ...] for M microbatches; row i goes to i mod M.

    With this interleaving each device's block of rows contributes to every microbatch, so that no
    rows of a sharded batch move between devices.
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
