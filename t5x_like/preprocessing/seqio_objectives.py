"""Objectives as seqio preprocessors: tf.data reads and tokenizes, Python makes the examples."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5x_like import objectives
from t5x_like.objectives import (
    AnyObjective,
    Example,
    ExampleSpec,
    Feature,
    Groups,
    Pairs,
    RunningText,
    grouping,
)
from t5x_like.objectives.objective import PAIR, text_of
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary

OutputFeatures = Mapping[str, seqio.Feature]


def tokenize_documents(
    dataset: tf.data.Dataset, output_features: OutputFeatures
) -> tf.data.Dataset:
    """Tokenize {"text": string or token ids} to {"targets": int32 [L]}.

    The vocabulary is from the feature "targets". No EOS is added: T5 concatenates documents without
    a separator. Other features are dropped, since a chunk can contain parts of several documents.

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


Preprocessor = Callable[..., tf.data.Dataset]
Lengths = Mapping[str, int] | None
Elements = Mapping[str, tf.Tensor]

_TYPES = {"value": tf.float32}
_SENTENCES = ("tokens", "sentence_lengths")  # what a document is before its group


@dataclasses.dataclass(frozen=True)
class SeqioObjective:
    """An objective as the last preprocessors of a seqio task.

    Attributes:
        plain: the objective.
    """

    plain: AnyObjective

    @property
    def name(self) -> str:
        """Its name in the registry and in configs."""
        return self.plain.name

    @property
    def features(self) -> tuple[str, ...]:
        """The features of an example."""
        return self.plain.features

    @property
    def converter_settings(self) -> Mapping[str, Any]:
        """The default settings of its converters."""
        return self.plain.converter_settings

    @property
    def ends_inputs(self) -> bool:
        """Whether inputs end with the end token."""
        return self.plain.ends_inputs

    @functools.cached_property
    def preprocessors(self) -> tuple[Preprocessor, ...]:
        """Functions from datasets to datasets: a first that only tokenizes, if it can be cached.

        They take `sequence_length` and `output_features` by name if they need them, as a
        `seqio.Task` passes them. When the dataset is built, before anything is read, they raise
        ValueError if the lengths, the vocabulary or the fields of the rows do not fit.
        """
        plain = self.plain
        if isinstance(plain, RunningText):
            return _tokenize_running_text(plain), _of_chunks(plain)
        if isinstance(plain, Groups):
            # The same function for all that tokenize alike: they share an offline cache.
            if not plain.between:
                return tokenize_sentences, _of_groups(plain)
            first = functools.partial(tokenize_sentences, between=plain.between)
            return first, _of_groups(plain)
        if isinstance(plain, Pairs):
            tokenize = tokenize_continued if plain.continued else seqio.preprocessors.tokenize
            return tokenize, _of_pairs(plain)
        return (_of_rows(plain),)

    @property
    def cacheable(self) -> tuple[Any, ...]:
        """The preprocessors, with the placeholder of seqio's offline cache after the first.

        Whatever follows it is random or depends on lengths. A single preprocessor gets no cache.
        """
        first, *others = self.preprocessors
        return (first, seqio.CacheDatasetPlaceholder(), *others) if others else (first,)


def build(name: str, **settings: Any) -> SeqioObjective:
    """Make the objective `name` with the settings of a config; see `objectives.build`.

    The same settings give the same preprocessors, which need not be traced again.
    """
    return _wrapped(objectives.build(name, **settings))


@functools.lru_cache(maxsize=64)
def _wrapped(plain: AnyObjective) -> SeqioObjective:
    return SeqioObjective(plain)


def _tokenize_running_text(objective: RunningText) -> Preprocessor:
    """Return the function to {"targets": int32 [any]}: what each document adds to the text."""
    encode = objective.encode
    if encode is None:
        return tokenize_documents

    def tokenize(dataset: tf.data.Dataset, output_features: OutputFeatures) -> tf.data.Dataset:
        if "text" not in dataset.element_spec or dataset.element_spec["text"].dtype != tf.string:
            raise ValueError(
                f"data.objective={objective.name!r} reads the characters of a text, and the task's "
                f"rows have {sorted(dataset.element_spec)}: use a task whose rows have a 'text'"
            )
        vocabulary = _plain(output_features["targets"])

        def of_document(row: Elements) -> Elements:
            tokens = _call(
                lambda text: encode(text_of(text), vocabulary),
                [row["text"]],
                [tf.int32],
                identity=vocabulary.digest,
            )
            return {"targets": tokens[0]}

        return dataset.map(of_document, num_parallel_calls=tf.data.AUTOTUNE)

    return tokenize


