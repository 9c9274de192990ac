"""UniLM: Dong et al. 2019, "Unified Language Model Pre-training ..." (arXiv:1905.03197).

One encoder under the attention masks of four language models: Dong et al. 2019 (UniLM).

| language model | a position attends to | segment ids |
|---|---|---|
| bidirectional | the whole document | 0, 1 |
| sequence_to_sequence | the first segment, and earlier positions of the second one | 4, 5 |
| left_to_right | itself and earlier positions | 2 |
| right_to_left | itself and later positions | 3 |
"""

import dataclasses
import functools
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like import losses
from t5x_like.models.attention.cache import Cache, open_cache
from t5x_like.models.attention.masks import AttentionMask, RangeMask, Visibility
from t5x_like.models.blocks.residual import Shared
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.types import Batch, Outputs
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task, adaptation

# The segment ids of a first and of a second text, by language model, as in the authors' code.
SEGMENTS = {
    "bidirectional": (0, 1),
    "sequence_to_sequence": (4, 5),
    "left_to_right": (2, 2),
    "right_to_left": (3, 3),
}
_SOURCE, _TARGET = SEGMENTS["sequence_to_sequence"]


class UnifiedEncoder(Encoder):
    """An encoder under four attention masks, one of which generates text.

    The segment ids of a batch, `encoder_token_types`, select the mask of each document (SEGMENTS);
    without them the encoder is bidirectional.

    Attributes:
        mask_id: the token [MASK], at which the model predicts the original token.
        longest: positions of the model, and so the tokens of the longest row.
    """

    generates: ClassVar[bool] = True
    visibility: ClassVar[Visibility] = "causal"  # of the tokens that it generates

    mask_id: int = 103
    longest: int = 512

    def mask(self, batch: Batch) -> AttentionMask:
        """The attention mask of the kind (section 2.3, figure 1)."""
        mask = super().mask(batch)
        if "encoder_token_types" not in batch:
            return mask
        first, last = _visible(batch)
        return RangeMask(
            query_segments=mask.query_segments,
            key_segments=mask.key_segments,
            first=first,
            last=last,
        )

    def prefill(
        self,
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Run the sources through the encoder: the logits of the first target token, and a cache.

        Args:
            decoder_input_tokens: left-padded sources, [CLS] text [SEP].
            cache_length: tokens of source and target together.
            decoder_mask: True on real tokens; None if all are.

        Raises:
            ValueError: more tokens than the model has positions.
        """
        if cache_length > self.longest:
            raise ValueError(
                f"source and target have {cache_length} tokens together, more than the "
                f"{self.longest} positions that the model has (model.positions)"
            )
        rows, length = decoder_input_tokens.shape
        real = jnp.ones((rows, length), bool) if decoder_mask is None else decoder_mask
        slots = cache_length + 1  # with the [MASK] after the last token
        layers = self.make_encoder(parent=None).empty_cache(batch=rows, slots=slots)
        cache = open_cache(layers, prompt=real, slots=slots)
        cache, mask, positions = cache.push(_append(real, True), visibility="prefix")
        mask = dataclasses.replace(mask, prefix=cache.real & (jnp.arange(slots) < length))
        segments = _append(jnp.full((rows, length), _SOURCE), _TARGET)
        logits, cache = self._predict(decoder_input_tokens, cache, mask, positions, segments)
        return logits[:, 0], cache

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B 1 V"], Cache]:
        """The logits of the next token after more target tokens, and the cache with these."""
        real = jnp.ones((tokens.shape[0], tokens.shape[1] + 1), bool)
        cache, mask, positions = cache.push(real, visibility="causal")
        segments = jnp.full(real.shape, _TARGET)
        return self._predict(tokens, cache, mask, positions, segments)

    def _predict(
        self, tokens: Array, cache: Cache, mask: AttentionMask, positions: Array, segments: Array
    ) -> tuple[Array, Cache]:
        """Run the tokens and a [MASK] after them: the logits at the [MASK], and the cache."""
        batch = {
            "encoder_input_tokens": _append(tokens, self.mask_id),
            "encoder_token_types": segments,
            "encoder_positions": positions,
        }
        shared = Shared(mask=mask, positions=positions)
        hidden, layers = self.encoder(self.embed(batch), shared, cache.layers)
        logits = self.head(hidden[:, -1:], self.table(), {})["logits"]
        # The token that comes next takes the slot of the [MASK].
        return logits, dataclasses.replace(cache, layers=layers, length=cache.length - 1)


def _append(x: Array, value: int | bool) -> Array:
    return jnp.pad(x, ((0, 0), (0, 1)), constant_values=value)


def _visible(batch: Batch) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """The first and the last position that each position attends to, by its segment id."""
    segments, documents = batch["encoder_token_types"], batch["encoder_segment_ids"]
    here = jax.lax.broadcasted_iota(jnp.int32, segments.shape, 1)
    end = jnp.full_like(here, segments.shape[1] - 1)
    # A segment ends where the next one, or in a packed row the next document, begins.
    ends = (segments[:, 1:] != segments[:, :-1]) | (documents[:, 1:] != documents[:, :-1])
    ends = jnp.pad(ends, ((0, 0), (0, 1)), constant_values=True)
    end_of_segment = jax.lax.cummin(jnp.where(ends, here, end), axis=1, reverse=True)
    causal = (segments == _TARGET) | (segments == SEGMENTS["left_to_right"][0])
    last = jnp.where(causal, here, jnp.where(segments == _SOURCE, end_of_segment, end))
    return jnp.where(segments == SEGMENTS["right_to_left"][0], here, 0), last


_SEGMENTS = 1 + max(map(max, SEGMENTS.values()))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnilmConfig(bert.BertConfig):
    """The settings of a UniLM; the ids of special tokens are BERT's."""

    sep_id: int = 102
    mask_id: int = 103


# Section 2.4: BERT large, with its cased vocabulary; `base` was released with the code.
SIZES: dict[str, UnilmConfig] = {
    name: size.to(UnilmConfig, vocab_size=28996, token_types=_SEGMENTS)
    for name, size in bert.SIZES.items()
}


def build(config: UnilmConfig) -> nn.Module:
    """Build BERT's network under four attention masks (section 2.3).

    With a head for labelled text it is bidirectional (section 2.5): BERT itself.

    Raises:
        ValueError: `token_types` is not 6, or no such head.
    """
    if config.token_types != _SEGMENTS:
        raise ValueError(
            f"model.token_types={config.token_types} must be {_SEGMENTS}: UniLM's language "
            "models have segments of their own"
        )
    encoder = bert.build(config)
    if config.head not in ("pretraining", "masked_lm"):
        return encoder
    return UnifiedEncoder(
        make_embeddings=encoder.make_embeddings,
        make_encoder=encoder.make_encoder,
        make_head=encoder.make_head,
        mask_id=config.mask_id,
        longest=config.positions,
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
    # The authors' code initializes each language model's segments with BERT's two (section 2.4).
    adapt=functools.partial(
        adaptation,
        new=("features/",),
        copied_rows={"embeddings/token_type/embedding": (0, 1, 0, 0, 0, 1)},
    ),
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    generation={"eos_token_id": "sep_id"},
)
