"""StructBERT: Wang et al. 2019, "Incorporating Language Structures ..." (arXiv:1908.04577)."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.hf.record import Settings
from t5x_like.nn.compute import Batch
from t5x_like.systems import bert
from t5x_like.systems.system import ENCODER_TASKS, System, Task

SIZES: dict[str, bert.BertConfig] = bert.SIZES

RELATIONS = 3  # next sentence, previous sentence, sentence of another document (section 2.2.2)


def build(config: bert.BertConfig) -> nn.Module:
    """Build BERT's network (section 2.1) with three classes of sentence pairs.

    Raises:
        ValueError: the head or the features are unknown.
    """
    heads = bert.pretraining_heads(config)
    heads["pretraining"] = functools.partial(heads["pretraining"], classes=RELATIONS)
    return bert.network(config, heads)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.3,
) -> losses.LossSums:
    """Return the sum of the mean losses of masked tokens, shuffled tokens, and pairs (section 2.2).

    One output layer predicts the original tokens at masked and at shuffled positions (section
    2.2.1). The head "masked_lm" has no loss of pairs.

    Args:
        batch: `encoder_loss_weights` is above 0 on masked tokens and `encoder_shuffled` on shuffled
            tokens; no token is both.
        rng: key of dropout; None in evaluation.
        predicted: the number of positions with logits, as a share of the row's length: at least the
            share of the tokens that the objective masks or shuffles.

    Raises:
        ValueError: the batch lacks the fields of masked or shuffled tokens, or labels of pairs.
    """
    if "encoder_shuffled" not in batch:
        raise ValueError(
            "structbert predicts shuffled tokens, and the batch has none: set "
            "data.objective='structbert' (with shuffle_rate 0 for none)"
        )
    shuffles = batch["encoder_shuffled"]
    outputs, chosen = losses.predict_masked(
        module, params, batch, rng, share=predicted, also=shuffles
    )
    shuffled = jnp.take_along_axis(shuffles, chosen.positions, axis=1) > 0
    terms = {
        "masked_lm": (1.0, chosen.cross_entropy(outputs["logits"], where=~shuffled)),
        "word_structure": (1.0, chosen.cross_entropy(outputs["logits"], where=shuffled)),
    }
    if "row_logits" in outputs:
        terms["sentence_structure"] = (1.0, losses.sentence_pairs(outputs, batch))
    return losses.combine(terms)


SYSTEM = System(
    name="structbert",
    sizes=SIZES,
    build=build,
    older_defaults=bert.OLDER_DEFAULTS,
    adapt=bert.SYSTEM.adapt,
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)


# StructBERT in Hugging Face's folders, where it is a BERT.
# The folders published as StructBERT have model_type "bert". They are read as the system `bert`
# unless `structbert` is requested, and a StructBERT is saved as such a folder.


def _derive_config(settings: Settings) -> dict[str, Any]:
    if settings["head"] == "pretraining":
        raise ValueError(
            "model.head='pretraining' of StructBERT classifies pairs into 3 classes, and Hugging "
            "Face's BERT into 2: load the model with from_pretrained(folder, head='masked_lm') "
            "and save that"
        )
    return {}


HUGGING_FACE = dataclasses.replace(
    bert.HUGGING_FACE,
    system="structbert",
    on_request=True,
    defaults=SIZES["base"],
    derive_config=_derive_config,
)
