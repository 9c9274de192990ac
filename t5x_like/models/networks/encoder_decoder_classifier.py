"""An encoder-decoder whose decoder states classify the text: BART on labelled text."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.blocks.shared import Shared
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch


class EncoderDecoderClassifier(Encoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Lewis et al. 2019, section 3.1: the same input on both sides, and a head on the decoder.

    It has the interface of an `Encoder` whose hidden states are the decoder's. The parameters have
    the same names as in an `EncoderDecoder`.

    Attributes:
        make_embeddings: factory of the token embeddings, which both sides share.
        make_encoder, make_decoder: factories of the towers.
        start_id: the id of the decoder's first token.
    """

    make_decoder: Callable[..., nn.Module]
    start_id: int

    def setup(self) -> None:
        self.token_embedder = self.make_embeddings()
        self.encoder = self.make_encoder()
        self.decoder = self.make_decoder()
        self.head = self.make_task_head()

    def table(self) -> Float[Array, "V E"]:
        """The token embeddings, for a head that is tied to them."""
        return self.token_embedder.embedding

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Any]]:
        """The output of the decoder's last layer."""
        tokens, seen = batch["encoder_input_tokens"], self.mask_of_document(batch)
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        shared = Shared(
            mask=seen, positions=positions, deterministic=deterministic, collect=collect
        )
        memory, of_encoder = self.encoder(self.token_embedder(tokens), shared)
        shared = Shared(
            mask=dataclasses.replace(seen, visibility="causal"),
            positions=positions,
            memory=memory,
            memory_mask=seen,
            deterministic=deterministic,
            collect=collect,
        )
        again = self.token_embedder(self._shifted(tokens, batch["encoder_segment_ids"]))
        hidden, of_decoder = self.decoder(again, shared)
        return hidden, {"encoder": of_encoder, "decoder": of_decoder}

    def _shifted(self, tokens: Int[Array, "B L"], segments: Int[Array, "B L"]) -> Array:
        """The decoder's input: each text shifted right by one, after the start token."""
        real = segments > 0
        first = real & (jnp.cumsum(real, axis=1) == 1)
        return jnp.where(first, self.start_id, jnp.roll(tokens, 1, axis=1))
