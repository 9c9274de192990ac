"""Tokenize documents, and cut their concatenation into chunks of one length without any loss."""

from collections.abc import Mapping

import seqio
import tensorflow as tf

OutputFeatures = Mapping[str, seqio.Feature]


def tokenize(dataset: tf.data.Dataset, output_features: OutputFeatures) -> tf.data.Dataset:
    """Tokenize {"text": string or token ids} to {"targets": int32 [L]}.

    The vocabulary is that of "targets". No EOS is added: T5 concatenates documents without a
    separator. Other features are dropped, since a chunk can contain parts of several documents.

    Raises:
        ValueError: the examples have no "text".
    """
    check_text(dataset)
    is_text = dataset.element_spec["text"].dtype == tf.string
    vocabulary = output_features["targets"].vocabulary

    def encode(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = vocabulary.encode_tf(example["text"]) if is_text else example["text"]
        return {"targets": tf.cast(tokens, tf.int32)}

    return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE)


def check_text(dataset: tf.data.Dataset) -> None:
    """Raise ValueError unless the examples have a "text"."""
    if "text" not in dataset.element_spec:
        raise ValueError(
            'a pretraining objective reads examples with a feature "text", this dataset has '
            f"{sorted(dataset.element_spec)}"
        )


def end_documents(dataset: tf.data.Dataset, *, feature: seqio.Feature) -> tf.data.Dataset:
    """Append EOS to each document, [L] -> [L + 1], unless the feature has no EOS.

    Empty documents are dropped: they would leave two EOS in a row, which no text contains.
    """
    documents = dataset.filter(lambda example: tf.size(example["targets"]) > 0)
    if not feature.add_eos:
        return documents
    end = [feature.vocabulary.eos_id]
    return documents.map(
        lambda example: {"targets": tf.concat([example["targets"], end], axis=0)},
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def concatenate_and_split(dataset: tf.data.Dataset, *, length: int) -> tf.data.Dataset:
    """Cut {"targets": int32 [any]} into {"targets": int32 [length]}, with all tokens in order.

    Documents are concatenated: the rest of a document starts the next chunk. Only the last chunk of
    the dataset can be shorter, and it is never empty. (T5's
    `reduce_concat_tokens` and `split_tokens` leave a short chunk after each 128 documents, and
    its `select_random_chunk` drops all but one part of a document over 65,536 tokens.)
    """
    nothing = tf.data.Dataset.from_tensors(tf.zeros([0], tf.int32))

    def cut(
        left_over: tf.Tensor, element: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        document, is_end = element
        tokens = tf.concat([left_over, document], axis=0)
        count = tf.size(tokens)
        rows = tf.where(is_end, -(-count // length), count // length)
        chunks = tf.pad(tokens, [[0, tf.maximum(rows * length - count, 0)]])[: rows * length]
        sizes = tf.minimum(count - tf.range(rows) * length, length)
        return tokens[rows * length :], (tf.reshape(chunks, [rows, length]), sizes)

    documents = dataset.map(lambda example: (example["targets"], False))
    end = nothing.map(lambda tokens: (tokens, True))
    chunks = documents.concatenate(end).scan(tf.zeros([0], tf.int32), cut).unbatch()
    return chunks.map(
        lambda chunk, size: {"targets": chunk[:size]}, num_parallel_calls=tf.data.AUTOTUNE
    )
