"""Sample responses from one key-value cache of the prompt, and rate each with its cache.

Thoppilan et al. 2022, section 6.1: the same model generates and discriminates. The prompt is read
once, and its cache repeated for all candidates. A rating appends the words of the attribute to the
cache of a candidate, so that the model rates exactly the tokens that it generated, even if their
text could be tokenized differently.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import decoding, stop_signal
from t5x_like.batches import dialog_rows
from t5x_like.decoding.decoder_contract import Extend, is_one_of
from t5x_like.decoding.generation import Generated
from t5x_like.inference.dialog.dialog_settings import DialogSettings
from t5x_like.inference.text_model import TextModel
from t5x_like.partitioning import fetch


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A sampled response.

    Attributes:
        tokens: the tokens without the end token.
        text: their text.
        ratings: {attribute: probability of 1 rather than 0}.
    """

    tokens: Sequence[int]
    text: str
    ratings: Mapping[str, float]


class CandidateSampler:
    """Sample and rate responses; with several processes call it on all of them.

    Args:
        model: a decoder-only model with its vocabulary.
        settings: the settings of the dialog.

    Raises:
        ValueError: the model has an encoder or is a prefix LM, or a rating is not a single token.
    """

    def __init__(self, model: TextModel, settings: DialogSettings):
        if model.encodes:
            raise ValueError("dialog needs a decoder-only model: this one has an encoder")
        if model.prompt_format.sees_prompt:
            raise ValueError(
                "dialog needs a causal language model: this one is a prefix LM, which was trained "
                "to rate a response that it reads in both directions, and here rates it as it was "
                "generated, token by token"
            )
        self._model, self._settings = model, settings
        zero, one = dialog_rows.rating_ids(model.vocabulary)
        self._ratings = jnp.asarray([zero, one], jnp.int32)
        self._attributes = {
            name: model.vocabulary.encode(dialog_rows.attribute(name))
            for name in dialog_rows.ATTRIBUTES
        }

    def __call__(self, prompts: Sequence[str], *, seed: int = 0) -> list[list[Candidate]]:
        """Return the candidates for each prompt, in the order in which they were sampled.

        Args:
            prompts: see `dialog_rows.response_prompt`; too long prompts are truncated on the left.
            seed: added to the seed of the settings.
        """
        size = min(len(prompts), max(1, self._model.batch_size // self._settings.candidates))
        found: list[list[Candidate]] = []
        for first in range(0, len(prompts), size):
            some = [self._model.prompt(text) for text in prompts[first : first + size]]
            # All batches have the same number of rows, so that they share a compiled program.
            rows = [*some, *[some[0]] * (size - len(some))]
            found += self._sample(rows, seed=seed + first)[: len(some)]
            stop_signal.between_batches()
        return found

    def _sample(self, prompts: Sequence[Sequence[int]], *, seed: int) -> list[list[Candidate]]:
        settings, most = self._settings, self._model.new_tokens
        tokens, mask = self._model.lay_out(prompts)
        generator = self._model.pretrained.generator
        longest = max(map(len, self._attributes.values()))
        arguments = {"decoder_input_tokens": tokens, "decoder_mask": mask != 0}
        generator.check_room(prompt=int(mask.sum(axis=1).max()), new=most + longest)
        with self._model.pretrained.layout():
            logits, cache = generator.prefill(
                arguments, cache_length=tokens.shape[1] + most + longest
            )
            generated = decoding.generate(
                generator.extend,
                logits,
                cache,
                max_new_tokens=most,
                eos_ids=tuple(self._model.ends),
                choose=decoding.sample,
                filters=decoding.make_filters(
                    vocabulary_size=self._model.vocabulary.vocab_size,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                ),
                rng=jax.random.key(settings.seed + seed),
                samples=settings.candidates,
                keep_cache=True,
            )
            attributes = {
                name: jnp.asarray(own, jnp.int32) for name, own in self._attributes.items()
            }
            ratings = _rate(
                generator.extend,
                generated,
                attributes,
                self._ratings,
                eos_ids=tuple(self._model.ends),
            )
        return self._read(prompts, generated, ratings)

    def _read(
        self, prompts: Sequence[Sequence[int]], generated: Generated, ratings: Mapping[str, Array]
    ) -> list[list[Candidate]]:
        rows, lengths, values = fetch((generated.tokens, generated.lengths, ratings))
        number = self._settings.candidates
        found: list[list[Candidate]] = [[] for _ in prompts]
        for row, length in enumerate(lengths):
            own = self._model.until_end(rows[row, :length])
            text = self._model.text(own, prompt=prompts[row // number]).strip()
            rated = {name: float(values[name][row]) for name in dialog_rows.ATTRIBUTES}
            found[row // number].append(Candidate(own, text, rated))
        return found


@functools.partial(jax.jit, static_argnames="eos_ids")
def _rate(
    extend: Extend,
    generated: Generated,
    attributes: Mapping[str, Int[Array, " A"]],
    ratings: Int[Array, "2"],
    *,
    eos_ids: tuple[int, ...],
) -> dict[str, Float[Array, " B"]]:
    """Return P(1) of each attribute of each row, normalized over the ratings 0 and 1.

    Args:
        extend: the model's function; it takes several tokens.
        generated: rows with their cache.
        attributes: {name: its tokens}.
        ratings: the tokens of 0 and 1.
        eos_ids: the end tokens, which do not belong to a response.
    """
    cache = _own_tokens(extend, generated, eos_ids=eos_ids)
    rows = generated.tokens.shape[0]
    found = {}
    for name, tokens in attributes.items():
        logits, _ = extend(jnp.tile(tokens, (rows, 1)), cache)
        both = jnp.take(logits[:, -1].astype(jnp.float32), ratings, axis=-1)
        found[name] = jax.nn.softmax(both, axis=-1)[:, 1]
    return found


def _own_tokens(extend: Extend, generated: Generated, *, eos_ids: tuple[int, ...]) -> Any:
    """Return the cache of all tokens but the end tokens, aligned so that all rows end together."""
    tokens, lengths = generated.tokens, generated.lengths
    # The model has not read the last generated token yet.
    steps = jnp.max(lengths)
    last = jax.lax.dynamic_slice_in_dim(tokens, steps - 1, 1, axis=1)
    _, cache = extend(last, generated.cache)
    final = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)[:, 0]
    own = lengths - is_one_of(final, eos_ids)
    return cache.moved(steps - own)
