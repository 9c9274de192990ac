"""UniLM in Hugging Face's folders, where it is a BERT.

The authors' files have the names of BERT's tensors. They are read as the system `bert`, which
computes the bidirectional kind, unless `unilm` is asked for.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from t5x_like.hf.systems import bert
from t5x_like.systems.unilm import SIZES

_IDS = {"sep_id": "eos_token_id", "mask_id": "mask_token_id"}


def _from_config(config: Mapping[str, Any], *, names: Collection[str]) -> dict[str, Any]:
    kept = {name: SIZES["base"][name] for name in ("token_types", *_IDS)}
    ids = {name: config[theirs] for name, theirs in _IDS.items() if config.get(theirs) is not None}
    return bert.FORMAT.from_config(config, names=names) | kept | ids


def _to_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return bert.FORMAT.to_config(config) | {"mask_token_id": config["mask_id"]}


FORMAT = dataclasses.replace(
    bert.FORMAT,
    system="unilm",
    model_types=(),
    also_reads=bert.FORMAT.model_types,
    from_config=_from_config,
    to_config=_to_config,
)
