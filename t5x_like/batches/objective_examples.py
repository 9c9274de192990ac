"""The features of each objective's examples, and the converters that make batches from them.

Planning, inference and fine-tuning read these without data and without TensorFlow. The objectives
in `preprocessing` use them too, so a new objective needs a line in `OBJECTIVES`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.names import choose


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """The examples that an objective makes.

    Attributes:
        features: the features of an example, each int32 [L] (a `value` is float32 [1]), with EOS
            if the task's feature has `add_eos`.
        converters: names of the converters that make batches of the features, the paper's
            converter first. "prefix_lm" puts targets after inputs; "encoder" needs targets that are
            aligned with the inputs token by token.
        converter_settings: default settings of those converters, which a config may override.
        ends_inputs: whether inputs end with the end token.
        special_tokens: whether inputs and targets begin with [CLS] and end with [SEP], or <s> and
            </s> as in BART.
    """

    features: tuple[str, ...]
    converters: tuple[str, ...]
    converter_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ends_inputs: bool = True
    special_tokens: bool = False


_PAIR = ("inputs", "targets")
_STREAMS = ("inputs", "targets", "backward_targets", "characters", "backward_characters")
_PAIRS = Examples(features=_PAIR, converters=("encoder_decoder", "prefix_lm"))
# A target token for each input token.
_ALIGNED = Examples(features=_PAIR, converters=("encoder_decoder", "prefix_lm", "encoder"))
# Both sides with special tokens.
_FOR_BART = Examples(features=_PAIR, converters=("encoder_decoder",), special_tokens=True)


def _encoder(*features: str) -> Examples:
    """Return examples for an encoder, with the loss on the feature `loss_weights` if it has one."""
    loss_on = {"loss_on": "weights"} if "loss_weights" in features else {}
    names = ("inputs", *features)
    return Examples(
        features=names,
        converters=("encoder",),
        converter_settings={"features": names, **loss_on},
    )


def _masked(*features: str) -> Examples:
    return _encoder("targets", "loss_weights", *features)


def _trees(*features: str) -> Examples:
    return _encoder("token_types", "soft_positions", "branches", "entities", *features)


def _bert(next_sentence: bool = True) -> Examples:
    return _masked("token_types", "label") if next_sentence else _masked("token_types")


def _roberta(format: str = "full_sentences") -> Examples:  # noqa: A002, as the paper calls it
    return _masked("label") if format in ("segment_pair", "sentence_pair") else _masked()


def _albert(sentences: str = "order") -> Examples:
    return _bert(next_sentence=sentences != "none")


def _decoder_rows(rows: int, *, target: str = "label") -> Examples:
    """Return examples of `rows` decoder rows each."""
    return Examples(
        features=("inputs", "row_numbers", target),
        converters=("decoder_rows",),
        converter_settings={"rows": rows, "target": target},
    )


def _text_to_text(end_inputs: bool = True) -> Examples:
    return dataclasses.replace(_PAIRS, ends_inputs=end_inputs)


def _comparisons(responses: int = 2, end_inputs: bool = True) -> Examples:
    return Examples(
        features=(*_PAIR, "row_numbers", "ranks"),
        converters=("decoder_comparisons", "encoder_decoder_comparisons"),
        converter_settings={"responses": responses},
        ends_inputs=end_inputs,
    )


def _prompts(
    end_inputs: bool = True,
    pretraining_rows: int = 0,
    pretraining_objective: str = "language_modeling",
) -> Examples:
    text = pretraining_objective == "language_modeling"
    beside = ("pretraining",) if text else ("pretraining_inputs", "pretraining_targets")
    return Examples(
        features=("inputs", *(beside if pretraining_rows else ())),
        converters=("decoder_prompts", "encoder_prompts"),
        converter_settings={"pretraining_rows": pretraining_rows},
        ends_inputs=end_inputs,
    )


def _decoder_choices(choices: int = 4) -> Examples:
    return _decoder_rows(choices)


def _encoder_choices(choices: int = 4) -> Examples:
    return Examples(
        features=("inputs", "row_numbers", "token_types", "label"),
        converters=("encoder_rows",),
        converter_settings={"rows": choices},
    )


OBJECTIVES: Mapping[str, Examples | Callable[..., Examples]] = {
    # running text
    "span_corruption": _PAIRS,
    "random_spans": _PAIRS,
    "iid_replace_spans": _PAIRS,
    "iid_drop_tokens": _PAIRS,
    "bert_style": _ALIGNED,
    "mass_style": _ALIGNED,
    "deshuffling": _PAIRS,
    "prefix_lm": Examples(features=_PAIR, converters=("prefix_lm", "encoder_decoder")),
    "language_modeling": Examples(features=("targets",), converters=("decoder",)),
    "bidirectional_lm": Examples(
        features=_STREAMS,
        converters=("encoder",),
        converter_settings={"features": _STREAMS, "loss_on": "all"},
    ),
    # pairs of texts
    "text_to_text": _text_to_text,
    "marked_text_to_text": _FOR_BART,
    "translation": _PAIRS,
    "bart": _FOR_BART,
    "mass": Examples(features=(*_PAIR, "positions"), converters=("fragment",)),
    "comparisons": _comparisons,
    "prompts": _prompts,
    # masked tokens
    "masked_targets": _masked("token_types"),
    "bert": _bert,
    "roberta": _roberta,
    "spanbert": _masked("span_left", "span_right"),
    "albert": _albert,
    "structbert": _masked("token_types", "shuffled", "label"),
    "electra": _masked("token_types"),
    "unmasked": _encoder("token_types"),
    "unilm": _masked("token_types", "label"),
    "etc": _masked("sentences", "hidden"),
    "xlnet": _masked("order", "token_types", "reused", "continued", "reversed"),
    # labels
    "classification": _encoder("token_types", "label"),
    "pair_classification": _encoder("token_types", "label"),
    "regression": _encoder("token_types", "value"),
    "tagging": _encoder("token_types", "targets", "loss_weights"),
    "question_answering": _encoder("token_types", "answer"),
    "multiple_choice": _encoder_choices,
    "knowledge_classification": _trees("label"),
    "knowledge_tagging": _trees("targets", "loss_weights"),
    "knowledge_question_answering": _trees("answer"),
    "word_classification": _encoder("characters", "label"),
    "word_tagging": _encoder("characters", "targets", "loss_weights"),
    "gpt_classification": _decoder_rows(1),
    "gpt_similarity": _decoder_rows(2),
    "gpt_regression": _decoder_rows(2, target="value"),
    "gpt_multiple_choice": _decoder_choices,
}


def examples_of(objective: str, settings: Mapping[str, Any]) -> Examples:
    """Return the examples of an objective; settings that do not change them are ignored.

    Raises:
        ValueError: no objective has this name.
    """
    found = choose("objective", objective, OBJECTIVES)
    if isinstance(found, Examples):
        return found
    own = inspect.signature(found).parameters
    return found(**{name: value for name, value in settings.items() if name in own})
