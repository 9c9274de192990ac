"""SpanBERT in Hugging Face's folders, where it is a BERT.

The folders published as SpanBERT have model_type "bert". They are read as the system `bert` unless
`spanbert` is requested, and a SpanBERT is saved as such a folder.
"""

import dataclasses
from typing import Any

from t5x_like.hf.record import Settings
from t5x_like.hf.systems import bert
from t5x_like.systems.spanbert import SIZES


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "pretraining":
        raise ValueError(
            "Hugging Face has no SpanBERT with model.head='pretraining': load the model with "
            "from_pretrained(folder, head='masked_lm') and save that, with its head"
        )
    return {}


FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="spanbert",
    on_request=True,
    defaults=SIZES["base"],
    derive_config=_derive_config,
)
