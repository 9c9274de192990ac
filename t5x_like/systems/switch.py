"""Switch Transformer: Fedus, Zoph and Shazeer 2022 (arXiv:2101.03961), a T5 with sparse layers.

Every second feed-forward sublayer, or every sublayer, is a set of experts, and a router chooses one
expert for each token: the network has more parameters for the same computation.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
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


def _size(dense: str, **changes: Any) -> SwitchConfig:
    return t5.SIZES[dense].to(SwitchConfig, **{"dropout": 0.0, **changes})


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
    older_defaults={
        name: t5.SYSTEM.older_defaults[name]
        for name in t5.SYSTEM.older_defaults
        if name != "quantization"
    },
    adapt=t5.SYSTEM.adapt,
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)


# Switch Transformer in Hugging Face's folders.


def _layer_weights(ours: str, theirs: str, *attentions: str) -> dict[str, Any]:
    weights: dict[str, Any] = {}
    for n, attention in enumerate(attentions):
        name = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}[attention]
        weights[f"{ours}/{attention}_norm/scale"] = f"{theirs}.{n}.layer_norm.weight"
        weights |= t5.attention_weights(f"{ours}/{attention}", f"{theirs}.{n}.{name}")
    theirs = f"{theirs}.{len(attentions)}"
    expert = f"{theirs}.mlp.experts.expert_{{expert}}"
    feed_forward = f"{ours}/feed_forward"
    return weights | {
        f"{feed_forward}_norm/scale": f"{theirs}.layer_norm.weight",
        f"{feed_forward}/wi/kernel": (f"{theirs}.mlp.wi.weight", "F D -> D F"),
        f"{feed_forward}/wo/kernel": (f"{theirs}.mlp.wo.weight", "D F -> F D"),
        f"{feed_forward}/router/kernel": (f"{theirs}.mlp.router.classifier.weight", "E D -> D E"),
        f"{feed_forward}/experts/wi/kernel": (f"{expert}.wi.weight", "F D -> D F"),
        f"{feed_forward}/experts/wo/kernel": (f"{expert}.wo.weight", "D F -> F D"),
    }


def _tower_weights(tower: str, *attentions: str) -> dict[str, Any]:
    block = f"{tower}/layers/{{layer}}"
    first = f"{tower}.block.0.layer.0.SelfAttention"
    weights = {
        f"{tower}/relative_position_bias/embedding": f"{first}.relative_attention_bias.weight",
        f"{tower}/final_norm/scale": f"{tower}.final_layer_norm.weight",
        **_layer_weights(block, f"{tower}.block.{{layer}}.layer", *attentions),
    }
    for n in (0, 1):  # used if every second layer is sparse
        layer = f"{tower}.block.{{2*layer+{n}}}.layer"
        weights |= _layer_weights(f"{block}/block_{n}", layer, *attentions)
    return weights


# The only supported values of settings that are read but not written.
_READ_ONLY = {
    "add_cross_attention": False,
    "feed_forward_proj": "relu",
    "is_gated_act": False,
    "num_selected_experts": 1,
}
_SPARSE = {
    "num_layers": "num_sparse_encoder_layers",
    "num_decoder_layers": "num_sparse_decoder_layers",
}
_SUPPORTED: dict[str, tuple] = {
    "architecture": ("encoder_decoder",),
    "feed_forward": ("relu",),
    "router": ("switch",),
    "sparse_every": (1, 2),
    # If this is false, transformers 5 initializes the embeddings randomly.
    "tied_head": (True,),
    "scale_tied_logits": (True,),
    "scaled_scores": (False,),
    "d_adapter": (0,),
}
# Hugging Face's capacity must be a number; a capacity above any number of tokens drops none.
_SLOTS_FOR_ALL = 2**20


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    t5.check_relative_positions(settings)
    for key, value in _READ_ONLY.items():
        one_of(value).check(key, config.get(key, value))
    # transformers makes the second of every (layers / sparse layers) layers sparse.
    every = {config[layers] / max(config[sparse], 1) for layers, sparse in _SPARSE.items()}
    if every not in ({1}, {2}):
        numbers = ", ".join(f"{key}={config[key]}" for pair in _SPARSE.items() for key in pair)
        raise ValueError(
            f"config.json has {numbers}: all layers must be sparse, or every second one, the "
            "same on both sides"
        )
    for side in ("encoder", "decoder"):
        step = min(every)
        one_of(step).check(f"{side}_sparse_step", config.get(f"{side}_sparse_step", step))
    dropless = {"dispatch": "dropless", "expert_capacity": 0}
    return {
        **(dropless if settings["expert_capacity"] >= _SLOTS_FOR_ALL else {}),
        "sparse_every": int(every.pop()),
        "group_size": 0,  # the capacity is per row
        "expert_dropout": settings["dropout"],
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    for name, allowed in _SUPPORTED.items():
        if settings[name] not in allowed:
            raise ValueError(
                f"model.{name}={settings[name]!r}: Hugging Face's Switch Transformer supports only "
                f"{' and '.join(map(repr, allowed))}"
            )
    every, dropless = settings["sparse_every"], settings["dispatch"] == "dropless"
    return {
        "num_sparse_encoder_layers": settings["encoder_layers"] // every,
        "num_sparse_decoder_layers": settings["decoder_layers"] // every,
        "expert_capacity": (not dropless and settings["expert_capacity"]) or _SLOTS_FOR_ALL,
    }


HUGGING_FACE = HuggingFaceFormat(
    system="switch",
    model_types={"switch_transformers": "SwitchTransformers"},
    class_suffix="ForConditionalGeneration",
    defaults=SIZES["base_8"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "num_layers": Setting("encoder_layers", LAYERS),
        "num_decoder_layers": Setting("decoder_layers", LAYERS),
        "num_sparse_encoder_layers": Setting("", integers(0, 10_000)),
        "num_sparse_decoder_layers": Setting("", integers(0, 10_000)),
        "d_model": Setting("d_model", COUNT),
        "d_ff": Setting("d_ff", COUNT),
        "num_heads": Setting("heads", COUNT),
        "d_kv": Setting("d_kv", COUNT),
        "num_experts": Setting("experts", COUNT),
        "expert_capacity": Setting("expert_capacity", COUNT),
        "dropout_rate": Setting("dropout", RATE, default=0.1),
        **t5.RELATIVE_POSITIONS,
        "router_jitter_noise": Setting("jitter", RATE, default=0.01),
        "tie_word_embeddings": Setting("tied_head", FLAG, default=True),
    },
    other_names=t5.OTHER_NAMES,
    fixed={
        "is_encoder_decoder": True,
        "dense_act_fn": "relu",
        "layer_norm_epsilon": 1e-6,
        "router_bias": False,
        "router_dtype": "float32",
        "router_ignore_padding_tokens": False,
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "shared.weight",
        "lm_head/kernel": ("lm_head.weight", "V D -> D V"),
        **_tower_weights("encoder", "self_attention"),
        **_tower_weights("decoder", "self_attention", "cross_attention"),
    },
    aliases=t5.HUGGING_FACE.aliases,
)
