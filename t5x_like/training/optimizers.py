"""Optimizers by name, built from plain settings and the logical axes of the parameters.

Also Adafactor's second moments, clipping as in T5X, and moving averages of parameters.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from t5x_like import names
from t5x_like.names import hint
from t5x_like.training import frozen, schedules
from t5x_like.training.frozen import under
from t5x_like.training.layer_rates import by_path, path_of, scale_by_layer, unfreeze_from_top
from t5x_like.training.layer_tensors import matrices, rms, two_sides, without
from t5x_like.training.several_tasks import by_task, keep_absent_heads


def of_sum(
    after: optax.GradientTransformation, *, factor: float = 1.0
) -> optax.GradientTransformationExtraArgs:
    """Convert the gradient of the mean to the gradient of the sum over a factor, and transform it.

    With g the gradient of the mean loss and w the sum of the batch's weights, w g is the gradient
    of the summed loss. The `update` function needs `weight=w`. w g / factor is T5X's gradient with
    this `loss_normalizing_factor`, or with None for a factor of 1.

    Args:
        after: a transformation without state, such as `optax.clip_by_global_norm(limit)`.
        factor: what the sum is divided by.
    """

    def update(
        updates: Any, state: Any, params: Any = None, *, weight: Array, **_: Any
    ) -> tuple[Any, Any]:
        del params
        updates = jax.tree.map(lambda g: g * (weight / factor).astype(g.dtype), updates)
        return after.update(updates, state)

    return optax.GradientTransformationExtraArgs(after.init, update)


class Factored(NamedTuple):
    """Factored second moments of a matrix: its row means and its column means."""

    row: Any
    column: Any


class FactoredRmsState(NamedTuple):
    """The number of steps, and the second moments: `Factored`, or an array of the full shape.

    All moments are float32.
    """

    step: Int[Array, ""]
    second_moment: Any


def scale_by_factored_rms(
    axes: Any, *, decay_exponent: float, min_size: int, epsilon: float, offset: int = 0
) -> optax.GradientTransformation:
    """Divide gradients by the square root of their second moments, see `optimizers.adafactor`."""

    def zeros(param: Array, spec: PartitionSpec) -> Array | Factored:
        sides = two_sides(param.shape, spec, min_size=min_size)
        if sides is None:
            return jnp.zeros(param.shape, jnp.float32)
        return Factored(*(jnp.zeros(without(param.shape, side), jnp.float32) for side in sides))

    def init(params: Any) -> FactoredRmsState:
        _check_axes(params, axes)
        return FactoredRmsState(jnp.zeros((), jnp.int32), jax.tree.map(zeros, params, axes))

    def update(gradients: Any, state: FactoredRmsState, params: Any = None):
        del params
        number = jnp.maximum(state.step + 1 - offset, 1) if offset else state.step + 1
        decay = 1.0 - number.astype(jnp.float32) ** -decay_exponent

        def scaled(gradient: Array, spec: PartitionSpec, moment: Array | Factored):
            gradient = gradient.astype(jnp.float32)
            squared = jnp.square(gradient) + epsilon
            if not isinstance(moment, Factored):
                moment = decay * moment + (1.0 - decay) * squared
                return gradient * jax.lax.rsqrt(moment), moment
            sides = two_sides(gradient.shape, spec, min_size=min_size)
            moment, inverse_roots = _factored_moment(squared, moment, sides=sides, decay=decay)
            return gradient * inverse_roots[0] * inverse_roots[1], moment

        pairs = jax.tree.map(scaled, gradients, axes, state.second_moment)
        updates, moments = (jax.tree.map(lambda _, p, i=i: p[i], axes, pairs) for i in range(2))
        return updates, FactoredRmsState(optax.safe_increment(state.step), moments)

    return optax.GradientTransformation(init, update)


def _factored_moment(
    squared: Array, moment: Factored, *, sides: Any, decay: Array
) -> tuple[Factored, tuple[Array, Array]]:
    """Return the updated moments, and two factors that multiply to 1 / sqrt(V) by broadcasting."""
    means = (jnp.mean(squared, axis=side) for side in sides)
    new = (decay * old + (1.0 - decay) * mean for old, mean in zip(moment, means, strict=True))
    moment = Factored(*new)
    row, column = (jnp.expand_dims(part, side) for part, side in zip(moment, sides, strict=True))
    row /= jnp.mean(row, axis=sides[1], keepdims=True)
    return moment, (jax.lax.rsqrt(row), jax.lax.rsqrt(column))


def _check_axes(params: Any, axes: Any) -> None:
    shapes = {jax.tree_util.keystr(k): v.shape for k, v in jax.tree.leaves_with_path(params)}
    named = {jax.tree_util.keystr(k): tuple(v) for k, v in jax.tree.leaves_with_path(axes)}
    if missing := sorted(shapes.keys() ^ named.keys()):
        raise ValueError(f"the parameters and their logical axes differ in {', '.join(missing)}")
    for path, shape in shapes.items():
        # A module without axis names gives (): its parameters are single, unsharded tensors.
        if len(named[path]) not in (0, len(shape)):
            raise ValueError(f"parameter {path} of shape {shape} has axes named {named[path]}")


def follow(averages: Mapping[str, str], *, decay: float, axes: Any) -> optax.GradientTransformation:
    """Update moving averages of parameters after each step.

    After an update from X to X', the average M of X becomes decay M + (1 - decay) X'. This must be
    the last transformation of a chain, since it needs the final updates of X.

    Args:
        averages: {path of an average: path of the averaged module or parameter}, such as
            {"average": "policy"}; both must have the same parameters.
        decay: in [0, 1).
        axes: the logical axes of all parameters, a tree of PartitionSpecs.

    Raises:
        ValueError: a path has no parameters, the parameters of a pair differ, or the decay is out
            of range.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"optimizer.moving_average_decay={decay} must lie in [0, 1)")
    followed = _followed(averages, axes)

    def update(updates: Any, params: Any) -> Any:
        old, new = by_path(params), by_path(updates)

        def move(keys: Any, leaf: Any) -> Any:
            source = followed.get(path := path_of(keys))
            if source is None:
                return leaf
            return (1 - decay) * (old[source] + new[source] - old[path])

        return jax.tree.map_with_path(move, updates)

    return optax.stateless(update)


