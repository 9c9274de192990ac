"""Noise masks and chunk lengths: exact counts, fair draws, and chunks that fill the batch."""

import collections

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.objectives import noise
from t5x_like.objectives.denoising import random_spans_lengths
from tests.number_vocabulary import NumberVocabulary

SETTINGS = [
    (rate, span)
    for rate in (0.05, 0.1, 0.15, 0.25, 0.3, 0.5, 0.62, 0.9)
    for span in (1.0, 2.0, 2.7, 3.0, 5.0, 10.0, 64.0)
    if span * (1 - rate) >= rate
]


def draws(mask, *, count, seed=0):
    """Bool [count, L]: `count` masks, some with the same random numbers, as in a pipeline."""
    calls = [mask(np.random.default_rng([seed, n]), n % 3 + 1) for n in range(count)]
    return np.concatenate(calls)[:count]


def spans_mask(length, tokens, spans):
    return lambda generator, rows: noise.random_spans_mask(
        generator, (rows, length), tokens=tokens, spans=spans
    )


def prefix_mask(length):
    return lambda generator, rows: (
        np.arange(length) < noise.random_prefixes(generator, (rows, length))[:, None]
    )


def test_t5s_best_setting_fills_512_and_114_from_568():
    assert random_spans_lengths(512) == (568, 114)
    assert noise.span_counts(568, rate=0.15, mean_span=3.0) == (85, 28)


@pytest.mark.parametrize(
    ("inputs", "rate", "span", "expected"),
    [
        (1024, 0.15, 3.0, (1137, 229)),  # 1137 = 966 kept + 171 noise in 57 spans
        (512, 0.5, 3.0, (766, 512)),  # 383 + 128 + EOS both; 767 would take 513 targets, as T5
        (512, 0.15, 10.0, (591, 99)),  # 591 = 502 kept + 89 noise in 9 spans
    ],
)
def test_lengths_of_other_settings(inputs, rate, span, expected):
    assert random_spans_lengths(inputs, rate=rate, mean_span=span) == expected


def test_the_final_sentinel_and_eos_are_counted():
    assert random_spans_lengths(512, final_sentinel=True) == (568, 115)
    assert random_spans_lengths(511, eos=0) == (568, 113)
    assert random_spans_lengths(513, random_roll=True) == (568, 115)
    # Spans of one token cannot be cut in two.
    assert random_spans_lengths(40, mean_span=1.0, random_roll=True) == (39, 13)


@pytest.mark.parametrize(("rate", "span"), SETTINGS)
def test_raw_lengths_fill_the_inputs_and_no_longer_ones_do(rate, span):
    def inputs_of(raw):
        tokens, spans = noise.span_counts(raw, rate=rate, mean_span=span)
        return raw - tokens + spans + 1

    # Where each kept span must be a single token, inputs grow by two at a time.
    slack = int(span * (1 - rate) < 1.05 * rate)
    for inputs in [*range(12, 130), 256, 512, 513, 1024]:
        raw, targets = random_spans_lengths(inputs, rate=rate, mean_span=span)
        tokens, spans = noise.span_counts(raw, rate=rate, mean_span=span)
        assert inputs - slack <= inputs_of(raw) <= inputs
        assert targets == tokens + spans + 1
        assert inputs_of(raw + 1) > inputs or targets <= inputs


@pytest.mark.parametrize(("rate", "span"), SETTINGS)
def test_counts_leave_noise_and_text_in_every_chunk(rate, span):
    for length in range(2, 400):
        tokens, spans = noise.span_counts(length, rate=rate, mean_span=span)
        assert 1 <= spans <= min(tokens, length - tokens)
    assert noise.span_counts(0, rate=rate, mean_span=span) == (0, 0)
    assert noise.span_counts(1, rate=rate, mean_span=span) == (0, 0)


def test_span_masks_have_exactly_their_counts():
    masks = draws(spans_mask(568, 85, 28), count=1000).astype(int)
    starts = np.diff(masks, axis=1, prepend=0) == 1
    assert (masks.sum(axis=1) == 85).all()
    assert (starts.sum(axis=1) == 28).all()
    assert not masks[:, 0].any()  # text first
    assert masks[:, -1].all()  # noise last


def test_every_span_mask_is_equally_likely():
    masks = draws(spans_mask(7, 3, 2), count=6000).astype(int)
    seen = collections.Counter("".join("-x"[noisy] for noisy in mask) for mask in masks)
    # 2 ways to part 3 noise tokens times 3 ways to part 4 kept ones.
    assert set(seen) == {
        "-x---xx", "-xx---x", "--x--xx", "--xx--x", "---x-xx", "---xx-x",
    }  # fmt: skip
    # 1,000 each, standard deviation 29: five of them in a seeded draw.
    assert max(abs(n - 1000) for n in seen.values()) < 145


def test_rolled_masks_are_noise_at_every_place_equally_often():
    spans = spans_mask(8, 2, 1)
    masks = draws(lambda generator, n: noise.roll_mask(generator, spans(generator, n)), count=4000)
    masks = masks.astype(int)
    seen = collections.Counter("".join("-x"[noisy] for noisy in mask) for mask in masks)
    assert set(seen) == {"".join("-x"[(n - k) % 8 < 2] for n in range(8)) for k in range(8)}
    # 500 each, standard deviation 21: five of them in a seeded draw.
    assert max(abs(n - 500) for n in seen.values()) < 105


def test_token_masks_are_exact_in_number_and_even_over_places():
    masks = draws(
        lambda generator, n: noise.random_tokens_mask(generator, (n, 40), tokens=6), count=4000
    )
    assert (masks.sum(axis=1) == 6).all()
    # Standard deviation sqrt(.15 * .85 / 4000) = 0.0056: five of them.
    assert abs(masks.mean(axis=0) - 0.15).max() < 0.028
    both = (masks[:, 1:] & masks[:, :-1]).mean()
    assert abs(both - 6 / 40 * 5 / 39) < 0.002  # neighbours are as independent as any two


def test_prefixes_are_uniform_and_leave_both_parts_some_text():
    masks = draws(prefix_mask(5), count=4000)
    assert (np.diff(masks.astype(int), axis=1) <= 0).all()
    counts = np.bincount(masks.sum(axis=1), minlength=6)
    assert counts[0] == counts[5] == 0
    assert abs(counts[1:5] - 1000).max() < 140  # standard deviation 27


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_masks_of_the_shortest_chunks(length):
    tokens, spans = noise.span_counts(length, rate=0.15, mean_span=3.0)
    spans_masks = draws(spans_mask(length, tokens, spans), count=5)
    prefixes = draws(prefix_mask(length), count=5)
    assert spans_masks.shape == prefixes.shape == (5, length)
    assert (spans_masks.sum(axis=1) == min(1, max(0, length - 1))).all()
    assert (prefixes.sum(axis=1) <= max(0, length - 1)).all()


def test_sentinels_are_the_extra_ids_or_else_the_last_hundred():
    assert vocabularies.load("bytes:7").sentinels == 7
    assert vocabularies.load("bytes:0").sentinels == 100  # as ByT5
    assert NumberVocabulary(50).sentinels == 47
