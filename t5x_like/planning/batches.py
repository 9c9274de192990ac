"""The shapes of a config's batches, told without data, vocabulary or TensorFlow."""

import jax
import jax.numpy as jnp
import ml_collections

from t5x_like.config import Phase, phases
from t5x_like.names import choose

Batch = dict[str, jax.ShapeDtypeStruct]

# The features of the examples that an objective makes for the converter `encoder`, besides
# `inputs`; as preprocessing/objectives/ has them, which needs TensorFlow.
_MASKED = ("targets", "loss_weights")
_ENCODER_FEATURES = {
    "albert": (*_MASKED, "token_types", "label"),
    "bert": (*_MASKED, "token_types", "label"),
    "bert_style": ("targets",),
    "classification": ("token_types", "label"),
    "electra": (*_MASKED, "token_types"),
    "masked_targets": (*_MASKED, "token_types"),
    "mass_style": ("targets",),
    "question_answering": ("token_types", "answer"),
    "regression": ("token_types", "value"),
    "roberta": _MASKED,
    "spanbert": (*_MASKED, "span_left", "span_right"),
    "structbert": (*_MASKED, "token_types", "shuffled", "label"),
    "tagging": (*_MASKED, "token_types"),
    "unilm": (*_MASKED, "token_types", "label"),
}
_PAIRS = ("segment_pair", "sentence_pair")  # RoBERTa's formats that have a label


def largest(config: ml_collections.ConfigDict) -> Phase:
    """The phase of a run whose batches have the most tokens: what must fit."""
    return max(phases(config), key=lambda phase: tokens(batch(phase.settings)))


def tokens(fields: Batch) -> int:
    """The tokens that a step reads, on all sides: as the log of a run counts them."""
    return sum(x.size for name, x in fields.items() if name.endswith("input_tokens"))


def batch(config: ml_collections.ConfigDict) -> Batch:
    """The global batch of a config, or of a phase of one.

    Raises:
        ValueError: a converter or an objective of encoders that does not exist, or a length that is
            not set.
    """
    data = config.data
    fields = choose(
        "data.converter",
        data.converter,
        {
            "encoder_decoder": _encoder_decoder,
            "fragment": _fragment,
            "decoder": _decoder,
            "prefix_lm": _prefix_lm,
            "encoder": _encoder,
            "decoder_rows": _decoder_rows,
        },
    )(data)
    if data.pack:
        for side in ("encoder", "decoder"):
            if like := fields.get(f"{side}_input_tokens"):
                fields[f"{side}_segment_ids"] = like
                fields.setdefault(f"{side}_positions", like)
    return fields


def _length(data: ml_collections.ConfigDict, name: str) -> int:
    length = data.lengths.get(name, 0)
    if length < 1:
        raise ValueError(
            f"data.lengths.{name}={length} must be 1 or more tokens for the converter "
            f"{data.converter}"
        )
    return length


def _integers(data: ml_collections.ConfigDict, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((data.batch_size, *shape), jnp.int32)


def _floats(data: ml_collections.ConfigDict, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((data.batch_size, *shape), jnp.float32)


def _targets(data: ml_collections.ConfigDict, length: int) -> Batch:
    return {
        "decoder_input_tokens": _integers(data, length),
        "decoder_target_tokens": _integers(data, length),
        "decoder_loss_weights": _floats(data, length),
    }


def _encoder_decoder(data: ml_collections.ConfigDict) -> Batch:
    row = _integers(data, _length(data, "inputs"))
    sides = {"encoder_input_tokens": row, "encoder_segment_ids": row}
    return sides | _targets(data, _length(data, "targets"))


def _fragment(data: ml_collections.ConfigDict) -> Batch:
    fields = _encoder_decoder(data)
    return fields | {"decoder_positions": fields["decoder_input_tokens"]}


def _decoder(data: ml_collections.ConfigDict) -> Batch:
    return _targets(data, _length(data, "targets"))


def _prefix_lm(data: ml_collections.ConfigDict) -> Batch:
    length = data.converter_settings.get("length", 0)
    fields = _targets(data, length or _length(data, "inputs") + _length(data, "targets"))
    return fields | {"decoder_causal_attention": fields["decoder_input_tokens"]}


def _encoder(data: ml_collections.ConfigDict) -> Batch:
    row = _length(data, "inputs")
    features = data.converter_settings.get("features") or _encoder_features(data)
    whole = {
        "label": _integers(data),
        "value": _floats(data),
        "answer": _integers(data, 2),
    }
    names = {"inputs": "encoder_input_tokens", "targets": "encoder_target_tokens"}
    fields = {"encoder_segment_ids": _integers(data, row)}
    if "targets" in features:
        fields["encoder_loss_weights"] = _floats(data, row)
    for name in ("inputs", *features):
        if name in whole:
            fields[name] = whole[name]
        elif name != "loss_weights":
            fields[names.get(name, f"encoder_{name}")] = _integers(data, row)
    return fields


def _encoder_features(data: ml_collections.ConfigDict) -> tuple[str, ...]:
    features = choose("data.objective", data.objective, _ENCODER_FEATURES)
    settings = data.objective_settings
    if not settings.get("next_sentence", True):
        features = tuple(name for name in features if name != "label")
    if data.objective == "roberta" and settings.get("format") in _PAIRS:
        features = (*features, "label")
    return features


def _decoder_rows(data: ml_collections.ConfigDict) -> Batch:
    rows = data.converter_settings.get("rows", 0)
    if not rows:  # as the objectives for GPT set it: texts compared in both orders, or choices
        choices = data.objective_settings.get("choices", 4)
        rows = {"gpt_similarity": 2, "gpt_multiple_choice": choices}.get(data.objective, 1)
    row = _integers(data, rows, _length(data, "inputs"))
    return {
        "decoder_input_tokens": row,
        "decoder_segment_ids": row,
        "label": _integers(data),
    }
