"""The denoising objectives of the T5 paper's comparison (Raffel et al. 2020, section 3.3).

Each objective is a noise mask with two ways of writing it, for the inputs and for the targets. If
spans or tokens are removed from the text, an example covers more text than its inputs are long; if
every token is replaced by one token, it covers equally much.
"""

from collections.abc import Callable

import numpy as np

from t5x_like.objectives.chunks import Ragged, Sizes, Tokens, fill, pairs_of_chunks
from t5x_like.objectives.noise import (
    Mask,
    check_rate,
    check_shares,
    check_spans,
    noise_count,
    random_spans_mask,
    random_tokens_mask,
    replace_tokens,
    roll_mask,
    rows_where,
    span_counts,
    span_sizes,
    spans_after_sentinels,
    spans_to_sentinels,
)
from t5x_like.objectives.objective import RunningText
from t5x_like.vocabularies import Vocabulary

# (tokens, noise mask, vocabulary, random numbers) -> inputs and targets of each chunk, without EOS.
WriteChunks = Callable[[Tokens, Mask, Vocabulary, np.random.Generator], tuple[Ragged, Ragged]]


def random_spans_lengths(
    inputs_length: int,
    *,
    rate: float = 0.15,
    mean_span: float = 3.0,
    final_sentinel: bool = False,
    random_roll: bool = False,
    eos: int = 1,
) -> tuple[int, int]:
    """Return (raw length, targets length) with which span corruption fills `inputs_length` tokens.

    At T5's best setting 512 -> (568, 114): of 568 tokens, 85 are noise in 28 spans, so the inputs
    are 483 + 28 + EOS and the targets 85 + 28 + EOS.

    Args:
        inputs_length: in tokens, including EOS and sentinels.
        rate: share of noise tokens.
        mean_span: tokens per span of noise.
        final_sentinel: see `span_corruption`; the targets are one token longer.
        random_roll: see `span_corruption`; both leave room for one more sentinel.
        eos: tokens that end the inputs, and the targets: 1, or 0 for features without EOS.

    Raises:
        ValueError: see `span_corruption`.
    """
    check_spans("random_spans_lengths", rate=rate, mean_span=mean_span)
    sizes = span_sizes(
        rate=rate, mean_span=mean_span, final_sentinel=final_sentinel, random_roll=random_roll
    )
    # At rate 0.5 several raw lengths fill the inputs: like T5, take one with targets no longer.
    raw_length = fill(sizes, inputs=inputs_length - eos, targets=inputs_length - eos)
    return raw_length, sizes(raw_length).targets + eos


