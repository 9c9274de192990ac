"""mBART and mBART-50 in Hugging Face's folders."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.record import Settings
from t5x_like.hf.systems import bart, pegasus
from t5x_like.systems.mbart import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    found = pegasus.derive_settings(config, settings, names)
    # Folders for several target languages have no start token; then Hugging Face starts with <s>.
    if config.get("decoder_start_token_id") is None:
        found["start_id"] = config.get("bos_token_id") or 0
    return found


FORMAT = dataclasses.replace(
    pegasus.FORMAT,
    system="mbart",
    model_types={"mbart": "MBart"},
    defaults=SIZES["large"],
    settings={
        **pegasus.FORMAT.settings,
        **pegasus.ids(start_id=None, end_id=2, padding=1),
    },
    fixed={
        **pegasus.FORMAT.fixed,
        "normalize_embedding": True,
        "static_position_embeddings": False,
    },
    derive_settings=_derive_settings,
    unused=bart.FORMAT.unused,
)
