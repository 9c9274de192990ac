"""Embeddings of tokens, positions and segments, and output layers from hidden states to logits.

If the table is sharded, devices exchange rows, never the whole table. The logits over a
vocabulary are a product that is not computed yet (`VocabularyProduct`); a loss computes it in
tiles.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.nn.compute import Batch, Compute
from t5x_like.nn.linear import TRANSPOSED
from t5x_like.nn.matrix_product import float32_sums


def positions_of(batch: Batch, side: str, tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Return the batch's positions of a side (`encoder`, `decoder`), by default 0, 1, ..."""
    arange = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return batch.get(f"{side}_positions", arange)


class LearnedPositions(nn.Module):
    """A learned embedding for each position (Devlin et al. 2018, figure 2).

    Attributes:
        length: rows of the table.
        features: width of the embeddings.
        offset: the row of position 0; fairseq's models reserve the first 2 rows for padding.
    """

    length: int
    features: int
    offset: int = 0
    embedding_init: Any = nn.initializers.normal(0.02)
    compute: Compute = Compute()

    @nn.compact
    def __call__(
        self, positions: Int[Array, "B L"] | None, *, length: int
    ) -> Float[Array, "B L D"] | Float[Array, "1 L D"]:
        """Return the embeddings of `positions`, or of 0 to `length` - 1 if they are None.

        Raises:
            ValueError: the sequence is longer than the table.
        """
        if length > self.length - self.offset:
            raise ValueError(
                f"{length} tokens are more than the {self.length - self.offset} positions that "
                "the model has (model.positions): shorten the text (data.lengths of a run), or "
                "train with more positions"
            )
        init = nn.with_logical_partitioning(self.embedding_init, ("positions", "embed"))
        table = self.param("embedding", init, (self.length, self.features))
        table = table.astype(self.compute.dtype)
        if positions is None:  # a slice: its gradient needs no scatter
            return table[None, self.offset : self.offset + length]
        return jnp.take(table, positions + self.offset, axis=0)


class AddPositions(nn.Module):
    """The input of a tower: scaled token embeddings plus position embeddings.

    Attributes:
        make_positions: factory of `LearnedPositions` or of a module with the same call.
        make_norm: factory of a norm of the sum (BART), or None.
        scale: factor on the token embeddings; D^0.5 in Vaswani et al. 2017, section 3.4.
    """

    make_positions: Callable[..., nn.Module]
    make_norm: Callable[..., nn.Module] | None = None
    scale: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]
    ) -> Float[Array, "B L D"]:
        """Return the sum, normed if there is a norm."""
        x = x * self.scale if self.scale != 1.0 else x
        x = x + self.make_positions(name="position")(positions, length=x.shape[1])
        return x if self.make_norm is None else self.make_norm(name="norm")(x)


class ScaledInputs(nn.Module):
    """The input of a tower: scaled token embeddings, without positions."""

    scale: float

    def __call__(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"] | None
    ) -> Float[Array, "B L D"]:
        """Return the scaled embeddings."""
        del positions
        return x * jnp.asarray(self.scale, x.dtype)


# ---- Sinusoidal positions: no parameters, and no limit on the length of a text.


class SinusoidalPositions(nn.Module):
    """A fixed vector for each position: Vaswani et al. 2017, section 3.5.

    With D features, position p has sin(p / 10000^(2i/D)) in feature 2i and the cosine of the same
    angle in feature 2i + 1. The vector of p + k is the vector of p rotated by angles that depend
    only on k.
    """

    features: int
    compute: Compute = Compute()

    def __call__(
        self, positions: Int[Array, "B L"] | None, *, length: int
    ) -> Float[Array, "B L D"] | Float[Array, "1 L D"]:
        """Return the vectors of `positions`, or of 0 to `length` - 1 if they are None.

        Raises:
            ValueError: the number of features is odd.
        """
        if self.features % 2:
            raise ValueError(
                f"model.d_model={self.features} is odd: sinusoidal positions are pairs of a sine "
                "and a cosine, so it must be even"
            )
        if positions is None:
            positions = jnp.arange(length)[None]
        # Always in float32: in bfloat16 positions 256 and 257 are equal.
        exponents = jnp.arange(0, self.features, 2, dtype=jnp.float32) / self.features
        angles = positions[..., None].astype(jnp.float32) * 10_000.0**-exponents
        return self._arrange(jnp.sin(angles), jnp.cos(angles)).astype(self.compute.dtype)

    def _arrange(
        self, sines: Float[Array, "B L D/2"], cosines: Float[Array, "B L D/2"]
    ) -> Float[Array, "B L D"]:
        pairs = jnp.stack([sines, cosines], axis=-1)
        return pairs.reshape(*sines.shape[:-1], self.features)


class SinesThenCosines(SinusoidalPositions):
    """Sinusoidal positions with all sines before all cosines, as in Pegasus and Marian."""

    def _arrange(
        self, sines: Float[Array, "B L D/2"], cosines: Float[Array, "B L D/2"]
    ) -> Float[Array, "B L D"]:
        return jnp.concatenate([sines, cosines], axis=-1)


