"""A new encoder before a pretrained encoder-decoder, for a language that it was not trained on."""

from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array, Float, Int

from t5x_like.models.blocks.shared import Shared
from t5x_like.models.networks.encoder_decoder import EncoderDecoder


class SourceEncoder(nn.Module):
    """Map tokens of another vocabulary to inputs of a pretrained encoder.

    Attributes:
        make_embedding: factory of the token embeddings.
        make_encoder: factory of the tower.
    """

    make_embedding: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]

    def setup(self) -> None:
        self.token_embedder = self.make_embedding()
        self.encoder = self.make_encoder()

    def __call__(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """The output of the last layer."""
        return self.encoder(self.token_embedder(tokens), shared)[0]


class Translator(EncoderDecoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Lewis et al. 2019, section 3.4: a new encoder feeds a pretrained denoising encoder-decoder.

    Attributes:
        make_source: factory of the `SourceEncoder`.
    """

    make_source: Callable[..., nn.Module]

    def setup(self) -> None:
        super().setup()
        self.source = self.make_source()

    def read(self, tokens: Int[Array, "B S"], shared: Shared) -> Float[Array, "B S D"]:
        """The output of the new encoder, in place of the token embeddings."""
        return self.source(tokens, shared)
