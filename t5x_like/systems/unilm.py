"""UniLM: Dong et al. 2019, "Unified Language Model Pre-training ..." (arXiv:1905.03197)."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.networks.unified_encoder import SEGMENTS, UnifiedEncoder
from t5x_like.models.types import Batch, Outputs
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task

# Section 2.4: BERT large, with its cased vocabulary; `base` was released with the code.
_SPECIAL_TOKENS = {"sep_id": 102, "mask_id": 103}  # BERT's
_SEGMENTS = 1 + max(map(max, SEGMENTS.values()))
SIZES: dict[str, dict[str, Any]] = {
    name: size | {"vocab_size": 28996, "token_types": _SEGMENTS} | _SPECIAL_TOKENS
    for name, size in bert.SIZES.items()
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build BERT's network under four attention masks (section 2.3).

    With a head for labelled text it is bidirectional (section 2.5): BERT itself.

    Raises:
        ValueError: `token_types` is not 6, or no such head.
    """
    if config["token_types"] != _SEGMENTS:
        raise ValueError(
            f"model.token_types={config['token_types']} must be {_SEGMENTS}: UniLM's language "
            "models have segments of their own"
        )
    encoder = bert.build(config)
    if config["head"] not in ("pretraining", "masked_lm"):
        return encoder
    return UnifiedEncoder(
        make_embeddings=encoder.make_embeddings,
        make_encoder=encoder.make_encoder,
        make_head=encoder.make_head,
        mask_id=config["mask_id"],
        longest=config["positions"],
    )


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
    label_smoothing: float = 0.0,
) -> losses.LossSums:
    """The mean over masked tokens, plus the next sentence of bidirectional rows (section 2.3).

    Args:
        batch: its `encoder_token_types` contain the language model of each row, see SEGMENTS.
        rng: key of dropout; None in evaluation.
        predicted: see `losses.masked_lm.loss`.
        label_smoothing: see `losses.cross_entropy`; 0.1 where the paper fine-tunes to generate.

    Returns:
        The sum, the number of masked tokens, and their metrics, for each language model as
        `<language model>/cross_entropy` and `<language model>/accuracy`, too.

    Raises:
        ValueError: the batch has no masked tokens or no segments, or with the head "pretraining" no
            labels of pairs.
    """
    if "encoder_token_types" not in batch:
        raise ValueError(
            "unilm reads the language model of a row from its segments, and the batch has none: "
            "set data.objective to 'unilm' or 'masked_targets'"
        )
    outputs, masked = losses.predict_masked(module, params, batch, rng, share=predicted)
    sums = masked.cross_entropy(outputs["logits"], label_smoothing=label_smoothing)
    if "row_logits" in outputs:
        sums = losses.combine(
            {"masked_lm": (1.0, sums), "next_sentence": _next_sentence(outputs, batch)}
        )
    total, weight, metrics = sums
    segments = jnp.take_along_axis(batch["encoder_token_types"], masked.positions, axis=1)
    for kind, (first, second) in SEGMENTS.items():
        where = (segments == first) | (segments == second)
        _, _, of_kind = masked.cross_entropy(outputs["logits"], where=where)
        metrics |= {f"{kind}/{name}": of_kind[name] for name in ("cross_entropy", "accuracy")}
    return total, weight, metrics


def _next_sentence(outputs: Outputs, batch: Batch) -> tuple[float | jax.Array, losses.LossSums]:
    """The scale and the sums of the next sentence: its mean, times the share of its rows."""
    bidirectional = batch["encoder_token_types"][:, 0] == SEGMENTS["bidirectional"][0]
    sums = losses.sentence_pairs(outputs, batch, where=bidirectional)
    rows = jnp.sum(losses.real_rows(batch), dtype=jnp.float32)
    return sums[1] / jnp.maximum(rows, 1.0), sums


SYSTEM = System(
    name="unilm",
    sizes=SIZES,
    build=build,
    later=bert.LATER,
    new_parameters=bert.NEW_PARAMETERS,
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    generation={"eos_token_id": "sep_id"},
    # The authors' code initializes each language model's segments with BERT's two (section 2.4).
    copied_rows={"embeddings/token_type/embedding": lambda folder, rows: (0, 1, 0, 0, 0, 1)},
)
