"""Left-to-right BERT: "LTR & No NSP" of Devlin et al. 2018, section 5.1 and table 5."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.nn.attention.positions import AttentionMask
from t5x_like.nn.compute import Batch
from t5x_like.nn.encoder_heads import (
    LastTokenChoiceHead,
    LastTokenHead,
    MaskedLMHead,
    Pooler,
    select_head,
)
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import ENCODER_TASKS, System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LeftToRightConfig(bert.BertConfig):
    """The settings of a left-to-right BERT; its head of pretraining is `language_modeling`."""

    head: str | Mapping[str, Any] = "language_modeling"


SIZES: dict[str, LeftToRightConfig] = {
    name: size.to(LeftToRightConfig, head="language_modeling") for name, size in bert.SIZES.items()
}


class LeftToRightEncoder(Encoder):
    """An encoder whose tokens attend only to themselves and to the tokens before them."""

    def mask(self, batch: Batch) -> AttentionMask:
        """Return the attention mask: causal within each document."""
        return dataclasses.replace(super().mask(batch), visibility="causal")


def build(config: LeftToRightConfig) -> nn.Module:
    """Build BERT's network with a causal mask, in pretraining and in fine-tuning (section 5.1).

    Heads for classes, numbers and choices read the last token of a row, since the first attends
    only to itself.

    Raises:
        ValueError: the head or the features are unknown.
    """
    make_pooler = functools.partial(
        Pooler, activation=nn.tanh, kernel_init=config.init, compute=config.compute
    )
    of_row = {"make_pooler": make_pooler, "kernel_init": config.init, "dropout": config.dropout}
    pretraining = ("language_modeling",)
    heads = {
        "language_modeling": functools.partial(MaskedLMHead, make_masked_lm=bert.masked_lm(config)),
        "multiple_choice": functools.partial(LastTokenChoiceHead, **of_row),
    }
    return LeftToRightEncoder(
        make_embeddings=bert.embeddings(config),
        make_encoder=bert.tower(config),
        make_features=bert.layer_features(config, pretraining=pretraining),
        make_head=select_head(
            config,
            heads,
            make_pooler=make_pooler,
            kernel_init=config.init,
            make_row=functools.partial(LastTokenHead, **of_row),
            make_lstm=bert.lstm(config, pretraining=pretraining),
        ),
    )


def loss(module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None) -> losses.LossSums:
    """Return the cross-entropy of each token but the first, given the tokens before it.

    Args:
        batch: rows of a masked objective, whose original tokens are read and predicted.
        rng: key of dropout; None in evaluation.

    Raises:
        ValueError: the batch has no original tokens.
    """
    if "encoder_target_tokens" not in batch:
        raise ValueError(
            "model.head='language_modeling' predicts tokens, and the batch has none: set "
            "data.objective='bert', or model.head to one for the labels"
        )
    tokens, segments = batch["encoder_target_tokens"], batch["encoder_segment_ids"]
    outputs = losses.forward(module, params, {**batch, "encoder_input_tokens": tokens}, rng)
    real = (segments[:, 1:] > 0) & (segments[:, 1:] == segments[:, :-1])
    return losses.cross_entropy(outputs["logits"][:, :-1], tokens[:, 1:], real.astype(jnp.float32))


SYSTEM = System(
    name="left_to_right_bert",
    sizes=SIZES,
    build=build,
    adapt=bert.SYSTEM.adapt,
    tasks={"language_modeling": Task(loss=loss), **ENCODER_TASKS},
)
