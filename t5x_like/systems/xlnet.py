"""XLNet: Yang et al. 2019, "Generalized Autoregressive Pretraining ..." (arXiv:1906.08237)."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import losses
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.masks import AttentionMask
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import align_distances
from t5x_like.nn.blocks import Collected, PostNormBlock, Shared, refuse_cross_attention
from t5x_like.nn.compute import Batch, Compute, Outputs
from t5x_like.nn.embeddings import TiedHead, TokenEmbed
from t5x_like.nn.encoder_heads import (
    Features,
    LastTokenChoiceHead,
    LastTokenHead,
    Pooler,
    select_head,
)
from t5x_like.nn.linear import MLP, Initializer
from t5x_like.nn.matrix_product import product
from t5x_like.nn.networks import Encoder, Tower
from t5x_like.nn.norms import LayerNorm
from t5x_like.nn.stack import Stack
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import AttentionConfig, DropoutConfig, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class XlnetConfig(DropoutConfig, AttentionConfig):
    """The settings of an XLNet; `memory` is the number of remembered tokens before a row."""

    head: str | Mapping[str, Any] = "language_modeling"
    labels: int = 2
    vocab_size: int = 32000
    token_types: int = 3
    memory: int = 384
    layers: int
    d_model: int
    d_ff: int
    heads: int


def _size(layers: int, d_model: int, heads: int) -> XlnetConfig:
    return XlnetConfig(layers=layers, d_model=d_model, d_ff=4 * d_model, heads=heads)


SIZES: dict[str, XlnetConfig] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

INIT = nn.initializers.normal(0.02)
NORM = functools.partial(LayerNorm, epsilon=1e-12)


class OutputLayer(nn.Module):
    """The output layer: products with the token embeddings, plus a learned bias for each token."""

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """Return `logits`, float32: [B, P, V] at `predicted_positions`, without these [B, L, V]."""
        return {"logits": TiedHead(use_bias=True, name="output")(hidden, table)}


# ---- XLNet's attention: relative positions, segments, and masks for any order of prediction.


@flax.struct.dataclass(kw_only=True)
class OrderMask(AttentionMask):
    """An AttentionMask under which a query attends to the tokens before it in some order.

    Yang et al. 2019, section 2.3, equation 3: the query of the token at rank t attends to the keys
    of ranks up to t, or only below t if it must not see its own token. Several tokens may have the
    same rank. Keys that every query attends to, such as a memory, have the rank -1.

    Attributes:
        query_ranks, key_ranks: the rank of each token in the order; None for no order.
        own: whether a query attends to keys of its own rank, and always to its own key, even if
            that is padding; the T queries are then the tokens of the last T keys.
    """

    query_ranks: Int[Array, "B T"] | None = None
    key_ranks: Int[Array, "B S"] | None = None
    own: bool = flax.struct.field(pytree_node=False)

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"] | None:
        """Return the matrix for `queries` (T) and `keys` (S)."""
        allowed = super().dense(queries=queries, keys=keys)
        if self.query_ranks is not None and self.key_ranks is not None:
            query, key = self.query_ranks[:, None, :, None], self.key_ranks[:, None, None, :]
            before = key <= query if self.own else key < query
            allowed = before if allowed is None else allowed & before
        if self.own and allowed is not None:
            allowed |= jnp.eye(queries, keys, keys - queries, dtype=bool)
        return allowed


@flax.struct.dataclass
class Sides:
    """The positions and segments that the attention scores of a stream depend on.

    Attributes:
        memory: M, the number of keys before the keys of the row.
        slots: the slot of each query, counted like the slots of the keys; None: the queries are in
            the slots from M to the last.
        query_types, key_types: segments; None for scores without the segment term.
        backward: whether each row's text runs from its end to its beginning; None for no row.
    """

    memory: int = flax.struct.field(pytree_node=False, default=0)
    slots: Int[Array, "B T"] | None = None
    query_types: Int[Array, "B T"] | None = None
    key_types: Int[Array, "B S"] | None = None
    backward: Bool[Array, " B"] | None = None


class TwoSidedAttention(Attention):
    """Attention whose scores depend on content, relative position and segment.

    Yang et al. 2019, sections 2.2 and 2.5: let q_i be the query in slot i, k_j the key in slot j,
    and R_d the sines followed by the cosines of the distance d. Each layer learns W, u, v, w and
    two vectors s. The score before scaling is

        (q_i + u) k_j + (q_i + v) W R_{i-j} + (q_i + w) s,

    where s is one vector if i and j have the same segment, and the other vector if not. As in the
    released code, u, v and w are initialized like kernels, and have weight decay. Distances are
    negative for keys after the query, and have no limit; in a row whose text runs backward all
    distances change sign. `extra` of `attend` is a `Sides`.

    Attributes:
        features: D, the width of the sines and cosines; even.
    """

    features: int = dataclasses.field(kw_only=True)

    def setup(self) -> None:
        super().setup()
        if self.features % 2:
            raise ValueError(
                f"model.d_model={self.features} is odd: distances are vectors of as many sines as "
                "cosines, so it must be even"
            )

        def kernel(key: Array, shape: tuple[int, ...]) -> Array:
            return self.kernel_init(key, (shape[0], math.prod(shape[1:]))).reshape(shape)

        def weight(name: str, axis: str, *, rows: int) -> Array:
            init = nn.with_logical_partitioning(kernel, (axis, "heads", "kv"))
            return self.param(name, init, (rows, self.heads, self.width))

        def bias(name: str) -> Array:
            # The axes do not mark it as a bias, so that it is initialized and decayed as a kernel.
            init = nn.with_logical_partitioning(self.kernel_init, ("heads", "query"))
            return self.param(name, init, (self.heads, self.width))

        self.distance_kernel = weight("distance_kernel", "embed", rows=self.features)
        self.segments = weight("segments", "types", rows=2)
        self.content_bias = bias("content_bias")
        self.distance_bias = bias("distance_bias")
        self.segment_bias = bias("segment_bias")

    def prepare_scores(
        self,
        query: Float[Array, "B T H K"],
        keys_values: KeyValues,
        bias: Float[Array, "B H T S"] | None,
        *,
        mask: AttentionMask,
        extra: PyTree,
    ) -> tuple[Float[Array, "B T H K"], Float[Array, "B H T S"]]:
        """Return the query plus u, and the scaled scores of distances and segments plus `bias`."""
        del mask
        sides: Sides = extra
        scores = self._distance_scores(query, sides, keys=keys_values.length)
        if sides.query_types is not None and sides.key_types is not None:
            differ = sides.query_types[:, :, None] != sides.key_types[:, None, :]
            scores = scores + self._segment_scores(query, differ)
        content = query + self.content_bias.astype(query.dtype)
        return content, scores if bias is None else bias + scores

    def _distance_scores(
        self, query: Float[Array, "B T H K"], sides: Sides, *, keys: int
    ) -> Float[Array, "B H T S"]:
        # A row of L tokens after M of memory has M + 2 L - 1 distances, from the distance of the
        # last query from the first key down to the distance of the first query from the last key.
        distances = jnp.arange(keys - 1, sides.memory - keys, -1)
        query = (query + self.distance_bias.astype(query.dtype)) * self.scale_factor
        table = self._table(distances, sides.backward)
        equation = "BTHK,RHK->BHTR" if sides.backward is None else "BTHK,BRHK->BHTR"
        scores = product(equation, query, table)
        if sides.slots is None:
            return align_distances(scores, keys=keys)
        # Column r is the distance keys - 1 - r.
        columns = keys - 1 - (sides.slots[..., None] - jnp.arange(keys))
        return jnp.take_along_axis(scores, columns[:, None], axis=-1)

    def _table(
        self, distances: Int[Array, " R"], backward: Bool[Array, " B"] | None
    ) -> Float[Array, "R H K"] | Float[Array, "B R H K"]:
        """Return W R_d for each distance; with `backward`, separately for each row."""
        # In float32 for every model.dtype, like sinusoidal positions.
        exponents = jnp.arange(0, self.features, 2, dtype=jnp.float32) / self.features
        angles = distances[:, None].astype(jnp.float32) * 10_000.0**-exponents
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)]).astype(self.compute.dtype)
        kernel = self.distance_kernel.astype(self.compute.dtype)
        halves = kernel.reshape(2, self.features // 2, self.heads, self.width)
        sines, cosines = jnp.einsum("PRD,PDHK->PRHK", waves, halves)
        if backward is None:
            return sines + cosines
        # sin(-x) = -sin(x), cos(-x) = cos(x)
        sign = jnp.where(backward, -1, 1).astype(self.compute.dtype)
        return sign[:, None, None, None] * sines + cosines

    def _segment_scores(
        self, query: Float[Array, "B T H K"], differ: Bool[Array, "B T S"]
    ) -> Float[Array, "B H T S"]:
        query = (query + self.segment_bias.astype(query.dtype)) * self.scale_factor
        same, other = product("BTHK,NHK->NBHT", query, self.segments.astype(query.dtype))
        return jnp.where(differ[:, None], other[..., None], same[..., None])


# ---- A layer of two streams that share their weights, with a memory of the preceding text.


@flax.struct.dataclass
class Streams:
    """The masks and other inputs of the attention of all streams, for `Shared.extra`.

    Attributes:
        masks: {stream: the mask over the keys of the memory and then of the row}.
        extras: {stream: the `extra` of its attention}.
        blind: which queries of the stream "query" attend to nothing, or None. Their attention is
            set to 0: a softmax over nothing would average all values, including their own token's.
        reused: the number of tokens at the beginning of each row after which the next row
            continues; None for all tokens.
    """

    masks: Mapping[str, AttentionMask]
    extras: Mapping[str, PyTree]
    blind: Bool[Array, "B P"] | None = None
    reused: Int[Array, " B"] | None = None


class TwoStreamBlock(PostNormBlock):
    """norm(x + sublayer(x)) for two streams (Yang et al. 2019, section 2.3 and appendix A.2).

    The carry has the stream "content", [B, T, D], and optionally a stream "query", [B, P, D], for
    the P positions to predict, which do not see their own tokens. Both streams share the weights,
    and both attend to the keys and values of the memory and of the content.

    `Shared.extra` is a `Streams`. The block has no cross-attention.
    """

    def setup(self) -> None:
        refuse_cross_attention(self)
        super().setup()

    def __call__(  # type: ignore[override]
        self, carry: dict[str, Array], shared: Shared, memory: Float[Array, "B M D"] | None
    ) -> tuple[dict[str, Array], Any]:
        """Return {stream: the layer's output}, and the next memory if a memory was given.

        If `shared.collect` is not empty, a `Collected` is returned instead of the memory; its
        hidden states and scores are {stream: array}.
        """
        streams: Streams = shared.extra
        content = carry["content"]
        context = content if memory is None else jnp.concatenate([memory, content], axis=1)
        keys_values = self.self_attention.keys_values(context)
        after: dict[str, Array] = {}
        scores: Any = {}
        for name, x in carry.items():
            y, scores[name] = self.self_attention.attend(
                x,
                keys_values,
                mask=streams.masks[name],
                extra=streams.extras[name],
                deterministic=shared.deterministic,
                with_scores=shared.with_scores,
            )
            if name == "query" and streams.blind is not None:
                y = jnp.where(streams.blind[..., None], 0, y)
            x = self._sublayer_output(x, y, self.self_attention_norm, shared)
            y = self.feed_forward(x, deterministic=shared.deterministic)
            after[name] = self._sublayer_output(x, y, self.feed_forward_norm, shared)
        if shared.collect:
            return after, shared.collected(after, scores if shared.with_scores else None)
        if memory is None:
            return after, None
        kept = remembered(context, streams.reused, size=memory.shape[1])
        return after, jax.lax.stop_gradient(kept)


def remembered(
    context: Float[Array, "B S *D"], reused: Int[Array, " B"] | None, *, size: int
) -> Float[Array, "B M *D"]:
    """Return the memory for the next row: the last M states before the text that it begins with.

    Args:
        context: the M states of the memory, and then the states of the row.
        reused: the number of tokens at the beginning of each row after which the next row
            continues; None for all tokens.
        size: M.
    """
    if reused is None:
        return context[:, context.shape[1] - size :]
    places = reused[:, None] + jnp.arange(size)
    places = places.reshape(*places.shape, *[1] * (context.ndim - 2))
    return jnp.take_along_axis(context, places, axis=1)


# ---- XLNet's encoder, which predicts tokens in any order from a second stream of queries.


CONTENT, QUERY = "content", "query"


class PermutedEncoder(Encoder):
    """An encoder whose tokens are predicted in any order (Yang et al. 2019, section 2.3).

    If the batch has `predicted_positions`, the head reads the stream of queries at these positions;
    otherwise it reads the content stream, as in fine-tuning.

    A batch has the fields that an `Encoder` reads, and optionally

        encoder_order        int32 [B, L], the rank of each token in the order of prediction, from
                             0: its content attends to tokens of the same and lower ranks, its query
                             only to tokens of lower ranks; without it all attend to all
        predicted_positions  int32 [B, P], the positions of the queries
        encoder_token_types  int32 [B, L], segments
        reversed             int32 [B], 1 if the row's text runs from its end to its beginning
        memory               from `predict` for the preceding batch, or from `first_memory`
        continued            int32 [B], 0 if the row does not continue the preceding row's text
        reused               int32 [B], the number of tokens after which the next row continues

    Attributes:
        make_embeddings: factory of a `TokenEmbed`.
        make_encoder: factory of a tower of `TwoStreamBlock`s.
        layers: N.
        memory: M, the number of preceding tokens that a row attends to; 0 for none.
        query_init: initializer of w, the initial vector of every query.
        compute: its `dropout` is also applied to the states that the head reads, where it never
            broadcasts over positions.
    """

    layers: int = dataclasses.field(kw_only=True)
    memory: int = dataclasses.field(kw_only=True)
    query_init: Initializer = dataclasses.field(kw_only=True)
    compute: Compute = Compute()

    def setup(self) -> None:
        super().setup()
        init = nn.with_logical_partitioning(self.query_init, ("embed",))
        self.first_query = self.param("first_query", init, (self.embeddings.features,))
        self.drop = nn.Dropout(self.compute.dropout)

    def table(self) -> Float[Array, "V D"]:
        """Return the embedding table, for a head that is tied to it."""
        return self.embeddings.embedding

    def first_memory(self, batch: Batch) -> PyTree:
        """Return the memory before the first batch, in which no token is real.

        `hidden` [B, N, M, D] are the inputs of the N layers, `real` bool [B, M] marks tokens that
        exist. It is {} for a network without memory.
        """
        if not self.memory:
            return {}
        rows = len(batch["encoder_input_tokens"])
        embeddings = self.make_embeddings(parent=None)
        shape = (rows, self.layers, self.memory, embeddings.features)
        return {
            "hidden": jnp.zeros(shape, embeddings.compute.dtype),
            "real": jnp.zeros((rows, self.memory), bool),
        }

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Any]]:
        carry = {CONTENT: self.embeddings(batch["encoder_input_tokens"])}
        if "predicted_positions" in batch:
            rows = batch["predicted_positions"].shape
            query = self.first_query.astype(carry[CONTENT].dtype)
            carry[QUERY] = jnp.broadcast_to(query, (*rows, len(query)))
        memory = batch.get("memory")
        real = None if memory is None else _real(memory, batch)
        streams = _streams(batch, real)
        shared = Shared(
            mask=streams.masks[CONTENT],
            tokens=batch["encoder_input_tokens"],
            extra=streams,
            deterministic=deterministic,
            collect=collect,
        )
        per_layer = None
        if memory is not None:
            per_layer = self.encoder.layers.split(jnp.swapaxes(memory["hidden"], 0, 1))
        last, per_layer = self.encoder(carry, shared, per_layer)
        hidden = self.drop(last[QUERY if QUERY in last else CONTENT], deterministic)
        if collect and QUERY not in last:
            per_layer = _of_content(per_layer)
        return hidden, {"encoder": per_layer}

    def predict(self, batch: Batch, *, deterministic: bool = True) -> tuple[Outputs, PyTree]:
        """Return the outputs of the head and the next memory, which is {} if the batch has none."""
        hidden, found = self._encode(batch, deterministic=deterministic, collect=())
        outputs = self.head(hidden, self.table(), batch, deterministic=deterministic)
        if "memory" not in batch:
            return outputs, {}
        layers = found["encoder"]
        after = jnp.stack(layers, axis=1) if isinstance(layers, tuple) else layers.swapaxes(0, 1)
        real = jnp.concatenate(
            [_real(batch["memory"], batch), batch["encoder_segment_ids"] > 0], axis=1
        )
        real = remembered(real, batch.get("reused"), size=self.memory)
        return outputs, {"hidden": after, "real": real}


def _real(memory: PyTree, batch: Batch) -> Array:
    """Return which tokens of the memory exist and belong to the text that the row continues."""
    real = memory["real"]
    return real & (batch["continued"] > 0)[:, None] if "continued" in batch else real


def _of_content(collected: Collected) -> Collected:
    """Return the collected arrays of the content stream, when it is the only stream."""

    def content(found: PyTree) -> PyTree:
        return None if found is None else found[CONTENT]

    return Collected(
        hidden_states=content(collected.hidden_states),
        attention_scores=content(collected.attention_scores),
    )


def _streams(batch: Batch, real: Array | None) -> Streams:
    """Return the masks and other inputs of the attention of all streams.

    Args:
        real: which tokens of the memory exist, bool [B, M]; None without a memory.

    Raises:
        ValueError: the batch has positions to predict, but no order.
    """
    places: dict[str, Array | None] = {CONTENT: None}
    masks = {CONTENT: _mask(batch, real, None)}
    blind = None
    if "predicted_positions" in batch:
        if "encoder_order" not in batch:
            raise ValueError(
                "this head predicts tokens in an order, and the batch has none: set "
                "data.objective='xlnet', or model.head to one for the labels"
            )
        places[QUERY] = at = batch["predicted_positions"]
        masks[QUERY] = _mask(batch, real, at)
        keys = batch["encoder_segment_ids"].shape[1] + (0 if real is None else real.shape[1])
        seen: Any = masks[QUERY].dense(queries=at.shape[1], keys=keys)
        blind = ~jnp.any(seen, axis=(1, -1))
    return Streams(
        masks=masks,
        extras={name: _sides(batch, real, at) for name, at in places.items()},
        blind=blind,
        reused=batch.get("reused"),
    )


def _mask(batch: Batch, real: Array | None, at: Array | None) -> OrderMask:
    """Return the mask of the content stream, or of the queries at the positions `at`."""
    segments, order = batch["encoder_segment_ids"], batch.get("encoder_order")
    return OrderMask(
        # In rows of one document padding may attend to it, so that no segments are compared.
        query_segments=_take(segments, at) if "encoder_positions" in batch else None,
        key_segments=_after(real, segments, real),
        query_ranks=None if order is None else _take(order, at),
        key_ranks=None if order is None else _after(real, order, -1),
        own=at is None,
    )


def _sides(batch: Batch, real: Array | None, at: Array | None) -> Sides:
    """Return the slots and segments of the content stream, or of the queries at `at`."""
    size = 0 if real is None else real.shape[1]
    types = batch.get("encoder_token_types")
    return Sides(
        memory=size,
        slots=None if at is None else at + size,
        query_types=None if types is None else _take(types, at),
        # In the authors' code the memory belongs to the first segment.
        key_types=None if types is None else _after(real, types, 0),
        backward=batch["reversed"] > 0 if "reversed" in batch else None,
    )


def _take(row: Array, at: Array | None) -> Array:
    return row if at is None else jnp.take_along_axis(row, at, axis=1)


def _after(real: Array | None, row: Array, before: Any) -> Array:
    """Prepend the value `before` to a row, for each token of the memory if there is one."""
    if real is None:
        return row
    before = jnp.broadcast_to(jnp.asarray(before, row.dtype), real.shape)
    return jnp.concatenate([before, row], axis=1)


def build(config: XlnetConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: its `head` is "language_modeling" or a head of `select_head`; `memory` is the number
            of tokens before a row that it attends to, 0 for none; `token_types` is the number of
            segments ([CLS] has the last); the network only compares segments.

    Raises:
        ValueError: the head is unknown. (The network raises it when it is initialized if
            `d_model` is odd.)
    """
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=INIT, compute=config.compute
    )
    of_row = {
        "make_pooler": make_pooler,
        "kernel_init": INIT,
        "dropout": config.dropout,
    }
    own: dict[str, Callable[..., nn.Module]] = {
        "language_modeling": OutputLayer,
        "multiple_choice": functools.partial(LastTokenChoiceHead, **of_row),
        "features": Features,
    }
    return PermutedEncoder(
        make_embeddings=functools.partial(
            TokenEmbed,
            vocab_size=config.vocab_size,
            features=config.d_model,
            embedding_init=INIT,
            compute=config.compute,
        ),
        make_encoder=tower(config),
        make_head=select_head(
            config,
            own,
            make_pooler=make_pooler,
            kernel_init=INIT,
            make_row=functools.partial(LastTokenHead, **of_row),
        ),
        layers=config.layers,
        memory=config.memory,
        query_init=INIT,
        compute=config.compute,
    )


