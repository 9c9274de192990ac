"""Decoder-only networks."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.models.attention.cache import Cache, open_cache
from t5x_like.models.attention.masks import AttentionMask, Visibility
from t5x_like.models.blocks.residual import Collected, Shared
from t5x_like.models.embeddings.positions import positions_of
from t5x_like.models.types import Batch
from t5x_like.models.vocabulary_product import VocabularyProduct


class Decoder(nn.Module):
    """A decoder-only language model, causal or a prefix LM.

    Attributes:
        make_embedding: factory of the token embeddings.
        make_decoder: factory of the tower of layers.
        make_head: factory of the output layer.
        visibility: `causal`, or `prefix` for the prefix LM of Raffel et al. 2020 (section 3.2.1).
        sides: the sides of a batch that the network reads.
        generates: True: the network has `prefill` and `extend`, and so generates text.
    """

    sides: ClassVar[tuple[str, ...]] = ("decoder",)
    generates: ClassVar[bool] = True

    make_embedding: Callable[..., nn.Module]
    make_decoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    visibility: Visibility = "causal"

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.decoder = self.make_decoder()
        self.lm_head = self.make_head()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Any:
        """Return the float32 logits [B, T, V] of every position.

        Args:
            batch: `decoder_input_tokens` [B, T], and optionally `decoder_segment_ids`,
                `decoder_positions` and, for a prefix LM only, `decoder_causal_attention`, True in
                the prefix.
            collect: `hidden_states` or `attention_scores`, or both.

        Returns:
            The logits; with `collect`, (logits, {name of the tower: `Collected`}).
        """
        x, collected = self._run(batch, deterministic=deterministic, collect=collect)
        logits = self._product(x).logits()
        return (logits, collected) if collect else logits

    def logits_product(self, batch: Batch, *, deterministic: bool = True) -> VocabularyProduct:
        """Return the logits as a product that is not computed yet."""
        return self._product(self.states(batch, deterministic=deterministic))

    def states(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T D"]:
        """Return the input of the output layer: the last layer's output after the final norm."""
        return self._run(batch, deterministic=deterministic, collect=())[0]

    def _product(self, x: Float[Array, "B T D"]) -> VocabularyProduct:
        return self.lm_head.product(x, self.token_embedder.embedding)

    def _run(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B T D"], dict[str, Collected]]:
        tokens = batch["decoder_input_tokens"]
        segments = batch.get("decoder_segment_ids")
        prefix = batch.get("decoder_causal_attention") if self.visibility == "prefix" else None
        mask = AttentionMask(
            query_segments=segments,
            key_segments=segments,
            prefix=None if prefix is None else prefix.astype(bool),
            visibility=self.visibility,
        )
        shared = Shared(
            mask=mask,
            positions=positions_of(batch, "decoder", tokens),
            tokens=tokens,
            deterministic=deterministic,
            collect=collect,
        )
        x, collected = self.decoder(self.token_embedder(tokens), shared)
        return x, {"decoder": collected}

    def prefill(
        self,
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Run a left-padded prompt; return the logits of the next token, and a key-value cache.

        Args:
            cache_length: cache slots, for the prompt and the continuation.
            decoder_mask: True at tokens, False at padding; None for no padding.
        """
        prompts, length = decoder_input_tokens.shape
        real = jnp.ones((prompts, length), bool) if decoder_mask is None else decoder_mask
        layers = self.make_decoder(parent=None).empty_cache(batch=prompts, slots=cache_length)
        cache = open_cache(layers, prompt=real, slots=cache_length)
        cache, mask, positions = cache.push(real, visibility=self.visibility, first=True)
        # For a prefix LM the whole prompt is the prefix.
        if self.visibility == "prefix":
            mask = dataclasses.replace(mask, prefix=real)
        shared = Shared(mask=mask, positions=positions, tokens=decoder_input_tokens, first=True)
        x, cache = self._advance(decoder_input_tokens, cache, shared)
        return self.lm_head(x[:, -1:], self.token_embedder.embedding)[:, 0], cache

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Run the next tokens; return the logits after each, and the extended cache."""
        real = jnp.ones(tokens.shape, bool)
        cache, mask, positions = cache.push(real, visibility=self.visibility)
        shared = Shared(mask=mask, positions=positions, tokens=tokens)
        x, cache = self._advance(tokens, cache, shared)
        return self.lm_head(x, self.token_embedder.embedding), cache

    def _advance(self, tokens: Array, cache: Cache, shared: Shared) -> tuple[Array, Cache]:
        x, layers = self.decoder(self.token_embedder(tokens), shared, cache.layers)
        return x, dataclasses.replace(cache, layers=layers)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zeros, from which `__call__` initializes the parameters."""
        return {"decoder_input_tokens": jnp.zeros((batch, length), jnp.int32)}
