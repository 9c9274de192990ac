"""Supervised pairs: text in, text out (T5, section 2.4)."""

import seqio
import tensorflow as tf

from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
)


def text_to_text() -> Objective:
    """{"inputs": string, "targets": string} -> their tokens, truncated to fit and ended by EOS.

    For fine-tuning and for supervised tasks in a mixture. Other features are passed on, and the
    strings are kept as "inputs_pretokenized" and "targets_pretokenized", for metrics.
    """
    steps = (seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim)
    return make("text_to_text", steps)


def marked_text_to_text() -> Objective:
    """{"inputs": string, "targets": string} -> <s> text </s> on both sides, truncated to fit.

    For BART, which reads and generates the special token that begins a text, too. The strings are
    kept as by `text_to_text`.

    Raises (when the dataset is built, before anything is read):
        ValueError: a vocabulary without [CLS] and [SEP], or lengths without room for text.
    """

    def add_special_tokens(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        name, both = "marked_text_to_text", ("inputs", "targets")
        check_features(name, names=both, lengths=sequence_length, features=output_features)
        assert sequence_length is not None  # checked above; for the type checker
        lengths = {side: sequence_length[side] - 2 for side in both}
        special = SpecialTokens(output_features["inputs"].vocabulary.plain)

        def close(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            first, last = [special.cls], [special.sep]
            rows = {
                side: tf.concat([first, tf.cast(example[side][:length], tf.int32), last], axis=0)
                for side, length in lengths.items()
            }
            return {**example, **rows}

        return dataset.map(close, num_parallel_calls=tf.data.AUTOTUNE)

    return make("marked_text_to_text", (seqio.preprocessors.tokenize, add_special_tokens))