def _followed(averages: Mapping[str, str], axes: Any) -> dict[str, str]:
    """Return {path of an average: path of the averaged parameter} for single parameters."""
    specs, sources = by_path(axes), dict[str, str]()
    for average, source in averages.items():
        parts = [
            {path.removeprefix(prefix): spec for path, spec in specs.items() if under(path, prefix)}
            for prefix in (average, source)
        ]
        for prefix, part in zip((average, source), parts, strict=True):
            if not part:
                near = hint(prefix, {path.split("/")[0] for path in specs})
                raise ValueError(
                    f"optimizer.moving_average has {prefix!r}, but no parameter is there.{near}"
                )
        if parts[0] != parts[1]:
            raise ValueError(
                f"optimizer.moving_average: {average!r} cannot be the average of {source!r}, which "
                "has other parameters"
            )
        sources |= {average + path: source + path for path in parts[0]}
    return sources


_SCHEDULE_SETTINGS = (
    "learning_rate",
    "warmup_steps",
    "decay_steps",
    "end_learning_rate",
    "start_learning_rate",
    "schedule_offset",
)
_FIRST_MOMENTS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
_DECAY_SETTINGS = ("weight_decay", "weight_decay_power")
# {setting: its transformation, which has no state}
CLIPS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "clip_norm": optax.clip_by_global_norm,
    "clip_value": optax.clip,
    "clip_sum": lambda limit: of_sum(optax.clip_by_global_norm(limit)),
    "clip_sum_value": lambda limit: of_sum(optax.clip(limit)),
}
_FACTOR = "loss_normalizing_factor"
_COMMON_SETTINGS = (
    "name",
    "schedule",
    *_SCHEDULE_SETTINGS,
    _FACTOR,
    *CLIPS,
    *_DECAY_SETTINGS,
    "layer_decay",
    "frozen",
    "trained",
    "unfreeze_steps",
    "moving_average",
    "moving_average_decay",
)


