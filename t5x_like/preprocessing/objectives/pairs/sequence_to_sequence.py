"""The objectives of BART and MASS: corrupted text for the encoder, original text for the decoder.

Documents are split into sentences and never concatenated. A stateless Python function makes the
examples: they depend only on the document and its seed, so that a position in the data can be
restored as for any other preprocessor.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.batches.noise_counts import check_shares
from t5x_like.batches.objective_examples import examples_of
from t5x_like.names import choose
from t5x_like.preprocessing.objectives.masked import formats, sentences
from t5x_like.preprocessing.objectives.masked.formats import Documents
from t5x_like.preprocessing.objectives.masked.masking import Writing
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.pairs import document_noise
from t5x_like.preprocessing.objectives.pairs.document_noise import Text
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures

Example = dict[str, np.ndarray]
# (tokens of a document, lengths of its sentences, random generator) -> its examples.
Write = Callable[[np.ndarray, np.ndarray, np.random.Generator], list[Example]]

_BOTH = ("inputs", "targets")


def bart(
    *,
    corruptions: Sequence[str] = ("sentence_permutation", "text_infilling"),
    rate: float = 0.3,
    mean_span: float = 3.0,
) -> Objective:
    """Reconstruct a corrupted document (Lewis et al. 2019, section 2.2).

        inputs:  <s> He bought a <mask> milk. The <mask> the store. </s>
        targets: <s> The man went to the store. He bought a gallon of milk. </s>

    A row has as many whole sentences of one document as fit.

    Args:
        corruptions: names of corruptions in `document_noise`, in the order in which to apply them.
        rate: share of the tokens that are masked, deleted or in spans, rounded for each row.
        mean_span: mean of the Poisson distribution of span lengths, in tokens.

    Raises:
        ValueError: a corruption is unknown or there are none, `rate` or `mean_span` is out of
            range; when the dataset is built, before it is read, the lengths or the vocabulary do
            not fit.
    """
    known = document_noise.corruptions("bart", rate=rate, mean_span=mean_span)
    if isinstance(corruptions, str) or not corruptions:
        raise ValueError(
            f"bart: corruptions={corruptions!r} must be a tuple of one or more of "
            f"{', '.join(known)}"
        )
    steps = [choose("corruption of bart", name, known) for name in corruptions]

    def write_for(special: SpecialTokens, lengths: Mapping[str, int]) -> Write:
        room = min(lengths["inputs"], lengths["targets"]) - 2

        def close(tokens: np.ndarray) -> np.ndarray:
            # Only a short text can grow, and rarely: by several spans of length 0.
            return np.concatenate([[special.cls], tokens[: lengths["inputs"] - 2], [special.sep]])

        def write(
            tokens: np.ndarray, sizes: np.ndarray, generator: np.random.Generator
        ) -> list[Example]:
            rows = []
            for text in _rows(tokens, sizes, room=room):
                noisy = text
                for step in steps:
                    noisy = step(generator, noisy, special.mask)
                rows.append({"inputs": close(noisy.tokens), "targets": close(text.tokens)})
            return rows

        return write

    settings = f"bart {list(corruptions)} {rate} {mean_span}"
    return _over_documents("bart", write_for, settings=settings, between=" ")


def _rows(tokens: np.ndarray, sizes: np.ndarray, *, room: int) -> list[Text]:
    """Return runs of whole sentences, at most `room` tokens each; longer sentences are split."""
    document = Documents.of(tokens, sizes, np.array([len(sizes)]), longest=room)
    rows = []
    for row in formats.doc_sentences(document, room, ()):
        [(start, end)] = row.pieces
        numbers = np.searchsorted(document.ends, np.arange(start, end), side="right")
        rows.append(Text(tokens[start:end], numbers - numbers[0]))
    return rows


def mass(
    *,
    rate: float = 0.5,
    tokens: int = 0,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
) -> Objective:
    """Predict a masked fragment of a sentence (Song et al. 2019, section 3.2).

        inputs:    he bought [MASK] [MASK] [MASK] of milk [SEP]
        targets:   a full gallon
        positions: 2 3 4, where the decoder's inputs are the start token, "a" and "full"

    The fragment has k of the m tokens of a sentence, including [SEP], and begins anywhere. With
    k = 1 it equals masked language modeling, with k = m language modeling.

    Args:
        rate: share of the tokens that are in the fragment, rounded, at least one.
        tokens: k itself, if a sentence has that many tokens; 0 to use `rate`.
        random_rate: share of the fragment that is replaced by random tokens (section 4.1).
        kept_rate: share that is kept; the rest becomes [MASK].

    Raises:
        ValueError: shares are out of range, or `tokens` is below 0; when the dataset is built,
            before it is read, the lengths or the vocabulary do not fit.
    """
    if not 0 < rate <= 1 or tokens < 0:
        raise ValueError(
            f"mass: rate={rate} must be above 0 and at most 1, and tokens={tokens} 0 or more"
        )
    check_shares("mass", random_rate=random_rate, kept_rate=kept_rate)
    writing = Writing(random_rate=random_rate, kept_rate=kept_rate)

    def fragment(size: int) -> int:
        return min(tokens or max(round(rate * size), 1), size)

    def write_for(special: SpecialTokens, lengths: Mapping[str, int]) -> Write:
        longest = lengths["inputs"]
        if fragment(longest) > lengths["targets"]:
            raise ValueError(
                f"mass: a fragment of a sentence of lengths.inputs={longest} tokens has "
                f"{fragment(longest)}, more than lengths.targets={lengths['targets']}"
            )

        def write(
            text: np.ndarray, sizes: np.ndarray, generator: np.random.Generator
        ) -> list[Example]:
            document = Documents.of(text, sizes, np.array([len(sizes)]), longest=longest - 1)
            bounds = zip(document.ends, document.ends[1:], strict=False)
            rows = [np.append(text[a:b], special.sep) for a, b in bounds]
            return [
                _without_fragment(
                    row, fragment(len(row)), writing=writing, special=special, generator=generator
                )
                for row in rows
            ]

        return write

    settings = f"mass {rate} {tokens} {random_rate} {kept_rate}"
    return _over_documents("mass", write_for, settings=settings)


def _without_fragment(
    row: np.ndarray,
    count: int,
    *,
    writing: Writing,
    special: SpecialTokens,
    generator: np.random.Generator,
) -> Example:
    """Return the example of a row with a fragment of `count` tokens at a random position."""
    first = generator.integers(len(row) - count + 1)
    places = np.arange(first, first + count)
    noise = np.isin(np.arange(len(row)), places).astype(np.int64)
    inputs = writing(generator, row[None], noise[None], special)[0]
    return {"inputs": inputs, "targets": row[places], "positions": places}


def _over_documents(
    name: str,
    write_for: Callable[[SpecialTokens, Mapping[str, int]], Write],
    *,
    settings: str,
    between: str = "",
) -> Objective:
    """Make an objective whose examples come from one document each.

    Args:
        write_for: (special tokens of the vocabulary, lengths) -> the function that writes examples.
        settings: text of all settings, for the fingerprint of a data position.
        between: see `sentences.tokenize`.
    """

    def make_examples(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        for side in _BOTH:
            length = (sequence_length or {}).get(side) or 0
            if length < 8:
                raise ValueError(f"{name} needs lengths.{side} of 8 or more, got {length}")
        assert sequence_length is not None  # checked above; for the type checker
        vocabulary = output_features["inputs"].vocabulary.plain
        lengths = {side: sequence_length[side] for side in _BOTH}
        write = write_for(SpecialTokens(vocabulary), lengths)
        features = examples_of(name, {}).features
        fingerprint = f"{settings} {lengths} {vocabulary}"
        return _map(dataset, write, features=features, fingerprint=fingerprint)

    return make(name, (functools.partial(sentences.tokenize, between=between), make_examples))


def _map(
    dataset: tf.data.Dataset, write: Write, *, features: Sequence[str], fingerprint: str
) -> tf.data.Dataset:
    def call(tokens: np.ndarray, sizes: np.ndarray, seed: np.ndarray, _: bytes) -> list[np.ndarray]:
        examples = write(tokens, sizes, np.random.default_rng(seed.astype(np.uint32)))
        found: list[Any] = []
        for name in features:
            rows = [example[name] for example in examples]
            found.append(np.concatenate([*rows, []]).astype(np.int32))
            found.append(np.array([len(row) for row in rows], np.int32))
        return found

    @seqio.map_over_dataset(num_seeds=1)
    def of_document(document: dict[str, tf.Tensor], seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # The fingerprint of a data position covers operations and constants of the dataset.
        constant = tf.constant(fingerprint)
        arguments = [document["tokens"], document["sentence_lengths"], seed, constant]
        types = [tf.int32] * (2 * len(features))
        out = tf.numpy_function(call, arguments, types, stateful=False)
        return tuple(tf.ensure_shape(one, [None]) for one in out)

    def apart(*flat: tf.Tensor) -> dict[str, tf.RaggedTensor]:
        pairs = zip(features, flat[::2], flat[1::2], strict=True)
        return {
            name: tf.RaggedTensor.from_row_lengths(values, sizes) for name, values, sizes in pairs
        }

    return of_document(dataset).map(apart, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
