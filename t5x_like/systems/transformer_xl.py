"""Transformer-XL: Dai et al. 2019, "Attentive Language Models Beyond a Fixed-Length Context"."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.losses.sums import LossSums, forward
from t5x_like.losses.token_cross_entropy import cross_entropy
from t5x_like.nn.attention.cache import KeyValues, LayerCache
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, align_distances
from t5x_like.nn.blocks import PostNormBlock, Shared, self_attend
from t5x_like.nn.compute import Batch, Compute, make_dropout
from t5x_like.nn.embeddings import (
    ScaledInputs,
    SinusoidalPositions,
    TiedHead,
    TokenEmbed,
    VocabularyProduct,
)
from t5x_like.nn.linear import MLP, Initializer, LayerNorm
from t5x_like.nn.networks import Decoder, Tower, empty_memory
from t5x_like.nn.stack import Stack, rows_first
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TransformerXLConfig(DropoutConfig, AttentionConfig):
    """The settings of a Transformer-XL.

    Attributes:
        memory: M, the number of states before a row that it attends to; 0 for none.
        same_length: whether a token attends to exactly M tokens, up to itself; otherwise to the
            memory and to all tokens of its row up to itself.
        longest_distance: larger distances count as this one (the code's `clamp_len`); 0: no limit.
        untied_biases: whether each layer has its own u and v.
    """

    vocab_size: int = 204
    memory: int
    same_length: bool = False
    longest_distance: int = 0
    untied_biases: bool = False
    layers: int
    d_model: int
    d_ff: int
    heads: int
    head_width: int


# The characters' models of table 2, with the memory of training. The code has no scripts of 18.
SIZES: dict[str, TransformerXLConfig] = {
    "41m": TransformerXLConfig(
        layers=12, d_model=512, d_ff=2048, heads=8, head_width=64, memory=512
    ),
    "277m": TransformerXLConfig(
        layers=24, d_model=1024, d_ff=3072, heads=8, head_width=128, memory=768, dropout=0.15
    ),
}

INIT = nn.initializers.normal(0.02)


# ---- Attention whose scores depend on relative positions.


class TransformerXLAttention(Attention):
    """Causal attention whose scores depend on content and on relative position.

    Dai et al. 2019, section 3.3: let q_i be the query in slot i, k_j the key in slot j, and R_d the
    sines and cosines of the distance d. W, u and v are learned. The score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j}.

    The mask must be causal: the score of a key after its query is meaningless.

    Attributes:
        features: D, the width of the sinusoidal vectors; even.
        longest_distance: larger distances count as this one; None: no limit.
        bias_init: initializer of u and v [H, K]; None if all layers share them: `extra` of `attend`
            is then (u, v), see `SharedBiases`.
    """

    features: int = dataclasses.field(kw_only=True)
    longest_distance: int | None = None
    bias_init: Initializer | None = nn.initializers.zeros

    def setup(self) -> None:
        super().setup()

        def init(key: Array, shape: tuple[int, ...]) -> Array:
            matrix = (self.features, self.heads * self.width)
            return self.kernel_init(key, matrix).reshape(shape)

        self.sines = SinusoidalPositions(features=self.features, compute=self.compute)
        self.distance_kernel = self.param(
            "distance_kernel",
            nn.with_logical_partitioning(init, ("embed", "heads", "kv")),
            (self.features, self.heads, self.width),
        )
        if self.bias_init is not None:
            boxed = nn.with_logical_partitioning(self.bias_init, ("heads", "kv"))
            self.content_bias = self.param("content_bias", boxed, (self.heads, self.width))
            self.distance_bias = self.param("distance_bias", boxed, (self.heads, self.width))

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
        """Return the query plus u, and the scaled scores of the distances plus `bias`."""
        biases = extra if self.bias_init is None else (self.content_bias, self.distance_bias)
        content, distance = (one.astype(query.dtype) for one in biases)
        # These are the distances of the last query; for earlier queries they are shifted.
        keys = keys_values.length
        distances = mask.first_slot + query.shape[1] - 1 - jnp.arange(keys)
        if self.longest_distance is not None:
            distances = jnp.minimum(distances, self.longest_distance)
        # einsum takes the cheaper order: for many queries it projects the sines, once for all rows;
        # for one query (a decoding step) it projects the query.
        scores = jnp.einsum(
            "BTHK,DHK,SD->BHTS",
            (query + distance) * self.scale_factor,
            self.distance_kernel.astype(query.dtype),
            self.sines(distances[None], length=keys)[0],
        )
        scores = align_distances(scores, keys=keys)
        return query + content, scores if bias is None else bias + scores


class SharedBiases(nn.Module):
    """u and v of all layers, the `extra` of a tower.

    Attributes:
        heads, width: H and K.
    """

    heads: int
    width: int
    bias_init: Initializer = INIT

    @nn.compact
    def __call__(self, shared: Shared) -> tuple[Float[Array, "H K"], Float[Array, "H K"]]:
        """Return u and v."""
        del shared
        boxed = nn.with_logical_partitioning(self.bias_init, ("heads", "kv"))
        content = self.param("content_bias", boxed, (self.heads, self.width))
        return content, self.param("distance_bias", boxed, (self.heads, self.width))


# ---- Recurrence from row to row.


class RecurrentBlock(PostNormBlock):
    """A post-norm layer that also attends to its inputs of the rows before (section 3.2).

    Attributes:
        window: the number of tokens that a token attends to, up to itself; None: all.
    """

    window: int | None = None

    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared, per_layer: Any
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Return the layer's output, and the next memory if a memory was given.

        Args:
            per_layer: the memory [B, M, D]; or a cache or None, as in a `PostNormBlock`.
        """
        mask = dataclasses.replace(shared.mask, window=self.window)
        shared = dataclasses.replace(shared, mask=mask)
        if per_layer is None or isinstance(per_layer, LayerCache):
            return super().__call__(x, shared, per_layer)
        context = jnp.concatenate([per_layer, x], axis=1)
        y, _, _ = self_attend(self.self_attention, x, shared, None, context=context)
        y = self._sublayer_output(x, y, self.self_attention_norm, shared)
        kept = context[:, x.shape[1] :]
        return self._feed_forward(y, shared), jax.lax.stop_gradient(kept)