@flax.struct.dataclass
class VocabularyProduct:
    """Logits that are not computed yet, so that a loss can compute one part at a time.

    Attributes:
        hidden: the hidden states, in the dtype of the product.
        kernel: the kernel, in the dtype of the parameters: [V, D] (an embedding table) or [D, V].
        bias: added to the logits, or None.
        vocabulary_axis: the axis of V in the kernel, 0 or 1.
    """

    hidden: Float[Array, "B L D"]
    kernel: Float[Array, "V D"] | Float[Array, "D V"]
    bias: Float[Array, " V"] | None = None
    vocabulary_axis: int = flax.struct.field(pytree_node=False, default=0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the logits."""
        return *self.hidden.shape[:2], self.kernel.shape[self.vocabulary_axis]

    def logits(self) -> Float[Array, "B L V"]:
        """Compute the float32 logits."""
        logits = _product(self.vocabulary_axis, self.hidden, self.kernel)
        axes = ("activation_batch", "activation_length", "activation_vocab")
        logits = partitioning.constrain(logits, axes)
        return logits if self.bias is None else logits + self.bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(axis: int, hidden: Float[Array, "B L D"], kernel: Array) -> Float[Array, "B L V"]:
    """Multiply with float32 sums, also under bfloat16: a softmax over 32,000 logits needs them."""
    return float32_sums(f"BLD,{_kernel(axis)}->BLV", hidden, kernel.astype(hidden.dtype))


def _kernel(axis: int) -> str:
    return "DV" if axis else "VD"


def _forward(axis, hidden, kernel):
    return _product(axis, hidden, kernel), (hidden, kernel)


def _backward(axis, operands, gradient):
    hidden, kernel = operands
    gradient = gradient.astype(hidden.dtype)  # see `matrix_product.product`
    by_hidden = float32_sums(
        f"BLV,{_kernel(axis)}->BLD", gradient, kernel.astype(hidden.dtype)
    ).astype(hidden.dtype)
    by_kernel = kernel_gradient(
        f"ND,NV->{_kernel(axis)}",
        hidden,
        gradient,
        vocabulary=("activation_vocab",),
        axes=("embed", "vocab") if axis else ("vocab", "embed"),
    )
    return by_hidden, by_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)


def kernel_gradient(
    equation: str,
    hidden: Float[Array, "B L D"],
    gradient: Float[Array, "B L *V"],
    *,
    vocabulary: tuple[str | None, ...],
    axes: tuple[str | None, ...],
) -> Float[Array, "..."]:
    """Return the float32 gradient of a kernel, sharded like the kernel.

    Args:
        equation: the einsum of hidden and gradient as rows [N, D] and [N, *V], N = B L, since on a
            CPU the operands of a product that sums over two axes would first be transposed.
        gradient: the gradient of the logits, in the dtype of `hidden`.
        vocabulary: logical axes of the logits after `B L`.
        axes: logical axes of the kernel.
    """
    rows = ("activation_batch", "activation_length")

    def product(*arrays: Array) -> Array:
        return float32_sums(equation, *(x.reshape(-1, *x.shape[2:]) for x in arrays))

    return partitioning.sum_over_batch(
        product,
        (hidden, (*rows, "activation_embed")),
        (gradient, (*rows, *vocabulary)),
        axes=axes,
    )


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
        table = partitioning.constrain(table, (axis, "activation_embed"))
        return jnp.take(table, tokens, axis=0).astype(dtype)
    vocabulary_axes, columns = partitioning.mesh_axes(axis), partitioning.mesh_axes("embed")
    rows = nn.logical_to_mesh_axes(("activation_batch",))
    return jax.shard_map(
        functools.partial(
            _of_a_device, vocabulary_axes=vocabulary_axes, columns=columns, dtype=dtype
        ),
        in_specs=(nn.logical_to_mesh_axes((axis, "embed")), rows),
        out_specs=rows,
    )(table, tokens)


def _of_a_device(
    table: Float[Array, "V D"],
    tokens: Int[Array, "B L"],
    *,
    vocabulary_axes: tuple[str, ...],
    columns: tuple[str, ...],
    dtype: Any,
) -> Float[Array, "B L D"]:
    """Return the rows of a device's tokens, inside `shard_map`.

    Args:
        table: the device's part of the table.
        vocabulary_axes, columns: the mesh axes that shard the vocabulary and the columns.
    """
    tokens = jax.lax.all_gather(tokens, columns, axis=0, tiled=True)
    if vocabulary_axes:
        index = jax.lax.axis_index(vocabulary_axes)
        vocabulary = jax.lax.psum(table.shape[0], vocabulary_axes)
        local = tokens - index * table.shape[0]
        known = (local >= 0) & (local < table.shape[0])
        x = jnp.take(table, jnp.where(known, local, 0), axis=0)
        x = jax.lax.psum(jnp.where(known[..., None], x, 0).astype(dtype), vocabulary_axes)
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
            table = partitioning.constrain(table, (self.axis, "activation_embed"))
            x = jax.nn.one_hot(tokens, self.vocab_size, dtype=self.compute.dtype) @ table
        else:
            x = look_up(self.embedding, tokens, axis=self.axis, dtype=self.compute.dtype)
        axes = ("activation_batch", "residual_length", "activation_embed")
        return partitioning.constrain(x, axes)


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
    table's row before position 0, which is why `make_positions` must have an offset. If the table
    of token types has a single row, as RoBERTa's, all tokens have it, whatever their segment.
    """

    def __call__(self, batch: Batch) -> Float[Array, "B L E"]:
        """Return the normed sum of the embeddings."""
        real = batch["encoder_segment_ids"] > 0
        positions = batch.get("encoder_positions", jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1)
        inputs = {**batch, "encoder_positions": jnp.where(real, positions, -1)}
        if self.make_token_types is not None and self.token_type.vocab_size == 1:
            inputs["encoder_token_types"] = jnp.zeros_like(positions)
        return super().__call__(inputs)


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
