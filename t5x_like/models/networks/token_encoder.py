"""An encoder whose input is the token embeddings alone: T5's, without its decoder."""

from jaxtyping import Array, Float

from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch


class TokenEncoder(Encoder):
    """An encoder with the parameters that it has in an `EncoderDecoder`, and a head.

    Attributes:
        make_embeddings: factory of the token embeddings. They are not projected: `make_projection`
            is refused.
    """

    def setup(self) -> None:
        if self.make_projection is not None:
            raise ValueError(
                "a TokenEncoder has embeddings as wide as its layers: leave make_projection out"
            )
        self.token_embedder = self.make_embeddings()
        self.encoder = self.make_encoder()
        self.head = self.make_task_head()

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """The token embeddings."""
        return self.token_embedder(batch["encoder_input_tokens"])

    def table(self) -> Float[Array, "V E"]:
        """The token embeddings, for a head that is tied to them."""
        return self.token_embedder.embedding
