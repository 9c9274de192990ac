"""An encoder of sentences with branches of knowledge: Liu et al. 2019 (K-BERT)."""

from jaxtyping import Array, Float

from t5x_like.models.attention.masks import AttentionMask, BranchMask
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch


class KnowledgeEncoder(Encoder):
    """An encoder whose batches may have branches behind the entities of their rows.

    A batch with branches has `encoder_soft_positions`, `encoder_branches` and `encoder_entities`,
    each [B, L] (`batches.sentence_trees`); one without is read as by any encoder.

    Attributes:
        soft_positions: whether positions are places in the tree ("Embedding layer"), not in the
            row.
        visible_matrix: whether a branch and the rest of its sentence are hidden from each other,
            but for its entity ("Seeing layer", equation 3).
    """

    soft_positions: bool = True
    visible_matrix: bool = True

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """The input of the first layer."""
        if self.soft_positions and "encoder_soft_positions" in batch:
            batch = {**batch, "encoder_positions": batch["encoder_soft_positions"]}
        return super().embed(batch)

    def mask(self, batch: Batch) -> AttentionMask:
        """The attention mask: of the whole row, or of the tree."""
        mask = super().mask(batch)
        if not self.visible_matrix or "encoder_branches" not in batch:
            return mask
        return BranchMask(
            query_segments=mask.query_segments,
            key_segments=mask.key_segments,
            branches=batch["encoder_branches"],
            entities=batch["encoder_entities"],
        )
