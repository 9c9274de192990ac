"""Whole networks from parts: encoder-decoder and decoder-only."""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.models.attention.cache import Cache, open_cache
from t5x_like.models.attention.masks import AttentionMask, Visibility
from t5x_like.models.blocks.residual import Shared

Batch = Mapping[str, Array]


class Tower(nn.Module):
    """A stack with what comes before it, positions or a position bias, and its norm after.

    Attributes:
        make_entrance: factory of `entrance(x, positions)`, what the first layer reads of the
            tokens' vectors, or None where it reads them as they are.
        make_norm: factory of the norm after the last layer, or None where layers end in one.
        make_bias: factory of a relative position bias, or None.
    """

    make_stack: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module] | None = None
    make_bias: Callable[..., nn.Module] | None = None
    make_entrance: Callable[..., nn.Module] | None = None
    dropout: float = 0.0

    def setup(self) -> None:
        if self.make_entrance is not None:
            self.entrance = self.make_entrance()
        self.layers = self.make_stack()
        if self.make_norm is not None:
            self.final_norm = self.make_norm()
        if self.make_bias is not None:
            self.relative_position_bias = self.make_bias()
        self.drop = nn.Dropout(self.dropout, broadcast_dims=(-2,))

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, cache: PyTree = None
    ) -> tuple[Float[Array, "B T D"], PyTree]:
        """The normed output of the last layer, and the layers' caches if some were given."""
        if self.make_bias is not None:
            bias = self.relative_position_bias(
                queries=x.shape[1],
                keys=shared.mask.keys(x.shape[1]),
                offset=shared.mask.offset,
                bidirectional=shared.mask.visibility != "causal",
            )
            shared = dataclasses.replace(shared, bias=bias)
        if self.make_entrance is not None:
            x = self.entrance(x, shared.positions)
        x = self.drop(x, shared.deterministic)
        x, cache = self.layers(x, shared, cache)
        if self.make_norm is not None:
            x = self.drop(self.final_norm(x), shared.deterministic)
        return x, cache

    def empty_cache(self, *, batch: int, slots: int) -> PyTree:
        """The caches of all layers, as `models.cache.Cache` has them."""
        return self.make_stack(parent=None).empty_cache(batch=batch, slots=slots)


