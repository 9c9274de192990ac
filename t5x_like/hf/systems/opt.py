"""OPT in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    RATE,
    TOKEN,
    Setting,
    one_of,
    or_list,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import attention, dense, norm
from t5x_like.systems.opt import SIZES

_HERE, _THERE = "decoder/layers/{layer}", "model.decoder.layers.{layer}"


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    width, pre_norm = settings["d_model"], config.get("do_layer_norm_before", True)
    embedding = config.get("word_embed_proj_dim") or width
    if pre_norm:  # only the released model with norms after the sublayers has another width
        one_of(width).check("do_layer_norm_before=true with word_embed_proj_dim", embedding)
    return {
        "d_embedding": embedding,
        "post_norm": not pre_norm,
        "bos_id": config.get("bos_token_id", 2),
        "eos_id": config.get("eos_token_id", 2),  # null: texts have no end token
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {"do_layer_norm_before": not settings["post_norm"]}


FORMAT = HuggingFaceFormat(
    system="opt",
    model_types={"opt": "OPT"},
    class_suffix="ForCausalLM",
    defaults=SIZES["125m"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "num_hidden_layers": Setting("layers", LAYERS),
        "hidden_size": Setting("d_model", COUNT),
        "word_embed_proj_dim": Setting("d_embedding", or_null(COUNT), default=None),
        "ffn_dim": Setting("d_ff", COUNT),
        "num_attention_heads": Setting("heads", COUNT),
        "do_layer_norm_before": Setting("", FLAG, default=True),
        "dropout": Setting("dropout", RATE, default=0.1),
        "attention_dropout": Setting("dropout", RATE, default=0.1),
        "bos_token_id": Setting("bos_id", or_null(TOKEN), default=2),
        "eos_token_id": Setting("eos_id", or_null(or_list(TOKEN)), default=2),
    },
    fixed={
        "activation_function": "relu",
        "layerdrop": 0.0,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
        "_remove_final_layer_norm": False,
    },
    multiples={"hidden_size": "num_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "model.decoder.embed_tokens.weight",
        "decoder/entrance/position/embedding": "model.decoder.embed_positions.weight",
        "decoder/entrance/projection/kernel": ("model.decoder.project_in.weight", "D E -> E D"),
        **attention(
            f"{_HERE}/self_attention",
            *(f"{_THERE}.self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
        ),
        **norm(f"{_HERE}/self_attention_norm", f"{_THERE}.self_attn_layer_norm"),
        **dense(f"{_HERE}/feed_forward/wi", f"{_THERE}.fc1"),
        **dense(f"{_HERE}/feed_forward/wo", f"{_THERE}.fc2"),
        **norm(f"{_HERE}/feed_forward_norm", f"{_THERE}.final_layer_norm"),
        **norm("decoder/final_norm", "model.decoder.final_layer_norm"),
        "decoder/exit/kernel": ("model.decoder.project_out.weight", "E D -> D E"),
    },
    aliases={
        "lm_head.weight": "model.decoder.embed_tokens.weight",  # a copy
        "decoder.*": "model.decoder.*",  # headless
    },
)
