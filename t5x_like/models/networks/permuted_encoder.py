"""An encoder that predicts tokens in any order, by a second stream of queries: XLNet's."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from t5x_like.models.attention.two_sided import OrderMask, Sides
from t5x_like.models.blocks.shared import Collected, Shared
from t5x_like.models.blocks.two_stream import Streams, remembered
from t5x_like.models.linear import Initializer
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs

CONTENT, QUERY = "content", "query"


class PermutedEncoder(Encoder):
    """An encoder whose tokens are predicted in an order (Yang et al. 2019, section 2.3).

    Where the batch has `predicted_positions`, the head reads the stream of queries at these; else
    it reads the stream of contents, as in fine-tuning.

    A batch has the fields of `Encoder`'s, and perhaps

        encoder_order        int32 [B, L], the rank of each token in the order of prediction, from
                             0: it sees those of its rank and of lower ones, its query those of
                             lower ones alone; without ranks all see all
        predicted_positions  int32 [B, P], the places of the queries
        encoder_token_types  int32 [B, L], segments
        reversed             int32 [B], 1 where a row's text runs from its end to its beginning
        memory               from the outputs for the batch before, or from `first_memory`
        continued            int32 [B], 0 where a row does not go on from the row before
        reused               int32 [B], how many of its first tokens the next row goes on from

    Attributes:
        make_embeddings: factory of a `TokenEmbed`.
        make_encoder: factory of a tower of `TwoStreamBlock`s.
        layers: N.
        memory: M, the tokens of the text before that a row attends to; 0 for none.
        query_init: initializer of w, the first vector of all queries.
        dropout: rate for what the head reads.
    """

    layers: int = dataclasses.field(kw_only=True)
    memory: int = dataclasses.field(kw_only=True)
    query_init: Initializer = dataclasses.field(kw_only=True)
    dropout: float = 0.0

    def setup(self) -> None:
        super().setup()
        init = nn.with_logical_partitioning(self.query_init, ("embed",))
        self.first_query = self.param("first_query", init, (self.embeddings.features,))
        self.drop = nn.Dropout(self.dropout)

    def table(self) -> Float[Array, "V D"]:
        """The token embeddings, for a head that is tied to them."""
        return self.embeddings.embedding

    def first_memory(self, batch: Batch) -> PyTree:
        """The memory before the first batch, in which nothing is real; empty without memory.

        `hidden` [B, N, M, D] are the inputs of the N layers, `real` bool [B, M] where there is one.
        """
        if not self.memory:
            return {}
        rows = len(batch["encoder_input_tokens"])
        embeddings = self.make_embeddings(parent=None)
        shape = (rows, self.layers, self.memory, embeddings.features)
        return {
            "hidden": jnp.zeros(shape, embeddings.dtype),
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
        """The outputs of the head, and the memory after the batch; empty without one before it."""
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
    """Where there is a memory that a row goes on from."""
    real = memory["real"]
    return real & (batch["continued"] > 0)[:, None] if "continued" in batch else real


def _of_content(collected: Collected) -> Collected:
    """What is collected of the only stream."""

    def content(found: PyTree) -> PyTree:
        return None if found is None else found[CONTENT]

    return Collected(
        hidden_states=content(collected.hidden_states),
        attention_scores=content(collected.attention_scores),
    )


def _streams(batch: Batch, real: Array | None) -> Streams:
    """What the streams attend to.

    Args:
        real: where there is a memory, bool [B, M], or None.

    Raises:
        ValueError: places to predict, and no order.
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
    """The mask of the contents, or of the queries at some places."""
    segments, order = batch["encoder_segment_ids"], batch.get("encoder_order")
    return OrderMask(
        # With one document in a row, padding may attend to it: no segments to compare.
        query_segments=_take(segments, at) if "encoder_positions" in batch else None,
        key_segments=_after(real, segments, real),
        query_ranks=None if order is None else _take(order, at),
        key_ranks=None if order is None else _after(real, order, -1),
        own=at is None,
    )


def _sides(batch: Batch, real: Array | None, at: Array | None) -> Sides:
    """Slots and segments of the contents, or of the queries at some places."""
    size = 0 if real is None else real.shape[1]
    types = batch.get("encoder_token_types")
    return Sides(
        memory=size,
        slots=None if at is None else at + size,
        query_types=None if types is None else _take(types, at),
        # In the code a memory is of the first segment.
        key_types=None if types is None else _after(real, types, 0),
        backward=batch["reversed"] > 0 if "reversed" in batch else None,
    )


def _take(row: Array, at: Array | None) -> Array:
    return row if at is None else jnp.take_along_axis(row, at, axis=1)


def _after(real: Array | None, row: Array, before: Any) -> Array:
    """A row of numbers, with other ones for the memory before it."""
    if real is None:
        return row
    before = jnp.broadcast_to(jnp.asarray(before, row.dtype), real.shape)
    return jnp.concatenate([before, row], axis=1)
