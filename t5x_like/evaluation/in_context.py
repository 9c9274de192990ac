"""Zero-shot, one-shot and few-shot evaluation: a task and examples in the prompt.

Brown et al. 2020, sections 2 and 2.4 (GPT-3), and the prompts of Radford et al. 2019, sections 3.6
(summaries) and 3.7 (translation).
"""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t5x_like.evaluation import shot_curves
from t5x_like.evaluation.generated_text import (
    check_samples,
    consistency_directions,
    sample,
    vote,
)
from t5x_like.evaluation.measure import (
    Measured,
    Row,
    RowMeasure,
    answers_of,
    chance_accuracy,
    check_group,
    choices_of,
    in_groups,
    text_of,
)
from t5x_like.evaluation.metrics import METRICS, TEXT, directions
from t5x_like.evaluation.metrics.metric import Statistics, means
from t5x_like.inference.text_model import TextModel
from t5x_like.names import choose

BY = ("likelihood", "generation")
TOO_LONG = ("error", "fewer_shots")
_TEXT_METRICS = {name: metric for name, metric in METRICS.items() if TEXT in metric.fits}
_OF_GENERATED = ("exact_match", "f1")

_ACCURACIES = ("accuracy", "accuracy_per_token", "accuracy_calibrated")
_FIELD = re.compile(r"\{(\w+)\}")
_TARGETS = "{targets}"
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclasses.dataclass(frozen=True)
class InContext(RowMeasure):
    r"""Questions after `shots` examples, answered by likelihood or by generation.

    Rows have `inputs` and `targets`, and `choices` for likelihood; if there are several right
    answers, `answers` lists them all, and the best match counts. The template may use other string
    fields. Each question gets separate examples, sampled without replacement from the training
    split (never the question itself).

    Attributes:
        shots: number of examples K.
        sweep: several numbers of examples to measure one after the other instead of `shots`.
        template: template of an example, which ends in "{targets}"; a question ends before that.
        separator: text between examples.
        description: description of the task, before all examples.
        by: "likelihood" of the choices, or "generation".
        answer: context for calibration: p(choice | prompt) / p(choice | answer).
        stop: string at which generated text is cut; "" for no cut.
        sentences: number of sentences of generated text that count; 0 for all.
        metrics: names of text metrics in `evaluation.metrics`, applied to the generated texts, or
            to the most likely choices in addition to the accuracies. If empty, `exact_match` and
            `f1` for generated texts.
        samples: number of texts to sample after each prompt for self-consistency, in addition to
            the greedily decoded text, which the metrics read; 0 for none.
        group: the field of a row with the key of its group, for `record`. Only the first of a
            group's rows with the same inputs counts, since ReCoRD has a row for each answer.
        too_long: for a prompt that is longer than the model reads, "error", or "fewer_shots": use
            as many examples as fit, and report `mean_shots`.
        seed: seed of the sampling of examples.
        pool: number of first rows of the training split to sample examples from.
    """

    shots: int = 0
    sweep: Sequence[int] = ()
    template: str = "{inputs}\n{targets}"
    separator: str = "\n\n"
    description: str = ""
    by: str = "likelihood"
    answer: str = "Answer:"
    stop: str = "\n"
    sentences: int = 0
    metrics: Sequence[str] = ()
    samples: int = 0
    group: str = ""
    too_long: str = "error"
    seed: int = 0
    pool: int = 100_000

    needs: ClassVar[tuple[str, ...]] = ("text_model", "rows", "examples")

    def __post_init__(self) -> None:
        choose("in_context.by", self.by, dict.fromkeys(BY))
        choose("in_context.too_long", self.too_long, dict.fromkeys(TOO_LONG))
        for name in self.metrics:
            choose("in_context.metrics", name, _TEXT_METRICS)
            check_group(name, self.group)
        check_samples(self.samples)
        if self.samples and not self.generates:
            raise ValueError(f"in_context.samples={self.samples} needs in_context.by='generation'")
        if self.shots < 0:
            raise ValueError(f"in_context.shots={self.shots} must be 0 or more")
        if len(set(self.sweep)) < len(self.sweep) or min(self.sweep, default=0) < 0:
            raise ValueError(
                f"in_context.sweep={tuple(self.sweep)} must be different numbers, 0 or more"
            )
        if self.template.count(_TARGETS) != 1 or not self.template.endswith(_TARGETS):
            raise ValueError(
                f"in_context.template={self.template!r} must end in {_TARGETS}, and have it once"
            )

    @property
    def generates(self) -> bool:
        """True unless it chooses by likelihood."""
        return self.by != "likelihood"

    @property
    def most_shots(self) -> int:
        """The largest number of examples in a prompt."""
        return max(self.sweep, default=self.shots)

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        if self.sweep:
            return {
                shot_curves.name(number, shots=shots): smaller
                for shots in self.sweep
                for number, smaller in self._of(shots).directions().items()
            }
        if self.by == "generation":
            smaller_is_better = directions(self.metrics or _OF_GENERATED)
            return smaller_is_better | consistency_directions(self.samples)
        return dict.fromkeys(_ACCURACIES, False) | directions(self.metrics)

    def measure(self, model: TextModel, rows: Sequence[Row], examples: Sequence[Row]) -> Measured:
        """Return the accuracies by likelihood, the metrics, and `mean_shots`.

        In a sweep numbers have the names of `shot_curves`, except for the base rates.

        Args:
            model: the model.
            rows: the questions.
            examples: rows of the training split; needed unless shots is 0.

        Raises:
            ValueError: there are fewer examples than shots, rows lack a field, a prompt is too
                long, with `fewer_shots` even without examples, or `samples` is set and the model
                does not sample.
        """
        if self.sweep:
            return self._measure_sweep(model, rows, examples)
        rows = self._once(rows)
        # Rows with the same question are never used as its examples.
        counted = collections.Counter(text_of(example, "inputs") for example in examples)
        prompts, shots = [], []
        for number, row in enumerate(rows):
            shown = self._sample(row, number, examples, same=counted[text_of(row, "inputs")])
            prompt, used = self._fitting(model, row, shown, where=number)
            prompts.append(prompt)
            shots.append(used)
        answer = self._choose if self.by == "likelihood" else self._generate
        results, predicted = answer(model, rows, prompts)
        for answered, prompt in zip(predicted, prompts, strict=True):
            answered["prompt"] = prompt
        return results | {"mean_shots": float(np.mean(shots)), "examples": len(rows)}, predicted

    def _measure_sweep(
        self, model: TextModel, rows: Sequence[Row], examples: Sequence[Row]
    ) -> Measured:
        # The largest first: it may lack examples, or not fit.
        measured = {
            shots: self._of(shots).measure(model, rows, examples)
            for shots in sorted(self.sweep, reverse=True)
        }
        results: dict[str, float] = {}
        predicted: list[dict[str, Any]] = []
        for shots in self.sweep:
            numbers, listed = measured[shots]
            for number, value in numbers.items():
                is_base = shot_curves.is_base(number)
                results[number if is_base else shot_curves.name(number, shots=shots)] = value
            predicted += [{"shots": shots, **prediction} for prediction in listed]
        return results, predicted

    def _of(self, shots: int) -> "InContext":
        """Return the measure with one number of examples."""
        return dataclasses.replace(self, shots=shots, sweep=())

    def prompt(self, row: Row, examples: Sequence[Row]) -> str:
        """Return the prompt: description, examples and question."""
        question = _filled(self.template.removesuffix(_TARGETS), row)
        first = [self.description] if self.description else []
        shown = [_filled(self.template, example) for example in examples]
        return self.separator.join([*first, *shown, question])

    def _once(self, rows: Sequence[Row]) -> Sequence[Row]:
        if not self.group:
            return rows
        first: dict[tuple[str, str], Row] = {}
        for row in rows:
            first.setdefault((text_of(row, self.group), text_of(row, "inputs")), row)
        return list(first.values())

    def _sample(self, row: Row, number: int, examples: Sequence[Row], *, same: int) -> list[Row]:
        """Sample examples for a row; `same` is the number of examples with the same question."""
        if not self.shots:
            return []
        if len(examples) - same < self.shots:
            raise ValueError(
                f"in_context.shots={self.shots}, and the training split has {len(examples) - same} "
                "examples to sample from"
            )
        random = np.random.default_rng([self.seed, number])
        sampled = random.choice(len(examples), size=self.shots + same, replace=False)
        others = [examples[n] for n in sampled if examples[n]["inputs"] != row["inputs"]]
        return others[: self.shots]

    def _fitting(
        self, model: TextModel, row: Row, sampled: Sequence[Row], *, where: int
    ) -> tuple[str, int]:
        """Return the prompt of a row and its number of examples, reduced until it fits."""
        # The longest choice must fit, or a generated text of maximum length.
        answers = choices_of(row) if self.by == "likelihood" else [None]
        for shots in range(len(sampled), -1, -1):
            prompt = self.prompt(row, sampled[:shots])
            excess = max(model.excess(prompt, answer) for answer in answers)
            if not excess:
                return prompt, shots
            if self.too_long == "error":
                break
        advice = "; take fewer, or in_context.too_long='fewer_shots'" if shots else ""
        raise ValueError(
            f"in_context.shots={shots}: the prompt of row {where} and its answer are {excess} "
            f"tokens more than the {model.length} that the model reads{advice}"
        )

    def _choose(self, model: TextModel, rows: Sequence[Row], prompts: Sequence[str]) -> Measured:
        """Choose by log probability: total, per token, and calibrated (section 2.4)."""
        pairs = [
            (prompt, choice)
            for prompt, row in zip(prompts, rows, strict=True)
            for choice in choices_of(row)
        ]
        distinct = sorted({choice for _, choice in pairs})
        scores = model.score([*pairs, *((f"{self.answer} ", choice) for choice in distinct)])
        base = dict(zip(distinct, scores[len(pairs) :], strict=True))
        pair_scores = iter(scores)
        predicted, right = [], []
        for row in rows:
            choices = choices_of(row)
            row_scores = [next(pair_scores) for _ in choices]
            by = {
                "log_prob": [score.total for score in row_scores],
                "per_token": [score.per_token for score in row_scores],
                "calibrated": [
                    score.total - base[choice].total
                    for score, choice in zip(row_scores, choices, strict=True)
                ],
            }
            picked = {name: choices[int(np.argmax(values))] for name, values in by.items()}
            answers = answers_of(row)
            right.append([choice in answers for choice in picked.values()])
            predicted.append(
                {"predictions": picked, "targets": row["targets"], "choices": choices, **by}
            )
        results = Statistics(np.array(right, float), means(*_ACCURACIES)).estimates()
        results |= METRICS["accuracy"].of_constants([answers_of(row) for row in rows])
        results |= {"chance_accuracy": chance_accuracy(rows)}
        likeliest = [prediction["predictions"]["log_prob"] for prediction in predicted]
        return results | self._compare(self.metrics, rows, likeliest), predicted

    def _generate(self, model: TextModel, rows: Sequence[Row], prompts: Sequence[str]) -> Measured:
        sampled = [
            list(map(self._cut, texts)) for texts in sample(model, prompts, samples=self.samples)
        ]
        written = (model.greedy() if self.samples else model).generate(prompts)
        texts = list(map(self._cut, written))
        predicted: list[dict[str, Any]] = [
            {"prediction": text, "targets": text_of(row, "targets")}
            for text, row in zip(texts, rows, strict=True)
        ]
        results = self._compare(self.metrics or _OF_GENERATED, rows, texts)
        return results | vote(list(map(answers_of, rows)), texts, sampled, predicted), predicted

    def _compare(
        self, names: Sequence[str], rows: Sequence[Row], texts: Sequence[str]
    ) -> dict[str, float]:
        """Compute metrics of the generated or chosen texts."""
        results: dict[str, float] = {}
        for name in names:
            targets: list[Any] = [answers_of(row) for row in rows]
            if METRICS[name].grouped:
                targets = in_groups(rows, targets, group=self.group)
            results |= METRICS[name].statistics(targets, texts).estimates()
            results |= METRICS[name].of_constants(targets)
        return results

    def _cut(self, text: str) -> str:
        """Cut generated text at `stop`, and after `sentences` sentences."""
        text = text.lstrip()
        if self.stop:
            text = text.partition(self.stop)[0]
        if self.sentences:
            ends = [match.start() for match in _END_OF_SENTENCE.finditer(text)]
            text = text[: ends[self.sentences - 1]] if len(ends) >= self.sentences else text
        return text.strip()


def _filled(template: str, row: Row) -> str:
    """Fill a template with the fields of a row, without filling braces in the row's texts."""
    return _FIELD.sub(lambda match: text_of(row, match[1]), template)
