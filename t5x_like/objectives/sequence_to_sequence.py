"""Objectives of BART, MASS and DAE: corrupted text for the encoder, original text for the decoder.

Documents are split into sentences and never concatenated: an example comes from one document.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.batches.encoder_rows import SpecialTokens
from t5x_like.names import choose
from t5x_like.objectives import document_noise, formats
from t5x_like.objectives.document_noise import Text
from t5x_like.objectives.formats import DocumentGroup
from t5x_like.objectives.masking import Writing
from t5x_like.objectives.noise import check_shares
from t5x_like.objectives.objective import PAIR, Example, ExampleSpec, Groups, OfGroup

# (tokens of a document, lengths of its sentences, random generator) -> its examples.
Write = Callable[[np.ndarray, np.ndarray, np.random.Generator], list[Example]]


def bart(
    *,
    corruptions: Sequence[str] = ("sentence_permutation", "text_infilling"),
    rate: float = 0.3,
    mean_span: float = 3.0,
) -> Groups:
    """Reconstruct a corrupted document (Lewis et al. 2019, section 2.2).

        inputs:  <s> He bought a <mask> milk. The <mask> the store. </s>
        targets: <s> The man went to the store. He bought a gallon of milk. </s>

    A row has as many whole sentences of one document as fit.

    Args:
        corruptions: names of corruptions in `document_noise`, in the order in which to apply them.
        rate: share of the tokens that are masked, deleted or in spans, rounded for each row.
        mean_span: mean of the Poisson distribution of span lengths, in tokens.

    Raises:
        ValueError: `corruptions` is empty or has an unknown name, `rate` or `mean_span` is out of
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

    return _over_documents(
        "bart",
        write_for,
        between=" ",
        features=PAIR,
        converters=("encoder_decoder",),
        special_tokens=True,
    )


def _rows(tokens: np.ndarray, sizes: np.ndarray, *, room: int) -> list[Text]:
    """Return runs of whole sentences, at most `room` tokens each; longer sentences are split."""
    document = DocumentGroup.of(tokens, sizes, np.array([len(sizes)]), longest=room)
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
) -> Groups:
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
    fragment = functools.partial(_fragment, rate=rate, tokens=tokens)

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
            sentences = _sentences(text, sizes, longest=longest - 1)
            rows = [np.append(sentence, special.sep) for sentence in sentences]
            return [
                _without_fragment(
                    row, fragment(len(row)), writing=writing, special=special, generator=generator
                )
                for row in rows
            ]

        return write

    return _over_documents(
        "mass",
        write_for,
        features=(*PAIR, "positions"),
        converters=("fragment",),
    )


def dae(*, drop_rate: float = 0.1, mask_rate: float = 0.1, shuffle: float = 3.0) -> Groups:
    """Reconstruct a sentence from a noisy version of it (Lample et al. 2018, section 2.3).

        inputs:  bought he [MASK] gallon full [SEP]
        targets: he bought a full gallon [SEP]

    First tokens are shuffled: they are sorted by their position plus a uniform random number from 0
    to `shuffle`, so that a token moves by less than `shuffle` positions. Then tokens are dropped,
    and others replaced by [MASK]. The [SEP] at the end stays.

    Args:
        drop_rate, mask_rate: the probabilities of a token to be dropped, and of a token that is not
            dropped to be replaced.
        shuffle: 0 or 1 for the original order.

    Raises:
        ValueError: a rate is out of range, or `shuffle` below 0; when the dataset is built, before
            it is read, the lengths or the vocabulary do not fit.
    """
    if not (0 <= drop_rate < 1 and 0 <= mask_rate <= 1 and shuffle >= 0):
        raise ValueError(
            f"dae: drop_rate={drop_rate} must be from 0 to below 1, mask_rate={mask_rate} from 0 "
            f"to 1, and shuffle={shuffle} 0 or more"
        )

    def noisy(text: np.ndarray, mask: int, generator: np.random.Generator) -> np.ndarray:
        keys = np.arange(len(text)) + generator.uniform(0, shuffle, len(text))
        text = text[np.argsort(keys, kind="stable")]
        text = text[generator.random(len(text)) >= drop_rate]
        return np.where(generator.random(len(text)) < mask_rate, mask, text)

    def write_for(special: SpecialTokens, lengths: Mapping[str, int]) -> Write:
        longest = min(lengths["inputs"], lengths["targets"]) - 1

        def write(
            text: np.ndarray, sizes: np.ndarray, generator: np.random.Generator
        ) -> list[Example]:
            return [
                {
                    "inputs": np.append(noisy(row, special.mask, generator), special.sep),
                    "targets": np.append(row, special.sep),
                }
                for row in _sentences(text, sizes, longest=longest)
            ]

        return write

    return _over_documents("dae", write_for, features=PAIR, converters=("encoder_decoder",))


def _sentences(text: np.ndarray, sizes: np.ndarray, *, longest: int) -> list[np.ndarray]:
    """Return the sentences of a document, where sentences above `longest` tokens are split."""
    document = DocumentGroup.of(text, sizes, np.array([len(sizes)]), longest=longest)
    return [text[a:b] for a, b in zip(document.ends, document.ends[1:], strict=False)]


def _fragment(size: int, *, rate: float, tokens: int) -> int:
    """Return the tokens of the fragment of a sentence of `size` tokens."""
    return min(tokens or max(round(rate * size), 1), size)


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
    positions = np.arange(first, first + count)
    noise = np.isin(np.arange(len(row)), positions).astype(np.int64)
    inputs = writing(generator, row[None], noise[None], special)[0]
    return {"inputs": inputs, "targets": row[positions], "positions": positions}


def _over_documents(
    name: str,
    write_for: Callable[[SpecialTokens, Mapping[str, int]], Write],
    **of: Any,
) -> Groups:
    """Make an objective whose examples come from one document each.

    Args:
        write_for: (special tokens of the vocabulary, lengths) -> the function that writes examples.
        of: the other attributes of the objective.
    """

    def plan(spec: ExampleSpec) -> OfGroup:
        for side in PAIR:
            length = spec.lengths.get(side) or 0
            if length < 8:
                raise ValueError(f"{name} needs lengths.{side} of 8 or more, got {length}")
        write = write_for(SpecialTokens(spec.features["inputs"].vocabulary), spec.lengths)

        def of_group(
            tokens: np.ndarray,
            lengths: np.ndarray,
            counts: np.ndarray,
            generator: np.random.Generator,
        ) -> list[Example]:
            del counts  # of one document
            examples = write(tokens, lengths, generator)
            return [
                {key: row.astype(np.int32) for key, row in example.items()} for example in examples
            ]

        return of_group

    return Groups(name=name, plan=plan, **of)
