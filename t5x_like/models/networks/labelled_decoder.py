"""A language model that also says what its texts are: a head on the last token of each row."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.blocks.residual import Shared
from t5x_like.models.linear import Initializer, Linear
from t5x_like.models.networks.encoder import Outputs
from t5x_like.models.networks.encoder_decoder import Batch, Decoder


class LabelledDecoder(Decoder, kw_only=True):  # type: ignore[call-arg]  # flax has it
    """Radford et al. 2018, section 3.2: what the last token of a text has read says its label.

    An example is C rows of L tokens, padded on the right (section 3.3): one for a text, one for
    each order of two texts, or one for each answer to choose from. Without labels, in `prefill` and
    `extend`, it is the language model that it was.

    Attributes:
        make_label_head: factory of `head(states [B, C, D], real [B, C], deterministic=) -> logits`.
    """

    make_label_head: Callable[..., nn.Module]

    def setup(self) -> None:
        super().setup()
        self.head = self.make_label_head()

    def __call__(self, batch: Batch, *, deterministic: bool = True) -> Outputs:  # type: ignore[override]
        """`logits` of the next tokens, float32 [B, C, L, V], and `label_logits`, [B, labels].

        Args:
            batch: `decoder_input_tokens` and `decoder_segment_ids` [B, C, L], 0 on padding.
        """
        tokens, segments = batch["decoder_input_tokens"], batch["decoder_segment_ids"]
        examples, rows, length = tokens.shape
        # Causal attention and padding at the end: no text sees any of it.
        shared = Shared(
            mask=AttentionMask(visibility="causal"),
            positions=jnp.broadcast_to(jnp.arange(length), (examples * rows, length)),
            deterministic=deterministic,
        )
        x = self.token_embedder(tokens.reshape(examples * rows, length))
        x, _ = self.decoder(x, shared)
        logits = self.lm_head(x, self.token_embedder.embedding)
        sizes = jnp.sum(segments > 0, axis=2)
        last = jnp.maximum(sizes - 1, 0).reshape(-1, 1, 1)
        states = jnp.take_along_axis(x, last, axis=1).reshape(examples, rows, -1)
        return {
            "logits": logits.reshape(*tokens.shape, -1),
            "label_logits": self.head(states, sizes > 0, deterministic=deterministic),
        }

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Of one row an example, to shape the parameters."""
        tokens = jnp.zeros((batch, 1, length), jnp.int32)
        return {"decoder_input_tokens": tokens, "decoder_segment_ids": tokens + 1}


class ClassHead(nn.Module):
    """A class, from the sum of what an example's rows say: of two texts, in both orders."""

    labels: int
    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "B C D"], real: Bool[Array, "B C"], *, deterministic: bool = True
    ) -> Float[Array, "B labels"]:
        """Float32 logits."""
        state = jnp.sum(jnp.where(real[..., None], states, 0.0), axis=1)
        state = nn.Dropout(self.dropout)(state, deterministic)
        return _output(self.labels, self.kernel_init)(state)


class ChoiceHead(nn.Module):
    """Which of an example's rows is right: a number for each; a row of padding has no chance."""

    kernel_init: Initializer
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, states: Float[Array, "B C D"], real: Bool[Array, "B C"], *, deterministic: bool = True
    ) -> Float[Array, "B C"]:
        """Float32 logits."""
        # The same for all rows of an example: they compete.
        states = nn.Dropout(self.dropout, broadcast_dims=(1,))(states, deterministic)
        return jnp.where(real, _output(1, self.kernel_init)(states)[..., 0], -1e9)


def _output(outputs: int, kernel_init: Initializer) -> nn.Module:
    # Float32: a class is decided by a few numbers, which cost nothing.
    return Linear(
        (outputs,),
        axes=("embed", "classes"),
        use_bias=True,
        kernel_init=kernel_init,
        name="classifier",
    )
