"""Switch Transformer in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, FLAG, LAYERS, RATE, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import t5
from t5x_like.systems.switch import SIZES


def _layer_weights(here: str, there: str, *attentions: str) -> dict[str, Any]:
    weights: dict[str, Any] = {}
    for n, attention in enumerate(attentions):
        name = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}[attention]
        weights[f"{here}/{attention}_norm/scale"] = f"{there}.{n}.layer_norm.weight"
        weights |= t5.attention_weights(f"{here}/{attention}", f"{there}.{n}.{name}")
    there = f"{there}.{len(attentions)}"
    expert = f"{there}.mlp.experts.expert_{{expert}}"
    own = f"{here}/feed_forward"
    return weights | {
        f"{own}_norm/scale": f"{there}.layer_norm.weight",
        f"{own}/wi/kernel": (f"{there}.mlp.wi.weight", "F D -> D F"),
        f"{own}/wo/kernel": (f"{there}.mlp.wo.weight", "D F -> F D"),
        f"{own}/router/kernel": (f"{there}.mlp.router.classifier.weight", "E D -> D E"),
        f"{own}/experts/wi/kernel": (f"{expert}.wi.weight", "F D -> D F"),
        f"{own}/experts/wo/kernel": (f"{expert}.wo.weight", "D F -> F D"),
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
        there = f"{tower}.block.{{2*layer+{n}}}.layer"
        weights |= _layer_weights(f"{block}/block_{n}", there, *attentions)
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
        found = ", ".join(f"{key}={config[key]}" for pair in _SPARSE.items() for key in pair)
        raise ValueError(
            f"config.json has {found}: all layers must be sparse, or every second one, the same on "
            "both sides"
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


FORMAT = HuggingFaceFormat(
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
    aliases=t5.FORMAT.aliases,
)
