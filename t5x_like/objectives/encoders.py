"""The pretraining objectives of encoders: BERT, RoBERTa, SpanBERT, ALBERT, StructBERT and others.

Each combines a format of rows (`formats`), a choice of noise and a way of writing it (`masking`),
over groups of documents (`grouping`). An example has the features

    inputs        [CLS] A [SEP] B [SEP] with noise           targets      the same without noise
    loss_weights  1 on noise, also on tokens kept unchanged   token_types  1 on B and its [SEP]
    label         of a pair

Settings that several objectives share:

    rate          share of the text that is noise, rounded to a number for each row
    random_rate   share of the noise that becomes random tokens: uniform over all ordinary tokens,
                  except in SpanBERT
    kept_rate     share of the noise that is kept unchanged; the rest becomes [MASK]
    short_rate    share of the rows that get a random length of 2 tokens or more
    copies        0 for new noise at each visit (dynamic), N for N fixed masks of a row (static)
    group         documents read together, from which the second text of a random pair is taken;
                  use a smaller group for documents as long as books

All raise ValueError if a share is out of range, and, when the dataset is built and before it is
read, if the lengths or the vocabulary do not fit.
"""

import functools

import numpy as np

from t5x_like.batches.encoder_rows import SpecialTokens, TextRows
from t5x_like.names import choose
from t5x_like.objectives import formats, masking
from t5x_like.objectives.formats import Format, Pairing
from t5x_like.objectives.grouping import CorruptRows, objective_over_groups
from t5x_like.objectives.masking import Choose, Writing
from t5x_like.objectives.noise import check_rate, check_shares
from t5x_like.objectives.objective import Groups, of_encoder, of_masked

_WORD = np.ones(1)  # probabilities of span lengths: always one word


def bert(
    *,
    rate: float = 0.15,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    whole_word: bool = False,
    next_sentence: bool = True,
    short_rate: float = 0.1,
    copies: int = 0,
    group: int = 64,
) -> Groups:
    """Mask tokens, and predict whether B follows A (BERT, section 3.1 and appendix A.2).

        inputs:  [CLS] the man went to [MASK] store [SEP] he bought a gallon [MASK] milk [SEP]
        label:   0 since B follows A; 1 if B is from another document, in half of the pairs

    Args:
        rate, random_rate, kept_rate, short_rate, copies, group: see above. BERT's code: 10 copies.
        whole_word: mask all tokens of a word or none, as in BERT's later release.
        next_sentence: pairs; without them a row is one segment of a document, without a label.
    """
    _check("bert", **locals())
    write = Writing(random_rate=random_rate, kept_rate=kept_rate)
    noise = masking.spans_at(rate, _WORD) if whole_word else masking.tokens_at(rate)
    pairs = _pairs(formats.next_or_random, short_rate=short_rate)
    return objective_over_groups(
        "bert",
        row_format=pairs if next_sentence else Format(formats.doc_sentences),
        corrupt=_masked(noise, write),
        group=group,
        copies=copies,
        of=of_masked("token_types", "label") if next_sentence else None,
    )


def roberta(
    *,
    format: str = "full_sentences",  # noqa: A002, as the paper calls it
    rate: float = 0.15,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    short_rate: float = 0.1,
    copies: int = 0,
    group: int = 64,
) -> Groups:
    """Mask tokens, in one of four formats of rows (RoBERTa, sections 4.1, 4.2, table 2).

        inputs:  <s> the man went to the <mask> . he bought milk . </s> another document . </s>

    Args:
        format: "full_sentences" (RoBERTa's choice), "doc_sentences", or the pairs "segment_pair"
            and "sentence_pair" with BERT's label, whose segments have </s></s> between them.
        rate, random_rate, kept_rate, short_rate, copies, group: see above. Static masking used
            10 copies, dynamic masking 0; `short_rate` only applies to segment pairs.
    """
    _check("roberta", **locals())
    table = {
        "segment_pair": _pairs(formats.next_or_random, short_rate=short_rate, separators=2),
        "sentence_pair": Format(formats.sentence_pairs, separators=2),
        "full_sentences": Format(formats.full_sentences),
        "doc_sentences": Format(formats.doc_sentences),
    }
    write = Writing(random_rate=random_rate, kept_rate=kept_rate)
    return objective_over_groups(
        "roberta",
        row_format=choose("format of roberta", format, table),
        corrupt=_masked(masking.tokens_at(rate), write),
        group=group,
        copies=copies,
        of=of_masked("label") if format in ("segment_pair", "sentence_pair") else of_masked(),
    )


