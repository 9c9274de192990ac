"""Switch Transformer in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings
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
    for n in (0, 1):  # where every second layer is sparse
        there = f"{tower}.block.{{2*layer+{n}}}.layer"
        weights |= _layer_weights(f"{block}/block_{n}", there, *attentions)
    return weights


_SETTINGS = {
    "vocab_size": "vocab_size",
    "num_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "d_model": "d_model",
    "d_ff": "d_ff",
    "num_heads": "heads",
    "d_kv": "d_kv",
    "num_experts": "experts",
    "expert_capacity": "expert_capacity",
}
_FIXED = {
    "is_encoder_decoder": True,
    "dense_act_fn": "relu",
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "router_bias": False,
    "router_dtype": "float32",
    "router_ignore_padding_tokens": False,
}
# Settings that only the released folders have.
_FIXED_THERE = {"feed_forward_proj": "relu", "is_gated_act": False, "num_selected_experts": 1}
# Hugging Face's capacity is always a number; one above any number of tokens drops none.
_SLOTS_FOR_ALL = 2**20


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    sparse = {"num_layers": "num_sparse_encoder_layers"}
    sparse |= {"num_decoder_layers": "num_sparse_decoder_layers"}
    fixed = {**_FIXED, **_FIXED_THERE}
    ours = read_settings(config, settings=_SETTINGS, fixed=fixed, dropout=("dropout_rate",))
    for key in sparse.values():
        if key not in config:
            raise ValueError(f"config.json has no {key}")
    # As in transformers, which makes the second of every `every` layers sparse.
    every = {config[all_] / max(config[of_them], 1) for all_, of_them in sparse.items()}
    if every not in ({1}, {2}):
        found = ", ".join(f"{key}={config[key]}" for pair in sparse.items() for key in pair)
        raise ValueError(
            f"config.json has {found}: all layers must be sparse, or every second one, the same on "
            "both sides"
        )
    dropless = {"dispatch": "dropless", "expert_capacity": 0}
    return {
        **SIZES["base_8"],
        **ours,
        **(dropless if config["expert_capacity"] >= _SLOTS_FOR_ALL else {}),
        "sparse_every": int(every.pop()),
        "group_size": 0,  # slots are those of a row
        "jitter": config.get("router_jitter_noise", 0.01),
        "expert_dropout": ours["dropout"],
        "tied_head": config.get("tie_word_embeddings", True),
    }


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    needed = {
        "architecture": ("encoder_decoder",),
        "feed_forward": ("relu",),
        "router": ("switch",),
        "sparse_every": (1, 2),
        # Where this is false, transformers 5 initializes the embeddings at random.
        "tied_head": (True,),
        "scale_tied_logits": (True,),
    }
    for name, allowed in needed.items():
        if config[name] not in allowed:
            raise ValueError(
                f"model.{name}={config[name]!r}: Hugging Face's Switch Transformer supports only "
                f"{' and '.join(map(repr, allowed))}"
            )
    dropless = config["dispatch"] == "dropless"
    sparse = {
        f"num_sparse_{side}_layers": config[f"{side}_layers"] for side in ("encoder", "decoder")
    }
    return {
        **_FIXED,
        **{key: config[name] for key, name in _SETTINGS.items()},
        **{name: layers // config["sparse_every"] for name, layers in sparse.items()},
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "model_type": "switch_transformers",
        "expert_capacity": (not dropless and config["expert_capacity"]) or _SLOTS_FOR_ALL,
        "router_jitter_noise": config["jitter"],
        "dropout_rate": config["dropout"],
        "tie_word_embeddings": True,
    }


FORMAT = HuggingFaceFormat(
    system="switch",
    model_types=("switch_transformers",),
    weights={
        "token_embedder/embedding": "shared.weight",
        "lm_head/kernel": ("lm_head.weight", "V D -> D V"),
        **_tower_weights("encoder", "self_attention"),
        **_tower_weights("decoder", "self_attention", "cross_attention"),
    },
    aliases=t5.FORMAT.aliases,
    from_config=_from_config,
    to_config=_to_config,
)
