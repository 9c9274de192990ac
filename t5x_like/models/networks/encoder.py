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
        make_projection: factory of a map from the embeddings' width to the layers', or None where
            they are equal.
        make_features: factory of `features(hidden states [N + 1, B, L, D]) -> [B, L, F]`, which the
            head reads in place of the last layer's output, or None.
        task: the task whose head runs, for a network with several (`Heads`): the module
            `module.clone(task="mnli")` runs the head of mnli on the same parameters.
        sides: the sides of a batch that it reads.
        generates: whether it has `prefill` and `extend`, and so generates text.
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
        """The head; where there are several, all of them, and `task` selects the one that runs."""
        return self.make_head() if self.task is None else self.make_head(task=self.task)

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """The outputs of the head, and on request the hidden states and scores of the layers.

        Args:
            batch: `encoder_input_tokens` and `encoder_segment_ids` [B, L] (0 is padding, after
                the tokens unless `encoder_positions` or `encoder_readers` are there; tokens attend
                within their segment), and the fields that embeddings and head read.
                `encoder_readers` [B, L] are the segments that the queries attend to. For multiple
                choice [B, C, L], a row for each choice: the head gets hidden states [B * C, L, D],
                and the batch as it is.
            collect: `hidden_states` or `attention_scores`, or both.

        Returns:
            The outputs of the head; with `collect` also the `Collected` of each tower by its name.
        """
        rows = _flat_rows(batch)
        needed = collect if self.make_features is None else ("hidden_states", *collect)
        hidden, collected = self._encode(rows, deterministic=deterministic, collect=needed)
        if self.make_features is not None:
            hidden = keep_whole(self.features(collected["encoder"].hidden_states))
        outputs = self.head(hidden, self.table(), batch, deterministic=deterministic)
        return (outputs, collected) if collect else outputs

    def encode(self, batch: Batch, *, deterministic: bool = True) -> Float[Array, "B L D"]:
        """The output of the last layer."""
        return self._encode(batch, deterministic=deterministic, collect=())[0]

    def table(self) -> Float[Array, "V E"]:
        """The token embeddings, for a head that is tied to them."""
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
        """The input of the first layer."""
        x = self.embeddings(batch)
        return x if self.make_projection is None else keep_whole(self.projection(x))

    def mask(self, batch: Batch) -> AttentionMask:
        """The attention mask: all tokens of a document attend to each other."""
        segments = batch["encoder_segment_ids"]
        if "encoder_positions" in batch:  # the row is packed
            return AttentionMask(query_segments=segments, key_segments=segments)
        return self.mask_of_document(batch)

    @staticmethod
    def mask_of_document(batch: Batch) -> AttentionMask:
        """The mask of rows of one document, which padding may attend to."""
        segments, readers = batch["encoder_segment_ids"], batch.get("encoder_readers")
        padding: Padding = "at_end" if readers is None else "anywhere"
        return AttentionMask(query_segments=readers, key_segments=segments, padding=padding)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Zeros of the fields that `__call__` needs, to shape the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {"encoder_input_tokens": tokens, "encoder_segment_ids": tokens + 1}


def _flat_rows(batch: Batch) -> Batch:
    """The batch with rows [B * C, L] where it has C rows an example, [B, C, L]."""
    if batch["encoder_input_tokens"].ndim == 2:
        return batch
    return {
        name: jnp.reshape(x, (-1, x.shape[-1])) if x.ndim == 3 else x for name, x in batch.items()
    }
