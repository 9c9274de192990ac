"""Comparisons: a prompt, several responses to it, and their ranking by people."""

import dataclasses

import numpy as np
import tensorflow as tf

from t5x_like.batches.objective_examples import examples_of
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
)
from t5x_like.vocabularies import Vocabulary

_FIELDS = ("prompt", "responses", "ranks")


def comparisons(*, responses: int = 2, end_inputs: bool = True) -> Objective:
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

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        check_features(
            "comparisons",
            names=("inputs", "targets"),
            lengths=sequence_length,
            features=output_features,
        )
        _check_fields(dataset.element_spec)
        assert sequence_length is not None  # checked above; for the type checker
        write = _Writer(
            vocabulary=output_features["inputs"].vocabulary.plain,
            inputs=sequence_length["inputs"],
            targets=sequence_length["targets"] // responses,
            end_inputs=end_inputs,
        )
        identity = tf.constant(str(write))  # a data position's fingerprint is made from constants

        def of_row(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            values = [row[name] for name in _FIELDS]
            found = tf.numpy_function(write, [*values, identity], [tf.int32] * 4)
            return {
                name: tf.ensure_shape(one, [None])
                for name, one in zip(features, found, strict=True)
            }

        return dataset.map(of_row, num_parallel_calls=tf.data.AUTOTUNE)

    settings = {"responses": responses, "end_inputs": end_inputs}
    features = examples_of("comparisons", settings).features
    return make("comparisons", (to_examples,), settings)


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

    def __call__(
        self, prompt: bytes, responses: np.ndarray, ranks: np.ndarray, _: bytes
    ) -> list[np.ndarray]:
        end = [self.vocabulary.required_id("eos_id")]
        inputs, room = self.vocabulary.encode(prompt.decode()), self.inputs - self.end_inputs
        inputs = inputs[max(0, len(inputs) - room) :] + end * self.end_inputs
        texts = [self.vocabulary.encode(one.decode())[: self.targets - 1] for one in responses]
        targets = [token for one in texts for token in one + end]
        numbers = np.repeat(np.arange(len(texts)) + 1, [len(one) + 1 for one in texts])
        return [np.array(one, np.int32) for one in (inputs, targets, numbers, ranks)]


def _check_fields(there: object) -> None:
    missing = [name for name in _FIELDS if not isinstance(there, dict) or name not in there]
    if missing:
        raise ValueError(
            f"data.objective='comparisons' reads the fields {', '.join(_FIELDS)}, and the task's "
            f"rows lack {', '.join(missing)}: data/preference_files.py has rows of comparisons"
        )
