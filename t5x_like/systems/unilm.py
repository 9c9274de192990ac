"""UniLM: Dong et al. 2019, "Unified Language Model Pre-training ..." (arXiv:1905.03197).

One encoder serves as four language models, which differ only in their attention masks.

| language model | a position attends to | segment ids |
|---|---|---|
| bidirectional | the whole document | 0, 1 |
| sequence_to_sequence | the first segment, and earlier positions of the second one | 4, 5 |
| left_to_right | itself and earlier positions | 2 |
| right_to_left | itself and later positions | 3 |
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from t5x_like import losses
from t5x_like.hf.config_settings import TOKEN, Setting, or_null
from t5x_like.hf.record import Settings
from t5x_like.nn.attention.cache import Cache, open_cache
from t5x_like.nn.attention.positions import AttentionMask, RangeMask, Visibility
from t5x_like.nn.blocks import Shared
from t5x_like.nn.compute import Batch, Outputs
from t5x_like.nn.networks import Encoder
from t5x_like.systems import bert
from t5x_like.systems.system import ENCODER_TASKS, System, Task, adaptation

# {language model: segment ids of the first and of the second text}, as in the authors' code.
SEGMENTS = {
    "bidirectional": (0, 1),
    "sequence_to_sequence": (4, 5),
    "left_to_right": (2, 2),
    "right_to_left": (3, 3),
}
_SOURCE, _TARGET = SEGMENTS["sequence_to_sequence"]


class UnifiedEncoder(Encoder):
    """An encoder with four attention masks, which generates text with "sequence_to_sequence".

    The segment ids of a batch, `encoder_token_types`, select the mask of each document (SEGMENTS);
    without them the encoder is bidirectional.

    Attributes:
        mask_id: the token [MASK], at which the model predicts the original token.
        longest: the number of positions, which limits the length of a row.
    """

    generates: ClassVar[bool] = True
    visibility: ClassVar[Visibility] = "causal"  # how generated tokens attend to each other

    mask_id: int = 103
    longest: int = 512

    def mask(self, batch: Batch) -> AttentionMask:
        """Return the attention mask of each document's language model (section 2.3, figure 1)."""
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

    @staticmethod
    def segments_of(*, source: int, length: int) -> Int[np.ndarray, " L"]:
        """Return the segment ids of a row: of the tokens of a source, then of its target."""
        return np.where(np.arange(length) < source, _SOURCE, _TARGET).astype(np.int32)

    def prefill(
        self,
        decoder_input_tokens: Int[Array, "B P"],
        *,
        cache_length: int,
        decoder_mask: Bool[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Read the sources, and return the logits of the first target token and a cache.

        Args:
            decoder_input_tokens: left-padded sources, [CLS] text [SEP].
            cache_length: the number of tokens of source and target together.
            decoder_mask: True on real tokens; None if all tokens are real.

        Raises:
            ValueError: `cache_length` is above the number of positions of the model.
        """
        if cache_length > self.longest:
            raise ValueError(
                f"source and target have {cache_length} tokens together, more than the "
                f"{self.longest} positions that the model has (model.positions)"
            )
        rows, length = decoder_input_tokens.shape
        real = jnp.ones((rows, length), bool) if decoder_mask is None else decoder_mask
        slots = cache_length + 1  # including a [MASK] after the last token
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
        """Append target tokens, and return the logits of the next token and the new cache."""
        real = jnp.ones((tokens.shape[0], tokens.shape[1] + 1), bool)
        cache, mask, positions = cache.push(real, visibility="causal")
        segments = jnp.full(real.shape, _TARGET)
        return self._predict(tokens, cache, mask, positions, segments)

    def _predict(
        self, tokens: Array, cache: Cache, mask: AttentionMask, positions: Array, segments: Array
    ) -> tuple[Array, Cache]:
        """Run the tokens followed by a [MASK], and return its logits and the new cache."""
        batch = {
            "encoder_input_tokens": _append(tokens, self.mask_id),
            "encoder_token_types": segments,
            "encoder_positions": positions,
        }
        shared = Shared(mask=mask, positions=positions)
        hidden, layers = self.encoder(self.embed(batch), shared, cache.layers)
        logits = self.head(hidden[:, -1:], self.table(), {})["logits"]
        # The next token will overwrite the slot of the [MASK].
        return logits, dataclasses.replace(cache, layers=layers, length=cache.length - 1)


def _append(x: Array, value: int | bool) -> Array:
    return jnp.pad(x, ((0, 0), (0, 1)), constant_values=value)


def _visible(batch: Batch) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """Return the first and the last position that each position attends to (see SEGMENTS)."""
    segments, documents = batch["encoder_token_types"], batch["encoder_segment_ids"]
    positions = jax.lax.broadcasted_iota(jnp.int32, segments.shape, 1)
    end = jnp.full_like(positions, segments.shape[1] - 1)
    # A segment ends before the next segment or, in a packed row, before the next document.
    ends = (segments[:, 1:] != segments[:, :-1]) | (documents[:, 1:] != documents[:, :-1])
    ends = jnp.pad(ends, ((0, 0), (0, 1)), constant_values=True)
    end_of_segment = jax.lax.cummin(jnp.where(ends, positions, end), axis=1, reverse=True)
    causal = (segments == _TARGET) | (segments == SEGMENTS["left_to_right"][0])
    last = jnp.where(causal, positions, jnp.where(segments == _SOURCE, end_of_segment, end))
    return jnp.where(segments == SEGMENTS["right_to_left"][0], positions, 0), last


_SEGMENTS = 1 + max(map(max, SEGMENTS.values()))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnilmConfig(bert.BertConfig):
    """The settings of a UniLM; the ids of the special tokens are the same as BERT's.

    Attributes:
        head: one of BERT's, or `generation`: `masked_lm` of a model that is trained to generate, so
            that commands generate texts with it instead of filling in masks.
    """

    sep_id: int = 102
    mask_id: int = 103


# Section 2.4: BERT large with BERT's cased vocabulary; `base` was released with the code.
SIZES: dict[str, UnilmConfig] = {
    name: size.to(UnilmConfig, vocab_size=28996, token_types=_SEGMENTS)
    for name, size in bert.SIZES.items()
}


def build(config: UnilmConfig) -> nn.Module:
    """Build BERT's network with four attention masks (section 2.3).

    With a head for labelled text the network is bidirectional, the same as BERT's (section 2.5).

    Raises:
        ValueError: `token_types` is not 6, or the head is unknown.
    """
    if config.token_types != _SEGMENTS:
        raise ValueError(
            f"model.token_types={config.token_types} must be {_SEGMENTS}: UniLM's language "
            "models have segments of their own"
        )
    heads = bert.pretraining_heads(config)
    heads["generation"] = heads["masked_lm"]
    encoder = bert.network(config, heads)
    if config.head not in list(heads):  # several tasks have a mapping of heads
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
    """Return the mean loss of masked tokens, plus next sentence prediction (section 2.3).

    Only bidirectional rows, with the head "pretraining", predict the next sentence.

    Args:
        batch: its `encoder_token_types` determine the language model of each row, see SEGMENTS.
        rng: key of dropout; None in evaluation.
        predicted: see `losses.masked_lm.loss`.
        label_smoothing: see `losses.cross_entropy`; 0.1 in the paper's fine-tuning for generation.

    Returns:
        The sum, the number of masked tokens, and their metrics, also for each language model as
        `<language model>/cross_entropy` and `<language model>/accuracy`.

    Raises:
        ValueError: the batch has no masked tokens or no segments, or, with the head "pretraining",
            no labels of pairs.
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
    """Return the scale and the sums of the loss of next sentence prediction.

    The scale is the share of rows that are bidirectional.
    """
    bidirectional = batch["encoder_token_types"][:, 0] == SEGMENTS["bidirectional"][0]
    sums = losses.sentence_pairs(outputs, batch, where=bidirectional)
    rows = jnp.sum(losses.real_rows(batch), dtype=jnp.float32)
    return sums[1] / jnp.maximum(rows, 1.0), sums


SYSTEM = System(
    name="unilm",
    sizes=SIZES,
    build=build,
    older_defaults=bert.OLDER_DEFAULTS,
    # The authors' code initializes each language model's segments with BERT's two (section 2.4).
    adapt=functools.partial(
        adaptation,
        new=("features/",),
        copied_rows={"embeddings/token_type/embedding": (0, 1, 0, 0, 0, 1)},
    ),
    tasks={
        "pretraining": Task(loss=loss, prediction="masked_tokens"),
        "masked_lm": Task(loss=loss, prediction="masked_tokens"),
        "generation": Task(loss=loss, prediction="text"),
        **ENCODER_TASKS,
    },
    generation={"eos_token_id": "sep_id"},
)


# UniLM in Hugging Face's folders, where it is a BERT.
# The authors' files have BERT's tensor names. They are read as the system `bert`, which computes
# only the bidirectional mode, unless `unilm` is requested.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del config, settings, names
    return {"token_types": SIZES["base"]["token_types"]}  # their embeddings are copied from BERT's


HUGGING_FACE = dataclasses.replace(
    bert.HUGGING_FACE,
    system="unilm",
    on_request=True,
    exported_as={"generation": "masked_lm"},
    defaults=SIZES["base"],
    settings={
        **bert.HUGGING_FACE.settings,
        "eos_token_id": Setting("sep_id", or_null(TOKEN), default=None),
        "mask_token_id": Setting("mask_id", or_null(TOKEN), default=None),
    },
    derive_settings=_derive_settings,
)
