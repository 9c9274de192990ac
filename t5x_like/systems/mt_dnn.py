"""MT-DNN: Liu et al. 2019, "Multi-Task Deep Neural Networks for ..." (arXiv:1901.11504)."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import losses
from t5x_like.models.heads.encoder_heads import MultipleChoiceHead, Pooler, select_head
from t5x_like.models.heads.heads_by_task import PooledHeads
from t5x_like.models.heads.stochastic_answer import StochasticAnswer
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(settings: Mapping[str, Any]) -> dict[str, Any]:
    """BERT's settings, under a head for labelled text, and those of the answer network."""
    shared = {name: value for name, value in settings.items() if name != "layer_features"}
    return {**shared, "head": "classification", "answer_steps": 5, "prediction_dropout": 0.1}


SIZES: dict[str, dict[str, Any]] = {name: _size(one) for name, one in bert.SIZES.items()}

_PADDING = -1e9  # the score of a candidate that is not there


class RelevanceHead(MultipleChoiceHead):
    """The relevance of each candidate for a question, from 0 to 1 (section 3, equation 5)."""

    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits`, float32 [B, C]: the relevance; -1e9 for rows of padding."""
        scores = super().__call__(hidden, table, batch, deterministic=deterministic)["logits"]
        return {"logits": jnp.where(scores > _PADDING, nn.sigmoid(scores), _PADDING)}


class FirstState(nn.Module):
    """The state of the first token, where the pooler's output stands (`PooledHeads`)."""

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L D"], *, deterministic: bool = True
    ) -> Float[Array, "B D"]:
        """The state."""
        return hidden[:, 0]


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build BERT's encoder and pooler, which all tasks share, and the head of each (section 3).

    Args:
        config: its `head` is "pair_classification" (the stochastic answer network), "ranking", one
            of `select_head`, or for several tasks a mapping; `answer_steps` and
            `prediction_dropout` are those of `StochasticAnswer`.

    Raises:
        ValueError: no such head, a task with the pooler's name, or a setting out of its range.
    """
    if config["answer_steps"] < 1:
        raise ValueError(f"model.answer_steps={config['answer_steps']} must be 1 or more steps")
    if "summary" in config["head"] and not isinstance(config["head"], str):
        raise ValueError(
            "tasks has the name 'summary', which the shared pooler's parameters have: choose "
            "another name"
        )
    dtype = jnp.dtype(config["dtype"])
    make_pooler = functools.partial(Pooler, activation=nn.tanh, kernel_init=bert.INIT, dtype=dtype)
    several = functools.partial(PooledHeads, make_pooler=make_pooler)
    output = {"kernel_init": bert.INIT, "dropout": config["dropout"]}
    make_first = make_pooler if isinstance(config["head"], str) else FirstState
    return Encoder(
        make_embeddings=bert.embeddings(config),
        make_encoder=bert.tower(config),
        make_head=select_head(
            config,
            {"ranking": functools.partial(RelevanceHead, make_pooler=make_first, **output)},
            make_pooler=make_first,
            kernel_init=bert.INIT,
            of_classes={
                "pair_classification": functools.partial(
                    StochasticAnswer,
                    steps=config["answer_steps"],
                    prediction_dropout=config["prediction_dropout"],
                    **output,
                )
            },
            make_several=several,
        ),
    )


def ranking_loss(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None, *, gamma: float = 1.0
) -> losses.LossSums:
    """The cross-entropy of the relevant one of a question's candidates (section 3.1, equation 8).

    Args:
        rng: key of dropout; None in evaluation.
        gamma: what the relevance is multiplied by before the softmax.
    """
    outputs = losses.forward(module, params, batch, rng)
    return losses.fine_tuning.multiple_choice({"logits": gamma * outputs["logits"]}, batch)


SYSTEM = System(
    name="mt_dnn",
    sizes=SIZES,
    build=build,
    tasks={
        **ENCODER_TASKS,
        "pair_classification": Task(
            loss=functools.partial(losses.fine_tuning.loss, "classification"),
            prediction="pair_classes",
            measures=("predictions",),
            objective="pair_classification",
        ),
        "ranking": Task(loss=ranking_loss, prediction="encoder_choices", measures=("predictions",)),
    },
)
