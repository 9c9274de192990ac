"""Prompts for a model to respond to, and responses that people ranked or judged by rules."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from t5x_like.batches.prompt_rows import NO_TOKEN
from t5x_like.names import choose
from t5x_like.objectives import denoising, language_modeling
from t5x_like.objectives.objective import (
    PAIR,
    Example,
    ExampleSpec,
    FeatureNames,
    OfChunks,
    OfRow,
    Rows,
    text_of,
)
from t5x_like.vocabularies import Vocabulary

# Objectives of the pretraining rows; all but the first make inputs and targets from a text.
_OF_TEXTS = {
    "language_modeling": language_modeling.language_modeling,
    "span_corruption": denoising.span_corruption,
    "prefix_lm": language_modeling.prefix_lm,
}


def prompts(
    *,
    end_inputs: bool = True,
    pretraining_rows: int = 0,
    pretraining_objective: str = "language_modeling",
) -> Rows:
    """Tokenize {"inputs": string}, truncated on the left.

    With R pretraining rows the field "pretraining", strings [R], becomes the feature `pretraining`:
    R rows of L tokens one after the other, each a text and its end token, truncated to L or padded
    with `prompt_rows.NO_TOKEN`. `data.lengths.pretraining` is L. For an encoder-decoder it becomes
    two such features, `pretraining_inputs` and `pretraining_targets`, each with its own length: a
    text is truncated to the tokens that fill the inputs, and changed by its objective, with
    different noise in every epoch.

    Args:
        end_inputs: whether the prompt has an end token, as in the model's fine-tuning.
        pretraining_rows: R; 8 in Ouyang et al. 2022, appendix C.4.
        pretraining_objective: "language_modeling" for a decoder; for an encoder-decoder
            "span_corruption" or "prefix_lm", with their default settings.

    Raises:
        ValueError: `pretraining_rows` is below 0, or the objective is another; when the dataset is
            built, rows lack these fields, or lengths leave no room for text.
    """
    choose("pretraining_objective", pretraining_objective, _OF_TEXTS)
    if pretraining_rows < 0:
        raise ValueError(f"pretraining_rows={pretraining_rows} of prompts must be 0 or more")
    text = pretraining_objective == "language_modeling"
    beside: FeatureNames = (
        ("pretraining",) if text else ("pretraining_inputs", "pretraining_targets")
    )
    if not pretraining_rows:
        beside = ()

    def plan(spec: ExampleSpec) -> OfRow:
        spec.check("prompts", "inputs", *beside)
        # These lengths count the tokens of all rows together.
        sizes = {name: spec.lengths[name] // pretraining_rows for name in beside}
        length, corrupt = _plan(pretraining_objective, sizes, spec)
        return _PromptWriter(
            vocabulary=spec.features["inputs"].vocabulary,
            inputs=spec.lengths["inputs"],
            sizes=sizes,
            rows=pretraining_rows,
            row=length,
            end_inputs=end_inputs,
            corrupt=corrupt,
        )

    return Rows(
        name="prompts",
        features=("inputs", *beside),
        converters=("decoder_prompts", "encoder_prompts"),
        converter_settings={"pretraining_rows": pretraining_rows},
        ends_inputs=end_inputs,
        plan=plan,
        fields=("inputs", *(("pretraining",) if pretraining_rows else ())),
    )


def _plan(
    objective: str, sizes: Mapping[str, int], spec: ExampleSpec
) -> tuple[int, OfChunks | None]:
    """Return the most tokens of a text, and the function to inputs and targets, or None.

    Args:
        sizes: the tokens of a row of each pretraining feature; empty without pretraining rows.
    """
    if len(sizes) < len(PAIR):
        return sizes.get("pretraining", 0), None
    lengths = dict(zip(PAIR, sizes.values(), strict=True))
    features = dict(zip(PAIR, (spec.features[name] for name in sizes), strict=True))
    return _OF_TEXTS[objective]().plan(ExampleSpec(lengths, features))


@dataclasses.dataclass(frozen=True)
class _PromptWriter:
    """Tokenizes a prompt and its pretraining texts.

    Attributes:
        inputs: the most tokens of a prompt, including its end token.
        sizes: the tokens of a row of each feature of pretraining.
        rows: the number of pretraining rows.
        row: the most tokens of a pretraining text.
        end_inputs: whether a prompt has an end token.
        corrupt: makes inputs and targets of a text; None to end it with the end token.
    """

    vocabulary: Vocabulary
    inputs: int
    sizes: Mapping[str, int]
    rows: int
    row: int
    end_inputs: bool
    corrupt: OfChunks | None

    def __call__(self, row: Mapping[str, Any], generator: np.random.Generator) -> list[Example]:
        """Return the example of a row."""
        end = [self.vocabulary.required_id("eos_id")]
        text = text_of(row["inputs"])  # without the blanks that belong to the response
        tokens = self.vocabulary.encode(text if self.end_inputs else text.rstrip(" "))
        room = self.inputs - self.end_inputs
        tokens = tokens[max(0, len(tokens) - room) :] + end * self.end_inputs
        example = {"inputs": np.array(tokens, np.int32)}
        if not self.rows:
            return [example]
        if len(row["pretraining"]) != self.rows:
            raise ValueError(
                f"a row has {len(row['pretraining'])} texts in its field 'pretraining', and "
                f"data.objective_settings.pretraining_rows={self.rows}: they must be as many"
            )
        of_texts = [self._of_text(text_of(text), generator) for text in row["pretraining"]]
        for name, size in self.sizes.items():
            rows = np.full((self.rows, size), NO_TOKEN, np.int32)
            for filled, of_text in zip(rows, of_texts, strict=True):
                filled[: len(of_text[name])] = of_text[name]
            example[name] = rows.reshape(-1)
        return [example]

    def _of_text(self, text: str, generator: np.random.Generator) -> Example:
        """Return the features of a pretraining row, without padding."""
        tokens = self.vocabulary.encode(text)
        if self.corrupt is None:
            end = self.vocabulary.required_id("eos_id")
            return {"pretraining": np.array([*tokens, end][: self.row], np.int32)}
        [sides] = self.corrupt(np.array([tokens[: self.row]], np.int32), generator)
        return dict(zip(self.sizes, (sides[side] for side in PAIR), strict=True))


def comparisons(*, responses: int = 2, end_inputs: bool = True) -> Rows:
    """Turn {"prompt": string, "responses": strings [K], "ranks": integers [K]} into one example.

        inputs:      name a pet <end>
        targets:     a dog <end> a <end>
        row_numbers: 1 1   1     2 2
        ranks:       1 2

    A prompt that is too long is truncated on the left, a response on the right, before its end
    token.

    Args:
        responses: the most responses to a prompt; 4 to 9 in Ouyang et al. 2022. With 1 the examples
            are demonstrations, whose rewards can be measured.
        end_inputs: whether the prompt has an end token, as in the model's fine-tuning.

    Raises:
        ValueError: `responses` is below 1; when the dataset is built, rows lack these fields, or
            lengths leave no room for text.
    """
    if responses < 1:
        raise ValueError(f"responses={responses} of comparisons must be 1 or more")

    def plan(spec: ExampleSpec) -> OfRow:
        spec.check("comparisons", *PAIR)
        return _ComparisonWriter(
            vocabulary=spec.features["inputs"].vocabulary,
            inputs=spec.lengths["inputs"],
            targets=spec.lengths["targets"] // responses,
            end_inputs=end_inputs,
        )

    return Rows(
        name="comparisons",
        features=(*PAIR, "row_numbers", "ranks"),
        converters=("decoder_comparisons", "encoder_decoder_comparisons"),
        converter_settings={"responses": responses},
        ends_inputs=end_inputs,
        plan=plan,
        fields=("prompt", "responses", "ranks"),
        has_rows="data/preference_files.py",
    )


@dataclasses.dataclass(frozen=True)
class _ComparisonWriter:
    """Tokenizes a comparison into the inputs, targets, row numbers and ranks of its example.

    Attributes:
        inputs, targets: the most tokens of a prompt and of a response, including end tokens.
        end_inputs: whether a prompt has an end token.
    """

    vocabulary: Vocabulary
    inputs: int
    targets: int
    end_inputs: bool

    def __post_init__(self) -> None:
        if self.targets < 2:
            raise ValueError("lengths.targets=1: a response needs 2 tokens, its end token included")

    def __call__(self, row: Mapping[str, Any], generator: np.random.Generator) -> list[Example]:
        """Return the example of a row."""
        del generator
        end = [self.vocabulary.required_id("eos_id")]
        inputs, texts = self._tokens(text_of(row["prompt"]), map(text_of, row["responses"]))
        room = self.inputs - self.end_inputs
        inputs = inputs[max(0, len(inputs) - room) :] + end * self.end_inputs
        texts = [tokens[: self.targets - 1] for tokens in texts]
        example = {
            "inputs": inputs,
            "targets": [token for tokens in texts for token in tokens + end],
            "row_numbers": np.repeat(
                np.arange(len(texts)) + 1, [len(tokens) + 1 for tokens in texts]
            ),
            "ranks": row["ranks"],
        }
        return [{name: np.array(values, np.int32) for name, values in example.items()}]

    def _tokens(self, prompt: str, responses: Iterable[str]) -> tuple[list[int], list[list[int]]]:
        """Tokenize the prompt and the responses, which continue its text unless it ends."""
        encode = self.vocabulary.encode
        if self.end_inputs:
            return encode(prompt), list(map(encode, responses))
        pairs = [self.vocabulary.encode_continued(prompt, response) for response in responses]
        return encode(prompt.rstrip(" ")), [tokens for _, tokens in pairs]


# How a rule is written after a response (the paper does not say).
RULE = "\nRule: {}"


def rule_tokens(vocabulary: Vocabulary, rule: str) -> list[int]:
    """Return the tokens of a rule as a rule model reads it after a response, with an end token."""
    return [*vocabulary.encode(RULE.format(rule)), vocabulary.required_id("eos_id")]


def judgements(*, end_inputs: bool = True) -> Rows:
    """Turn {"prompt", "response", "rule": strings, "violates": 0 or 1} into one example.

        inputs:      name a pet <end>
        targets:     a dog <end> Rule: no dogs <end>
        row_numbers: 1 1   1     1     1  1    1
        ranks:       2

    The features are as in `comparisons` with one response, whose rank is 2 if it violates the
    rule, otherwise 1. A prompt that is too long is truncated on the left, a response on the right.

    Args:
        end_inputs: whether the prompt has an end token, as in the model's fine-tuning.

    Raises:
        ValueError: when the dataset is built, rows lack these fields, or lengths leave no room.
    """

    def plan(spec: ExampleSpec) -> OfRow:
        spec.check("judgements", *PAIR)
        write = _ComparisonWriter(
            vocabulary=spec.features["inputs"].vocabulary,
            inputs=spec.lengths["inputs"],
            targets=spec.lengths["targets"],
            end_inputs=end_inputs,
        )

        def judged(row: Mapping[str, Any], generator: np.random.Generator) -> list[Example]:
            rule = rule_tokens(write.vocabulary, text_of(row["rule"]))
            if len(rule) + 2 > write.targets:
                raise ValueError(
                    f"data.lengths.targets={write.targets} has no room for a response and a rule "
                    f"of {len(rule)} tokens, {text_of(row['rule'])!r}"
                )
            short = dataclasses.replace(write, targets=write.targets - len(rule))
            comparison = {"prompt": row["prompt"], "responses": [row["response"]]}
            [example] = short({**comparison, "ranks": [1 + int(row["violates"])]}, generator)
            targets = np.concatenate([example["targets"], np.array(rule, np.int32)])
            return [{**example, "targets": targets, "row_numbers": np.ones_like(targets)}]

        return judged

    return Rows(
        name="judgements",
        features=(*PAIR, "row_numbers", "ranks"),
        converters=("decoder_comparisons", "encoder_decoder_comparisons"),
        converter_settings={"responses": 1},
        ends_inputs=end_inputs,
        plan=plan,
        fields=("prompt", "response", "rule", "violates"),
        has_rows="data/rule_files.py",
    )
