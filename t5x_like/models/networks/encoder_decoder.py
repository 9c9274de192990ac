"""Encoder-decoder networks."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.models.attention.cache import Cache, open_cache
from t5x_like.models.attention.masks import AttentionMask, Padding, Visibility
from t5x_like.models.blocks.residual import Collected, Shared
from t5x_like.models.embeddings.positions import positions_of
from t5x_like.models.types import Batch
from t5x_like.models.vocabulary_product import VocabularyProduct


class EncoderDecoder(nn.Module):
    """A decoder that attends to an encoder's output: Vaswani et al. 2017, figure 1.

    Attributes:
        make_embedding: factory of the token embeddings, which both sides share.
        make_encoder, make_decoder: factories of the towers; without `make_decoder` both sides share
            the encoder's parameters (Raffel et al. 2020, section 3.2.2).
        make_head: factory of the output layer, from the decoder's output and the embedding table
            to logits.
        sides: the sides of a batch that the network reads.
        generates: True: the network has `prefill` and `extend`, and so generates text.
        visibility: the decoder's self-attention is causal.
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    generates: ClassVar[bool] = True
    visibility: ClassVar[Visibility] = "causal"

    make_embedding: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    make_decoder: Callable[..., nn.Module] | None = None

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.encoder = self.make_encoder()
        self.decoder = self.encoder if self.make_decoder is None else self.make_decoder()
        self.lm_head = self.make_head()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Any:
        """Return the float32 logits [B, T, V] of every target position (teacher forcing).

        Args:
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
        """Return the input of the output layer: the decoder's output after its final norm."""
        return self._run(batch, deterministic=deterministic, collect=())[0]

    def _product(self, x: Float[Array, "B T D"]) -> VocabularyProduct:
        return self.lm_head.product(x, self.token_embedder.embedding)

    def _run(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B T D"], dict[str, Collected]]:
        memory, segments, of_encoder = self._encode(
            batch, deterministic=deterministic, collect=collect
        )
        tokens = batch["decoder_input_tokens"]
        own = batch.get("decoder_segment_ids")
        shared = Shared(
            mask=AttentionMask(query_segments=own, key_segments=own, visibility="causal"),
            positions=positions_of(batch, "decoder", tokens),
            tokens=tokens,
            memory=memory,
            memory_mask=AttentionMask(
                query_segments=own, key_segments=segments, padding=_padding(batch)
            ),
            deterministic=deterministic,
            collect=collect,
        )
        x, of_decoder = self.decoder(self.token_embedder(tokens), shared)
        return x, {"encoder": of_encoder, "decoder": of_decoder}

    def encode(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[Float[Array, "B S D"], Int[Array, "B S"]]:
        """Return the encoder's output, and its segment ids (0 is padding).

        Without `encoder_segment_ids`, token 0 is padding. A row is one document followed by its
        padding, unless the batch has `encoder_readers` (see `Encoder`), or the positions or decoder
        segments of packed rows.
        """
        return self._encode(batch, deterministic=deterministic, collect=())[:2]

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Array, Array, Any]:
        tokens = batch["encoder_input_tokens"]
        segments = batch.get("encoder_segment_ids", (tokens != 0).astype(jnp.int32))
        # Padding attends to the first document, as in Hugging Face's networks: in a
        # mixture-of-experts layer padding takes slots of experts, so its states matter.
        readers = jnp.maximum(segments, 1) if _padding(batch) == "anywhere" else None
        shared = Shared(
            mask=AttentionMask(
                query_segments=readers, key_segments=segments, padding=_padding(batch)
            ),
            positions=positions_of(batch, "encoder", tokens),
            tokens=tokens,
            deterministic=deterministic,
            collect=collect,
        )
        x, collected = self.encoder(self.read(tokens, shared), shared)
        return x, segments, collected

    def read(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """Return the input of the encoder: the embeddings of its tokens."""
        return self.token_embedder(tokens)

    def prefill(
        self,
        encoder_input_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        encoder_mask: Bool[Array, "B S"] | None = None,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Run the encoder and a decoder prompt; return the next token's logits, and a cache.

        Args:
            decoder_input_tokens: prompts, left-padded.
            cache_length: cache slots, for the prompt and the continuation.
            encoder_mask, decoder_mask: True at tokens, False at padding; padding may be anywhere in
                the encoder's rows. By default token 0 is padding in the encoder, and the prompt has
                no padding (it begins with token 0).
        """
        real = encoder_input_tokens != 0 if encoder_mask is None else encoder_mask
        batch = {"encoder_input_tokens": encoder_input_tokens}
        batch["encoder_segment_ids"] = real.astype(jnp.int32)
        batch["encoder_readers"] = jnp.ones_like(encoder_input_tokens)
        memory, segments = self.encode(batch)
        prompts, length = decoder_input_tokens.shape
        real = jnp.ones((prompts, length), bool) if decoder_mask is None else decoder_mask
        layers = (self.make_decoder or self.make_encoder)(parent=None).empty_cache(
            batch=prompts, slots=cache_length
        )
        cache = open_cache(layers, prompt=real, slots=cache_length, memory_real=segments > 0)
        logits, cache = self._advance(decoder_input_tokens, cache, real, memory)
        return logits[:, -1], cache

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """Run the next tokens; return the logits after each, and the extended cache."""
        return self._advance(tokens, cache, jnp.ones(tokens.shape, bool), None)

    def _advance(
        self, tokens: Array, cache: Cache, real: Array, memory: Array | None
    ) -> tuple[Array, Cache]:
        first = memory is not None
        cache, mask, positions = cache.push(real, visibility="causal", first=first)
        assert cache.memory_real is not None  # set by prefill
        shared = Shared(
            mask=mask,
            positions=positions,
            tokens=tokens,
            memory=memory,
            memory_mask=AttentionMask(key_segments=cache.memory_real.astype(jnp.int32)),
            first=first,
        )
        x, layers = self.decoder(self.token_embedder(tokens), shared, cache.layers)
        if first:  # only the logits at the end of a prompt are needed
            x = x[:, -1:]
        return self.lm_head(x, self.token_embedder.embedding), dataclasses.replace(
            cache, layers=layers
        )

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zeros, from which `__call__` initializes the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}


def _padding(batch: Batch) -> Padding:
    """Return where the encoder's padding may be: `at_end` for unpacked rows, or `anywhere`."""
    elsewhere = {"encoder_positions", "encoder_readers"}
    elsewhere |= {"decoder_positions", "decoder_segment_ids"}
    return "anywhere" if elsewhere & set(batch) else "at_end"
