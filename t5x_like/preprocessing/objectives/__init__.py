"""Objectives: seqio preprocessors from raw text to the features of examples, in four families.

    running_text  concatenated documents: span corruption, denoising, language modeling
    masked        rows of an encoder: masked tokens (BERT and its relatives, UniLM, XLNet), or plain
    pairs         an encoder's text and a decoder's: BART, MASS, translation, text to text
    labels        labelled text: classes, numbers, tags, answers

An objective of running text combines three independent choices: how the text is split into chunks
(`chunking`, `lengths`), which tokens are noise (`noise`) and how noise is written (`corruption`).
A `masked` objective combines a format of rows, a choice of noise and a way of writing it, over
groups of documents split into sentences (`grouping`).

A new objective is a function that returns an `Objective`, a line in `OBJECTIVES` below, and a line
in `batches.objective_examples`, which declares without TensorFlow what its examples contain.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from t5x_like.names import check_settings, choose
from t5x_like.preprocessing.objectives.labels import (
    decoder_rows,
    knowledge,
    labelled,
    labelled_words,
)
from t5x_like.preprocessing.objectives.masked import (
    encoders,
    masked_targets,
    numbered_sentences,
    permuted,
)
from t5x_like.preprocessing.objectives.objective import Objective
from t5x_like.preprocessing.objectives.pairs import (
    comparisons,
    parallel_sentences,
    prompts,
    sequence_to_sequence,
    supervised,
)
from t5x_like.preprocessing.objectives.running_text import (
    bidirectional,
    denoising,
    language_modeling,
)
from t5x_like.preprocessing.objectives.running_text.denoising import random_spans_lengths

__all__ = ["OBJECTIVES", "Objective", "build", "get", "random_spans_lengths"]

OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "span_corruption": denoising.span_corruption,
    "random_spans": denoising.span_corruption,  # its name in the paper's table 3
    "iid_replace_spans": denoising.iid_replace_spans,
    "iid_drop_tokens": denoising.iid_drop_tokens,
    "bert_style": denoising.bert_style,
    "mass_style": denoising.mass_style,
    "deshuffling": denoising.deshuffling,
    "prefix_lm": language_modeling.prefix_lm,
    "language_modeling": language_modeling.language_modeling,
    "bidirectional_lm": bidirectional.bidirectional_lm,
    "text_to_text": supervised.text_to_text,
    "marked_text_to_text": supervised.marked_text_to_text,
    "bart": sequence_to_sequence.bart,
    "mass": sequence_to_sequence.mass,
    "translation": parallel_sentences.translation,
    "comparisons": comparisons.comparisons,
    "prompts": prompts.prompts,
    "masked_targets": masked_targets.masked_targets,
    "bert": encoders.bert,
    "roberta": encoders.roberta,
    "spanbert": encoders.spanbert,
    "albert": encoders.albert,
    "structbert": encoders.structbert,
    "electra": encoders.electra,
    "unmasked": encoders.unmasked,
    "unilm": encoders.unilm,
    "etc": numbered_sentences.etc,
    "xlnet": permuted.xlnet,
    "classification": labelled.classification,
    "pair_classification": labelled.pair_classification,
    "regression": labelled.regression,
    "tagging": labelled.tagging,
    "question_answering": labelled.question_answering,
    "multiple_choice": labelled.multiple_choice,
    "knowledge_classification": knowledge.knowledge_classification,
    "knowledge_tagging": knowledge.knowledge_tagging,
    "knowledge_question_answering": knowledge.knowledge_question_answering,
    "word_classification": labelled_words.word_classification,
    "word_tagging": labelled_words.word_tagging,
    "gpt_classification": decoder_rows.gpt_classification,
    "gpt_similarity": decoder_rows.gpt_similarity,
    "gpt_regression": decoder_rows.gpt_regression,
    "gpt_multiple_choice": decoder_rows.gpt_multiple_choice,
}


def get(name: str) -> Callable[..., Objective]:
    """Return the function that makes the objective `name` from its settings.

    Raises:
        ValueError: no objective has this name.
    """
    return choose("objective", name, OBJECTIVES)


def build(name: str, **settings: Any) -> Objective:
    """Make the objective `name` with the settings of a config, such as rate=0.3.

    The same settings give the same object, whose preprocessors need not be traced again, unless a
    setting names an existing file, since that may have changed.

    Raises:
        ValueError: no objective has this name, or it has no such setting, or a value is bad.
    """
    factory = get(name)
    check_settings("data.objective_settings", factory, settings)
    if any(isinstance(value, str) and os.path.exists(value) for value in settings.values()):
        return factory(**settings)
    return _made(factory, _Settings(repr(sorted(settings.items())), settings))


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The settings of an objective, which may contain lists, in a hashable form."""

    text: str
    values: dict[str, Any] = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=64)
def _made(factory: Callable[..., Objective], settings: _Settings) -> Objective:
    return factory(**settings.values)
