"""Token embeddings, the look-up of their rows, and output layers from hidden states to logits.

If the table is sharded, devices exchange rows of it, never the whole table.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.models.compute import Compute
from t5x_like.models.linear import TRANSPOSED
from t5x_like.models.vocabulary_product import VocabularyProduct


def look_up(
    table: Float[Array, "V D"], tokens: Int[Array, "B L"], *, axis: str, dtype: Any
) -> Float[Array, "B L D"]:
    """Look up the rows of `tokens`, in `dtype`; gradients are summed in the table's dtype.

    If D is sharded (`fsdp`), the devices that hold parts of the same row look up each other's
    tokens and exchange the results. So a device sends only its batch's embeddings, and backward
    their gradients. It never sends the table, and the table's gradient is reduced only over
    replicas.

    Args:
        axis: logical name of the first axis of the table.
    """
    if not partitioning.cuts_batch(tokens.shape[0]):
        # Keep rows whole on each device: otherwise XLA moves all gathered rows between devices.
        table = nn.with_logical_constraint(table, (axis, "activation_embed"))
        return jnp.take(table, tokens, axis=0).astype(dtype)
    own, columns = partitioning.mesh_axes(axis), partitioning.mesh_axes("embed")
    rows = nn.logical_to_mesh_axes(("activation_batch",))
    return jax.shard_map(
        functools.partial(_of_a_device, own=own, columns=columns, dtype=dtype),
        in_specs=(nn.logical_to_mesh_axes((axis, "embed")), rows),
        out_specs=rows,
    )(table, tokens)


def _of_a_device(
    table: Float[Array, "V D"],
    tokens: Int[Array, "B L"],
    *,
    own: tuple[str, ...],
    columns: tuple[str, ...],
    dtype: Any,
) -> Float[Array, "B L D"]:
    """Return the rows of a device's tokens, inside `shard_map`.

    Args:
        table: the device's part of the table.
        own, columns: the mesh axes that shard the vocabulary and the columns.
    """
    tokens = jax.lax.all_gather(tokens, columns, axis=0, tiled=True)
    if own:
        index, vocabulary = jax.lax.axis_index(own), jax.lax.psum(table.shape[0], own)
        local = tokens - index * table.shape[0]
        known = (local >= 0) & (local < table.shape[0])
        x = jnp.take(table, jnp.where(known, local, 0), axis=0)
        x = jax.lax.psum(jnp.where(known[..., None], x, 0).astype(dtype), own)
        x = jnp.where((tokens < vocabulary)[..., None], x, jnp.nan)  # like `jnp.take`
    else:
        x = jnp.take(table, tokens, axis=0).astype(dtype)
    return jax.lax.all_to_all(x, columns, split_axis=0, concat_axis=2, tiled=True)


# ---- Modules: embeddings and output layers.


class TokenEmbed(nn.Module):
    """A table of V embeddings of width D.

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
        """Return the embeddings of `tokens`."""
        if self.compute.lookup == "one_hot":
            table = self.embedding.astype(self.compute.dtype)
            table = nn.with_logical_constraint(table, (self.axis, "activation_embed"))
            x = jax.nn.one_hot(tokens, self.vocab_size, dtype=self.compute.dtype) @ table
        else:
            x = look_up(self.embedding, tokens, axis=self.axis, dtype=self.compute.dtype)
        axes = ("activation_batch", "residual_length", "activation_embed")
        return nn.with_logical_constraint(x, axes)


class TiedHead(nn.Module):
    """Logits as scaled products with the token embeddings.

    Attributes:
        scale: factor on the hidden states; D^-0.5 in T5 v1.0.
        use_bias: whether to add a learned bias for each token (code of Devlin et al. 2018).
    """

    scale: float = 1.0
    use_bias: bool = False

    def __call__(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> Float[Array, "B L V"]:
        """Return float32 logits."""
        return self.product(x, embedding).logits()

    @nn.compact
    def product(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> VocabularyProduct:
        """Return the logits as a product that is not computed yet."""
        bias = None
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            bias = self.param("bias", zeros, (embedding.shape[0],))
        return VocabularyProduct(x * self.scale, embedding, bias)


class LinearHead(nn.Module):
    """Logits from a separate projection, not tied to the embeddings.

    Attributes:
        use_bias: whether to add a learned bias for each token (GPT-J).
    """

    use_bias: bool = False
    kernel_init: Callable[..., Array] = nn.initializers.lecun_normal()

    def __call__(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> Float[Array, "B L V"]:
        """Return float32 logits; `embedding` only gives the vocabulary's size."""
        return self.product(x, embedding).logits()

    @nn.compact
    def product(
        self, x: Float[Array, "B L D"], embedding: Float[Array, "V D"]
    ) -> VocabularyProduct:
        """Return the logits as a product that is not computed yet."""
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
