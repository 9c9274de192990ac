"""GPT in Hugging Face's folders."""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, LAYERS, RATE, Setting, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import gpt2
from t5x_like.systems.gpt import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del names
    known = (["OpenAIGPTLMHeadModel"], ["OpenAIGPTModel"], None)
    one_of(*known).check("architectures", config.get("architectures"))
    return {"d_ff": 4 * settings["d_model"]}


def _derive_config(settings: Settings) -> dict[str, Any]:
    for key, allowed in {"d_ff": 4 * settings["d_model"], "head": "language_modeling"}.items():
        if settings[key] != allowed:
            raise ValueError(
                f"model.{key}={settings[key]!r}: Hugging Face's GPT supports only {allowed!r}"
            )
    return {"vocab_size": settings["vocab_size"] + settings["added_tokens"]}


FORMAT = HuggingFaceFormat(
    system="gpt",
    model_types={"openai-gpt": "OpenAIGPT"},
    defaults=SIZES["base"],
    settings={
        "vocab_size": Setting("vocab_size", COUNT),
        "n_positions": Setting("positions", COUNT),
        "n_layer": Setting("layers", LAYERS),
        "n_embd": Setting("d_model", COUNT),
        "n_head": Setting("heads", COUNT),
        "resid_pdrop": Setting("dropout", RATE, default=0.1),
        "embd_pdrop": Setting("dropout", RATE, default=0.1),
        "attn_pdrop": Setting("dropout", RATE, default=0.1),
    },
    other_names=gpt2.OTHER_NAMES,
    fixed={"afn": "gelu", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    multiples={"n_embd": "n_head"},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights={
        "token_embedder/embedding": "transformer.tokens_embed.weight",
        "decoder/entrance/position/embedding": "transformer.positions_embed.weight",
        **gpt2.LAYER_WEIGHTS,
    },
    aliases={
        "lm_head.weight": "transformer.tokens_embed.weight",  # a copy
        **{
            f"{part}.*": f"transformer.{part}.*"
            for part in ("tokens_embed", "positions_embed", "h")
        },
    },
    # Constants in old files: the causal mask, and the position ids.
    unused=tuple(
        f"{prefix}{name}"
        for prefix in ("", "transformer.")
        for name in ("position_ids", *(f"h.{n}.attn.bias" for n in range(SIZES["base"]["layers"])))
    ),
    # The output layer is the embedding table, so a folder without a head has all tensors.
    exported_as={"features": "language_modeling"},
)