def _of_chunks(objective: RunningText) -> Preprocessor:
    def make_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        spec = _spec(sequence_length, output_features)
        length, examples = objective.units(spec)
        if objective.end_documents:
            dataset = end_documents(dataset, feature=output_features["targets"])

        def of_chunks(
            values: Mapping[str, np.ndarray], generator: np.random.Generator
        ) -> list[Example]:
            return examples(values["targets"], generator)

        chunks = concatenate_and_split(dataset, length=length)
        return _examples(chunks, of_chunks, objective=objective, spec=spec)

    return make_examples


def tokenize_sentences(
    dataset: tf.data.Dataset, output_features: OutputFeatures, *, between: str = ""
) -> tf.data.Dataset:
    """Tokenize {"text": string or ids} to {"tokens": int32 [L], "sentence_lengths": int32 [S]}.

    A text of token ids is one sentence, unless it comes with "sentence_lengths". Other features are
    dropped.

    Args:
        between: see `Groups`.

    Raises:
        ValueError: the examples have no "text".
    """
    check_text(dataset)
    if dataset.element_spec["text"].dtype.is_integer:
        return dataset.map(_given_tokens, num_parallel_calls=tf.data.AUTOTUNE)
    vocabulary = _plain(output_features["inputs"])

    def encode(text: bytes) -> tuple[np.ndarray, np.ndarray]:
        return grouping.encode(text_of(text), vocabulary, between=between)

    def of_document(row: Elements) -> Elements:
        identity = f"{vocabulary.digest} {between}"
        encoded = _call(encode, [row["text"]], [tf.int32] * 2, identity=identity)
        return dict(zip(_SENTENCES, encoded, strict=True))

    return dataset.map(of_document, num_parallel_calls=tf.data.AUTOTUNE)


def tokenize_continued(
    dataset: tf.data.Dataset, output_features: OutputFeatures
) -> tf.data.Dataset:
    """Like `seqio.preprocessors.tokenize`, for targets that continue the text of the inputs."""
    vocabulary = _plain(output_features["inputs"])

    def encode(*sides: bytes) -> list[np.ndarray]:
        tokens = vocabulary.encode_continued(*map(text_of, sides))
        return [np.array(side, np.int32) for side in tokens]

    def of_pair(row: Elements) -> Elements:
        texts = {side: row[side] for side in PAIR}
        types = [tf.int32] * len(PAIR)
        tokens = _call(encode, list(texts.values()), types, identity=vocabulary.digest)
        named = {f"{side}_pretokenized": text for side, text in texts.items()}
        return {**row, **named, **dict(zip(PAIR, tokens, strict=True))}

    return dataset.map(of_pair, num_parallel_calls=tf.data.AUTOTUNE)


def _given_tokens(row: Elements) -> Elements:
    tokens = tf.cast(row["text"], tf.int32)
    lengths = row.get("sentence_lengths", tf.size(tokens)[None])
    return dict(zip(_SENTENCES, (tokens, tf.cast(lengths, tf.int32)), strict=True))