def build(
    config: Mapping[str, Any], *, axes: Any, owners: Any = None
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Make the optimizer and its learning-rate schedule.

    Args:
        config: the settings below, and the keywords of the optimizer's function in this module.
            A setting that is None has its default.
            `name`: a name in OPTIMIZERS.
            `schedule`, `learning_rate`, `warmup_steps`, `decay_steps`, `end_learning_rate`,
            `start_learning_rate`, `schedule_offset`: see `schedules.build`.
            `loss_normalizing_factor`: the optimizer gets the gradient of the batch's loss sum over
            this number, as in T5X; 0 for the gradient of the mean over the target tokens.
            `clip_norm`: the largest global gradient norm; 0 for no limit.
            `clip_value`: alternatively, the largest absolute value of the gradient's elements.
            `clip_sum`, `clip_sum_value`: alternatively, the same limits for the gradient of the
            batch's loss sum, as in T5X (see `of_sum`).
            `weight_decay`: each step subtracts this times the learning rate times the matrix
            (Loshchilov & Hutter 2019; not for gains and biases); 0 for none.
            `weight_decay_power`: the power of the learning rate in that product: 1, or 2 as in PaLM
            (not for lamb).
            `layer_decay`: the learning rate of a layer relative to the next layer (see
            `layer_rates.scale_by_layer`); 1 for equal rates.
            `frozen`: a tuple of paths of parameters that never change (see `frozen.trainable`);
            they have no optimizer state and do not count in any norm.
            `trained`: names of modules; only their parameters are trained.
            `unfreeze_steps`: the steps over which layers are unfrozen (see
            `layer_rates.unfreeze_from_top`); 0 to train all layers from the beginning.
            `moving_average`, `moving_average_decay`: {path: path of the averaged parameters} and
            the decay (see `optimizers.follow`); the averages have no optimizer state either.
        axes: the logical axis names of every parameter: a tree like the parameters whose leaves
            are tuples or PartitionSpecs (see `flax.linen.get_partition_spec`).
        owners: for a run of several tasks, {parameter: its task} (see `several_tasks.owners`).
            The state of a head then counts the steps of its task, and `update` needs `task=`.

    Raises:
        ValueError: a name or setting is unknown, or a value is out of range. The optimizer's
            `init` raises it if the parameters and `axes` differ.
    """
    settings = {key: value for key, value in dict(config).items() if value is not None}
    make, optimizer_settings = _optimizer_settings(settings)
    schedule = schedules.build(
        settings["schedule"],
        **{key: settings[key] for key in _SCHEDULE_SETTINGS if key in settings},
    )
    axes = everything = as_specs(axes)
    follow = _moving_average(settings, axes=axes)
    trained = frozen.mask_of(settings, axes)
    if trained is not None:
        axes = frozen.select(axes, trained=trained)
        owners = None if owners is None else frozen.select(owners, trained=trained)
    make = functools.partial(make, **optimizer_settings)
    core = make(axes) if owners is None else by_task(make, axes, owners=owners)
    transformations = [core, optax.scale_by_learning_rate(schedule)]
    if _not_negative(settings, "weight_decay") and "weight_decay" not in optimizer_settings:
        transformations.insert(1, _weight_decay(settings, schedule=schedule, axes=axes))
    transformations = _clipping(settings) + transformations
    if owners is not None:
        transformations.append(keep_absent_heads(owners=owners))
    optimizer = optax.chain(*transformations)
    if trained is not None:
        optimizer = frozen.leave_out(optimizer, trained=trained)
    if (decay := settings.get("layer_decay", 1)) != 1:
        by_layer = scale_by_layer(decay, axes=everything, trained=trained)
        optimizer = optax.chain(optimizer, by_layer)
    if (steps := settings.get("unfreeze_steps", 0)) != 0:
        if type(steps) is not int or steps < 0:
            raise ValueError(
                f"optimizer.unfreeze_steps={steps!r} must be a whole number of steps, 0 for none"
            )
        optimizer = optax.chain(optimizer, unfreeze_from_top(steps, axes=everything))
    return optimizer if follow is None else optax.chain(optimizer, follow), schedule


def adafactor(
    axes: Any,
    *,
    decay_exponent: float = 0.8,
    momentum: float = 0.0,
    clipping_threshold: float = 1.0,
    multiply_by_parameter_scale: bool = True,
    min_dim_size_to_factor: int = 128,
    epsilon_gradient: float = 1e-30,
    epsilon_parameter: float = 1e-3,
    decay_offset: int = 0,
) -> optax.GradientTransformation:
    """Adafactor without the learning rate (Shazeer & Stern 2018, algorithms 4 and 5), as in T5.

    At step t = 1, 2, ..., with G the gradient of X, one layer's tensor, and
    beta = 1 - t^-decay_exponent:

        V = beta V + (1 - beta) (G^2 + epsilon_gradient)
        U = G / sqrt(V);   U = U / max(1, RMS(U) / clipping_threshold)
        step = U max(epsilon_parameter, RMS(X))       (if multiply_by_parameter_scale)

    With `decay_offset` n, beta is computed from t - n, and is 0 up to step n + 1: a run that
    continues from a checkpoint of step n so forgets the checkpoint's V, as with T5X's step_offset.

    With `momentum` b, the step is replaced by M = b M + (1 - b) step, starting from M = 0.

    If both sides of a matrix have at least `min_dim_size_to_factor` elements, V is stored as its
    row means R and column means C, and approximated by R C / mean(R). Heads and head width count as
    one side, as in T5's [D, H*K] matrices; of more than two sides the largest two are factored.
    Each layer and each expert is a separate tensor, so stacking them does not change the result
    (`optax.adafactor` treats a stack as one tensor and may factor it along the layers).
    """
    if clipping_threshold <= 0:
        raise ValueError(f"optimizer.clipping_threshold is {clipping_threshold}; it must be > 0")
    if not 0 < decay_exponent < 1:
        raise ValueError(f"optimizer.decay_exponent is {decay_exponent}; it must lie in (0, 1)")
    if decay_offset < 0:
        raise ValueError(f"optimizer.decay_offset is {decay_offset}; it must be 0 or more")
    transformations = [
        scale_by_factored_rms(
            axes,
            decay_exponent=decay_exponent,
            min_size=min_dim_size_to_factor,
            epsilon=epsilon_gradient,
            offset=decay_offset,
        ),
        optax.stateless(
            lambda updates, params: jax.tree.map(
                lambda u, spec: u / jnp.maximum(1.0, rms(u, spec) / clipping_threshold),
                updates,
                axes,
            )
        ),
    ]
    if multiply_by_parameter_scale:
        scale = optax.stateless(
            lambda updates, params: jax.tree.map(
                lambda u, x, spec: u * jnp.maximum(epsilon_parameter, rms(x, spec)),
                updates,
                params,
                axes,
            )
        )
        transformations.append(scale)
    if momentum:
        transformations.append(optax.ema(_below_one("momentum", momentum), debias=False))
    return optax.chain(*transformations)


def adamw(
    axes: Any,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-8,
    first_moment: str = "float32",
) -> optax.GradientTransformation:
    """Adam without the learning rate (Kingma & Ba 2015); it is element-wise, so axes are unused.

    With `weight_decay` in `build` it is AdamW (Loshchilov & Hutter 2019). `first_moment` is the
    dtype of the gradients' mean, `float32` or `bfloat16`; the mean of their squares changes by less
    than the precision of bfloat16, so it is always float32.
    """
    del axes
    b1, b2 = _below_one("b1", b1), _below_one("b2", b2)
    dtype = names.choose("optimizer.first_moment", first_moment, _FIRST_MOMENTS)
    return optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon, mu_dtype=dtype)


def adamax(
    axes: Any, *, b1: float = 0.9, b2: float = 0.999, epsilon: float = 1e-8
) -> optax.GradientTransformation:
    """Adamax without the learning rate (Kingma & Ba 2015, algorithm 2), element-wise."""
    del axes
    return optax.scale_by_adamax(_below_one("b1", b1), _below_one("b2", b2), eps=epsilon)


def lamb(
    axes: Any,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    first_moment: str = "float32",
) -> optax.GradientTransformation:
    """LAMB without the learning rate (You et al. 2020, algorithm 2), the optimizer of ALBERT.

    With r Adam's step for X, one layer's tensor, and |.| the norm over all its elements:

        U = r + weight_decay X;   step = U |X| / |U|

    The trust ratio |X| / |U| is 1 if either norm is 0, and for gains and biases, which have no
    weight decay; the algorithm leaves this open, and the authors' code does so. (`optax.lamb` also
    has a ratio for gains and biases, and a single ratio for all layers of a stack.)
    """

    def scale(update: Array, param: Array, spec: PartitionSpec, matrix: bool) -> Array:
        if not matrix:
            return update
        norms = rms(param, spec), rms(update, spec)  # equal sizes: RMS ratio = norm ratio
        zero = (norms[0] == 0) | (norms[1] == 0)
        return update * jnp.where(zero, 1.0, norms[0] / jnp.where(zero, 1.0, norms[1]))

    return optax.chain(
        adamw(axes, b1=b1, b2=b2, epsilon=epsilon, first_moment=first_moment),
        optax.add_decayed_weights(weight_decay, mask=matrices(axes)),
        optax.stateless(
            lambda updates, params: jax.tree.map(
                scale, updates, params, axes, matrices(axes)(params)
            )
        ),
    )


def sgd(axes: Any, *, momentum: float = 0.0) -> optax.GradientTransformation:
    """SGD without the learning rate: the gradient, or with `momentum` its heavy-ball average."""
    del axes
    momentum = _below_one("momentum", momentum)
    return optax.trace(decay=momentum) if momentum else optax.identity()


def adagrad(axes: Any, *, initial_accumulator: float = 0.1) -> optax.GradientTransformation:
    """Adagrad without the learning rate (Duchi et al. 2011), element-wise: g / sqrt(A).

    A is `initial_accumulator` plus the sum of g^2 over all steps up to the current one.
    """
    del axes
    if initial_accumulator < 0:
        raise ValueError(f"optimizer.initial_accumulator is {initial_accumulator}; it must be >= 0")
    return optax.scale_by_rss(initial_accumulator_value=initial_accumulator, eps=0.0)


def lion(
    axes: Any, *, b1: float = 0.9, b2: float = 0.99, first_moment: str = "float32"
) -> optax.GradientTransformation:
    """Lion without the learning rate (Chen et al. 2023, algorithm 2), element-wise.

    With G the gradient and M = 0 at first: step = sign(b1 M + (1 - b1) G);
    M = b2 M + (1 - b2) G. M is stored as `first_moment`, float32 or bfloat16.
    """
    del axes
    kind = names.choose("optimizer.first_moment", first_moment, _FIRST_MOMENTS)
    return optax.scale_by_lion(_below_one("b1", b1), _below_one("b2", b2), mu_dtype=kind)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adafactor": adafactor,
    "adamw": adamw,
    "adamax": adamax,
    "lamb": lamb,
    "lion": lion,
    "sgd": sgd,
    "adagrad": adagrad,
}


def state_axes(state: Any, *, params: Any, axes: Any) -> Any:
    """Return the logical axes of an optimizer's state: a tree like `state` of PartitionSpecs.

    Moments are sharded like their parameters: a moment of the full shape has the parameter's axes,
    a factored moment the axes that remain. Everything else (counters) has no axes. A frozen
    parameter has no moments.

    Args:
        state: the optimizer's state or its shapes, `jax.eval_shape(optimizer.init, params)`.
        params: the parameters or their shapes.
        axes: the logical axes of the parameters, see `build`.
    """
    axes = as_specs(axes)
    structure: Any = jax.tree.structure(params)

    def is_moment(node: Any) -> bool:
        return isinstance(node, Factored | optax.MaskedNode)

    def like_params(node: Any) -> bool:
        return structure == jax.tree.structure(node, is_leaf=is_moment)

    def of_moment(param: Any, spec: PartitionSpec, moment: Any) -> Any:
        if isinstance(moment, optax.MaskedNode):
            return moment
        sides = two_sides(param.shape, spec, min_size=1)
        if sides and isinstance(moment, Factored):
            row, column = (PartitionSpec(*without(tuple(spec), side)) for side in sides)
            return Factored(row=row, column=column)
        return spec if moment.shape == param.shape else PartitionSpec()

    def of_node(node: Any) -> Any:
        if like_params(node):
            return jax.tree.map(of_moment, params, axes, node)
        return PartitionSpec()

    return jax.tree.map(of_node, state, is_leaf=like_params)


def _optimizer_settings(
    settings: Mapping[str, Any],
) -> tuple[Callable[..., optax.GradientTransformation], dict[str, Any]]:
    """Return the optimizer's function, and the settings that are its keywords."""
    for key in ("name", "schedule", "learning_rate"):
        if key not in settings:
            raise ValueError(f"optimizer.{key} is not set")
    make = names.choose("optimizer.name", settings["name"], OPTIMIZERS)
    keywords = [key for key in inspect.signature(make).parameters if key != "axes"]
    allowed = {*_COMMON_SETTINGS, *keywords}
    if unknown := [key for key in settings if key not in allowed]:
        hint = names.hint(unknown[0], allowed)
        raise ValueError(f"optimizer.{unknown[0]} is not a setting of {settings['name']}.{hint}")
    of_make, of_schedule = (
        {key: settings[key] for key in keys if key in settings}
        for keys in (keywords, _SCHEDULE_SETTINGS)
    )
    names.check_settings("optimizer", make, of_make, given=("axes",))
    names.check_settings("optimizer", schedules.build, of_schedule, given=("name",))
    for key, value in of_make.items():
        if key.startswith("epsilon") and not value >= 0:
            raise ValueError(f"optimizer.{key}={value} must be 0 or more")
    return make, of_make


