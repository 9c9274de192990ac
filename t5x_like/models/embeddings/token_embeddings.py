"""Token embeddings, and output layers from hidden states to logits."""

from collections.abc import Callable

import flax.linen as nn
import jax
from jaxtyping import Array, Float, Int

from t5x_like.models.compute import Compute
from t5x_like.models.embeddings.lookup import look_up
from t5x_like.models.linear import TRANSPOSED
from t5x_like.models.vocabulary_product import VocabularyProduct


class TokenEmbed(nn.Module):
    """A table of V embeddings of D numbers.

    Attributes:
        axis: logical name of the table's first axis: `vocab`, or `types` for segments.
    """

    vocab_size: int
    features: int
    axis: str = "vocab"
    embedding_init: Callable[..., Array] = nn.initializers.normal(1.0)
    compute: Compute = Compute()

    def setup(self) -> None:
        init = nn.with_logical_partitioning(self.embedding_init, (self.axis, "embed"))
        self.embedding = self.param("embedding", init, (self.vocab_size, self.features))

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """The embeddings of `tokens`."""
        if self.compute.lookup == "one_hot":
            table = self.embedding.astype(self.compute.dtype)
            table = nn.with_logical_constraint(table, (self.axis, "activation_embed"))
            x = jax.nn.one_hot(tokens, self.vocab_size, dtype=self.compute.dtype) @ table
        else:
            x = look_up(self.embedding, tokens, axis=self.axis, dtype=self.compute.dtype)
        axes = ("activation_batch", "residual_length", "activation_embed")
        return nn.with_logical_constraint(x, axes)


class TiedHead(nn.Module):
    """Logits as scaled products with the token embeddings (scale in T5 v1.0: D^-0.5).

    Attributes:
        use_bias: a learned constant for each token (Devlin et al. 2018's code).
    """

    scale: float = 1.0
    use_bias: bool = False

    def __call__(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> Float[Array, "B L V"]:
        """Float32 logits."""
        return self.product(x, embedding).logits()

    @nn.compact
    def product(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> VocabularyProduct:
        """The logits, not computed yet."""
        bias = None
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            bias = self.param("bias", zeros, (embedding.shape[0],))
        return VocabularyProduct(x * self.scale, embedding, bias)


class LinearHead(nn.Module):
    """Logits by a separate projection.

    Attributes:
        use_bias: a learned constant for each token (GPT-J).
    """

    use_bias: bool = False
    kernel_init: Callable[..., Array] = nn.initializers.lecun_normal()

    def __call__(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> Float[Array, "B L V"]:
        """Float32 logits; `embedding` only gives the vocabulary's size."""
        return self.product(x, embedding).logits()

    @nn.compact
    def product(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> VocabularyProduct:
        """The logits, not computed yet."""
        transposed = self.has_variable(TRANSPOSED, "kernel")
        if transposed:
            kernel = self.get_variable(TRANSPOSED, "kernel")
        else:
            init = nn.with_logical_partitioning(self.kernel_init, ("embed", "vocab"))
            kernel = self.param("kernel", init, embedding.shape[::-1])
        bias = None
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            bias = self.param("bias", zeros, embedding.shape[:1])
        return VocabularyProduct(x, kernel, bias, vocabulary_axis=0 if transposed else 1)
