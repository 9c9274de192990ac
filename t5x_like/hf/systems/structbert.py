"""StructBERT in Hugging Face's folders, where it is a BERT.

The folders published as StructBERT have model_type "bert". They are read as the system `bert`
unless `structbert` is asked for, and a StructBERT is saved as such a folder.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.systems import bert
from t5x_like.systems.structbert import SIZES


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    return SIZES["base"] | bert.FORMAT.from_config(config, names=names)


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["head"] == "pretraining":
        raise ValueError(
            "model.head='pretraining' of StructBERT classifies pairs into 3 classes, and Hugging "
            "Face's BERT into 2: load the model with from_pretrained(folder, head='masked_lm') "
            "and save that"
        )
    return bert.FORMAT.to_config(config)


FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="structbert",
    model_types=(),
    also_reads=bert.FORMAT.model_types,
    from_config=_from_config,
    to_config=_to_config,
)
