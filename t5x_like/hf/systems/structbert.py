"""StructBERT in Hugging Face's folders, where it is a BERT.

The folders published as StructBERT have model_type "bert". They are read as the system `bert`
unless `structbert` is requested, and a StructBERT is saved as such a folder.
"""

import dataclasses
from typing import Any

from t5x_like.hf.record import Settings
from t5x_like.hf.systems import bert
from t5x_like.systems.structbert import SIZES


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "pretraining":
        raise ValueError(
            "model.head='pretraining' of StructBERT classifies pairs into 3 classes, and Hugging "
            "Face's BERT into 2: load the model with from_pretrained(folder, head='masked_lm') "
            "and save that"
        )
    return {}


FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="structbert",
    on_request=True,
    defaults=SIZES["base"],
    derive_config=_derive_config,
)