def _positions(batch: Batch, side: str, tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    arange = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return batch.get(f"{side}_positions", arange)


class EncoderDecoder(nn.Module):
    """Vaswani et al. 2017, figure 1: a decoder that reads an encoder's output.

    Attributes:
        make_embedding: of the tokens, which both sides share.
        make_encoder, make_decoder: of the towers; without a decoder of its own the encoder's
            parameters serve both sides (Raffel et al. 2020, section 3.2.2).
        make_head: of the map from the decoder's output and the embeddings to logits.
    """

    make_embedding: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    make_decoder: Callable[..., nn.Module] | None = None

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.encoder = self.make_encoder()
        self.decoder = self.encoder if self.make_decoder is None else self.make_decoder()
        self.lm_head = self.make_head()

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T V"]:
        """Float32 logits of every target position (teacher forcing)."""
        memory, segments = self.encode(batch, deterministic=deterministic)
        tokens = batch["decoder_input_tokens"]
        own = batch.get("decoder_segment_ids")
        shared = Shared(
            mask=AttentionMask(query_segments=own, key_segments=own, visibility="causal"),
            positions=_positions(batch, "decoder", tokens),
            tokens=tokens,
            memory=memory,
            memory_mask=AttentionMask(query_segments=own, key_segments=segments),
            deterministic=deterministic,
        )
        x, _ = self.decoder(self.token_embedder(tokens), shared)
        return self.lm_head(x, self.token_embedder.embedding)

    def encode(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[Float[Array, "B S D"], Int[Array, "B S"]]:
        """The encoder's output and its segments (0 is padding: token 0 unless told)."""
        tokens = batch["encoder_input_tokens"]
        segments = batch.get("encoder_segment_ids", (tokens != 0).astype(jnp.int32))
        # Padding sees the first document. What it makes of that counts in a sparse layer, where it
        # takes slots of experts, and should be what it is in Hugging Face's.
        readers = jnp.maximum(segments, 1)
        shared = Shared(
            mask=AttentionMask(query_segments=readers, key_segments=segments),
            positions=_positions(batch, "encoder", tokens),
            tokens=tokens,
            deterministic=deterministic,
        )
        x, _ = self.encoder(self.read(tokens, shared), shared)
        return x, segments

    def read(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """What the encoder reads of its tokens."""
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
        """Encodes, and reads a left-padded decoder prompt: the next token's logits and a cache.

        Args:
            cache_length: slots, for the prompt and all that is to come.
            encoder_mask, decoder_mask: True on real tokens. Without them token 0 is padding in
                the encoder, and every token of the prompt is real (it begins with token 0).
        """
        batch = {"encoder_input_tokens": encoder_input_tokens}
        if encoder_mask is not None:
            batch["encoder_segment_ids"] = encoder_mask.astype(jnp.int32)
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
        """The logits after each of the next tokens, and the cache with them."""
        return self._advance(tokens, cache, jnp.ones(tokens.shape, bool), None)

    def _advance(
        self, tokens: Array, cache: Cache, real: Array, memory: Array | None
    ) -> tuple[Array, Cache]:
        first = memory is not None
        cache, mask, positions = cache.push(real, visibility="causal", first=first)
        assert cache.memory_real is not None  # prefill opened it so
        shared = Shared(
            mask=mask,
            positions=positions,
            tokens=tokens,
            memory=memory,
            memory_mask=AttentionMask(key_segments=cache.memory_real.astype(jnp.int32)),
            first=first,
        )
        x, layers = self.decoder(self.token_embedder(tokens), shared, cache.layers)
        if first:  # a prompt: only its end is asked for
            x = x[:, -1:]
        return self.lm_head(x, self.token_embedder.embedding), dataclasses.replace(
            cache, layers=layers
        )

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Zeros of the fields that `__call__` needs, to shape the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}


class Decoder(nn.Module):
    """A language model: a tower that sees the past, and for a prefix LM all of a prefix.

    Attributes:
        visibility: `causal`, or `prefix` for the prefix LM of Raffel et al. 2020 (section 3.2.1).
    """

    make_embedding: Callable[..., nn.Module]
    make_decoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    visibility: Visibility = "causal"

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.decoder = self.make_decoder()
        self.lm_head = self.make_head()

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T V"]:
        """Float32 logits of every position; `decoder_causal_attention` marks a prefix."""
        tokens = batch["decoder_input_tokens"]
        segments = batch.get("decoder_segment_ids")
        prefix = batch.get("decoder_causal_attention")
        mask = AttentionMask(
            query_segments=segments,
            key_segments=segments,
            prefix=None if prefix is None else prefix.astype(bool),
            visibility=self.visibility,
        )
        shared = Shared(
            mask=mask,
            positions=_positions(batch, "decoder", tokens),
            tokens=tokens,
            deterministic=deterministic,
        )
        x, _ = self.decoder(self.token_embedder(tokens), shared)
        return self.lm_head(x, self.token_embedder.embedding)

    def prefill(
        self,
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Reads a left-padded prompt: the logits of the next token and a cache.

        Args:
            cache_length: slots, for the prompt and all that is to come.
            decoder_mask: True on real tokens; None if all are.
        """
        prompts, length = decoder_input_tokens.shape
        real = jnp.ones((prompts, length), bool) if decoder_mask is None else decoder_mask
        layers = self.make_decoder(parent=None).empty_cache(batch=prompts, slots=cache_length)
        cache = open_cache(layers, prompt=real, slots=cache_length)
        cache, mask, positions = cache.push(real, visibility=self.visibility, first=True)
        # All of a prompt is the prefix of a prefix LM.
        if self.visibility == "prefix":
            mask = dataclasses.replace(mask, prefix=real)
        shared = Shared(mask=mask, positions=positions, tokens=decoder_input_tokens, first=True)
        x, cache = self._advance(decoder_input_tokens, cache, shared)
        return self.lm_head(x[:, -1:], self.token_embedder.embedding)[:, 0], cache

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B T V"], Cache]:
        """The logits after each of the next tokens, and the cache with them."""
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
        """Zeros of the fields that `__call__` needs, to shape the parameters."""
        return {"decoder_input_tokens": jnp.zeros((batch, length), jnp.int32)}
