"""MT-DNN in Hugging Face's folders, where its shared encoder and pooler are a BERT."""

import dataclasses
from typing import Any

from t5x_like.hf.record import Settings
from t5x_like.hf.systems import bert
from t5x_like.systems.mt_dnn import SIZES


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] in ("pair_classification", "ranking"):
        raise ValueError(
            f"model.head={settings['head']!r}: Hugging Face has no such head: the encoder "
            "without it is written by from_pretrained(folder, head='features')"
            ".save_pretrained(NEW_FOLDER)"
        )
    return {}


FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="mt_dnn",
    on_request=True,
    defaults=SIZES["base"],
    derive_config=_derive_config,
    exported_only={},
)
