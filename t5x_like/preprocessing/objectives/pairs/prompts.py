"""Prompts that a model is to respond to, with texts of pretraining beside them."""

import dataclasses

import numpy as np
import tensorflow as tf

from t5x_like.batches.objective_examples import examples_of
from t5x_like.batches.prompt_rows import NO_TOKEN
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
)
from t5x_like.vocabularies import Vocabulary


def prompts(*, end_inputs: bool = True, pretraining_rows: int = 0) -> Objective:
    """{"inputs": string} -> {"inputs": tokens}, truncated on the left.

    With R pretraining rows the field "pretraining", strings [R], becomes the feature `pretraining`:
    R rows of L tokens one after the other, each a text and its end token, truncated to L or filled
    up with `prompt_rows.NO_TOKEN`. `data.lengths.pretraining` is L.

    Args:
        end_inputs: whether the prompt has an end token, as in the model's fine-tuning.
        pretraining_rows: R; 8 in Ouyang et al. 2022, appendix C.4.

    Raises:
        ValueError: fewer than 0 rows; when the dataset is built also rows without these fields, or
            lengths with no room for text.
    """
    if pretraining_rows < 0:
        raise ValueError(f"pretraining_rows={pretraining_rows} of prompts must be 0 or more")
    settings = {"end_inputs": end_inputs, "pretraining_rows": pretraining_rows}
    features = examples_of("prompts", settings).features

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        check_features("prompts", names=features, lengths=sequence_length, features=output_features)
        assert sequence_length is not None  # checked above; for the type checker
        if missing := [name for name in features if name not in dataset.element_spec]:
            raise ValueError(
                f"data.objective='prompts' reads the fields {', '.join(features)}, and the task's "
                f"rows lack {', '.join(missing)}"
            )
        write = _Writer(
            vocabulary=output_features["inputs"].vocabulary.plain,
            inputs=sequence_length["inputs"],
            rows=pretraining_rows,
            row=sequence_length["pretraining"] // pretraining_rows if pretraining_rows else 0,
            end_inputs=end_inputs,
        )
        identity = tf.constant(str(write))  # a data position's fingerprint is made from constants

        def of_row(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            texts = row["pretraining"] if pretraining_rows else tf.zeros([0], tf.string)
            given = [row["inputs"], texts, identity]
            found = tf.numpy_function(write, given, [tf.int32] * 2)
            return {
                name: tf.ensure_shape(one, [None])
                for name, one in zip(features, found, strict=False)
            }

        return dataset.map(of_row, num_parallel_calls=tf.data.AUTOTUNE)

    return make("prompts", (to_examples,), settings)


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Tokenizes a prompt and its pretraining texts.

    Attributes:
        inputs: the most tokens of a prompt, with its end token.
        rows, row: how many pretraining rows, and the tokens of each.
        end_inputs: whether a prompt has an end token.
    """

    vocabulary: Vocabulary
    inputs: int
    rows: int
    row: int
    end_inputs: bool

    def __call__(self, prompt: bytes, texts: np.ndarray, _: bytes) -> list[np.ndarray]:
        end = [self.vocabulary.required_id("eos_id")]
        tokens, room = self.vocabulary.encode(prompt.decode()), self.inputs - self.end_inputs
        tokens = tokens[max(0, len(tokens) - room) :] + end * self.end_inputs
        if len(texts) != self.rows:
            raise ValueError(
                f"a row has {len(texts)} texts in its field 'pretraining', and "
                f"data.objective_settings.pretraining_rows={self.rows}: they must be as many"
            )
        pretraining = np.full((self.rows, self.row), NO_TOKEN, np.int32)
        for row, text in zip(pretraining, texts, strict=True):
            own = [*self.vocabulary.encode(text.decode()), *end][: self.row]
            row[: len(own)] = own
        return [np.array(tokens, np.int32), pretraining.reshape(-1)]