def _of_groups(objective: Groups) -> Preprocessor:
    def make_rows(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        spec = _spec(sequence_length, output_features)
        rows = objective.plan(spec)

        def flat(group: Elements) -> Elements:
            # Not ragged if all documents have the same length.
            tokens, lengths = (
                tensor
                if isinstance(tensor, tf.RaggedTensor)
                else tf.RaggedTensor.from_tensor(tensor)
                for tensor in (group[name] for name in _SENTENCES)
            )
            return {
                "tokens": tokens.flat_values,
                "lengths": lengths.flat_values,
                "counts": lengths.row_lengths(),
            }

        def of_group(
            values: Mapping[str, np.ndarray], generator: np.random.Generator
        ) -> list[Example]:
            return rows(values["tokens"], values["lengths"], values["counts"], generator)

        documents = dataset.map(lambda row: {name: row[name] for name in _SENTENCES})
        groups = documents.ragged_batch(objective.documents).map(flat)
        return _examples(groups, of_group, objective=objective, spec=spec)

    return make_rows


def _of_pairs(objective: Pairs) -> Preprocessor:
    def make_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        objective.check_fields(dataset.element_spec)
        spec = _spec(sequence_length, output_features)
        example = objective.plan(spec)

        def of_pair(
            values: Mapping[str, np.ndarray], generator: np.random.Generator
        ) -> list[Example]:
            pair_example = example(values["inputs"], values["targets"], generator)
            return [] if pair_example is None else [pair_example]

        mapped = _map(dataset, of_pair, objective=objective, spec=spec, fields=PAIR)
        # A pair becomes one example or none. Its other fields are passed on, for metrics.
        return mapped.filter(lambda row, arrays, sizes: tf.size(sizes[0]) > 0).map(
            lambda row, arrays, sizes: {**row, **_named(objective, arrays)}
        )

    return make_examples


def _of_rows(objective: objectives.Rows) -> Preprocessor:
    def make_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        fields = objective.present(dataset.element_spec)
        spec = _spec(sequence_length, output_features)
        examples = objective.plan(spec)
        return _examples(dataset, examples, objective=objective, spec=spec, fields=fields)

    return make_examples


def _spec(lengths: Lengths, features: OutputFeatures) -> ExampleSpec:
    of = {name: Feature(_plain(feature), feature.add_eos) for name, feature in features.items()}
    return ExampleSpec(lengths or {}, of)


def _plain(feature: seqio.Feature) -> Any:
    vocabulary = feature.vocabulary
    return vocabulary.plain if isinstance(vocabulary, TaskVocabulary) else vocabulary


def _examples(
    dataset: tf.data.Dataset,
    make: Callable[[Mapping[str, Any], np.random.Generator], list[Example]],
    **how: Any,
) -> tf.data.Dataset:
    """Return the examples that a Python function makes of each element; see `_map`."""

    def apart(
        _: Elements, arrays: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor]
    ) -> dict[str, tf.RaggedTensor]:
        return {
            name: tf.RaggedTensor.from_row_lengths(values, rows, validate=False)
            for name, values, rows in zip(how["objective"].features, arrays, sizes, strict=True)
        }

    examples = _map(dataset, make, **how).map(apart, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    # An element of a ragged tensor is a tensor, but still has the type of a ragged tensor.
    return examples.map(lambda row: {k: tf.ensure_shape(v, [None]) for k, v in row.items()})


def _named(objective: AnyObjective, values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    return dict(zip(objective.features, values, strict=True))


def _map(
    dataset: tf.data.Dataset,
    make: Callable[[Mapping[str, Any], np.random.Generator], list[Example]],
    *,
    objective: AnyObjective,
    spec: ExampleSpec,
    fields: Sequence[str] | None = None,
) -> tf.data.Dataset:
    """Return each element, the features of its examples, and how long these are.

    The values of a feature in all examples follow each other.

    Args:
        make: ({field: value}, random numbers) -> examples.
        spec: what the run decides.
        fields: the fields that `make` reads; None for all.
    """
    features = objective.features
    types = [_TYPES.get(name, tf.int32) for name in features]
    names = [*(dataset.element_spec if fields is None else fields)]

    def call(*values: Any) -> list[np.ndarray]:
        *inputs, seed = values
        generator = np.random.default_rng(seed.astype(np.uint32))
        examples = make(dict(zip(names, inputs, strict=True)), generator)
        rows = [[example[name] for example in examples] for name in features]
        joined = [
            arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, []]) for arrays in rows
        ]
        return [
            *(
                array.astype(kind.as_numpy_dtype, copy=False)
                for array, kind in zip(joined, types, strict=True)
            ),
            *(np.array([len(row) for row in arrays], np.int32) for arrays in rows),
        ]

    def of_element(
        element: Elements, seed: tf.Tensor
    ) -> tuple[Elements, tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]:
        out = _call(
            call,
            [*(element[name] for name in names), seed],
            [*types, *[tf.int32] * len(types)],
            identity=objective.identity(spec),
        )
        return element, tuple(out[: len(types)]), tuple(out[len(types) :])

    return seqio.map_over_dataset(of_element, num_seeds=1)(dataset)


def _call(
    function: Callable[..., Any],
    values: Sequence[tf.Tensor],
    types: Sequence[tf.DType],
    *,
    identity: str,
) -> list[tf.Tensor]:
    """Call a Python function of arrays in tf.data; it returns vectors.

    Args:
        identity: everything that the function depends on: the fingerprint of a data position covers
            operations and constants of the dataset.
    """
    out = tf.numpy_function(
        lambda *arguments: function(*arguments[:-1]),
        [*values, tf.constant(identity)],
        list(types),
        stateful=False,
    )
    return [tf.ensure_shape(tensor, [None]) for tensor in out]
