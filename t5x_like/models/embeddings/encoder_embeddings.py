"""The input of an encoder: token, position and segment embeddings, summed and normed."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.types import Batch


class Embeddings(nn.Module):
    """norm(token + position + segment): Devlin et al. 2018, figure 2.

    The batch has `encoder_input_tokens`, and may have `encoder_token_types` (default 0) and
    `encoder_positions` (default: counted from the start of the row), each [B, L].

    Attributes:
        make_tokens, make_positions, make_token_types: factories of the tables; without
            `make_token_types` there are no segment embeddings.
        make_norm: factory of the norm of the sum.
    """

    make_tokens: Callable[..., nn.Module]
    make_positions: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module]
    make_token_types: Callable[..., nn.Module] | None = None

    def setup(self) -> None:
        self.token = self.make_tokens()
        self.position = self.make_positions()
        if self.make_token_types is not None:
            self.token_type = self.make_token_types()
        self.norm = self.make_norm()

    def __call__(self, batch: Batch) -> Float[Array, "B L E"]:
        """Return the normed sum of the embeddings."""
        tokens = batch["encoder_input_tokens"]
        x = self.token(tokens)
        x = x + self.position(batch.get("encoder_positions"), length=tokens.shape[1])
        if self.make_token_types is not None:
            x = x + self.token_type(batch.get("encoder_token_types", jnp.zeros_like(tokens)))
        return self.norm(x)

    @property
    def table(self) -> Float[Array, "V E"]:
        """The table of token embeddings, for a head that is tied to it."""
        return self.token.embedding


class CountedEmbeddings(Embeddings):
    """norm(token + position), where positions count only tokens that are not padding (fairseq).

    So the embeddings of a text do not depend on where its padding is. Padding has position -1, the
    table's row before position 0, which is why `make_positions` must have an offset.
    """

    def __call__(self, batch: Batch) -> Float[Array, "B L E"]:
        """Return the normed sum of the embeddings."""
        real = batch["encoder_segment_ids"] > 0
        positions = batch.get("encoder_positions", jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1)
        return super().__call__({**batch, "encoder_positions": jnp.where(real, positions, -1)})


class ContentEmbeddings(nn.Module):
    """norm(token), 0 at padding, without positions (DeBERTa: He et al. 2020, section 3.1).

    The layers add positions to the attention scores instead.

    Attributes:
        make_tokens: factory of the table.
        make_norm: factory of the norm.
    """

    make_tokens: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module]

    def setup(self) -> None:
        self.token = self.make_tokens()
        self.norm = self.make_norm()

    def __call__(self, batch: Batch) -> Float[Array, "B L D"]:
        """Return the normed embeddings."""
        return _without_padding(self.norm(self.token(batch["encoder_input_tokens"])), batch)

    @property
    def table(self) -> Float[Array, "V D"]:
        """The table of token embeddings, for a head that is tied to it."""
        return self.token.embedding


class ChangedEmbeddings(nn.Module):
    """norm(token of another network + a learned change), 0 at padding.

    He et al. 2021, section 3.3, equation 6: E_D = sg(E_G) + E_delta, where E_delta is initialized
    with 0. The table of E_delta is named `change` rather than `token`, so that it is not mistaken
    for the embedding table.

    Attributes:
        make_tokens: factory of the table of changes.
        make_norm: factory of the norm.
    """

    make_tokens: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module]

    def setup(self) -> None:
        self.change = self.make_tokens(embedding_init=nn.initializers.zeros)
        self.norm = self.make_norm()

    def __call__(self, batch: Batch, token: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """Return the normed embeddings; `token`, the other network's, gets no gradient."""
        change = self.change(batch["encoder_input_tokens"])
        return _without_padding(self.norm(jax.lax.stop_gradient(token) + change), batch)


def _without_padding(x: Float[Array, "B L D"], batch: Batch) -> Float[Array, "B L D"]:
    return jnp.where((batch["encoder_segment_ids"] > 0)[..., None], x, 0)
