"""StructBERT: Wang et al. 2019, "Incorporating Language Structures ..." (arXiv:1908.04577)."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.heads.encoder_heads import MaskedLMHead, Pretraining, Summary, select_head
from t5x_like.models.networks.encoder import Encoder, forward
from t5x_like.systems import bert
from t5x_like.systems.bert import INIT
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task

SIZES: dict[str, dict[str, Any]] = bert.SIZES

RELATIONS = 3  # of two sentences: next, previous, of another document (section 2.2.2)


def build(config: Mapping[str, Any]) -> nn.Module:
    """BERT's network (section 2.1) with three kinds of pairs.

    Raises:
        ValueError: no such head.
    """
    make_masked_lm = bert.masked_lm(config)
    make_summary = functools.partial(
        Summary, activation=nn.tanh, kernel_init=INIT, dtype=jnp.dtype(config["dtype"])
    )
    own = {
        "pretraining": functools.partial(
            Pretraining,
            make_masked_lm=make_masked_lm,
            make_summary=make_summary,
            classes=RELATIONS,
            kernel_init=INIT,
        ),
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
    }
    return Encoder(
        make_embeddings=bert.embeddings(config),
        make_encoder=bert.tower(config),
        make_head=select_head(config, own, make_summary=make_summary, kernel_init=INIT),
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None,
    *,
    predicted: float = 0.3,
) -> losses.LossSums:
    """The means over masked tokens, over shuffled ones and over pairs, summed (section 2.2).

    The original token of a masked place and that of a shuffled one are told by the same layer
    (section 2.2.1), so both kinds of places are read together.

    Args:
        batch: with `encoder_loss_weights` on masked and `encoder_shuffled` on shuffled tokens, none
            of which is masked; without pairs, no `label` is needed.
        rng: key of dropout; None in evaluation.
        predicted: places of a row that are read, as a share of its length: at least as many as the
            objective masks and shuffles.
    """
    masks, shuffles = batch["encoder_loss_weights"], batch["encoder_shuffled"]
    places, kept = losses.predicted(masks + shuffles, share=predicted)
    outputs = forward(module, params, {**batch, "predicted_positions": places}, rng)
    targets = jnp.take_along_axis(batch["encoder_target_tokens"], places, axis=1)
    is_shuffled = jnp.take_along_axis(shuffles, places, axis=1)
    masked = losses.cross_entropy(outputs["logits"], targets, kept * (1 - is_shuffled))
    shuffled = losses.cross_entropy(outputs["logits"], targets, kept * is_shuffled)
    terms = {"masked_lm": (1.0, masked), "word_structure": (1.0, shuffled)}
    if "row_logits" in outputs:
        real = batch["encoder_segment_ids"][:, 0] > 0
        pairs = losses.classification(outputs["row_logits"], batch["label"], real)
        terms["sentence_structure"] = (1.0, pairs)
    return losses.combine(terms)


SYSTEM = System(
    name="structbert",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)