def span_corruption(
    *,
    rate: float = 0.15,
    mean_span: float = 3.0,
    final_sentinel: bool = False,
    random_roll: bool = False,
) -> RunningText:
    """Replace random spans of tokens by one sentinel each (T5, sections 3.1.4 and 3.3.4).

        inputs:  Thank you <X> to your party <Y> EOS
        targets: <X> for inviting me <Y> last week . EOS

    Sentinels count down from the last id of the vocabulary. In the paper's example one more, <Z>,
    ends the targets, for the text after the last span. T5's code samples masks that end in a span,
    and omits it: its 114 target tokens for 512 inputs are 85 noise tokens, 28 sentinels and EOS.
    This function does the same without `final_sentinel`.

    Args:
        rate: share of tokens that are noise.
        mean_span: mean length of a span, in tokens.
        final_sentinel: end the targets with <Z>, as in the paper's example: 115 target tokens.
        random_roll: rotate each mask by a random number of tokens, so that noise is anywhere and
            not always last, like the setting of that name in T5's code. In a row of one span this
            makes the difference between a blank within a text and the end of the text. A span that
            crosses the end becomes two; rows without such a span are one token shorter.

    Raises:
        ValueError: `rate` or `mean_span` is out of range; later, when the dataset is built and
            before it is read, the lengths or the vocabulary do not fit.
    """
    check_spans("span_corruption", rate=rate, mean_span=mean_span)

    def corrupt(
        tokens: Tokens, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        first = vocabulary.first_sentinel
        noise, spans = span_counts(tokens.shape[1], rate=rate, mean_span=mean_span)
        mask = random_spans_mask(generator, tokens.shape, tokens=noise, spans=spans)
        if random_roll:
            mask = roll_mask(generator, mask)
        targets = spans_after_sentinels(tokens, mask, first=first, final_sentinel=final_sentinel)
        return spans_to_sentinels(tokens, mask, first=first), targets

    return pairs_of_chunks(
        "span_corruption",
        sizes=span_sizes(
            rate=rate, mean_span=mean_span, final_sentinel=final_sentinel, random_roll=random_roll
        ),
        corrupt=corrupt,
    )


def iid_replace_spans(*, rate: float = 0.15) -> RunningText:
    """Replace random tokens by sentinels, shared by neighbours (T5, section 3.3.2, its baseline).

        inputs:  Thank you <X> me to your party <Y> week . EOS
        targets: <X> for inviting <Y> last <Z> EOS

    The number of adjacent noise tokens is random, so lengths vary by a few tokens: chunks are as
    long as the inputs, and the targets must have room for the case that no two are adjacent.

    Args:
        rate: share of tokens that are noise.

    Raises:
        ValueError: see `span_corruption`.
    """

    def sizes(length: int) -> Sizes:
        tokens = noise_count(length, rate=rate)
        spans = min(tokens, length - tokens + 1)
        return Sizes(inputs=length, targets=tokens + spans + 1, sentinels=spans + 1)

    def write(
        tokens: Tokens, mask: Mask, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        del generator
        first = vocabulary.first_sentinel
        targets = spans_after_sentinels(tokens, mask, first=first, final_sentinel=True)
        return spans_to_sentinels(tokens, mask, first=first), targets

    return _token_noise("iid_replace_spans", rate=rate, sizes=sizes, write=write)


def iid_drop_tokens(*, rate: float = 0.15) -> RunningText:
    """Delete single tokens at random; predict them (T5, section 3.3.2).

        inputs:  Thank you me to your party week . EOS
        targets: for inviting last EOS

    Args:
        rate: share of tokens that are noise.

    Raises:
        ValueError: see `span_corruption`.
    """

    def sizes(length: int) -> Sizes:
        tokens = noise_count(length, rate=rate)
        return Sizes(inputs=length - tokens, targets=tokens)

    def write(
        tokens: Tokens, mask: Mask, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        del vocabulary, generator
        return rows_where(tokens, ~mask), rows_where(tokens, mask)

    return _token_noise("iid_drop_tokens", rate=rate, sizes=sizes, write=write)


def bert_style(
    *, rate: float = 0.15, random_rate: float = 0.1, kept_rate: float = 0.0
) -> RunningText:
    """Mask or replace tokens; predict the whole text (T5, section 3.3.1).

        inputs:  Thank you <M> <M> me to your party apple week . EOS
        targets: Thank you for inviting me to your party last week . EOS

    In T5's paper 15% of the tokens are corrupted: 90% become the mask token and 10% a random
    token. The original shares of BERT (Devlin et al. 2018, section 3.1: 80% masked, 10% random, 10%
    kept) need `kept_rate=0.1`.

    Args:
        rate: share of tokens that are noise.
        random_rate: share of the noise tokens that become a random token.
        kept_rate: share of the noise tokens that are kept.

    Raises:
        ValueError: see `span_corruption`; or the last two are negative or sum to more than 1.
    """
    check_shares("bert_style", random_rate=random_rate, kept_rate=kept_rate)

    def write(
        tokens: Tokens, mask: Mask, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        inputs = replace_tokens(
            generator,
            tokens,
            mask,
            vocabulary=vocabulary,
            random_rate=random_rate,
            kept_rate=kept_rate,
        )
        return list(inputs), list(tokens)

    return _token_noise(
        "bert_style", rate=rate, sizes=_whole_text, write=write, converters=_ALIGNED
    )


def mass_style(*, rate: float = 0.15) -> RunningText:
    """Mask tokens; predict the whole text (T5, section 3.3.2).

        inputs:  Thank you <M> <M> me to your party <M> week . EOS
        targets: Thank you for inviting me to your party last week . EOS

    T5's variant of MASS (Song et al. 2019); the original masks one long span and predicts it.

    Args:
        rate: share of tokens that are noise.

    Raises:
        ValueError: see `span_corruption`.
    """

    def write(
        tokens: Tokens, mask: Mask, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        del generator
        return list(np.where(mask, np.int32(vocabulary.first_sentinel), tokens)), list(tokens)

    return _token_noise(
        "mass_style", rate=rate, sizes=_whole_text, write=write, converters=_ALIGNED
    )


def deshuffling() -> RunningText:
    """Shuffle all tokens; predict the text (T5, section 3.3.1).

    inputs:  party me for your to . last you inviting week Thank EOS
    targets: Thank you for inviting me to your party last week . EOS
    """

    def corrupt(
        tokens: Tokens, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        del vocabulary
        return list(generator.permuted(tokens, axis=1)), list(tokens)

    return pairs_of_chunks(
        "deshuffling", sizes=lambda length: Sizes(inputs=length, targets=length), corrupt=corrupt
    )


def _whole_text(length: int) -> Sizes:
    return Sizes(inputs=length, targets=length, sentinels=1)


def _token_noise(
    name: str,
    *,
    rate: float,
    sizes: Callable[[int], Sizes],
    write: WriteChunks,
    converters: tuple[str, ...] = ("encoder_decoder", "prefix_lm"),
) -> RunningText:
    """Make an objective whose noise is single tokens at random positions, of a fixed number."""
    check_rate(name, rate=rate)

    def corrupt(
        tokens: Tokens, vocabulary: Vocabulary, generator: np.random.Generator
    ) -> tuple[Ragged, Ragged]:
        noise = noise_count(tokens.shape[1], rate=rate)
        mask = random_tokens_mask(generator, tokens.shape, tokens=noise)
        return write(tokens, mask, vocabulary, generator)

    return pairs_of_chunks(name, sizes=sizes, corrupt=corrupt, converters=converters)


# A target token for each input token, so that an encoder can predict them too.
_ALIGNED = ("encoder_decoder", "prefix_lm", "encoder")
