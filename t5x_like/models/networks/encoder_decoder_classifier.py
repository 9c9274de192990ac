"""A text that the encoder reads and the decoder reads again, for what is said of it as a whole."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.blocks.shared import Shared
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch


class EncoderDecoderClassifier(Encoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Lewis et al. 2019, section 3.1: the same input to both sides, and a head on the decoder.

    To the rest of the program it is an encoder, whose hidden states are the decoder's: each has
    read all of the text by way of the encoder, and the tokens before its own once more. Parameters
    have the names that they have in an `EncoderDecoder`.

    Attributes:
        make_embeddings: factory of the tokens' vectors, which both sides share.
        make_encoder, make_decoder: of the towers.
        start_id: the token that the decoder reads first.
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
        tokens, segments = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        seen = AttentionMask(key_segments=segments)
        shared = Shared(
            mask=seen, positions=positions, deterministic=deterministic, collect=collect
        )
        memory, of_encoder = self.encoder(self.token_embedder(tokens), shared)
        shared = Shared(
            mask=AttentionMask(key_segments=segments, visibility="causal"),
            positions=positions,
            memory=memory,
            memory_mask=seen,
            deterministic=deterministic,
            collect=collect,
        )
        again = self.token_embedder(self._shifted(tokens, segments))
        hidden, of_decoder = self.decoder(again, shared)
        return hidden, {"encoder": of_encoder, "decoder": of_decoder}

    def _shifted(self, tokens: Int[Array, "B L"], segments: Int[Array, "B L"]) -> Array:
        """What the decoder reads: each text moved right by one, after the start."""
        real = segments > 0
        first = real & (jnp.cumsum(real, axis=1) == 1)
        return jnp.where(first, self.start_id, jnp.roll(tokens, 1, axis=1))
