"""SpanBERT: Joshi et al. 2020, "Improving Pre-training by ... Spans" (arXiv:1907.10529)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.heads.encoder_heads import MaskedLMHead, Pooler, select_head
from t5x_like.models.heads.span_boundary import SpanBoundary, SpanPretraining
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task

# BERT's sizes (section 4.2) with its cased vocabulary; `span_places` as in the authors' code.
SIZES: dict[str, dict[str, Any]] = {
    name: size | {"vocab_size": 28996, "span_places": 15} for name, size in bert.SIZES.items()
}

_PLACE_FEATURES = 200  # section 4.2


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build BERT's network, whose head "pretraining" has the span boundary objective (section 3.2).

    Args:
        config: `span_places` is the number of tokens of a span with a position embedding; further
            ones are predicted from their own states alone.

    Raises:
        ValueError: no such head.
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
    # Pretraining predicts no sentence pairs, so nothing trains the pooler before fine-tuning.
    make_pooler = functools.partial(Pooler, activation=nn.tanh, kernel_init=bert.INIT, dtype=dtype)
    return Encoder(
        make_embeddings=bert.embeddings(config),
        make_encoder=bert.tower(config),
        make_features=bert.layer_features(config, pretraining=own),
        make_head=select_head(config, own, make_pooler=make_pooler, kernel_init=bert.INIT),
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> losses.LossSums:
    """The sum of two means over masked tokens: from their own states, and from the span boundaries.

    Equation 2 of section 3.2.

    Args:
        rng: key of dropout; None in evaluation.
        predicted: see `losses.masked_lm.loss`.

    Raises:
        ValueError: the batch has no masked tokens, or no spans.
    """
    if "encoder_span_left" not in batch:
        raise ValueError(
            "model.head='pretraining' of spanbert predicts masked spans, and the batch has none: "
            "set data.objective='spanbert', or model.head='masked_lm'"
        )
    outputs, masked = losses.predict_masked(module, params, batch, rng, share=predicted)
    boundary = masked.cross_entropy(outputs["boundary_logits"], where=outputs["boundary_known"])
    return losses.combine(
        {
            "masked_lm": (1.0, masked.cross_entropy(outputs["logits"])),
            "span_boundary": (1.0, boundary),
        }
    )


SYSTEM = System(
    name="spanbert",
    sizes=SIZES,
    build=build,
    later=bert.LATER,
    new_parameters=bert.NEW_PARAMETERS,
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
)
