"""Read and write generation_config.json in a Hugging Face folder."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import folder as files
from t5x_like.hf import without_effect as unused
from t5x_like.hf.config_settings import (
    COUNT,
    FLAG,
    RATE,
    TEXT,
    TOKEN,
    Allowed,
    integers,
    numbers,
    one_of,
    or_list,
    or_null,
)

# Hugging Face's settings that are not supported, with the values at which they have no effect.
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
    "typical_p": (1.0,),
}
_ID = r"(?!forced_)\w+_token_id$"  # names of token ids in config.json
# Ids of special tokens that are written as they were read, or as a run's vocabulary has them.
TOKEN_IDS = tuple(f"{name}_token_id" for name in ("bos", "eos", "pad", "sep", "decoder_start"))
_BART_BEGINS = 0  # the token <s>
_LENGTH, _TOKENS = integers(0, 2**31 - 1), or_list(TOKEN)
_ANY_TOKENS = Allowed(
    "a list of tokens", lambda value: isinstance(value, list) and all(map(TOKEN.accepts, value))
)
_ALLOWED = {
    "max_new_tokens": COUNT,
    "max_length": COUNT,
    "max_extra_tokens": _LENGTH,
    "min_new_tokens": _LENGTH,
    "min_length": _LENGTH,
    "num_beams": COUNT,
    "do_sample": FLAG,
    "temperature": numbers(0, 1e30),  # 0 in folders that do not sample
    "top_k": integers(-1, 2**31 - 1),  # -1 or 0: all tokens
    "top_p": RATE,
    "length_penalty": numbers(-1e30, 1e30),
    "length_penalty_kind": TEXT,
    "early_stopping": one_of(True, False, "never"),
    "num_return_sequences": COUNT,
    "no_repeat_ngram_size": _LENGTH,
    "suppress_tokens": _ANY_TOKENS,
    "eos_token_id": or_null(_TOKENS),
    "pad_token_id": integers(-1, 2**31 - 1),  # -1 in the first LLaMA folders: no padding token
    "decoder_start_token_id": TOKEN,
    "forced_bos_token_id": TOKEN,
    "forced_eos_token_id": _TOKENS,
    "seed": _LENGTH,
}
KNOWN = _ALLOWED.keys() | _UNSUPPORTED.keys()
_DEFAULTS = dataclasses.asdict(GenerationSettings()) | {"max_length": 20, "num_beam_groups": 1}


def read_generation(folder: pathlib.Path, config: Mapping[str, Any]) -> GenerationSettings:
    """Read a folder's generation settings: generation_config.json, or in older folders config.json.

    Args:
        config: the settings of config.json, for token ids that generation_config.json lacks, and
            for all settings in older folders without that file.

    Raises:
        ValueError: a setting has a value that is not allowed.
    """
    path = folder / files.GENERATION
    stored = files.read_json(path) if path.is_file() else config
    # Without `forced_...`: a generation_config.json contains these if they are set.
    ids = {name: value for name, value in config.items() if re.match(_ID, name)}
    settings = {
        name: value
        for name, value in {**ids, **stored}.items()
        # As in `GenerationSettings.override`.
        if value is not None or (name == "eos_token_id" and name in stored)
    }
    begin = settings.get("bos_token_id") if config.get("is_encoder_decoder") else None
    settings = _single_bad_words(settings)
    if not path.is_file() and config.get("force_bos_token_to_be_generated"):
        # The first folders of BART have this setting instead of forced_bos_token_id.
        settings["forced_bos_token_id"] = config.get("bos_token_id", _BART_BEGINS)
    settings = {name: settings[name] for name in _ALLOWED if name in settings}
    where = path.name if path.is_file() else files.CONFIG
    for name, value in settings.items():
        _ALLOWED[name].check(name, value, where=where)
    # An id that no file of the folder has is None; -1 also stands for None.
    padding = settings.get("pad_token_id")
    ids = {"eos_token_id": settings.get("eos_token_id")}
    ids["pad_token_id"] = padding if padding is not None and padding >= 0 else None
    # Old folders of T5 have no start token: its decoder starts with padding, since it has no <s>.
    start = ids["pad_token_id"] or 0 if begin is None else begin
    settings.setdefault("decoder_start_token_id", start)
    return GenerationSettings(**{**settings, **ids})


def _single_bad_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Move `bad_words_ids` to `suppress_tokens` if each has one token, as in Marian's folders."""
    words, suppressed = settings.get("bad_words_ids"), settings.get("suppress_tokens") or []
    if not isinstance(words, list) or not isinstance(suppressed, list):
        return dict(settings)
    if not all(isinstance(word, list) and len(word) == 1 for word in words):
        return dict(settings)
    ends = settings.get("eos_token_id")
    never_banned = ends if isinstance(ends, list) else [ends]  # Hugging Face never bans the end
    rest = {name: value for name, value in settings.items() if name != "bad_words_ids"}
    banned = [token for (token,) in words if token not in never_banned]
    return {**rest, "suppress_tokens": [*suppressed, *banned]}


def without_effect(
    folder: pathlib.Path, config: Mapping[str, Any], unread: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of config.json and of generation_config.json that have no effect.

    If a folder has both files, generation settings in config.json have no effect, as in
    transformers; they are not returned if they are the defaults or the same in both files.

    Args:
        config: the settings of config.json.
        unread: the settings of config.json that the system's format does not read.
    """
    path = folder / files.GENERATION
    stored = files.read_json(path) if path.is_file() else dict(config)
    left = _single_bad_words(stored)
    idle_settings = unused.in_generation(left, known=_ALLOWED, idle=_UNSUPPORTED)
    if not path.is_file():
        unsupported = {name: value for name, value in idle_settings.items() if name in _UNSUPPORTED}
        rest = {name: value for name, value in unread.items() if name not in KNOWN}
        return rest | unsupported, {}
    for name in KNOWN & unread.keys():
        idle = (_DEFAULTS.get(name), stored.get(name), *_UNSUPPORTED.get(name, ()))
        unread = {n: v for n, v in unread.items() if n != name or v not in idle}
    return dict(unread), idle_settings


def write_generation(
    folder: pathlib.Path, settings: GenerationSettings, *, bos_token_id: int | None = None
) -> None:
    """Write generation_config.json: the ids, and the settings that differ from the defaults.

    Args:
        bos_token_id: the token that begins a text; only transformers reads it.
    """
    stored = {} if bos_token_id is None else {"bos_token_id": bos_token_id}
    stored |= {
        name: value
        for name, value in dataclasses.asdict(settings).items()
        if name in TOKEN_IDS or (name != "seed" and value != getattr(GenerationSettings(), name))
    }
    files.write_json(folder / files.GENERATION, stored)
