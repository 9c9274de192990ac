"""Objectives: how text becomes the features of examples, in Python and NumPy.

    running text   concatenated documents: span corruption, denoising, language modeling
    masked         rows of an encoder: masked tokens (BERT and its relatives, UniLM, XLNet)
    pairs          an encoder's text and a decoder's: BART, MASS, translation, text to text
    labels         labelled text: classes, numbers, tags, answers

An objective of running text combines two independent choices: which tokens are noise and how they
are written (`noise`). A masked objective combines a format of rows (`formats`), a choice of noise
and a way of writing it (`masking`), over groups of documents (`grouping`).

A new objective is a function that returns an `Objective`, and a line in `OBJECTIVES` below.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from t5x_like.names import check_settings, choose
from t5x_like.objectives import (
    bidirectional,
    candidates,
    decoder_rows,
    denoising,
    encoders,
    knowledge,
    labelled,
    language_modeling,
    numbered_sentences,
    page_answers,
    permuted,
    prompts,
    sequence_to_sequence,
    supervised,
    supporting_facts,
)
from t5x_like.objectives.objective import (
    Example,
    ExampleSpec,
    Feature,
    Groups,
    Objective,
    Pairs,
    Rows,
    RunningText,
)

__all__ = [
    "OBJECTIVES",
    "Example",
    "ExampleSpec",
    "Feature",
    "Groups",
    "Objective",
    "Pairs",
    "Rows",
    "RunningText",
    "build",
    "examples_of",
]

AnyObjective: TypeAlias = RunningText | Groups | Pairs | Rows

OBJECTIVES: dict[str, Callable[..., AnyObjective]] = {
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
    "dae": sequence_to_sequence.dae,
    "translation": supervised.translation,
    "comparisons": prompts.comparisons,
    "judgements": prompts.judgements,
    "prompts": prompts.prompts,
    "masked_targets": supervised.masked_targets,
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
    "candidates": candidates.candidates,
    "long_answers": page_answers.long_answers,
    "supporting_facts": supporting_facts.supporting_facts,
    "knowledge_classification": knowledge.knowledge_classification,
    "knowledge_tagging": knowledge.knowledge_tagging,
    "knowledge_question_answering": knowledge.knowledge_question_answering,
    "word_classification": labelled.word_classification,
    "word_tagging": labelled.word_tagging,
    "word_question_answering": labelled.word_question_answering,
    "gpt_classification": decoder_rows.gpt_classification,
    "gpt_similarity": decoder_rows.gpt_similarity,
    "gpt_regression": decoder_rows.gpt_regression,
    "gpt_multiple_choice": decoder_rows.gpt_multiple_choice,
}


def build(name: str, **settings: Any) -> AnyObjective:
    """Make the objective `name` with the settings of a config, such as rate=0.3.

    The same settings give the same object, unless a setting names an existing file, since that may
    have changed.

    Raises:
        ValueError: no objective has this name, or it has no such setting, or a value is bad, or a
            file cannot be read.
    """
    check_settings("data.objective_settings", choose("objective", name, OBJECTIVES), settings)
    objective = _make(name, settings)
    objective.content()  # raises for a file
    return objective


def examples_of(name: str, settings: Mapping[str, Any]) -> AnyObjective:
    """Return the objective `name` for what its examples contain: no file is read.

    Unknown settings are ignored.

    Raises:
        ValueError: no objective has this name, or a value is bad.
    """
    factory = choose("objective", name, OBJECTIVES)
    known = inspect.signature(factory).parameters
    accepted = {key: value for key, value in settings.items() if key in known}
    check_settings("data.objective_settings", factory, accepted)
    return _make(name, accepted)


def _make(name: str, settings: Mapping[str, Any]) -> AnyObjective:
    factory = OBJECTIVES[name]
    if any(isinstance(value, str) and os.path.exists(value) for value in settings.values()):
        return _call(factory, settings)
    return _cached(factory, _Settings(repr(sorted(settings.items())), settings))


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The settings of an objective, which may contain lists, in a hashable form."""

    text: str
    values: Mapping[str, Any] = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=64)
def _cached(factory: Callable[..., AnyObjective], settings: _Settings) -> AnyObjective:
    return _call(factory, settings.values)


def _call(factory: Callable[..., AnyObjective], settings: Mapping[str, Any]) -> AnyObjective:
    """Make an objective, with all its settings, defaults included, as its `settings`."""
    bound = inspect.signature(factory).bind(**settings)
    bound.apply_defaults()
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in bound.arguments.items()
    }
    return dataclasses.replace(factory(**settings), settings=values)
