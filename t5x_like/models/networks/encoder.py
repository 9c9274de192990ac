"""A bidirectional encoder: embeddings, layers and a head."""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.attention.masks import AttentionMask, Padding
from t5x_like.models.blocks.residual import Collected, Shared
from t5x_like.models.linear import keep_whole
from t5x_like.models.types import Batch, Outputs


class Encoder(nn.Module):
    """A bidirectional encoder with a head: Devlin et al. 2018, section 3.

    Attributes:
        make_embeddings: factory of `Embeddings`.
        make_encoder: factory of the tower of layers.
        make_head: factory of `head(hidden, table, batch, deterministic=) -> outputs`: see
            models/heads/.
        make_projection: factory of a projection from the embeddings' width to the layers' width, or
            None if they are equal.
        make_features: factory of `features(hidden states [N + 1, B, L, D]) -> [B, L, F]`, which the
            head reads instead of the last layer's output, or None.
        task: the task whose head runs, for a network with several heads (`Heads`): the module
            `module.clone(task="mnli")` runs the head of mnli on the same parameters.
        sides: the sides of a batch that the network reads.
        generates: False: the network has no `prefill` and `extend`, and does not generate text.
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder",)
    generates: ClassVar[bool] = False

    make_embeddings: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    make_projection: Callable[..., nn.Module] | None = None
    make_features: Callable[..., nn.Module] | None = None
    task: str | None = None

    def setup(self) -> None:
        self.embeddings = self.make_embeddings()
        if self.make_projection is not None:
            self.projection = self.make_projection()
        self.encoder = self.make_encoder()
        if self.make_features is not None:
            self.features = self.make_features()
        self.head = self.make_task_head()

    def make_task_head(self) -> nn.Module:
        """Make the head; if it is `Heads`, with `task` as the task whose head runs."""
        return self.make_head() if self.task is None else self.make_head(task=self.task)

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """Return the outputs of the head, and on request the layers' hidden states and scores.

        Args:
            batch: `encoder_input_tokens` and `encoder_segment_ids` [B, L], and the fields that the
                embeddings and the head read. Tokens attend within their segment; segment 0 is
                padding, which must follow the tokens unless `encoder_positions` or
                `encoder_readers` is given. `encoder_readers` [B, L] are the segments that the
                queries attend to. For multiple choice the fields are [B, C, L], one row per choice;
                the head gets hidden states [B * C, L, D] and the unflattened batch.
            collect: `hidden_states` or `attention_scores`, or both.

        Returns:
            The outputs of the head; with `collect`, (outputs, {name of the tower: `Collected`}).
        """
        rows = _flat_rows(batch)
        needed = collect if self.make_features is None else ("hidden_states", *collect)
        hidden, collected = self._encode(rows, deterministic=deterministic, collect=needed)
        if self.make_features is not None:
            hidden = keep_whole(self.features(collected["encoder"].hidden_states))
        outputs = self.head(hidden, self.table(), batch, deterministic=deterministic)
        return (outputs, collected) if collect else outputs

    def encode(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B L D"]:
        """Return the output of the last layer."""
        return self._encode(batch, deterministic=deterministic, collect=())[0]

    def table(self) -> Float[Array, "V E"]:
        """Return the token embedding table, for a head that is tied to it."""
        return self.embeddings.table

    def _encode(
        self, batch: Batch, *, deterministic: bool, collect: tuple[str, ...]
    ) -> tuple[Float[Array, "B L D"], dict[str, Any]]:
        shared = Shared(
            mask=self.mask(batch),
            positions=batch.get("encoder_positions"),
            tokens=batch["encoder_input_tokens"],
            deterministic=deterministic,
            collect=collect,
        )
        hidden, collected = self.encoder(self.embed(batch), shared)
        return hidden, {"encoder": collected}

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """Return the input of the first layer."""
        x = self.embeddings(batch)
        return x if self.make_projection is None else keep_whole(self.projection(x))

    def mask(self, batch: Batch) -> AttentionMask:
        """Return the attention mask: all tokens of a segment attend to each other."""
        segments = batch["encoder_segment_ids"]
        if "encoder_positions" in batch:  # the row is packed
            return AttentionMask(query_segments=segments, key_segments=segments)
        return self.mask_of_document(batch)

    @staticmethod
    def mask_of_document(batch: Batch) -> AttentionMask:
        """Return the mask of unpacked rows, in which padding may attend to the document."""
        segments, readers = batch["encoder_segment_ids"], batch.get("encoder_readers")
        padding: Padding = "at_end" if readers is None else "anywhere"
        return AttentionMask(query_segments=readers, key_segments=segments, padding=padding)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Return a batch of zero tokens, from which `__call__` initializes the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {"encoder_input_tokens": tokens, "encoder_segment_ids": tokens + 1}


def _flat_rows(batch: Batch) -> Batch:
    """Reshape fields [B, C, L] of multiple choice to rows [B * C, L]; leave [B, L] unchanged."""
    if batch["encoder_input_tokens"].ndim == 2:
        return batch
    return {
        name: jnp.reshape(x, (-1, x.shape[-1])) if x.ndim == 3 else x for name, x in batch.items()
    }
