"""TinyBERT in Hugging Face's folders, where it is a small BERT, without its teacher."""

import dataclasses

from t5x_like.hf.systems import bert
from t5x_like.systems.tinybert import SIZES

FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="tinybert",
    on_request=True,
    defaults=SIZES["4l"],
    exported_only={},
    exported_as={"pretraining": "features"},
    not_exported=("teacher", "hidden_map", "embedding_map"),
)
