"""Metrics of generated texts: answers, summaries, translations, and labels written as text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.evaluation.measure import (
    Measured,
    Row,
    RowMeasure,
    answers_of,
    check_group,
    in_groups,
    text_of,
)
from t5x_like.evaluation.metrics import CLASS, METRICS, NUMBER, TEXT, Metric, directions, texts
from t5x_like.evaluation.metrics.final_answers import SELF_CONSISTENCY, majority, self_consistency
from t5x_like.inference.text_model import TextModel
from t5x_like.names import choose


@dataclasses.dataclass(frozen=True)
class Generation(RowMeasure):
    """Metrics of the texts generated from `inputs`, against `targets` or all `answers`.

    For metrics of classes, a text that is one of `labels` is that class, and any other text counts
    as wrong; for metrics of numbers the text is parsed as a number, as in T5's text-to-text tasks
    (Raffel et al. 2020, section 2.4).

    Attributes:
        metrics: names in `evaluation.metrics`, of texts, classes or numbers.
        labels: the texts of the classes; empty for all targets that occur.
        positive: the label of the positive class of `f1_binary` and `multirc`.
        no_number: the number that replaces a text that is not a number.
        group: for `multirc` and `record`, the field of a row with the key of its group.
        samples: number of texts to sample from each input for self-consistency (`sample`), in
            addition to the greedily decoded text, which the metrics read; 0 for none.
    """

    metrics: Sequence[str] = ("exact_match", "f1")
    labels: Sequence[str] = ()
    positive: str = ""
    no_number: float = -1.0
    group: str = ""
    samples: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)
        fitting = {
            name: metric
            for name, metric in METRICS.items()
            if {TEXT, CLASS, NUMBER} & {*metric.fits} and not metric.by_score
        }
        if isinstance(self.metrics, str) or not self.metrics:
            raise ValueError(f"metrics={self.metrics!r} must be a list of names of metrics")
        for name in self.metrics:
            metric = choose("metric of generated texts", name, fitting)
            if metric.positive is not None and not self.positive:
                raise ValueError(
                    f"positive is not set: the metric {name} needs the label of the positive class"
                )
            check_group(name, self.group)
        if self.positive and self.labels:
            choose("positive", self.positive, dict.fromkeys(self.labels))

    @property
    def generates(self) -> bool:
        """Always True."""
        return True

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return directions(self.metrics) | consistency_directions(self.samples)

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """Return an `Estimate` of each number of all metrics, and of self-consistency.

        Raises:
            ValueError: `rows` is empty, a row lacks a field, or a target is not a label or number;
                or `samples` is set and the model does not sample.
        """
        answers = [answers_of(row) for row in rows]
        prompts = [text_of(row, "inputs") for row in rows]
        sampled = sample(model, prompts, samples=self.samples)
        predicted = by_length(model.greedy() if self.samples else model, prompts)
        results: dict[str, float] = {}
        for name in self.metrics:
            metric = METRICS[name]
            if metric.positive is not None:
                metric = dataclasses.replace(metric, positive=self.positive)
            targets, outputs = self._read(metric, answers, predicted)
            if metric.grouped:
                targets = in_groups(rows, targets, group=self.group)
            results |= metric.statistics(targets, outputs).estimates()
            results |= metric.of_constants(targets)
        listed = [
            {"inputs": row["inputs"], "prediction": text, "targets": right}
            for row, text, right in zip(rows, predicted, answers, strict=True)
        ]
        results |= vote(answers, predicted, sampled, listed)
        return results | {"examples": len(rows)}, listed

    def _read(
        self, metric: Metric, answers: Sequence[list[str]], predicted: Sequence[str]
    ) -> tuple[list[Any], list[Any]]:
        """Return targets and predictions in the form that a metric compares."""
        if TEXT in metric.fits:
            return list(answers), list(predicted)
        first = [texts[0] for texts in answers]
        if NUMBER in metric.fits:
            return list(map(_target_number, first)), [self._number(text) for text in predicted]
        known = set(self.labels) or set(first)
        for target in first:
            choose("the target of a row", target, dict.fromkeys(known))
        texts = [text.strip() for text in predicted]
        return first, [text if text in known else None for text in texts]

    def _number(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            return self.no_number


def _target_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"the target {text!r} of a row is not a number") from None


def by_length(model: TextModel, prompts: Sequence[str]) -> list[str]:
    """Generate a text after each prompt, in batches of prompts of similar length.

    A batch is as long, and takes as many steps, as its longest row.

    Raises:
        ValueError: `prompts` is empty.
    """
    if not prompts:
        raise ValueError("there is no row to generate a text from")
    order = sorted(range(len(prompts)), key=lambda n: len(model.tokens(prompts[n], end=True)))
    texts = model.generate([prompts[number] for number in order])
    return [text for _, text in sorted(zip(order, texts, strict=True))]


def check_samples(samples: int) -> None:
    """Check the setting `samples` of a measure.

    Raises:
        ValueError: it is negative.
    """
    if samples < 0:
        raise ValueError(f"samples={samples} must be 0 or more")


def consistency_directions(samples: int) -> dict[str, bool]:
    """Return {number of self-consistency: False, as larger is better}; {} without samples."""
    return dict.fromkeys(SELF_CONSISTENCY, False) if samples else {}


def sample(model: TextModel, prompts: Sequence[str], *, samples: int) -> list[list[str]]:
    """Return `samples` sampled texts for each prompt; [] without samples.

    Raises:
        ValueError: there are samples, and the model takes the likeliest tokens.
    """
    if not samples:
        return []
    if not model.samples:
        raise ValueError(
            f"samples={samples} needs a model that samples: decode.do_sample=True, and "
            "decode.temperature, top_k and top_p as wanted"
        )
    texts = by_length(model, [prompt for prompt in prompts for _ in range(samples)])
    return [texts[first : first + samples] for first in range(0, len(texts), samples)]


def vote(
    answers: Sequence[Sequence[str]],
    greedy: Sequence[str],
    sampled: Sequence[Sequence[str]],
    listed: Sequence[dict[str, Any]],
) -> dict[str, float]:
    """Return self-consistency (`final_answers`) and its base rates; {} without samples.

    Args:
        answers: the right texts of each row.
        greedy: the greedily decoded text of each row.
        sampled: see `sample`.
        listed: the predictions for the rows, which get `samples` and their `majority`.
    """
    if not sampled:
        return {}
    for row, samples in zip(listed, sampled, strict=True):
        row |= {"samples": samples, "majority": majority(samples)}
    best = METRICS["final_answer"].of_constants(answers)["constant_final_answer"]
    bases = {f"constant_{name}": best for name in SELF_CONSISTENCY if name.endswith("accuracy")}
    return self_consistency(answers, greedy, sampled).estimates() | bases


TOKENIZERS = ("13a", "intl", "char", "zh", "none")


@dataclasses.dataclass(frozen=True)
class Translation(RowMeasure):
    """Case-sensitive corpus BLEU of the texts generated from `inputs`, against `targets`.

    Attributes:
        tokenizer: sacreBLEU's name of a tokenizer: 13a as in mteval-v13a, for most languages; zh
            for Chinese; char; intl; none for texts that are tokenized already.

    Raises:
        ValueError: the tokenizer is not in TOKENIZERS.
    """

    tokenizer: str = "13a"

    def __post_init__(self) -> None:
        choose("translation.tokenizer", self.tokenizer, dict.fromkeys(TOKENIZERS))

    @property
    def generates(self) -> bool:
        """Always True."""
        return True

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return {"bleu": False}

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """Return `bleu`, from 0 to 100, its `brevity_penalty`, and `length_ratio` in words.

        Raises:
            ValueError: `rows` is empty, or a row lacks a field.
        """
        if not rows:
            raise ValueError("there is no row to translate")
        sources = [text_of(row, "inputs") for row in rows]
        references = [text_of(row, "targets") for row in rows]
        predictions = by_length(model, sources)
        numbers = texts.bleu(references, predictions, tokenizer=self.tokenizer).estimates()
        listed = [
            {"inputs": source, "prediction": predicted, "targets": target}
            for source, predicted, target in zip(sources, predictions, references, strict=True)
        ]
        return numbers, listed