def tower(config: XlnetConfig) -> Callable[..., nn.Module]:
    """Return a factory of a tower of BERT's layers, with XLNet's attention and two streams."""
    block = functools.partial(
        TwoStreamBlock,
        make_norm=functools.partial(NORM, compute=config.compute),
        make_self_attention=functools.partial(
            TwoSidedAttention,
            heads=config.heads,
            width=config.d_model // config.heads,
            features=config.d_model,
            query_init=INIT,
            kernel_init=INIT,
            out_init=INIT,
            compute=config.compute,
        ),
        make_feed_forward=functools.partial(
            MLP,
            hidden=config.d_ff,
            activation=bert.GELU,
            use_bias=True,
            wi_init=INIT,
            wo_init=INIT,
            drop_hidden=True,
            compute=config.compute,
        ),
        compute=config.compute,
    )
    stack = functools.partial(Stack, make_block=block, layers=config.layers, compute=config.compute)
    return functools.partial(Tower, make_stack=stack, compute=config.compute)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    carry: PyTree,
    predicted: float = 0.17,
) -> tuple[losses.LossSums, PyTree]:
    """Return the cross-entropy of the last tokens in the order (section 2.3, equation 5).

    Args:
        rng: key of dropout; None in evaluation.
        carry: the memory; {} for a network without memory.
        predicted: the number of positions with a query, as a share of the row's length: at least
            the share of the tokens that the objective predicts.

    Returns:
        The loss, and the memory for the next batch.
    """
    (outputs, memory), predicted_tokens = losses.predict_masked(
        module,
        params,
        {**batch, "memory": carry} if carry else batch,
        rng,
        share=predicted,
        method="predict",
    )
    return predicted_tokens.cross_entropy(outputs["logits"]), memory


SYSTEM = System(
    name="xlnet",
    sizes=SIZES,
    build=build,
    tasks={
        "language_modeling": Task(
            loss=loss, carry=lambda module, batch: module.first_memory(batch)
        ),
        **ENCODER_TASKS,
    },
)
