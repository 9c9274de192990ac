"""Reward models in Hugging Face's folders: a sequence classifier with a single label."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.systems import gpt2, llama
from t5x_like.systems.reward_model import SIZES, reward_model_of

_SUFFIX = "ForSequenceClassification"
_TRUNKS = {record.system: record for record in (gpt2.FORMAT, llama.FORMAT)}
_MODEL_TYPES = {
    model_type: prefix
    for record in _TRUNKS.values()
    for model_type, prefix in record.model_types.items()
}


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del settings
    labels = config.get("num_labels", len(config.get("id2label") or (0, 1)))
    one_of(1).check("num_labels, the number of names in id2label,", labels)
    record = next(one for one in _TRUNKS.values() if config["model_type"] in one.model_types)
    return reward_model_of(record.system, record.from_config(config, names=names))


def _derive_config(settings: Settings) -> dict[str, Any]:
    trunk = dict(settings["trunk"])
    record = _record_of(trunk.pop("system"))
    # Batches are padded with token 0; the class scores the last token that is not padding.
    one = {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {**record.to_config(trunk), **one, "pad_token_id": 0}


def _record_of(system: str) -> HuggingFaceFormat:
    if system not in _TRUNKS:
        raise ValueError(
            f"model.trunk.system={system!r}: Hugging Face has reward models of "
            f"{', '.join(_TRUNKS)} alone; convert to a checkpoint (--format=t5x_like)"
        )
    return _TRUNKS[system]


def _variant(settings: Settings) -> HuggingFaceFormat:
    record = _record_of(settings["trunk"]["system"])
    weights = {
        f"trunk/{path}": tensor for path, tensor in record.weights.items() if "lm_head" not in path
    }
    return dataclasses.replace(
        FORMAT,
        weights={**weights, "head/kernel": ("score.weight", "C D -> D C")},
        aliases={
            other: name for other, name in record.aliases.items() if not other.startswith("lm_head")
        },
        unused=record.unused,
    )


FORMAT = HuggingFaceFormat(
    system="reward_model",
    model_types=_MODEL_TYPES,
    on_request=True,
    classes=tuple(prefix + _SUFFIX for prefix in _MODEL_TYPES.values()),
    class_suffix=_SUFFIX,
    defaults=SIZES["6b"],
    settings={},
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    # Hugging Face's class neither shifts nor scales the rewards.
    exported_only={"shift": 0.0, "scale": 1.0},
    weights={},  # they depend on the trunk, see `variant`
    variant=_variant,
)
