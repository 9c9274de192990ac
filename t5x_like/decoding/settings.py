"""The settings of generation, with Hugging Face's names, as arguments of the decoding functions."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from t5x_like import decoding
from t5x_like.names import check_type, choose, hint, type_hints

_PENALTIES = {"power": decoding.PowerPenalty, "google_nmt": decoding.GoogleNMTPenalty}
_SMALLEST = 1e-30  # stands for top_p=0, with which only the likeliest token is kept
OF_SAMPLING = ("temperature", "top_k", "top_p")
_OF_BEAMS = ("length_penalty", "length_penalty_kind", "early_stopping")
_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("num_beams", "num_return_sequences"), (1, math.inf)),
    **dict.fromkeys(("max_new_tokens", "max_length"), (1, math.inf)),
    **dict.fromkeys(("min_new_tokens", "min_length", "max_extra_tokens"), (0, math.inf)),
    **dict.fromkeys(("no_repeat_ngram_size", "temperature", "seed"), (0, math.inf)),
    "top_k": (-1, math.inf),
    "top_p": (0, 1),
}


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
    """The settings of text generation, with Hugging Face's defaults.

    Attributes:
        max_new_tokens: the largest number of tokens to generate, 20 by default.
        max_length: the same including the prompt; max_new_tokens takes precedence.
        max_extra_tokens: limits the generated tokens to the number of input tokens, padding
            included, plus this number (Vaswani et al. 2017, section 6.1); max_new_tokens also
            applies. Hugging Face does not have this setting.
        min_new_tokens, min_length: the number of tokens, without or with the prompt, before which
            the end token is not allowed.
        num_beams: number of beams of beam search; 1 for greedy decoding, or for sampling if
            `do_sample` is set.
        do_sample: sample tokens, with `temperature`, `top_k` (0 or -1: all) and `top_p` (0: only
            the likeliest).
        length_penalty: alpha of beam search, which ranks by log p / length^alpha.
        length_penalty_kind: `power` for length^alpha; `google_nmt`, which Hugging Face does not
            have, for ((5 + length) / 6)^alpha, as in the papers of the Transformer and T5.
        early_stopping: True, False or "never", see `decoding.beam_search`.
        num_return_sequences: beams or samples to return for each input.
        no_repeat_ngram_size: n-grams of this n may not occur twice; 0 permits all. The prompt of a
            language model and the start token of an encoder-decoder count.
        suppress_tokens: ids that are never generated.
        eos_token_id: one id, several, or None to always generate max_new_tokens.
        pad_token_id: fills rows that have ended; None: the first end token, or 0 without an end
            token.
        decoder_start_token_id: the first token that an encoder-decoder's decoder reads.
        forced_bos_token_id: the only token allowed after a prompt of one token, such as the
            decoder's start token; None for any.
        forced_eos_token_id: the only tokens allowed as the last token of a row of the largest
            length; None for any.
        seed: the seed of sampling.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    max_extra_tokens: int | None = None
    min_new_tokens: int | None = None
    min_length: int = 0
    num_beams: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    length_penalty: float = 1.0
    length_penalty_kind: str = "power"
    early_stopping: bool | str = False
    num_return_sequences: int = 1
    no_repeat_ngram_size: int = 0
    suppress_tokens: Sequence[int] | None = None
    eos_token_id: int | Sequence[int] | None = 1
    pad_token_id: int | None = 0
    decoder_start_token_id: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    seed: int = 0

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        token = self.eos_token_id
        return () if token is None else (token,) if isinstance(token, int) else tuple(token)

    @property
    def padding(self) -> int:
        """The token that pads rows, see `pad_token_id`."""
        return next(iter(self.ends), 0) if self.pad_token_id is None else self.pad_token_id

    def override(self, settings: Mapping[str, Any]) -> "GenerationSettings":
        """Copy the settings with some values changed.

        Raises:
            ValueError: a setting does not exist, has no effect, or is out of range.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            if name not in names:
                raise ValueError(f"generate has no argument {name!r}.{hint(name, names)}")
        # As in transformers, None leaves a setting unchanged; only for eos_token_id is it a value.
        settings = {k: v for k, v in settings.items() if v is not None or k == "eos_token_id"}
        new = dataclasses.replace(self, **settings)
        new._check(settings)
        return new

    def _check(self, chosen: Mapping[str, Any]) -> None:
        kinds = type_hints(GenerationSettings)
        for name, value in chosen.items():
            check_type(name, value, kinds[name])
        for name in chosen.keys() & _RANGES.keys():
            (low, high), value = _RANGES[name], chosen[name]
            if not low <= value <= high:
                limit = f"from {low} to {high}" if high < math.inf else f"{low} or more"
                raise ValueError(f"{name}={value} must be {limit}")
        if self.do_sample and not self.temperature > 0:
            raise ValueError(
                f"temperature={self.temperature} must be above 0 where do_sample=True; "
                "do_sample=False takes the likeliest tokens"
            )
        choose("length_penalty_kind", self.length_penalty_kind, _PENALTIES)
        if self.do_sample and self.num_beams > 1:
            raise ValueError(
                f"do_sample=True with num_beams={self.num_beams}: set either do_sample=False or "
                "num_beams=1"
            )
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences} is more than "
                f"num_beams={self.num_beams}: set more num_beams, or do_sample=True"
            )
        for switch, on, dependents in [
            ("do_sample=True", self.do_sample, OF_SAMPLING),
            ("num_beams above 1", self.num_beams > 1, _OF_BEAMS),
        ]:
            for name in dependents:
                if name == "temperature" and not self.temperature:
                    continue  # a common way to ask for the likeliest tokens
                if not on and name in chosen and chosen[name] != getattr(_DEFAULTS, name):
                    raise ValueError(f"{name}={chosen[name]!r} has no effect without {switch}")

    def new_tokens(self, *, prompt: int, read: int | None = None) -> tuple[int, int]:
        """Return the smallest and the largest number of new tokens after a prompt.

        Args:
            prompt: the number of tokens of the decoder's prompt.
            read: the number of input tokens, of the encoder or of a language model's prompt; None
                to ignore `max_extra_tokens`.

        Raises:
            ValueError: the settings leave no room for a new token.
        """
        most = self.max_new_tokens
        if read is not None and self.max_extra_tokens is not None:
            allowed = read + self.max_extra_tokens
            most = allowed if most is None else min(most, allowed)
        if most is None:
            most = 20 if self.max_length is None else self.max_length - prompt
        if most < 1:
            raise ValueError(
                f"max_new_tokens={self.max_new_tokens}, max_length={self.max_length}: nothing is "
                f"left to generate after a prompt of {prompt}"
            )
        least = self.min_new_tokens
        return max(0, self.min_length - prompt) if least is None else least, most


_DEFAULTS = GenerationSettings()


def decoding_request(settings: GenerationSettings, *, least: int, most: int) -> dict[str, Any]:
    """Return the arguments of `decoding.beam_search`, or of `decoding.generate` for one beam."""
    request: dict[str, Any] = {
        "max_new_tokens": most,
        "eos_ids": settings.ends,
        "pad_id": settings.padding,
    }
    first, last = settings.forced_bos_token_id, settings.forced_eos_token_id
    rules: dict[str, Any] = {
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or None,
        "suppressed_ids": tuple(settings.suppress_tokens or ()),
        "min_new_tokens": least,
        "eos_ids": request["eos_ids"],
        "first_ids": () if first is None else first,
        "last_ids": () if last is None else last,
        "max_new_tokens": most,
    }
    if settings.num_beams > 1:
        request |= {
            "beams": settings.num_beams,
            "returned": settings.num_return_sequences,
            "length_penalty": _PENALTIES[settings.length_penalty_kind](settings.length_penalty),
            "early_stopping": settings.early_stopping,
        }
    elif settings.do_sample:
        rules |= {"temperature": settings.temperature, "top_p": settings.top_p or _SMALLEST}
        rules |= {"top_k": settings.top_k if settings.top_k > 0 else None}
        request |= {"choose": decoding.sample, "rng": jax.random.key(settings.seed)}
        request |= {"samples": settings.num_return_sequences}
    return {**request, "filters": decoding.make_filters(**rules)}
