"""A bidirectional encoder with a head: embeddings, layers, and what is read off them."""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.blocks.shared import Collected, Shared
from t5x_like.models.linear import keep_whole
from t5x_like.models.types import Batch, Outputs


class Encoder(nn.Module):
    """Devlin et al. 2018, section 3: every position reads every other of its document.

    Attributes:
        make_embeddings: factory of `Embeddings`.
        make_encoder: of the tower of layers.
        make_head: of `head(hidden, table, batch, deterministic=) -> outputs`, see models/heads/.
        make_projection: of a map from the embeddings' width to the layers', or None if equal.
        task: which of several heads (`Heads`) runs; `module.clone(task="mnli")` is the same
            network, with the same parameters, under the head of the task mnli.
        sides: the sides of a batch that it reads.
        generates: whether it has `prefill` and `extend`, and so generates text.
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder",)
    generates: ClassVar[bool] = False

    make_embeddings: Callable[..., nn.Module]
    make_encoder: Callable[..., nn.Module]
    make_head: Callable[..., nn.Module]
    make_projection: Callable[..., nn.Module] | None = None
    task: str | None = None

    def setup(self) -> None:
        self.embeddings = self.make_embeddings()
        if self.make_projection is not None:
            self.projection = self.make_projection()
        self.encoder = self.make_encoder()
        self.head = self.make_task_head()

    def make_task_head(self) -> nn.Module:
        """The head, or where there are several those of all tasks, of which `task` runs."""
        return self.make_head() if self.task is None else self.make_head(task=self.task)

    def __call__(
        self, batch: Batch, *, deterministic: bool = True, collect: tuple[str, ...] = ()
    ) -> Outputs | tuple[Outputs, dict[str, Collected]]:
        """The outputs of the head, and what is collected of the layers.

        Args:
            batch: `encoder_input_tokens` and `encoder_segment_ids` (0 is padding; a document sees
                itself alone), and the fields that the embeddings and the head read.
            collect: `hidden_states` or `attention_scores`, or both.

        Returns:
            The outputs of the head; with `collect` also the `Collected` of each tower by its name.
        """
        hidden, collected = self._encode(batch, deterministic=deterministic, collect=collect)
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
            tokens=batch["encoder_input_tokens"],
            deterministic=deterministic,
            collect=collect,
        )
        hidden, collected = self.encoder(self.embed(batch), shared)
        return hidden, {"encoder": collected}

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """What the first layer reads."""
        x = self.embeddings(batch)
        return x if self.make_projection is None else keep_whole(self.projection(x))

    def mask(self, batch: Batch) -> AttentionMask:
        """Who sees whom: all of a document each other."""
        segments = batch["encoder_segment_ids"]
        # One document a row: then padding may see it, which saves a comparison for every score.
        packed = "encoder_positions" in batch
        return AttentionMask(query_segments=segments if packed else None, key_segments=segments)

    @staticmethod
    def example_batch(*, batch: int = 1, length: int = 8) -> dict[str, Array]:
        """Zeros of the fields that `__call__` needs, to shape the parameters."""
        tokens = jnp.zeros((batch, length), jnp.int32)
        return {"encoder_input_tokens": tokens, "encoder_segment_ids": tokens + 1}
