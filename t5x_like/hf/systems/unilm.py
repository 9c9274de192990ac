"""UniLM in Hugging Face's folders, where it is a BERT.

The authors' files have BERT's tensor names. They are read as the system `bert`, which computes only
the bidirectional mode, unless `unilm` is requested.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import TOKEN, Setting, or_null
from t5x_like.hf.record import Settings
from t5x_like.hf.systems import bert
from t5x_like.systems.unilm import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del config, settings, names
    return {"token_types": SIZES["base"]["token_types"]}  # their embeddings are copied from BERT's


FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="unilm",
    on_request=True,
    defaults=SIZES["base"],
    settings={
        **bert.FORMAT.settings,
        "eos_token_id": Setting("sep_id", or_null(TOKEN), default=None),
        "mask_token_id": Setting("mask_id", or_null(TOKEN), default=None),
    },
    derive_settings=_derive_settings,
)