def _moving_average(
    settings: Mapping[str, Any], *, axes: Any
) -> optax.GradientTransformation | None:
    """Make the transformation for the setting `moving_average`; None without averages."""
    averages, decay = settings.get("moving_average"), settings.get("moving_average_decay")
    if (not averages) != (decay is None):
        raise ValueError(
            f"optimizer.moving_average={dict(averages or {})} and "
            f"optimizer.moving_average_decay={decay}: set both or neither"
        )
    if not averages or decay is None:
        return None
    return follow(averages, decay=decay, axes=axes)


def _not_negative(settings: Mapping[str, Any], key: str) -> float:
    value = settings.get(key, 0.0)
    if type(value) not in (int, float) or not value >= 0:
        raise ValueError(f"optimizer.{key} is {value!r}; it must be 0 (off) or more")
    return value


def _clipping(settings: Mapping[str, Any]) -> list[optax.GradientTransformation]:
    limits = {name: limit for name in CLIPS if (limit := _not_negative(settings, name))}
    factor = _not_negative(settings, _FACTOR)
    sums = [name for name in limits if name.startswith("clip_sum")]
    if factor and sums:
        raise ValueError(
            f"optimizer.{_FACTOR}={factor} and optimizer.{sums[0]}={limits[sums[0]]}: set "
            "clip_norm or clip_value, which then limit the gradient of the sum"
        )
    if len(limits) > 1:
        both = " and ".join(f"optimizer.{name}={limit}" for name, limit in limits.items())
        raise ValueError(f"{both}: set one of them, and the others to 0")
    normalization = [of_sum(optax.identity(), factor=factor)] if factor else []
    return [*normalization, *(CLIPS[name](limit) for name, limit in limits.items())]


def _weight_decay(
    settings: Mapping[str, Any], *, schedule: optax.Schedule, axes: Any
) -> optax.GradientTransformation:
    """Make the weight decay of matrices, applied before multiplying by the learning rate."""
    rate = settings["weight_decay"]
    powers: dict[Any, Any] = {1: rate, 2: lambda step: rate * schedule(step)}
    power = settings.get("weight_decay_power", 1)
    rate_at = names.choose("optimizer.weight_decay_power", power, powers)
    return optax.add_decayed_weights(rate_at, mask=matrices(axes))


def _below_one(key: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"optimizer.{key} is {value}; it must lie in [0, 1)")
    return value


def as_specs(axes: Any) -> Any:
    """Replace tuples in a tree by PartitionSpecs, which JAX treats as leaves."""

    def is_names(node: Any) -> bool:
        return type(node) in (tuple, PartitionSpec)

    return jax.tree.map(lambda leaf: PartitionSpec(*leaf), axes, is_leaf=is_names)
