"""Comparisons: a prompt, several responses to it, and how people ranked them."""

from typing import Any

import numpy as np
import tensorflow as tf

from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
)

_FIELDS = ("prompt", "responses", "ranks")


def comparisons(*, responses: int = 2, end_inputs: bool = True) -> Objective:
    """{"prompt": string, "responses": strings [K], "ranks": integers [K]} -> one example.

        inputs:      name a pet <end>
        targets:     a dog <end> a <end>
        row_numbers: 1 1   1     2 2
        ranks:       1 2

    A prompt that is too long is truncated on the left, a response on the right, before its end
    token.

    Args:
        responses: the most responses to a prompt; 4 to 9 in Ouyang et al. 2022.
        end_inputs: whether the prompt has an end token, as in the model's fine-tuning.

    Raises:
        ValueError: fewer than 2 responses; when the dataset is built also rows without these
            fields, or lengths with no room for text.
    """
    if responses < 2:
        raise ValueError(f"responses={responses} of comparisons must be 2 or more")

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        names = ("inputs", "targets")
        check_features(
            "comparisons", names=names, lengths=sequence_length, features=output_features
        )
        _check_fields(dataset.element_spec)
        assert sequence_length is not None  # checked above; for the type checker
        vocabulary = output_features["inputs"].vocabulary.plain
        end = [vocabulary.required_id("eos_id")]
        for_prompt = sequence_length["inputs"] - end_inputs
        for_response = sequence_length["targets"] // responses - 1
        if for_response < 1:
            raise ValueError("lengths.targets=1: a response needs 2 tokens, its end token included")

        def write(prompt: bytes, given: np.ndarray, ranks: np.ndarray, _: bytes) -> list[Any]:
            inputs = vocabulary.encode(prompt.decode())
            inputs = inputs[max(0, len(inputs) - for_prompt) :] + end * end_inputs
            texts = [vocabulary.encode(one.decode())[:for_response] + end for one in given]
            numbers = np.repeat(np.arange(len(texts)) + 1, [len(one) for one in texts])
            found = (inputs, [token for one in texts for token in one], numbers, ranks)
            return [np.array(one, np.int32) for one in found]

        # The fingerprint of a data position is made from operations and constants.
        lengths = for_prompt, for_response
        identity = tf.constant(f"comparisons {responses} {end_inputs} {lengths} {vocabulary}")

        def of_row(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            values = [row[name] for name in _FIELDS]
            found = tf.numpy_function(write, [*values, identity], [tf.int32] * 4)
            features = ("inputs", "targets", "row_numbers", "ranks")
            return {
                name: tf.ensure_shape(one, [None])
                for name, one in zip(features, found, strict=True)
            }

        return dataset.map(of_row, num_parallel_calls=tf.data.AUTOTUNE)

    settings = {"responses": responses, "end_inputs": end_inputs}
    return make("comparisons", (to_examples,), settings)


def _check_fields(there: object) -> None:
    missing = [name for name in _FIELDS if not isinstance(there, dict) or name not in there]
    if missing:
        raise ValueError(
            f"data.objective='comparisons' reads the fields {', '.join(_FIELDS)}, and the task's "
            f"rows lack {', '.join(missing)}: data/preference_files.py has rows of comparisons"
        )
