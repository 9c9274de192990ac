"""One encoder that is four language models, by what its places may see: Dong et al. 2019 (UniLM).

| kind | a place sees | segments |
|---|---|---|
| bidirectional | all of the row | 0, 1 |
| sequence_to_sequence | the first segment, and of the second what came before it | 4, 5 |
| left_to_right | what came before it | 2 |
| right_to_left | what comes after it | 3 |
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.models.attention.cache import Cache, open_cache
from t5x_like.models.attention.masks import AttentionMask, RangeMask
from t5x_like.models.blocks.shared import Shared
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch

KINDS = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
_BIDIRECTIONAL, _SEQUENCE_TO_SEQUENCE, _LEFT_TO_RIGHT, _RIGHT_TO_LEFT = range(4)
# Of the first and of the second segment, by kind: the numbers of the authors' code.
_SEGMENTS = ((0, 1), (4, 5), (2, 2), (3, 3))
SEGMENTS = 6


class UnifiedEncoder(Encoder):
    """An encoder under four masks, which writes text under one of them.

    Its batches may have `language_model`, int32 (), the number in KINDS by which all rows are read;
    absent, the encoder is bidirectional, and `encoder_token_types` are segments as they stand.

    Attributes:
        mask_id: the token [MASK], whose output predicts what belongs in its place.
        longest: places of a row, as many as there are positions.
    """

    generates: ClassVar[bool] = True

    mask_id: int = 103
    longest: int = 512

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """What the first layer reads: the segments tell the kind (section 2.1)."""
        if "language_model" in batch:
            first, second = jnp.asarray(_SEGMENTS)[batch["language_model"]]
            segments = jnp.where(_in_second(batch), second, first)
            batch = {**batch, "encoder_token_types": segments}
        return super().embed(batch)

    def mask(self, batch: Batch) -> AttentionMask:
        """Who sees whom (section 2.3, figure 1)."""
        mask = super().mask(batch)
        if "language_model" not in batch:
            return mask
        first, last = _visible(batch)
        return RangeMask(
            query_segments=mask.query_segments,
            key_segments=mask.key_segments,
            first=first,
            last=last,
        )

    def prefill(
        self,
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Reads left-padded sources, [CLS] text [SEP]: the target's first logits, and a cache.

        Args:
            cache_length: tokens of source and target together.
            decoder_mask: True on real tokens; None if all are.

        Raises:
            ValueError: more tokens than the model has positions.
        """
        if cache_length > self.longest:
            raise ValueError(
                f"source and target have {cache_length} tokens together, more than the "
                f"{self.longest} positions that the model has (model.positions)"
            )
        rows, length = decoder_input_tokens.shape
        real = jnp.ones((rows, length), bool) if decoder_mask is None else decoder_mask
        slots = cache_length + 1  # with the [MASK] after the last token
        layers = self.make_encoder(parent=None).empty_cache(batch=rows, slots=slots)
        cache = open_cache(layers, prompt=real, slots=slots)
        source, target = _SEGMENTS[_SEQUENCE_TO_SEQUENCE]
        cache, mask, positions = cache.push(_append(real, True), visibility="prefix")
        mask = dataclasses.replace(mask, prefix=cache.real & (jnp.arange(slots) < length))
        segments = _append(jnp.full((rows, length), source), target)
        logits, cache = self._predict(decoder_input_tokens, cache, mask, positions, segments)
        return logits[:, 0], cache

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B 1 V"], Cache]:
        """The logits after some more tokens of the target, and the cache with those."""
        real = jnp.ones((tokens.shape[0], tokens.shape[1] + 1), bool)
        cache, mask, positions = cache.push(real, visibility="causal")
        segments = jnp.full(real.shape, _SEGMENTS[_SEQUENCE_TO_SEQUENCE][1])
        return self._predict(tokens, cache, mask, positions, segments)

    def _predict(
        self, tokens: Array, cache: Cache, mask: AttentionMask, positions: Array, segments: Array
    ) -> tuple[Array, Cache]:
        """Reads the tokens and a [MASK] after them, and what the [MASK] stands for."""
        batch = {
            "encoder_input_tokens": _append(tokens, self.mask_id),
            "encoder_token_types": segments,
            "encoder_positions": positions,
        }
        shared = Shared(mask=mask, positions=positions)
        hidden, layers = self.encoder(self.embed(batch), shared, cache.layers)
        logits = self.head(hidden[:, -1:], self.table(), {})["logits"]
        # The token that comes next takes the slot of the [MASK].
        return logits, dataclasses.replace(cache, layers=layers, length=cache.length - 1)


def _append(x: Array, value: int | bool) -> Array:
    return jnp.pad(x, ((0, 0), (0, 1)), constant_values=value)


def _in_second(batch: Batch) -> Bool[Array, "B L"]:
    tokens = batch["encoder_input_tokens"]
    return batch.get("encoder_token_types", jnp.zeros_like(tokens)) > 0


def _visible(batch: Batch) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """The first and the last place that each place sees, as far as the kind decides it."""
    kind, second = batch["language_model"], _in_second(batch)
    documents = batch["encoder_segment_ids"]
    here = jax.lax.broadcasted_iota(jnp.int32, second.shape, 1)
    end = jnp.full_like(here, second.shape[1] - 1)
    # The first segment of a document ends where the second, or in a packed row another, begins.
    ends = second[:, 1:] | (documents[:, 1:] != documents[:, :-1])
    ends = jnp.pad(ends, ((0, 0), (0, 1)), constant_values=True)
    end_of_first = jax.lax.cummin(jnp.where(ends, here, end), axis=1, reverse=True)
    first = jnp.where(kind == _RIGHT_TO_LEFT, here, 0)
    last = jnp.where(kind == _SEQUENCE_TO_SEQUENCE, jnp.where(second, here, end_of_first), end)
    return first, jnp.where(kind == _LEFT_TO_RIGHT, here, last)
