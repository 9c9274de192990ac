"""Supervised pairs: text in, text out (T5, section 2.4)."""

import functools

import seqio
import tensorflow as tf

from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
)


def text_to_text(*, end_inputs: bool = True, end_targets: bool = True) -> Objective:
    """Tokenize {"inputs": string, "targets": string}, truncated to fit and ended by EOS.

    For fine-tuning and for supervised tasks in a mixture. Other features are passed on, and the
    strings are kept as "inputs_pretokenized" and "targets_pretokenized", for metrics.

    Args:
        end_inputs: whether inputs end with EOS too. Without it, inputs that are too long are
            truncated on the left: in a decoder, the targets continue the end of a prompt.
        end_targets: whether targets end with EOS. Without it, only their tokens have a loss, as
            for a rating of one token.

    Raises:
        ValueError: inputs end with EOS, but targets do not.
    """
    if end_inputs and not end_targets:
        raise ValueError("end_targets=False needs end_inputs=False: one text goes on in the other")
    ends = (
        seqio.preprocessors.append_eos_after_trim
        if end_inputs
        else functools.partial(_truncate, end_targets=end_targets)
    )
    return make("text_to_text", (seqio.preprocessors.tokenize, ends), {"end_inputs": end_inputs})


def _truncate(
    dataset: tf.data.Dataset,
    sequence_length: Lengths,
    output_features: OutputFeatures,
    *,
    end_targets: bool,
) -> tf.data.Dataset:
    names = ("inputs", "targets")
    check_features("text_to_text", names=names, lengths=sequence_length, features=output_features)
    assert sequence_length is not None  # checked above; for the type checker
    prompt, response = (sequence_length[name] for name in names)
    vocabulary = output_features["targets"].vocabulary.plain
    end = [vocabulary.required_id("eos_id")] if end_targets else []

    def truncate(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        targets = example["targets"][: response - len(end)]
        ended = tf.concat([targets, tf.constant(end, targets.dtype)], axis=0)
        return {**example, "inputs": example["inputs"][-prompt:], "targets": ended}

    return dataset.map(truncate, num_parallel_calls=tf.data.AUTOTUNE)


def marked_text_to_text() -> Objective:
    """Tokenize {"inputs": string, "targets": string} to <s> text </s> on both sides.

    For BART, which also reads and generates the special token at the beginning of a text. Both
    sides are truncated to fit; the strings are kept as in `text_to_text`.

    Raises (when the dataset is built, before anything is read):
        ValueError: the vocabulary lacks [CLS] or [SEP], or lengths leave no room for text.
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
