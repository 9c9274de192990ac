"""Transformer-XL: Dai et al. 2019, "Attentive Language Models Beyond a Fixed-Length Context"."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from t5x_like.losses.sums import LossSums, forward, weighted_sum
from t5x_like.losses.token_cross_entropy import cross_entropy, log_probs
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
from t5x_like.nn.linear import MLP, Initializer, LayerNorm, keep_whole
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
        cutoffs: the first words of all clusters but the first, for adaptive embeddings and an
            adaptive softmax; () for one table and one softmax. Words are sorted by frequency.
        cluster_division: how many times as wide as a cluster's vectors those of the cluster before
            are (the code's `div_val`).
    """

    vocab_size: int = 204
    cutoffs: tuple[int, ...] = ()
    cluster_division: int = 1
    memory: int
    same_length: bool = False
    longest_distance: int = 0
    untied_biases: bool = False
    layers: int
    d_model: int
    d_ff: int
    heads: int
    head_width: int


_WORDS: dict[str, Any] = {"vocab_size": 267_735, "cutoffs": (20_000, 40_000, 200_000)}

# The characters' models of table 2, with the memory of training. The code has no scripts of 18.
SIZES: dict[str, TransformerXLConfig] = {
    "41m": TransformerXLConfig(
        layers=12, d_model=512, d_ff=2048, heads=8, head_width=64, memory=512
    ),
    "277m": TransformerXLConfig(
        layers=24, d_model=1024, d_ff=3072, heads=8, head_width=128, memory=768, dropout=0.15
    ),
    # The models of the words of WikiText-103, table 1.
    "151m": TransformerXLConfig(
        layers=16, d_model=410, d_ff=2100, heads=10, head_width=41, memory=150, **_WORDS
    ),
    "257m": TransformerXLConfig(
        layers=18,
        d_model=1024,
        d_ff=4096,
        heads=16,
        head_width=64,
        memory=384,
        dropout=0.2,
        cluster_division=4,
        **_WORDS,
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


# ---- Adaptive embeddings and an adaptive softmax: words in clusters by frequency.


class Cluster(NamedTuple):
    """The embeddings of the words of a cluster.

    Attributes:
        table: their vectors.
        projection: to the width of the layers; None if the vectors have it.
    """

    table: Float[Array, "V E"]
    projection: Float[Array, "E D"] | None


class AdaptiveEmbed(nn.Module):
    """Word embeddings that are narrower for rarer words (Baevski and Auli 2018, section 3).

    Cluster n has vectors of width E = D / k^n, k = `division`, which are projected to D, also in
    the first cluster; with k = 1 there are no projections.

    Attributes:
        features: D.
        cutoffs: the first words of all clusters but the first.
    """

    vocab_size: int
    features: int
    cutoffs: tuple[int, ...]
    division: int = 1
    compute: Compute = Compute()

    def setup(self) -> None:
        starts, ends = (0, *self.cutoffs), (*self.cutoffs, self.vocab_size)
        widths = [self.features // self.division**n for n in range(len(starts))]
        self.clusters = [
            TokenEmbed(
                vocab_size=end - start, features=width, embedding_init=INIT, compute=self.compute
            )
            for start, end, width in zip(starts, ends, widths, strict=True)
        ]
        init = nn.with_logical_partitioning(INIT, ("mlp", "embed"))
        self.projections = [
            self.param(f"projection_{n}", init, (width, self.features))
            if self.division > 1
            else None
            for n, width in enumerate(widths)
        ]

    @property
    def embedding(self) -> tuple[Cluster, ...]:
        """The embeddings of all clusters, for an `AdaptiveHead`."""
        tables = (cluster.embedding for cluster in self.clusters)
        return tuple(map(Cluster, tables, self.projections))

    def __call__(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """Return the embeddings of `tokens`."""
        total = jnp.zeros((*tokens.shape, self.features), self.compute.dtype)
        for start, cluster, projection in zip(
            (0, *self.cutoffs), self.clusters, self.projections, strict=True
        ):
            own = (tokens >= start) & (tokens < start + cluster.vocab_size)
            x = cluster(jnp.where(own, tokens - start, 0))
            if projection is not None:
                x = jnp.einsum("BLE,ED->BLD", x, projection.astype(x.dtype))
            total += jnp.where(own[..., None], x, 0)
        axes = ("activation_batch", "residual_length", "activation_embed")
        return nn.with_logical_constraint(total, axes)


@flax.struct.dataclass
class AdaptiveProduct:
    """The probabilities of words that are not computed yet, as products for each cluster.

    The softmax of the first product is over the words of the first cluster and over the other
    clusters; the softmax of each other product is over the words of its cluster (Grave et al. 2016,
    section 4.2).

    Attributes:
        clusters: the logits of each cluster's words, in the first followed by the logits of the
            other clusters.
    """

    clusters: tuple[VocabularyProduct, ...]

    @property
    def _first(self) -> int:
        """The number of words of the first cluster."""
        return self.clusters[0].shape[-1] - len(self.clusters) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `logits()`."""
        rest = sum(cluster.shape[-1] for cluster in self.clusters[1:])
        return *self.clusters[0].shape[:-1], self._first + rest

    def logits(self) -> Float[Array, "B L V"]:
        """Compute the float32 log-probabilities of all words."""
        head = jax.nn.log_softmax(self.clusters[0].logits())
        parts = [head[..., : self._first]]
        for n, cluster in enumerate(self.clusters[1:]):
            place = self._first + n
            parts.append(head[..., place : place + 1] + jax.nn.log_softmax(cluster.logits()))
        return jnp.concatenate(parts, axis=-1)

    def log_probs(self, targets: Int[Array, "B L"]) -> Float[Array, "B L"]:
        """Return the log-probability of each target; NaN outside of the vocabulary.

        Only the logits of one cluster, or of a part of a large cluster, exist at a time.
        """
        start, total = self._first, jnp.zeros(targets.shape)
        head = jnp.where(targets < start, targets, 0)
        for n, cluster in enumerate(self.clusters[1:]):
            size = cluster.shape[-1]
            own = (targets >= start) & (targets < start + size)
            within = log_probs(cluster, jnp.where(own, targets - start, 0))
            total += jnp.where(own, within, 0.0)
            head = jnp.where(own, self._first + n, head)
            start += size
        known = (targets >= 0) & (targets < start)
        return jnp.where(known, total + log_probs(self.clusters[0], head), jnp.nan)


class AdaptiveHead(nn.Module):
    """An adaptive softmax over clusters of words, tied to their embeddings (Grave et al. 2016).

    As in the code, the first cluster has its own projection, and the others share the projections
    of the embeddings.
    """

    def __call__(
        self, x: Float[Array, "B L D"], embedding: tuple[Cluster, ...]
    ) -> Float[Array, "B L V"]:
        """Return float32 log-probabilities."""
        return self.product(x, embedding).logits()

    @nn.compact
    def product(self, x: Float[Array, "B L D"], embedding: tuple[Cluster, ...]) -> AdaptiveProduct:
        """Return the probabilities as products that are not computed yet."""
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        products = []
        for n, (table, projection) in enumerate(embedding):
            bias = self.param(f"bias_{n}", zeros, (table.shape[0],))
            if n == 0:
                others = (len(embedding) - 1, table.shape[1])
                init = nn.with_logical_partitioning(INIT, ("classes", "embed"))
                none = nn.with_logical_partitioning(nn.initializers.zeros, ("classes",))
                table = jnp.concatenate([table, self.param("cluster_kernel", init, others)])
                bias = jnp.concatenate([bias, self.param("cluster_bias", none, others[:1])])
                if projection is not None:
                    init = nn.with_logical_partitioning(INIT, ("mlp", "embed"))
                    projection = self.param("projection", init, projection.shape)
            hidden = x
            if projection is not None:
                hidden = keep_whole(jnp.einsum("BLD,ED->BLE", x, projection.astype(x.dtype)))
            products.append(VocabularyProduct(hidden, table, bias))
        return AdaptiveProduct(tuple(products))


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

    def logits_product(self, batch: Batch, *, deterministic: bool = True) -> Any:
        """Return the logits as a product, or the log-probabilities of an adaptive softmax."""
        product = self._product(self.states(batch, deterministic=deterministic))
        return product.logits() if isinstance(product, AdaptiveProduct) else product

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
    ) -> tuple[VocabularyProduct | AdaptiveProduct, PyTree]:
        """Return the logits as a product, and the next memory.

        Args:
            batch: `decoder_input_tokens` and `decoder_loss_weights` [B, T], which are 0 only in
                padding; and `memory`, from `predict` for the batch before or from `first_memory`,
                which a network without memory does not read.
        """
        if not self.memory:
            return self._product(self.states(batch, deterministic=deterministic)), {}
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
        ValueError: `same_length` without a memory; or the cutoffs are not in order within the
            vocabulary, or divide the width into vectors that are not whole.
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
        make_embedding=_embedding(config),
        make_decoder=tower,
        make_head=AdaptiveHead if config.cutoffs else functools.partial(TiedHead, use_bias=True),
        layers=config.layers,
        memory=config.memory,
        compute=config.compute,
    )


def _embedding(config: TransformerXLConfig) -> Callable[..., nn.Module]:
    sizes = {"vocab_size": config.vocab_size, "features": config.d_model}
    if not config.cutoffs:
        return functools.partial(TokenEmbed, **sizes, embedding_init=INIT, compute=config.compute)
    cutoffs, division = tuple(config.cutoffs), config.cluster_division
    ends = (0, *cutoffs, config.vocab_size)
    if any(end <= start for start, end in itertools.pairwise(ends)):
        raise ValueError(
            f"model.cutoffs={cutoffs} must grow, from above 0 to below model.vocab_size="
            f"{config.vocab_size}"
        )
    if division < 1 or config.d_model % division ** len(cutoffs):
        raise ValueError(
            f"model.cluster_division={division} must be 1 or more, and model.d_model="
            f"{config.d_model} a multiple of its power of {len(cutoffs)}, the number of cutoffs"
        )
    return functools.partial(
        AdaptiveEmbed, **sizes, cutoffs=cutoffs, division=division, compute=config.compute
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

    With an adaptive softmax the metrics have no accuracy.

    Args:
        rng: key of dropout; None in evaluation.
        carry: the memory; {} for a network without memory.

    Raises:
        ValueError: an adaptive softmax with a z-loss or label smoothing, which are for one softmax.
    """
    product, memory = forward(module, params, {**batch, "memory": carry}, rng, method="predict")
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    if isinstance(product, AdaptiveProduct):
        if z_loss or label_smoothing:
            raise ValueError(
                f"loss.z_loss={z_loss} and loss.label_smoothing={label_smoothing} must be 0 with "
                "model.cutoffs"
            )
        # Select, since multiplying by 0 would keep the NaN of a padding position's target.
        nats = jnp.where(weights > 0, -product.log_probs(targets), 0.0)
        return weighted_sum("cross_entropy", nats, weights), memory
    sums = cross_entropy(product, targets, weights, z_loss=z_loss, label_smoothing=label_smoothing)
    return sums, memory


SYSTEM = System(
    name="transformer_xl",
    sizes=SIZES,
    build=build,
    later={"cutoffs": (), "cluster_division": 1},
    tasks={
        "": Task(
            loss=loss, prediction="text", carry=lambda module, batch: module.first_memory(batch)
        ),
    },
)
