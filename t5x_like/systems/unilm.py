"""UniLM: Dong et al. 2019, "Unified Language Model Pre-training ..." (arXiv:1905.03197)."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.networks.unified_encoder import KINDS, SEGMENTS, UnifiedEncoder
from t5x_like.models.types import Batch
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task

# Section 2.4: BERT large, with its cased vocabulary; `base` was released with the code.
_MARKS = {"sep_id": 102, "mask_id": 103}  # of BERT's vocabularies
SIZES: dict[str, dict[str, Any]] = {
    name: size | {"vocab_size": 28996, "token_types": SEGMENTS} | _MARKS
    for name, size in bert.SIZES.items()
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES: BERT's, under four masks.

    With a head for labelled text it is bidirectional (section 2.5), and BERT's without a change.

    Raises:
        ValueError: `token_types` is not 6, two for each kind of language model that has pairs and
            one for the others.
    """
    if config["token_types"] != SEGMENTS:
        raise ValueError(
            f"model.token_types={config['token_types']}: UniLM has {SEGMENTS}, which tell the "
            "kinds of language models apart"
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
    bidirectional: float = 1 / 3,
    sequence_to_sequence: float = 1 / 3,
    left_to_right: float = 1 / 6,
    right_to_left: float = 1 / 6,
) -> losses.LossSums:
    """The masked tokens under one of the four masks, drawn for the batch (sections 2.3 and 2.4).

    Bidirectional batches have the next sentence besides. In evaluation it is the mean over the
    draw: each kind that has a share is measured, as `<kind>/cross_entropy`, in a pass of its own.

    Args:
        rng: key of the draw and of dropout; None in evaluation.
        predicted: see `systems.bert.loss`.
        label_smoothing: see `losses.cross_entropy`; 0.1 where the paper fine-tunes to generate.
        bidirectional, sequence_to_sequence, left_to_right, right_to_left: shares of the batches,
            of each microbatch where there are some.

    Raises:
        ValueError: shares that are negative or do not sum to 1.
    """
    given = (bidirectional, sequence_to_sequence, left_to_right, right_to_left)
    shares = dict(zip(KINDS, given, strict=True))
    if min(given) < 0 or abs(sum(given) - 1) > 1e-6:
        raise ValueError(f"loss: the shares {shares} must be 0 or more and sum to 1")
    settings = {"predicted": predicted, "label_smoothing": label_smoothing}
    if rng is None:
        return _mean_over_kinds(module, params, batch, shares=shares, **settings)
    draw, dropout = jax.random.split(rng)
    kind = jax.random.choice(draw, len(KINDS), p=jnp.array(given))
    total, weight, metrics = _loss(module, params, batch, dropout, kind=kind, **settings)
    for number, name in enumerate(KINDS):
        if shares[name]:
            metrics |= _of_kind(name, metrics, counts=kind == number)
    return total, weight, metrics


def _mean_over_kinds(
    module: nn.Module,
    params: Any,
    batch: Batch,
    *,
    shares: Mapping[str, float],
    **settings: float,
) -> losses.LossSums:
    """What the loss of a batch is on average over the draw of its kind."""
    sums, each = [], dict[str, tuple[jax.Array, jax.Array]]()
    for number, (name, share) in enumerate(shares.items()):
        if share:
            one = _loss(module, params, batch, None, kind=jnp.array(number), **settings)
            each |= _of_kind(name, one[2], counts=jnp.array(True))
            sums.append(jax.tree.map(lambda x, share=share: share * x, one))
    total, weight, metrics = jax.tree.map(lambda *parts: sum(parts), *sums)
    return total, weight, metrics | each


def _loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    kind: jax.Array,
    predicted: float,
    label_smoothing: float,
) -> losses.LossSums:
    """Of one kind, a number in KINDS."""
    read = {**batch, "language_model": kind}
    outputs, masked = losses.predict_masked(module, params, read, rng, share=predicted)
    tokens = masked.cross_entropy(outputs["logits"], label_smoothing=label_smoothing)
    if "row_logits" not in outputs:
        return tokens
    pairs = losses.sentence_pairs(outputs, batch, where=kind == KINDS.index("bidirectional"))
    return losses.combine({"masked_lm": (1.0, tokens), "next_sentence": (1.0, pairs)})


def _of_kind(
    name: str, metrics: Mapping[str, tuple[jax.Array, jax.Array]], *, counts: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Metrics of masked tokens by the name of their kind, of weight 0 unless they count."""
    kept: dict[str, tuple[jax.Array, jax.Array]] = {}
    for metric in ("cross_entropy", "accuracy"):
        total, weight = metrics[metric]
        kept[f"{name}/{metric}"] = jnp.where(counts, total, 0.0), jnp.where(counts, weight, 0.0)
    return kept


SYSTEM = System(
    name="unilm",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    generation={"eos_token_id": "sep_id"},
    # BERT has two segments, of which the authors' code makes those of each kind (section 2.4).
    copied_rows={"embeddings/token_type/embedding": (0, 1, 0, 0, 0, 1)},
)
