"""Heads of a bidirectional language model: the words before and after, and classes of a text."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.heads.output_layer import output_layer
from t5x_like.models.linear import Initializer
from t5x_like.models.matrix_product import product
from t5x_like.models.types import Batch, Outputs


class BothDirections(nn.Module):
    """One softmax over V words for both directions: Peters et al. 2018, section 3.1.

    Attributes:
        dropout: rate of its input.
    """

    vocab_size: int
    features: int
    dropout: float = 0.0

    def setup(self) -> None:
        init = nn.initializers.normal(self.features**-0.5)
        matrix = nn.with_logical_partitioning(init, ("vocab", "embed"))
        self.kernel = self.param("kernel", matrix, (self.vocab_size, self.features))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        self.bias = self.param("bias", zeros, (self.vocab_size,))
        self.drop = nn.Dropout(self.dropout)

    def __call__(
        self, hidden: Float[Array, "B L 2*P"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`forward_logits` of the word after each, `backward_logits` of the word before it.

        Both are float32 [B, L, V].
        """
        halves = jnp.split(self.drop(hidden, deterministic), 2, axis=-1)
        forward, backward = (to_vocabulary(half, self.kernel, self.bias) for half in halves)
        return {"forward_logits": forward, "backward_logits": backward}

    def inputs(self, hidden: Float[Array, "2 B T P"], *, deterministic: bool) -> Outputs:
        """What a loss needs to compute logits itself: `hidden`, `kernel` and `bias`."""
        hidden = self.drop(hidden, deterministic)
        return {"hidden": hidden, "kernel": self.kernel, "bias": self.bias}


def to_vocabulary(
    x: Float[Array, "*batch P"], kernel: Float[Array, "V P"], bias: Float[Array, " V"]
) -> Float[Array, "*batch V"]:
    """Float32 logits."""
    rows = product("np,vp->nv", x.reshape(-1, x.shape[-1]), kernel.astype(x.dtype))
    return rows.reshape(*x.shape[:-1], -1) + bias.astype(jnp.float32)


class WordsHead(nn.Module):
    """The hidden states of all layers, for other uses."""

    def __call__(self, hidden: Array, batch: Batch, *, deterministic: bool = True) -> Outputs:
        """`hidden` [B, L, F], the last layer's."""
        return {"hidden": hidden}


class WordTagger(nn.Module):
    """Predict a tag for each word."""

    outputs: int
    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L F"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, L, outputs]."""
        return {"logits": output_layer(self.outputs, self.kernel_init, "tagger")(hidden)}


class TextClassifier(nn.Module):
    """Predict a class of a text from the largest value of each feature over its words."""

    outputs: int
    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L F"], batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, outputs]; of a row of padding those of zeros."""
        real = batch["encoder_segment_ids"] > 0
        # A finite number, so that a row of padding has a finite gradient.
        lowest: Any = jnp.finfo(hidden.dtype).min
        pooled = jnp.max(jnp.where(real[..., None], hidden, lowest), axis=1)
        pooled = jnp.where(jnp.any(real, axis=1)[:, None], pooled, 0)
        return {"logits": output_layer(self.outputs, self.kernel_init, "classifier")(pooled)}
