"""MASS in Hugging Face's folders, where it is a BART.

With BART's layer norm epsilon, a MASS computes the same as a BART: set `model.norm_epsilon=1e-5`
before training. BART's folders are read as the system `bart` unless `mass` is requested.
"""

from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import COUNT, Setting, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import bart
from t5x_like.systems.mass import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del settings, names
    for name in ("ffn_dim", "attention_heads"):
        one_of(config[f"encoder_{name}"]).check(f"decoder_{name}", config[f"decoder_{name}"])
    return {"norm_epsilon": 1e-5}


# BART's tables begin with two rows that it does not use.
_POSITIONS = {
    f"{tower}/entrance/position/embedding": (
        f"model.{tower}.embed_positions.weight",
        "2+P D -> P D",
    )
    for tower in ("encoder", "decoder")
}

FORMAT = HuggingFaceFormat(
    system="mass",
    model_types={"bart": "Bart"},
    on_request=True,
    class_suffix="ForConditionalGeneration",
    defaults=SIZES["big"],
    settings={
        **{
            k: setting
            for k, setting in bart.FORMAT.settings.items()
            if setting.name in SIZES["big"]
        },
        "decoder_ffn_dim": Setting("d_ff", COUNT),
        "decoder_attention_heads": Setting("heads", COUNT),
    },
    other_names=bart.FORMAT.other_names,
    fixed=bart.FORMAT.fixed,
    multiples=bart.FORMAT.multiples,
    derive_settings=_derive_settings,
    exported_only={"norm_epsilon": 1e-5},
    weights={**bart.FORMAT.weights, **_POSITIONS},
    aliases=bart.FORMAT.aliases,
    unused=bart.FORMAT.unused,
)
