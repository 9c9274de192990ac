"""generation_config.json of a Hugging Face folder: read and written."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from absl import logging

from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import folder as files

# Settings that Hugging Face has and this has not, with the values at which they do nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "constraints": (),
    "diversity_penalty": (0.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
    "min_p": (0.0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "repetition_penalty": (1.0,),
    "sequence_bias": (),
    "suppress_tokens": (),
    "typical_p": (1.0,),
}
_ID = r"(?!forced_)\w+_token_id$"  # of a token, in config.json


def read_generation(folder: pathlib.Path, config: Mapping[str, Any]) -> GenerationSettings:
    """The settings of a folder: generation_config.json, or in older folders config.json.

    Those that have no counterpart here are named in one warning.

    Args:
        config: what config.json holds; it also gives the ids that generation_config.json lacks.
    """
    path = folder / files.GENERATION
    stored = files.read_json(path) if path.is_file() else config
    # Not `forced_...`, which a generation_config.json has itself if it is so.
    ids = {name: value for name, value in config.items() if re.match(_ID, name)}
    settings = {
        name: value
        for name, value in {**ids, **stored}.items()
        # As in `override`.
        if value is not None or (name == "eos_token_id" and name in stored)
    }
    ignored = [f"{name}={settings[name]!r}" for name in _UNSUPPORTED if _acts(name, settings)]
    if ignored:
        logging.warning("%s: generate() goes without %s", path, ", ".join(ignored))
    names = [field.name for field in dataclasses.fields(GenerationSettings)]
    settings = {name: settings[name] for name in names if name in settings}
    # What begins the decoder's text is padding in T5, and old folders do not say so.
    settings.setdefault("decoder_start_token_id", settings.get("pad_token_id", 0))
    return GenerationSettings(**settings)


def _acts(name: str, settings: Mapping[str, Any]) -> bool:
    return name in settings and settings[name] not in _UNSUPPORTED[name]


def write_generation(folder: pathlib.Path, settings: GenerationSettings) -> None:
    """Writes generation_config.json: the ids, and what differs from the defaults."""
    ids = ("eos_token_id", "pad_token_id", "decoder_start_token_id")
    stored = {
        name: value
        for name, value in dataclasses.asdict(settings).items()
        if name in ids or (name != "seed" and value != getattr(GenerationSettings(), name))
    }
    files.write_json(folder / files.GENERATION, stored)