def spanbert(
    *,
    rate: float = 0.15,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    span_p: float = 0.2,
    longest: int = 10,
    group: int = 64,
) -> Groups:
    """Mask spans of words, and predict them also from their boundaries (SpanBERT, 3.1 to 3.3).

        inputs:  [CLS] an american [MASK] [MASK] [MASK] game [SEP]
        targets: [CLS] an american foot ##ball ball game [SEP]
        span_left: 2 and span_right: 6 on all three: the positions of "american" and "game"

    A row is one segment of a document. Spans are at least a word apart, so that both boundary
    tokens are visible; a span is masked, replaced or kept as a whole. Random tokens are sampled
    from the text, by their frequency, as in the authors' code.

    Args:
        rate, random_rate, kept_rate, group: see above.
        span_p: parameter of the geometric distribution of span lengths, in words.
        longest: the most words of a span.
    """
    _check("spanbert", **locals())
    if not 0 < span_p < 1 or longest < 1:
        raise ValueError(
            f"spanbert: span_p={span_p} must lie between 0 and 1, longest={longest} be 1 or more"
        )
    noise = masking.spans_at(rate, masking.geometric(span_p, longest=longest), apart=1)
    write = Writing(
        random_rate=random_rate, kept_rate=kept_rate, random_tokens="text", together="span"
    )

    def corrupt(
        generator: np.random.Generator, rows: TextRows, special: SpecialTokens
    ) -> dict[str, np.ndarray]:
        chosen = noise(generator, rows, special)
        left, right = masking.boundaries(chosen)
        inputs = write(generator, rows.tokens, chosen, special)
        return {
            "inputs": inputs,
            "loss_weights": chosen > 0,
            "span_left": left,
            "span_right": right,
        }

    return objective_over_groups(
        "spanbert",
        row_format=Format(formats.doc_sentences),
        corrupt=corrupt,
        group=group,
        of=of_masked("span_left", "span_right"),
    )


def albert(
    *,
    rate: float = 0.15,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    longest: int = 3,
    sentences: str = "order",
    short_rate: float = 0.1,
    group: int = 64,
) -> Groups:
    """Mask n-grams of words, and predict the order of two segments (ALBERT, sections 3.1, 4.1).

        inputs:  [CLS] he bought [MASK] [MASK] [MASK] [SEP] the man went to the store [SEP]
        label:   1 since the segments are swapped, in half of the pairs; 0 if they are in order

    The probability of an n-gram of length n is proportional to 1 / n.

    Args:
        rate, random_rate, kept_rate, short_rate, group: see above.
        longest: the most words of an n-gram.
        sentences: the kind of label (section 4.6, table 5): "order" as above; "next", BERT's pairs
            and label; "none", no label and rows of one segment (`short_rate` only affects pairs).
    """
    _check("albert", **locals())
    if longest < 1:
        raise ValueError(f"albert: longest={longest} must be 1 or more words")
    table = {
        "order": _pairs(formats.next_or_previous, short_rate=short_rate),
        "next": _pairs(formats.next_or_random, short_rate=short_rate),
        "none": Format(formats.doc_sentences),
    }
    noise = masking.spans_at(rate, masking.harmonic(longest))
    return objective_over_groups(
        "albert",
        row_format=choose("albert's sentences", sentences, table),
        corrupt=_masked(noise, Writing(random_rate=random_rate, kept_rate=kept_rate)),
        group=group,
        of=of_masked("token_types", "label") if sentences != "none" else None,
    )


def structbert(
    *,
    rate: float = 0.15,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    shuffle_rate: float = 0.05,
    short_rate: float = 0.1,
    group: int = 64,
) -> Groups:
    """Mask tokens, shuffle trigrams, and predict one of three kinds of pairs (StructBERT, 2.2).

        inputs:   [CLS] the man to store went [SEP] he bought a [MASK] of milk [SEP]
        targets:  [CLS] the man went to store [SEP] he bought a gallon of milk [SEP]
        shuffled: 1 on "to store went", which is to be reordered; loss_weights is 1 on [MASK]
        label:    0 if B follows A, 1 if it precedes it, 2 if it is from another document

    Args:
        rate, random_rate, kept_rate, short_rate, group: see above.
        shuffle_rate: share of the tokens without noise that are in shuffled trigrams, rounded to
            whole trigrams; no shuffled trigram stays in order.
    """
    _check("structbert", **locals())
    if not 0 <= shuffle_rate < 1:
        raise ValueError(f"structbert: shuffle_rate={shuffle_rate} must be 0 or more, below 1")
    noise = masking.tokens_at(rate)
    write = Writing(random_rate=random_rate, kept_rate=kept_rate)

    def corrupt(
        generator: np.random.Generator, rows: TextRows, special: SpecialTokens
    ) -> dict[str, np.ndarray]:
        chosen = noise(generator, rows, special)
        inputs = write(generator, rows.tokens, chosen, special)
        free = rows.text & (chosen == 0)
        inputs, shuffled = masking.shuffled_trigrams(generator, inputs, free, rate=shuffle_rate)
        return {"inputs": inputs, "loss_weights": chosen > 0, "shuffled": shuffled}

    return objective_over_groups(
        "structbert",
        row_format=_pairs(formats.next_previous_or_random, short_rate=short_rate),
        corrupt=corrupt,
        group=group,
        of=of_masked("token_types", "shuffled", "label"),
    )


