"""Switch Transformer: Fedus, Zoph and Shazeer 2022 (arXiv:2101.03961), a T5 with sparse layers.

Every second feed-forward sublayer, or every sublayer, is a set of experts, and a router chooses one
expert for each token: the network has more parameters for the same computation.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.names import choose
from t5x_like.nn import moe
from t5x_like.nn.compute import Batch
from t5x_like.systems import t5
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SwitchConfig(t5.UnquantizedT5Config):
    """The settings of a Switch Transformer, without `quantization`, which experts do not have."""

    dropout: float = 0.0
    expert_dropout: float = 0.0
    experts: int = 128
    sparse_every: int = 2
    router: str = "switch"
    jitter: float = 0.01
    capacity_factor: float = 1.25
    eval_capacity_factor: float = 2.0
    expert_capacity: int = 0
    group_size: int = 4096
    dispatch: str = "capacity"
    init_scale: float = 0.1


def _size(dense: str, **own: Any) -> SwitchConfig:
    return t5.SIZES[dense].to(SwitchConfig, **{"dropout": 0.0, **own})


def _base(experts: int) -> SwitchConfig:
    return _size("v1_0_base", experts=experts, group_size=8192)


# The released models. Each except c has the same computation per token as a T5.
# docs/systems/switch.md lists the differences from table 9.
SIZES: dict[str, SwitchConfig] = {
    "base_8": _base(8),
    "base_16": _base(16),
    "base_32": _base(32),
    "base_64": _base(64),
    "base_128": _base(128),
    "base_256": _base(256),
    "large_128": _size("v1_0_large"),
    "xxl_128": _size("xxl", eval_capacity_factor=4.0),
    "c_2048": _size(
        "v1_0_base",
        encoder_layers=15,
        decoder_layers=15,
        d_model=2080,
        d_ff=6144,
        heads=30,
        tied_head=False,
        experts=2048,
        sparse_every=1,
        capacity_factor=2.0,  # the released model has 1.0, but at least two slots
        group_size=2048,
    ),
}


def build(config: SwitchConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES: T5's, with any `architecture`.

    In each group of `sparse_every` layers, the second layer is sparse; in groups of 1, every layer.

    Raises:
        ValueError: the value of a setting does not exist or is out of range, or the number of
            layers is not a multiple of `sparse_every`.
    """
    _check(config)
    dense = config.to(t5.T5Config)

    def make_init(deviation: float) -> nn.initializers.Initializer:
        """Return a truncated normal, scaled by `init_scale` (section 2.4).

        It is truncated at two deviations, and its deviation is sqrt(s / n), where T5 has
        sqrt(1 / n) = `deviation`.
        """
        untruncated = deviation * math.sqrt(config.init_scale) / _TRUNCATED
        return nn.initializers.truncated_normal(untruncated)

    make_feed_forwards = [t5.feed_forward(dense, make_init=make_init)] * config.sparse_every
    make_feed_forwards[1 % config.sparse_every] = _sparse(config, make_init=make_init)
    return t5.network(dense, make_feed_forwards=tuple(make_feed_forwards), make_init=make_init)


_TRUNCATED = 0.8796256610342398  # standard deviation of a standard normal truncated at -2 and 2


def _sparse(config: SwitchConfig, *, make_init: t5.MakeInit) -> Callable[..., nn.Module]:
    d_model = config.d_model
    learned = {"jitter": config.jitter, "kernel_init": make_init(d_model**-0.5)}
    makers: dict[str, Callable[..., moe.Router]] = {
        "switch": functools.partial(moe.SwitchRouter, **learned),
        "top2": functools.partial(moe.Top2Router, **learned),
        "expert_choice": functools.partial(moe.ExpertChoiceRouter, **learned),
        "hash": moe.HashRouter,
        "random": moe.RandomRouter,
    }
    make_router = choose("model.router", config.router, makers)
    gated = config.feed_forward == "gated_gelu"
    return functools.partial(
        moe.SparseFeedForward,
        make_router=functools.partial(make_router, experts=config.experts),
        make_experts=functools.partial(
            moe.Experts,
            experts=config.experts,
            hidden=config.d_ff,
            gated=gated,
            activation=nn.gelu if gated else nn.relu,
            wi_init=make_init(d_model**-0.5),
            wo_init=make_init(config.d_ff**-0.5),
            compute=dataclasses.replace(config.compute, dropout=config.expert_dropout),
        ),
        capacity_factor=config.capacity_factor,
        eval_capacity_factor=config.eval_capacity_factor,
        expert_capacity=config.expert_capacity,
        group_size=config.group_size,
        dispatch=config.dispatch,
    )


# The lower bound of each setting, and whether the bound itself is excluded.
_BOUNDS = {
    "experts": (1, False),
    "sparse_every": (1, False),
    "capacity_factor": (0, True),
    "eval_capacity_factor": (0, True),
    "expert_capacity": (0, False),
    "group_size": (0, False),
    "jitter": (0, False),
    "expert_dropout": (0, False),
    "init_scale": (0, True),
}


def _check(config: SwitchConfig) -> None:
    for name, (least, above) in _BOUNDS.items():
        if config[name] < least or (above and config[name] == least):
            bound = f"above {least}" if above else f"at least {least}"
            raise ValueError(f"model.{name}={config[name]} must be {bound}")
    for name in ("encoder_layers", "decoder_layers"):
        if config[name] % config.sparse_every:
            raise ValueError(
                f"model.{name}={config[name]} must be a multiple of "
                f"model.sparse_every={config.sparse_every}: one layer in each group is sparse"
            )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    load_balance: float = 0.01,
    router_z_loss: float = 0.0,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> losses.LossSums:
    """Return the cross-entropy of the target tokens plus the losses of the routers.

    The losses of all routers are summed, and weighted like the cross-entropy of a target token.

    Args:
        rng: key of dropout and of the routers' noise; None in evaluation.
        load_balance: weight of the load balancing loss, alpha in section 2.2, equation 4.
        router_z_loss: weight of the router z-loss (Zoph et al. 2022, ST-MoE, equation 5), which the
            paper does not have.
        z_loss, label_smoothing: see `losses.cross_entropy`.

    Returns:
        The sum of the losses, the sum of the weights, the metrics of `losses.cross_entropy`, and
        for M sparse layers of E experts: `expert_load` [M, E], the share of the tokens that each
        expert received; `tokens_dropped` [M], the share without a slot; `load_balance` (1 for
        equal loads) and `router_z`, means over the layers.
    """
    logits, sown = losses.forward(
        module, params, batch, rng, method="logits_product", mutable=["routing"]
    )
    total, weight, metrics = losses.cross_entropy(
        logits,
        batch["decoder_target_tokens"],
        batch["decoder_loss_weights"],
        z_loss=z_loss,
        label_smoothing=label_smoothing,
    )
    routing = moe.collect(sown["routing"])
    routers_loss = jnp.sum(load_balance * routing["balance"] + router_z_loss * routing["z"])
    observed = {
        "expert_load": routing["load"],
        "tokens_dropped": routing["dropped"],
        "load_balance": jnp.mean(routing["balance"]),
        "router_z": jnp.mean(routing["z"]),
    }
    metrics |= {name: (jax.lax.stop_gradient(x), jnp.ones(())) for name, x in observed.items()}
    return total + weight * routers_loss, weight, metrics


SYSTEM = System(
    name="switch",
    sizes=SIZES,
    build=build,
    later={name: t5.SYSTEM.later[name] for name in t5.SYSTEM.later if name != "quantization"},
    adapt=t5.SYSTEM.adapt,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
