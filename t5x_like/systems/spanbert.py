"""SpanBERT: Joshi et al. 2020, "Improving Pre-training by ... Spans" (arXiv:1907.10529)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.heads.encoder_heads import MaskedLMHead, Summary, select_head
from t5x_like.models.heads.span_boundary import SpanBoundary, SpanPretraining
from t5x_like.models.networks.encoder import Encoder, forward
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task

# BERT's (section 4.2), with its cased vocabulary; places of a span as in the authors' code.
SIZES: dict[str, dict[str, Any]] = {
    name: size | {"vocab_size": 28996, "span_places": 15} for name, size in bert.SIZES.items()
}

_PLACE_FEATURES = 200  # section 4.2


def build(config: Mapping[str, Any]) -> nn.Module:
    """BERT's network, whose head "pretraining" has the span boundary objective (section 3.2).

    `span_places` is how many tokens of a span have a place of their own; further ones are predicted
    as masked tokens alone.
    """
    dtype = jnp.dtype(config["dtype"])
    make_masked_lm = bert.masked_lm(config)
    make_boundary = functools.partial(
        SpanBoundary,
        make_norm=functools.partial(bert.NORM, dtype=dtype),
        places=config["span_places"],
        features=_PLACE_FEATURES,
        activation=bert.GELU,
        kernel_init=bert.INIT,
        dtype=dtype,
    )
    own: dict[str, Callable[..., nn.Module]] = {
        "pretraining": functools.partial(
            SpanPretraining, make_masked_lm=make_masked_lm, make_boundary=make_boundary
        ),
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
    }
    # No sentence is predicted, so that nothing has trained the summary before fine-tuning.
    make_summary = functools.partial(
        Summary, activation=nn.tanh, kernel_init=bert.INIT, dtype=dtype
    )
    return Encoder(
        make_embeddings=bert.embeddings(config),
        make_encoder=bert.tower(config),
        make_head=select_head(config, own, make_summary=make_summary, kernel_init=bert.INIT),
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> losses.LossSums:
    """The mean over masked tokens, as themselves and from the ends of their spans (section 3.2).

    Args:
        rng: key of dropout; None in evaluation.
        predicted: places of a row that are read, as a share of its length: at least as many as the
            objective masks.

    Raises:
        ValueError: the head reads spans and the batch has none.
    """
    places, kept = losses.predicted(batch["encoder_loss_weights"], share=predicted)
    outputs = forward(module, params, {**batch, "predicted_positions": places}, rng)
    targets = jnp.take_along_axis(batch["encoder_target_tokens"], places, axis=1)
    masked = losses.cross_entropy(outputs["logits"], targets, kept)
    if "boundary" not in params["head"]:
        return masked
    if "boundary_logits" not in outputs:
        raise ValueError(
            "model.head='pretraining' needs an objective of spans, 'spanbert'; without one "
            "'masked_lm'"
        )
    inside = jnp.where(outputs["boundary_known"], kept, 0.0)
    boundary = losses.cross_entropy(outputs["boundary_logits"], targets, inside)
    return losses.combine({"masked_lm": (1.0, masked), "span_boundary": (1.0, boundary)})


SYSTEM = System(
    name="spanbert",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)
