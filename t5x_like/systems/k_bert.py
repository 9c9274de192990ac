"""K-BERT: Liu et al. 2019, "K-BERT: Enabling Language Representation ..." (arXiv:1909.07606)."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import losses
from t5x_like.losses import fine_tuning
from t5x_like.nn.attention.positions import AttentionMask, BranchMask
from t5x_like.nn.compute import Batch
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import EARLIER_INIT, ENCODER_TASKS, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KBertConfig(bert.BertConfig):
    """The settings of a K-BERT: BERT's, and the two parts of the network that it ablates."""

    soft_positions: bool = True
    visible_matrix: bool = True


# Google's Chinese BERT, from which the paper's models start ("Parameter settings and training
# details").
SIZES: dict[str, KBertConfig] = {
    "base": bert.SIZES["base"].to(KBertConfig, head="classification", vocab_size=21128)
}


# ---- An encoder of sentences with branches, which are facts from a knowledge graph.


class KnowledgeEncoder(Encoder):
    """An encoder whose batches may have branches after the entities of their rows.

    A batch with branches has `encoder_soft_positions`, `encoder_branches` and `encoder_entities`,
    each [B, L] (`batches.sentence_trees`); for a batch without branches it is an ordinary encoder.

    Attributes:
        soft_positions: whether positions count along the tree ("Embedding layer") rather than along
            the row.
        visible_matrix: whether a branch and the rest of its sentence, except for the branch's
            entity, do not attend to each other ("Seeing layer", equation 3).
    """

    soft_positions: bool = True
    visible_matrix: bool = True

    def embed(self, batch: Batch) -> Float[Array, "B L D"]:
        """Return the input of the first layer."""
        if self.soft_positions and "encoder_soft_positions" in batch:
            batch = {**batch, "encoder_positions": batch["encoder_soft_positions"]}
        return super().embed(batch)

    def mask(self, batch: Batch) -> AttentionMask:
        """Return the attention mask, under which branches are hidden if `visible_matrix` is set."""
        mask = super().mask(batch)
        if not self.visible_matrix or "encoder_branches" not in batch:
            return mask
        return BranchMask(
            query_segments=mask.query_segments,
            key_segments=mask.key_segments,
            branches=batch["encoder_branches"],
            entities=batch["encoder_entities"],
        )


def build(config: KBertConfig) -> nn.Module:
    """Build BERT's network, with BERT's parameters, for sentences with branches of knowledge.

    Args:
        config: for `soft_positions` and `visible_matrix` see `KnowledgeEncoder`; False for an
            ablation.

    Raises:
        ValueError: the head or the features are unknown.
    """
    network = bert.build(config)
    return KnowledgeEncoder(
        make_embeddings=network.make_embeddings,
        make_encoder=network.make_encoder,
        make_features=network.make_features,
        make_head=network.make_head,
        soft_positions=config.soft_positions,
        visible_matrix=config.visible_matrix,
    )


def answer_loss(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> losses.LossSums:
    """Return the loss of answers (Devlin et al. 2018, section 4.2).

    An answer cannot begin or end in a branch.

    Args:
        rng: key of dropout; None in evaluation.
    """
    outputs = losses.forward(module, params, batch, rng)
    if "encoder_branches" in batch:
        trunk = jnp.where(batch["encoder_branches"] == 0, batch["encoder_segment_ids"], 0)
        batch = {**batch, "encoder_segment_ids": trunk}
    return fine_tuning.question_answering(outputs, batch)


SYSTEM = System(
    name="k_bert",
    sizes=SIZES,
    build=build,
    older_defaults={**EARLIER_INIT, **bert.LSTM},
    adapt=bert.SYSTEM.adapt,
    tasks={
        **{name: bert.SYSTEM.tasks[name] for name in ("pretraining", "masked_lm")},
        **ENCODER_TASKS,
        "classification": Task(
            loss=functools.partial(fine_tuning.loss, "classification"),
            prediction="knowledge_classes",
            measures=("predictions",),
        ),
        "tagging": Task(
            loss=functools.partial(fine_tuning.loss, "tagging"),
            prediction="knowledge_tags",
            measures=("predictions",),
        ),
        "question_answering": Task(
            loss=answer_loss, prediction="knowledge_answers", measures=("squad",)
        ),
    },
)


# K-BERT in Hugging Face's folders, where it is a BERT that reads no knowledge graph.
# A K-BERT is initialized from a BERT's folder, read as the system `k_bert`, and saved as a BERT.

HUGGING_FACE = dataclasses.replace(
    bert.HUGGING_FACE,
    system="k_bert",
    on_request=True,
    defaults=SIZES["base"],
    exported_only={
        **bert.HUGGING_FACE.exported_only,
        "soft_positions": True,
        "visible_matrix": True,
    },
)
