"""Prompts for a model to respond to, optionally with pretraining texts."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.batches.objective_examples import examples_of
from t5x_like.batches.prompt_rows import NO_TOKEN
from t5x_like.names import choose
from t5x_like.preprocessing.objectives.objective import SEEDS, Corrupt, Objective, Seeds, make
from t5x_like.preprocessing.objectives.running_text import denoising, language_modeling
from t5x_like.preprocessing.objectives.running_text.lengths import (
    Lengths,
    OutputFeatures,
    check_features,
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
) -> Objective:
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
    settings = {
        "end_inputs": end_inputs,
        "pretraining_rows": pretraining_rows,
        "pretraining_objective": pretraining_objective,
    }
    features = examples_of("prompts", settings).features

    def to_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        check_features("prompts", names=features, lengths=sequence_length, features=output_features)
        assert sequence_length is not None  # checked above; for the type checker
        needed = ("inputs", *(("pretraining",) if pretraining_rows else ()))
        if missing := [name for name in needed if name not in dataset.element_spec]:
            raise ValueError(
                f"data.objective='prompts' reads the fields {', '.join(needed)}, and the task's "
                f"rows lack {', '.join(missing)}"
            )
        # These lengths count the tokens of all rows together.
        sizes = {name: sequence_length[name] // pretraining_rows for name in features[1:]}
        length, pair = _plan(pretraining_objective, sizes, output_features)
        write = _Writer(
            vocabulary=output_features["inputs"].vocabulary.plain,
            inputs=sequence_length["inputs"],
            rows=pretraining_rows,
            row=length,
            end_inputs=end_inputs,
            end_rows=pair is None,
        )
        tokens = _tokenize(dataset, write)
        return tokens if pair is None else _corrupt(tokens, pair, write=write, sizes=sizes)

    return make("prompts", (to_examples,), settings)


def _plan(
    objective: str, sizes: Mapping[str, int], features: OutputFeatures
) -> tuple[int, Corrupt | None]:
    """Return the most tokens of a text, and the function to inputs and targets, or None.

    Args:
        sizes: the tokens of a row of each pretraining feature; empty without pretraining rows.
    """
    pairs = _OF_TEXTS[objective]().pairs
    if pairs is None or not sizes:
        return sizes.get("pretraining", 0), None
    of = dict(zip(("inputs", "targets"), sizes, strict=True))
    return pairs(
        {side: sizes[name] for side, name in of.items()},
        {side: features[name] for side, name in of.items()},
    )


def _tokenize(dataset: tf.data.Dataset, write: "_Writer") -> tf.data.Dataset:
    identity = tf.constant(str(write))  # a data position's fingerprint is made from constants
    names = ("inputs", *(("pretraining",) if write.rows else ()))

    def of_row(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        texts = row["pretraining"] if write.rows else tf.zeros([0], tf.string)
        found = tf.numpy_function(write, [row["inputs"], texts, identity], [tf.int32] * 2)
        return {name: tf.ensure_shape(one, [None]) for name, one in zip(names, found, strict=False)}

    return dataset.map(of_row, num_parallel_calls=tf.data.AUTOTUNE)


def _corrupt(
    dataset: tf.data.Dataset, pair: Corrupt, *, write: "_Writer", sizes: Mapping[str, int]
) -> tf.data.Dataset:
    """Turn each row of `pretraining` into inputs and targets, padded to `sizes`."""

    def filled(tokens: tf.Tensor, size: int) -> tf.Tensor:
        padding = [[0, size - tf.size(tokens)]]
        return tf.ensure_shape(tf.pad(tokens, padding, constant_values=NO_TOKEN), [size])

    @seqio.map_over_dataset(num_seeds=SEEDS)
    def of_example(example: dict[str, tf.Tensor], seeds: Seeds) -> dict[str, tf.Tensor]:
        def of_row(given: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            row, number = given
            fold = tf.random.experimental.stateless_fold_in
            own = [fold(seeds[n], number) for n in range(SEEDS)]
            found = pair(tf.boolean_mask(row, row != NO_TOKEN), own)
            return tuple(filled(x, size) for x, size in zip(found, sizes.values(), strict=True))

        rows = tf.reshape(example["pretraining"], [write.rows, write.row])
        found = tf.map_fn(
            of_row, (rows, tf.range(write.rows)), fn_output_signature=(tf.int32,) * len(sizes)
        )
        texts = {name: tf.reshape(x, [-1]) for name, x in zip(sizes, found, strict=True)}
        return {"inputs": example["inputs"], **texts}

    return of_example(dataset)


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Tokenizes a prompt and its pretraining texts.

    Attributes:
        inputs: the most tokens of a prompt, including its end token.
        rows, row: the number of pretraining rows, and the tokens of each.
        end_inputs, end_rows: whether a prompt and a pretraining row have an end token.
    """

    vocabulary: Vocabulary
    inputs: int
    rows: int
    row: int
    end_inputs: bool
    end_rows: bool

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
            own = [*self.vocabulary.encode(text.decode()), *end * self.end_rows][: self.row]
            row[: len(own)] = own
        return [np.array(tokens, np.int32), pretraining.reshape(-1)]