def electra(
    *,
    rate: float = 0.15,
    random_rate: float = 0.0,
    kept_rate: float = 0.0,
    short_rate: float = 0.05,
    group: int = 64,
) -> Groups:
    """Mask tokens for the generator to replace (Clark et al. 2020, section 3.1).

        inputs:  [CLS] the [MASK] went to the store [SEP] he bought [MASK] [SEP]

    All noise is [MASK]; the authors' code keeps 15% unchanged (`kept_rate=0.15`), and its
    large models have a `rate` of 0.25. Segments follow each other, and have no label.

    Args:
        rate, random_rate, kept_rate, short_rate, group: see above.
    """
    _check("electra", **locals())
    write = Writing(random_rate=random_rate, kept_rate=kept_rate)
    return objective_over_groups(
        "electra",
        row_format=_pairs(formats.one_or_two, short_rate=short_rate),
        corrupt=_masked(masking.tokens_at(rate), write),
        group=group,
    )


def unmasked(*, short_rate: float = 0.05, group: int = 64) -> Groups:
    """Make rows of plain text, for a student that learns from its teacher (TinyBERT, 3.2).

        inputs:  [CLS] the man went to the store [SEP] he bought milk [SEP]

    Jiao et al. 2019. Rows are as in `electra`, without noise and without targets.

    Args:
        short_rate, group: see above.
    """
    if not 0 <= short_rate <= 1:
        raise ValueError(f"unmasked: short_rate={short_rate} must be from 0 to 1")

    def corrupt(
        generator: np.random.Generator, rows: TextRows, special: SpecialTokens
    ) -> dict[str, np.ndarray]:
        del generator, special
        return {"inputs": rows.tokens}

    return objective_over_groups(
        "unmasked",
        row_format=_pairs(formats.one_or_two, short_rate=short_rate),
        corrupt=corrupt,
        group=group,
        of=of_encoder("token_types"),
    )


def unilm(
    *,
    rate: float = 0.15,
    random_rate: float = 0.1,
    kept_rate: float = 0.1,
    ngram_rate: float = 0.2,
    bidirectional: float = 1 / 3,
    sequence_to_sequence: float = 1 / 3,
    left_to_right: float = 1 / 6,
    right_to_left: float = 1 / 6,
    short_rate: float = 0.1,
    group: int = 64,
) -> Groups:
    """Make rows for four language models, with masked tokens or n-grams (UniLM, 2.3 and 2.4).

        inputs:       [CLS] the man [MASK] [MASK] the store [SEP] he [MASK] milk [SEP]
        token_types:  0 and 1 in pairs for the bidirectional model, with BERT's label
                      4 and 5 in pairs for the sequence-to-sequence model, where B follows A
                      2 in single segments read from left to right, 3 from right to left

    Args:
        rate, random_rate, kept_rate, short_rate, group: see above.
        ngram_rate: share of the spans that have two or three tokens, with equal chances.
        bidirectional, sequence_to_sequence, left_to_right, right_to_left: shares of the rows.
    """
    _check("unilm", **locals())
    shares = {
        "bidirectional": bidirectional,
        "sequence_to_sequence": sequence_to_sequence,
        "left_to_right": left_to_right,
        "right_to_left": right_to_left,
    }
    if min(shares.values()) < 0 or abs(sum(shares.values()) - 1) > 1e-6:
        raise ValueError(f"unilm: the shares {shares} must be 0 or more and sum to 1")
    if not 0 <= ngram_rate <= 1:
        raise ValueError(f"unilm: ngram_rate={ngram_rate} must be from 0 to 1")
    chances = np.array([1 - ngram_rate, ngram_rate / 2, ngram_rate / 2])
    noise = masking.spans_at(rate, chances, of="token")
    return objective_over_groups(
        "unilm",
        row_format=_pairs(functools.partial(formats.unified, shares=shares), short_rate=short_rate),
        corrupt=_masked(noise, Writing(random_rate=random_rate, kept_rate=kept_rate)),
        group=group,
        of=of_masked("token_types", "label"),
    )


def _pairs(pairing: Pairing, *, short_rate: float, separators: int = 1) -> Format:
    plan = functools.partial(formats.segment_pairs, pairing=pairing, short_rate=short_rate)
    return Format(plan, separators=separators)


def _masked(noise: Choose, write: Writing) -> CorruptRows:
    """Return a function that applies noise and marks it in the loss weights."""

    def corrupt(
        generator: np.random.Generator, rows: TextRows, special: SpecialTokens
    ) -> dict[str, np.ndarray]:
        chosen = noise(generator, rows, special)
        return {
            "inputs": write(generator, rows.tokens, chosen, special),
            "loss_weights": chosen > 0,
        }

    return corrupt


def _check(
    name: str,
    *,
    rate: float,
    random_rate: float,
    kept_rate: float,
    short_rate: float = 0.0,
    **others: object,
) -> None:
    del others  # checked where they are used
    check_rate(name, rate=rate)
    check_shares(name, random_rate=random_rate, kept_rate=kept_rate)
    if not 0 <= short_rate <= 1:
        raise ValueError(f"{name}: short_rate={short_rate} must be from 0 to 1")
