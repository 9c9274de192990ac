"""BigBird-Pegasus in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    LAYERS,
    RATE,
    TOKEN,
    Setting,
    integers,
    one_of,
    or_null,
)
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import bigbird
from t5x_like.hf.weight_map import WeightMap, attention, dense, norm
from t5x_like.systems.bigbird_pegasus import SIZES

# The same function up to float32 rounding; published folders use each name.
_GELU = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def _layers(here: str, **names: str) -> WeightMap:
    """Return the weight map of the encoder or the decoder without the attentions' projections.

    Args:
        names: {our name of an attention in a layer: Hugging Face's name}, for the layer norms.
    """
    layer, theirs = f"{here}/layers/{{layer}}", f"model.{here}.layers.{{layer}}"
    weights: dict[str, Any] = {
        f"{here}/entrance/position/embedding": f"model.{here}.embed_positions.weight",
        **dense(f"{layer}/feed_forward/wi", f"{theirs}.fc1"),
        **dense(f"{layer}/feed_forward/wo", f"{theirs}.fc2"),
        **norm(f"{layer}/feed_forward_norm", f"{theirs}.final_layer_norm"),
        **norm(f"{here}/exit", f"model.{here}.layernorm_embedding"),
    }
    for ours, name in names.items():
        weights |= norm(f"{layer}/{ours}_norm", f"{theirs}.{name}_layer_norm")
    return weights


def _decoder_attention(ours: str, name: str) -> WeightMap:
    theirs = f"model.decoder.layers.{{layer}}.{name}"
    kernels = (f"{theirs}.{kernel}_proj" for kernel in ("q", "k", "v", "out"))
    return attention(f"decoder/layers/{{layer}}/{ours}", *kernels)


def _encoder_attention() -> WeightMap:
    theirs = "model.encoder.layers.{layer}.self_attn"
    kernels = (f"{theirs}.{name}" for name in ("self.query", "self.key", "self.value", "output"))
    return attention("encoder/layers/{layer}/self_attention", *kernels)


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    for name in ("ffn_dim", "attention_heads"):
        one_of(config[f"encoder_{name}"]).check(f"decoder_{name}", config[f"decoder_{name}"])
    return {
        **bigbird.derive_settings(config, settings, names),
        "logits_bias": "final_logits_bias" in names,
    }


def _derive_config(settings: Settings) -> dict[str, Any]:
    return {**bigbird.derive_config(settings), "activation_function": _GELU[0]}


FORMAT = HuggingFaceFormat(
    system="bigbird_pegasus",
    model_types={"bigbird_pegasus": "BigBirdPegasus"},
    class_suffix="ForConditionalGeneration",
    defaults=SIZES["large"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "max_position_embeddings": Setting("positions", COUNT),
        "encoder_layers": Setting("encoder_layers", LAYERS),
        "decoder_layers": Setting("decoder_layers", LAYERS),
        "d_model": Setting("d_model", COUNT),
        "encoder_ffn_dim": Setting("d_ff", COUNT),
        "decoder_ffn_dim": Setting("d_ff", COUNT),
        "encoder_attention_heads": Setting("heads", COUNT),
        "decoder_attention_heads": Setting("heads", COUNT),
        "block_size": Setting("block", COUNT, default=64),
        "num_random_blocks": Setting("random", integers(0, 1000), default=3),
        "use_bias": Setting("attention_bias", FLAG, default=False),
        "dropout": Setting("dropout", RATE, default=0.1),
        "attention_dropout": Setting("dropout", RATE, default=0.0),
        "activation_dropout": Setting("dropout", RATE, default=0.0),
        "activation_function": Setting("", one_of(*_GELU), default=_GELU[0]),
        "decoder_start_token_id": Setting("start_id", or_null(TOKEN), default=2),
        "eos_token_id": Setting("end_id", or_null(TOKEN), default=1),
        "pad_token_id": Setting("padding", or_null(TOKEN), default=0),
    },
    other_names={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    fixed={
        "is_encoder_decoder": True,
        "scale_embedding": True,
        "is_decoder": False,
        "tie_word_embeddings": True,
    },
    multiples={"d_model": "encoder_attention_heads"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "model.shared.weight",
        **_layers("encoder", self_attention="self_attn"),
        **_encoder_attention(),
        **_layers("decoder", self_attention="self_attn", cross_attention="encoder_attn"),
        **_decoder_attention("self_attention", "self_attn"),
        **_decoder_attention("cross_attention", "encoder_attn"),
        "lm_head/bias": ("final_logits_bias", "0/1 V -> V"),
    },
    # Copies.
    aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
)
