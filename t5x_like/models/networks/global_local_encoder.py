"""An encoder with global tokens in front of its text: Ainslie et al. 2020 (ETC)."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.attention.global_local import SentenceMask
from t5x_like.models.blocks.residual import PostNormBlock, constrain
from t5x_like.models.blocks.shared import Collected, Shared
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs


class GlobalLocalEmbeddings(nn.Module):
    """norm(token + kind) of G equal global tokens and of the text; no absolute positions.

    Attributes:
        make_tokens: factory of the table of tokens.
        make_kinds: factory of the table of two kinds, global tokens (0) and text (1).
        make_norm: factory of the norms, one for each kind.
        count: G.
        token_id: the id of all global tokens.
    """

    make_tokens: Callable[..., nn.Module]
    make_kinds: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module]
    count: int
    token_id: int

    def setup(self) -> None:
        self.token = self.make_tokens()
        self.kinds = self.make_kinds()
        self.norm, self.global_norm = self.make_norm(), self.make_norm()

    def __call__(self, batch: Batch) -> Float[Array, "B T D"]:
        """The normed sums, the global tokens first."""
        tokens = batch["encoder_input_tokens"]
        ids = jnp.full((tokens.shape[0], self.count), self.token_id, tokens.dtype)
        summaries = self.token(ids) + self.kinds(jnp.zeros_like(ids))
        text = self.token(tokens) + self.kinds(jnp.ones_like(tokens))
        return jnp.concatenate([self.global_norm(summaries), self.norm(text)], axis=1)

    @property
    def table(self) -> Float[Array, "V D"]:
        """The table of token embeddings, for a head that is tied to it."""
        return self.token.embedding


class GlobalLocalBlock(PostNormBlock):
    """A post-norm layer whose attention has a norm of its own for global tokens, as released.

    Attributes:
        count: the number of global tokens.
    """

    count: int = 0

    def setup(self) -> None:
        super().setup()
        self.global_attention_norm = self.make_norm()

    def _sublayer_output(self, x: Array, y: Array, norm: nn.Module, shared: Shared) -> Array:
        if norm is not self.self_attention_norm:
            return super()._sublayer_output(x, y, norm, shared)
        z = x + self.drop(y, shared.deterministic)
        parts = [self.global_attention_norm(z[:, : self.count]), norm(z[:, self.count :])]
        return constrain(jnp.concatenate(parts, axis=1))


class GlobalLocalEncoder(Encoder, kw_only=True):  # type: ignore[call-arg]
    """An encoder whose sentences have a global token each.

    A batch may have `encoder_sentences` [B, L], the number of each token's sentence from 1 on, 0
    for none; without it each document is one sentence. Sentences after the first G have no global
    token.

    Attributes:
        count: G.
        hard_global, hard_text: see `SentenceMask`.
    """

    count: int
    hard_global: bool = True
    hard_text: bool = False

    def compare(self, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """The outputs of the head, and two encodings of each sentence.

        Args:
            batch: with `encoder_sentences` and `encoder_target_tokens`, the text without noise.

        Returns:
            Also `summaries` [B, G, D], the global tokens of the text, and `alone` [B, G, D], those
            of the sentences without noise that see their sentence and nothing else.
        """
        states, _ = super()._encode(batch, deterministic=deterministic, collect=())
        hidden, table = states[:, self.count :], self.table()
        outputs = self.head(hidden, table, batch, deterministic=deterministic)
        sentences = {
            "encoder_input_tokens": batch["encoder_target_tokens"],
            "encoder_segment_ids": batch["encoder_sentences"],
            "encoder_sentences": batch["encoder_sentences"],
        }
        alone, _ = super()._encode(sentences, deterministic=deterministic, collect=())
        return outputs | {"summaries": states[:, : self.count], "alone": alone[:, : self.count]}

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Collected]]:
        states, collected = super()._encode(batch, deterministic=deterministic, collect=collect)
        return states[:, self.count :], collected

    def mask(self, batch: Batch) -> SentenceMask:
        """The attention mask, with a global token for each sentence of the batch."""
        segments = batch["encoder_segment_ids"]
        sentences = batch.get("encoder_sentences", segments)
        return SentenceMask(
            text_segments=segments,
            sentences=sentences,
            global_segments=documents_of_sentences(sentences, segments, count=self.count),
            hard_global=self.hard_global,
            hard_text=self.hard_text,
        )


def documents_of_sentences(
    sentences: Int[Array, "B L"], values: Int[Array, "B L"], *, count: int
) -> Int[Array, "B G"]:
    """The largest value of the tokens of each of the first G sentences, 0 where there is none."""
    numbers = jnp.arange(1, count + 1)[:, None]
    own: Any = sentences[:, None] == numbers
    return jnp.max(jnp.where(own, values[:, None], 0), axis=-1)
