"""Pairs of texts for an encoder that learns to generate the second (UniLM, section 2.5)."""

import dataclasses

import numpy as np
import seqio
import tensorflow as tf
from jaxtyping import Int

from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.batches.noise_counts import check_rate, check_shares
from t5x_like.batches.objective_examples import examples_of
from t5x_like.preprocessing.objectives.masked import masking
from t5x_like.preprocessing.objectives.masked.formats import SEGMENTS
from t5x_like.preprocessing.objectives.masked.masking import Writing
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures

_FEATURES = examples_of("masked_targets", {}).features


def masked_targets(
    *,
    rate: float = 0.7,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    target_length: int = 64,
) -> Objective:
    """Tokenize {"inputs": string, "targets": string} to one row, with masks only in the target.

        inputs:       [CLS] how do you do ? [SEP] [MASK] [MASK] thanks [MASK]
        targets:      [CLS] how do you do ? [SEP] fine , thanks [SEP]
        loss_weights: 1 on masked tokens; the last [SEP] may be masked, so the model learns to end
        token_types:  4, and 5 from "fine" on: UniLM's sequence-to-sequence segments

    Args:
        rate: share of the target that is masked, including [SEP], rounded for each row.
        random_rate, kept_rate: shares of the masked tokens that become random tokens, and that are
            kept; the rest becomes [MASK].
        target_length: the most tokens of the target, including [SEP]; the rest of the row is for
            the source. Both are truncated at their ends.

    Raises:
        ValueError: shares are out of range; when the dataset is built, before it is read, the
            vocabulary lacks [CLS], [SEP] or [MASK], rows have no room for a source, or the task
            has no pairs.
    """
    check_rate("masked_targets", rate=rate)
    check_shares("masked_targets", random_rate=random_rate, kept_rate=kept_rate)
    settings = f"masked_targets {rate} {random_rate} {kept_rate} {target_length}"

    def make_rows(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        if missing := {"inputs", "targets"} - dict(dataset.element_spec).keys():
            raise ValueError(
                f"masked_targets needs pairs; the task's rows lack {', '.join(sorted(missing))}"
            )
        length = (sequence_length or {}).get("inputs") or 0
        if not 1 < target_length <= length - 3:
            raise ValueError(
                f"masked_targets: target_length={target_length} must be 2 or more and leave room "
                f"for a source and its special tokens in a row of lengths.inputs={length}"
            )
        vocabulary = output_features["inputs"].vocabulary.plain
        rows = _Rows(
            special=SpecialTokens(vocabulary),
            length=length,
            target_length=target_length,
            rate=rate,
            write=Writing(random_rate=random_rate, kept_rate=kept_rate),
        )
        return _map(dataset, rows, fingerprint=f"{settings} {length} {vocabulary}")

    return make("masked_targets", (seqio.preprocessors.tokenize, make_rows))


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Makes a row from a pair of token sequences."""

    special: SpecialTokens
    length: int
    target_length: int
    rate: float
    write: Writing

    def __call__(
        self,
        source: Int[np.ndarray, " S"],
        target: Int[np.ndarray, " T"],
        seed: Int[np.ndarray, "2"],
    ) -> Int[np.ndarray, "4 L"]:
        """Return inputs, targets, loss weights and token types, in the order of `_FEATURES`."""
        generator = np.random.default_rng(seed.astype(np.uint32))
        sep = [self.special.sep]
        target = np.concatenate([target[: self.target_length - 1], sep])
        source = source[: self.length - 2 - len(target)]
        tokens = np.concatenate([[self.special.cls], source, sep, target])
        second = np.arange(len(tokens)) >= len(tokens) - len(target)
        budget = masking.budgets(second[None], rate=self.rate)
        noise = masking.single_tokens(generator, second[None], budget=budget)
        inputs = self.write(generator, tokens[None], noise, self.special)
        types = np.where(second, *reversed(SEGMENTS["sequence_to_sequence"]))
        return np.stack([inputs[0], tokens, noise[0] > 0, types]).astype(np.int32)


def _map(dataset: tf.data.Dataset, rows: _Rows, *, fingerprint: str) -> tf.data.Dataset:
    def call(
        source: np.ndarray, target: np.ndarray, seed: np.ndarray, _: bytes
    ) -> Int[np.ndarray, "4 L"]:
        return rows(source, target, seed)

    @seqio.map_over_dataset(num_seeds=1)
    def to_row(example: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
        # The fingerprint of a data position covers operations and constants of the dataset.
        arguments = [example["inputs"], example["targets"], seed, tf.constant(fingerprint)]
        features = tf.numpy_function(call, arguments, tf.int32, stateful=False)
        features.set_shape([len(_FEATURES), None])
        return dict(zip(_FEATURES, tf.unstack(features), strict=True))

    return to_row(dataset)