class RecurrentDecoder(Decoder):
    """A causal language model whose rows attend to the rows before them (section 3.2).

    `predict` reads row r of a batch as the continuation of row r of the batch before. Other methods
    read texts from their beginning, with all their tokens.

    Attributes:
        layers: N.
        memory: M, the number of states before a row; 0 for none.
        compute: its `dropout` applies to the states that the output layer reads.
    """

    layers: int = dataclasses.field(kw_only=True)
    memory: int = dataclasses.field(kw_only=True)
    compute: Compute = Compute()

    def setup(self) -> None:
        super().setup()
        self.drop = make_dropout(self.compute)

    def states(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B T D"]:
        """Return the input of the output layer: the last layer's output, with dropout."""
        return self.drop(super().states(batch, deterministic=deterministic), deterministic)

    def first_memory(self, batch: Batch) -> PyTree:
        """Return the memory before the first batch, see `empty_memory`."""
        return empty_memory(
            self.make_embedding(parent=None),
            rows=len(batch["decoder_input_tokens"]),
            layers=self.layers,
            size=self.memory,
        )

    def predict(
        self, batch: Batch, *, deterministic: bool = True
    ) -> tuple[VocabularyProduct, PyTree]:
        """Return the logits as a product, and the next memory.

        Args:
            batch: `decoder_input_tokens` and `decoder_loss_weights` [B, T], which are 0 only in
                padding; and `memory`, from `predict` for the batch before or from `first_memory`,
                which a network without memory does not read.
        """
        if not self.memory:
            return self.logits_product(batch, deterministic=deterministic), {}
        before, tokens = batch["memory"], batch["decoder_input_tokens"]
        real = jnp.concatenate([before["real"], batch["decoder_loss_weights"] > 0], axis=1)
        mask = AttentionMask(
            key_segments=real.astype(jnp.int32), offset=self.memory, visibility="causal"
        )
        shared = Shared(mask=mask, tokens=tokens, deterministic=deterministic)
        per_layer = self.decoder.layers.split(jnp.swapaxes(before["hidden"], 0, 1))
        x, layers = self.decoder(self.token_embedder(tokens), shared, per_layer)
        product = self._product(self.drop(x, deterministic))
        return product, {"hidden": rows_first(layers), "real": real[:, tokens.shape[1] :]}


def build(config: TransformerXLConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 3).

    Raises:
        ValueError: `same_length` without a memory.
    """
    if config.same_length and not config.memory:
        raise ValueError(
            "model.same_length=True needs model.memory: a token attends to as many tokens"
        )
    make_biases = functools.partial(SharedBiases, heads=config.heads, width=config.head_width)
    tower = functools.partial(
        Tower,
        make_entrance=functools.partial(ScaledInputs, scale=config.d_model**0.5),
        make_stack=functools.partial(
            Stack, make_block=_block(config), layers=config.layers, compute=config.compute
        ),
        make_extra=None if config.untied_biases else make_biases,
        compute=config.compute,
    )
    return RecurrentDecoder(
        make_embedding=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=INIT,
            compute=config.compute,
        ),
        make_decoder=tower,
        make_head=functools.partial(TiedHead, use_bias=True),
        layers=config.layers,
        memory=config.memory,
        compute=config.compute,
    )


def _block(config: TransformerXLConfig) -> Callable[..., nn.Module]:
    return functools.partial(
        RecurrentBlock,
        window=config.memory if config.same_length else None,
        make_norm=functools.partial(LayerNorm, epsilon=1e-5, compute=config.compute),
        make_self_attention=functools.partial(
            TransformerXLAttention,
            features=config.d_model,
            longest_distance=config.longest_distance or None,
            bias_init=INIT if config.untied_biases else None,
            heads=config.heads,
            width=config.head_width,
            query_init=INIT,
            kernel_init=INIT,
            out_init=INIT,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            drop_hidden=True,
            compute=config.compute,
        ),
        compute=config.compute,
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    carry: PyTree,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> tuple[LossSums, PyTree]:
    """Return the next-token loss, and the memory for the next batch.

    Args:
        rng: key of dropout; None in evaluation.
        carry: the memory; {} for a network without memory.
    """
    product, memory = forward(module, params, {**batch, "memory": carry}, rng, method="predict")
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    sums = cross_entropy(product, targets, weights, z_loss=z_loss, label_smoothing=label_smoothing)
    return sums, memory


SYSTEM = System(
    name="transformer_xl",
    sizes=SIZES,
    build=build,
    tasks={
        "": Task(
            loss=loss, prediction="text", carry=lambda module, batch: module.first_memory(batch)
        ),
    },
)
