"""Comparisons: a prompt, several responses to it, and their ranking by people."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.objectives.objective import PAIR, Example, ExampleSpec, OfRow, Rows, text_of
from t5x_like.vocabularies import Vocabulary


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

    def plan(given: ExampleSpec) -> OfRow:
        given.check("comparisons", *PAIR)
        return _Writer(
            vocabulary=given.features["inputs"].vocabulary,
            inputs=given.lengths["inputs"],
            targets=given.lengths["targets"] // responses,
            end_inputs=end_inputs,
        )

    return Rows(
        name="comparisons",
        settings={"responses": responses, "end_inputs": end_inputs},
        features=(*PAIR, "row_numbers", "ranks"),
        converters=("decoder_comparisons", "encoder_decoder_comparisons"),
        converter_settings={"responses": responses},
        ends_inputs=end_inputs,
        plan=plan,
        fields=("prompt", "responses", "ranks"),
        has_rows="data/preference_files.py",
    )


@dataclasses.dataclass(frozen=True)
class _Writer:
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
        inputs = self.vocabulary.encode(text_of(row["prompt"]))
        room = self.inputs - self.end_inputs
        inputs = inputs[max(0, len(inputs) - room) :] + end * self.end_inputs
        texts = [
            self.vocabulary.encode(text_of(one))[: self.targets - 1] for one in row["responses"]
        ]
        example = {
            "inputs": inputs,
            "targets": [token for one in texts for token in one + end],
            "row_numbers": np.repeat(np.arange(len(texts)) + 1, [len(one) + 1 for one in texts]),
            "ranks": row["ranks"],
        }
        return [{name: np.array(values, np.int32) for name, values in example.items()}]
