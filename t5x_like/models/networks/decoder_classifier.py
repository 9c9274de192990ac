"""A decoder-only network with a classification head on the last token: GPT on labelled text."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.blocks.shared import Collected, Shared
from t5x_like.models.networks.decoder import Decoder
from t5x_like.models.types import Batch, Outputs


class DecoderClassifier(Decoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Radford et al. 2018, section 3.2: a head on the state of the last token predicts the label.

    An example is C rows of L tokens, padded on the right (section 3.3): one for a text, one for
    each order of two texts, or one for each answer to choose from. `prefill` and `extend` are the
    language model's.

    Attributes:
        make_label_head: factory of `head(states [B, C, D], real [B, C], deterministic=) -> logits`.
    """

    make_label_head: Callable[..., nn.Module]

    def setup(self) -> None:
        super().setup()
        self.head = self.make_label_head()

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """`logits` of the next tokens, float32 [B, C, L, V], and `label_logits`, [B, labels].

        Args:
            batch: `decoder_input_tokens` and `decoder_segment_ids` [B, C, L], 0 on padding.
            collect: as in `Decoder`; the rows of a batch are B * C there.
        """
        tokens, segments = batch["decoder_input_tokens"], batch["decoder_segment_ids"]
        examples, rows, length = tokens.shape
        # Padding is at the end, so that under the causal mask no token attends to it.
        shared = Shared(
            mask=AttentionMask(visibility="causal"),
            positions=jnp.broadcast_to(jnp.arange(length), (examples * rows, length)),
            deterministic=deterministic,
            collect=collect,
        )
        x = self.token_embedder(tokens.reshape(examples * rows, length))
        x, collected = self.decoder(x, shared)
        logits = self.lm_head(x, self.token_embedder.embedding)
        sizes = jnp.sum(segments > 0, axis=2)
        last = jnp.maximum(sizes - 1, 0).reshape(-1, 1, 1)
        states = jnp.take_along_axis(x, last, axis=1).reshape(examples, rows, -1)
        outputs = {
            "logits": logits.reshape(*tokens.shape, -1),
            "label_logits": self.head(states, sizes > 0, deterministic=deterministic),
        }
        return (outputs, {"decoder": collected}) if collect else outputs

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Zeros of examples of one row, to shape the parameters."""
        tokens = jnp.zeros((batch, 1, length), jnp.int32)
        return {"decoder_input_tokens": tokens, "decoder_segment_ids": tokens + 1}
