"""GPT in Hugging Face's folders."""

from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.hf.settings import read_settings, write_settings
from t5x_like.hf.systems import gpt2
from t5x_like.names import choose
from t5x_like.systems.gpt import SIZES

_SETTINGS = {
    "vocab_size": "vocab_size",
    "n_positions": "positions",
    "n_layer": "layers",
    "n_embd": "d_model",
    "n_head": "heads",
}
_FIXED = {"afn": "gelu", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}
_DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    del names
    known = ("OpenAIGPTLMHeadModel", "OpenAIGPTModel")
    for name in config.get("architectures", ()):
        choose("architectures in config.json", name, dict.fromkeys(known))
    ours = read_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT)
    return SIZES["base"] | ours | {"d_ff": 4 * ours["d_model"]}


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    for key, allowed in {"d_ff": 4 * config["d_model"], "head": "language_modeling"}.items():
        if config[key] != allowed:
            raise ValueError(
                f"model.{key}={config[key]!r}: Hugging Face's GPT supports only {allowed!r}"
            )
    return {
        **write_settings(config, settings=_SETTINGS, fixed=_FIXED, dropout=_DROPOUT),
        "vocab_size": config["vocab_size"] + config["added_tokens"],
        "model_type": "openai-gpt",
    }


FORMAT = HuggingFaceFormat(
    system="gpt",
    model_types=("openai-gpt",),
    class_prefix="OpenAIGPT",
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
    # Constants in old files: the causal mask, and the numbers of the positions.
    unused=tuple(
        f"{prefix}{name}"
        for prefix in ("", "transformer.")
        for name in ("position_ids", *(f"h.{n}.attn.bias" for n in range(SIZES["base"]["layers"])))
    ),
    # The output layer is the embedding table, so that a folder without a head has all tensors.
    exported_as={"features": "language_modeling"},
    from_config=_from_config,
    to_config=_to_config,
)
