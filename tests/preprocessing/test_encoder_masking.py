"""Choosing and writing noise in many rows at once: distributions of spans, budgets, boundaries."""

import random

import numpy as np
import pytest

from t5x_like.batches import encoder_rows
from t5x_like.objectives import formats, masking

ROWS, LENGTH = 2000, 128
GENERATOR = np.random.default_rng


def one_run(rows=ROWS, length=LENGTH, *, starts=None):
    """Units, tokens or words that begin at `starts`, of rows of text between special tokens."""
    text = np.ones([rows, length], bool)
    text[:, [0, -1]] = False
    return encoder_rows.units(np.ones_like(text) if starts is None else starts, text=text)


def span_lengths(noise, *, but_last):
    """How often spans of 1, 2, ... units were placed, the last one of each row counted or not."""
    counts = np.zeros(noise.max() + 1, int)
    found = np.zeros(LENGTH, int)
    for row in noise:
        counts = np.bincount(row)[1:]
        found += np.bincount(counts[: len(counts) - but_last], minlength=LENGTH)[:LENGTH]
    return found


@pytest.mark.parametrize(
    ("chances", "apart", "mean"),
    [
        (masking.geometric(0.2, longest=10), 1, 3.797),  # SpanBERT's figure 2 has 3.8
        (masking.harmonic(3), 0, 3 / (1 + 1 / 2 + 1 / 3)),
        (np.array([0.8, 0.1, 0.1]), 0, 1.3),
    ],
)
def test_lengths_of_spans_are_drawn_from_their_chances(chances, apart, mean):
    assert abs(chances @ np.arange(1, len(chances) + 1) - mean) < 0.001
    budget = np.full(ROWS, 19)
    noise = masking.spans(GENERATOR(0), one_run(), budget=budget, chances=chances, apart=apart)
    np.testing.assert_array_equal((noise > 0).sum(axis=1), budget)
    # Which length comes first in a row does not depend on the budget, which is 19 or more.
    first = (noise == 1).sum(axis=1)
    for length, chance in enumerate(chances, start=1):
        deviation = np.sqrt(chance * (1 - chance) / ROWS)
        assert abs((first == length).mean() - chance) < 4 * deviation
    # Spans are sampled until the budget is spent, and the last one is cut: simulated without text.
    found = span_lengths(noise, but_last=0)[1 : len(chances) + 1]
    played = np.zeros_like(found)
    for sampled in GENERATOR(1).choice(len(chances), p=chances, size=[ROWS, 19]) + 1:
        ends = np.minimum(np.cumsum(sampled), 19)
        lengths = np.diff(ends, prepend=0)
        played += np.bincount(lengths[lengths > 0], minlength=len(found) + 1)[1:]
    total = found.sum()
    for ours, theirs in zip(found / total, played / played.sum(), strict=True):
        # Two samples; spans of a row are not quite independent of each other, hence five.
        assert abs(ours - theirs) < 5 * np.sqrt(2 * theirs * (1 - theirs) / total)


def test_spans_are_apart_and_in_one_run():
    text = np.ones([ROWS, 40], bool)
    text[:, [0, 15, 39]] = False
    within = encoder_rows.units(np.ones_like(text), text=text)
    chances = masking.geometric(0.2, longest=10)
    noise = masking.spans(GENERATOR(0), within, budget=np.full(ROWS, 8), chances=chances, apart=1)
    assert not noise[~text].any()
    # A span ends where the next token is another one's: there must be one of none between.
    change = (noise[:, 1:] != noise[:, :-1]) & (noise[:, 1:] > 0) & (noise[:, :-1] > 0)
    assert not change.any()
    for row in noise[:200]:
        for number in range(1, row.max() + 1):
            assert np.ptp(np.flatnonzero(row == number)) == (row == number).sum() - 1


def test_a_budget_that_whole_words_do_not_fit_is_left_over():
    starts = np.zeros([50, 14], bool)
    starts[:, 1::4] = True  # words of four tokens
    within = one_run(50, 14, starts=starts)
    for budget, spent in [(3, 0), (4, 4), (7, 4), (12, 12), (100, 12)]:
        noise = masking.spans(GENERATOR(0), within, budget=np.full(50, budget), chances=np.ones(1))
        assert set((noise > 0).sum(axis=1).tolist()) == {spent}


def test_units_by_eye():
    text = np.array([[0, 1, 1, 1, 0, 1, 1, 0]], bool)
    starts = np.array([[1, 1, 0, 1, 1, 0, 1, 0]], bool)
    found = encoder_rows.units(starts, text=text)
    assert found.counts.tolist() == [4]
    assert found.sizes.tolist() == [[2, 1, 1, 1]]
    assert found.of_token[text].tolist() == [
        0,
        0,
        1,
        2,
        3,
    ]  # text begins a word
    assert (found.runs[0, :2] == found.runs[0, 0]).all()
    assert (found.runs[0, 2:] == found.runs[0, 2]).all()
    assert found.runs[0, 0] != found.runs[0, 2]


def test_budgets_are_rounded_shares_of_one_at_least():
    text = np.arange(130) < np.array([[0], [1], [3], [10], [30], [126]])
    assert masking.budgets(text, rate=0.15).tolist() == [0, 1, 1, 2, 4, 19]


class FiveSpecialTokens:
    """What `encoder_rows.SpecialTokens` has, for ids from 5 to 1004."""

    mask = 4
    ordinary = np.arange(5, 1005, dtype=np.int32)
    is_special = np.arange(1005) < 5


def test_spans_are_written_as_a_whole():
    tokens = np.full([ROWS, LENGTH], 2, np.int32)
    noise = np.repeat(np.arange(LENGTH // 4), 4)[None].repeat(ROWS, axis=0)  # 0 is none
    written = masking.Writing(together="span")(GENERATOR(0), tokens, noise, FiveSpecialTokens())
    spans = written[:, 4:].reshape(-1, 4)
    kinds = {
        "masked": (spans == 4).all(axis=1),
        "random": (spans > 4).all(axis=1),
        "kept": (spans == 2).all(axis=1),
    }
    assert sum(kinds.values()).all()  # each span is one of them
    for kind, share in [("masked", 0.8), ("random", 0.1), ("kept", 0.1)]:
        assert abs(kinds[kind].mean() - share) < 4 * np.sqrt(share * (1 - share) / len(spans))
    assert (np.ptp(spans[kinds["random"]], axis=1) > 0).mean() > 0.98  # tokens of their own
    assert (written[:, :4] == 2).all()


def test_random_tokens_of_the_text_are_as_likely_as_they_are_frequent():
    # facebookresearch/SpanBERT, fairseq/data/masking.py, span_masking: "sample random token
    # according to input distribution".
    tokens = GENERATOR(1).choice([0, 3, 10, 11, 12], p=[0.2, 0.2, 0.3, 0.2, 0.1], size=(200, 100))
    noise = np.where(tokens > 4, 1, 0)
    writing = masking.Writing(random_rate=1.0, kept_rate=0.0, random_tokens="text")
    written = writing(GENERATOR(0), tokens, noise, FiveSpecialTokens())
    np.testing.assert_array_equal(written[noise == 0], tokens[noise == 0])
    shares = np.bincount(written[noise > 0], minlength=13)[10:] / noise.sum()
    np.testing.assert_allclose(shares, [1 / 2, 1 / 3, 1 / 6], atol=0.02)


@pytest.mark.parametrize("free", [1, 2, 3, 4])
def test_trigrams_need_three_free_tokens(free):
    tokens = np.arange(10, 18)[None].repeat(5, axis=0)
    where = np.arange(8)[None].repeat(5, axis=0) < np.array([[free], [free], [6], [0], [free]])
    shuffled, moved = masking.shuffled_trigrams(GENERATOR(0), tokens, where, rate=0.9)
    each = 3 if free > 2 else 0
    # In six free tokens the first trigram may leave no room for a second.
    assert moved.sum(axis=1).tolist() in ([each, each, n, 0, each] for n in (3, 6))
    np.testing.assert_array_equal(np.sort(shuffled, axis=1), tokens)
    np.testing.assert_array_equal(shuffled[~moved], tokens[~moved])


def test_boundaries_by_eye():
    left, right = masking.boundaries(np.array([[0, 1, 1, 0, 2, 0, 0]]))
    assert left.tolist() == [[0, 0, 0, 0, 3, 0, 0]]
    assert right.tolist() == [[0, 3, 3, 0, 5, 0, 0]]


def test_pairs_are_cut_as_berts_code_cuts_them():
    draw = random.Random(0)
    fronts = []
    for _ in range(300):
        a, b, most = draw.randint(1, 30), draw.randint(1, 30), draw.randint(2, 40)
        (a0, a1), (b0, b1) = formats.cut_to_fit([(0, a), (100, 100 + b)], most=most, draw=draw)
        sizes = [a, b]
        while sum(sizes) > most:
            sizes[0 if sizes[0] > sizes[1] else 1] -= 1
        assert [a1 - a0, b1 - b0] == sizes
        assert 0 <= a0 <= a1 <= a
        assert 100 <= b0 <= b1 <= 100 + b
        fronts += [(a0, a - sizes[0]), (b0 - 100, b - sizes[1])]
    cut_in_front, cut = np.sum(fronts, axis=0)
    assert abs(cut_in_front / cut - 0.5) < 4 * 0.5 / np.sqrt(cut)


def test_documents_lose_nothing_to_long_sentences_and_empty_ones():
    tokens = np.arange(25)
    found = formats.DocumentGroup.of(
        tokens, np.array([3, 12, 0, 10, 0]), np.array([2, 0, 2, 1]), longest=5
    )
    assert found.ends == [0, 3, 8, 13, 15, 20, 25]
    assert found.bounds == [0, 4, 6]  # two documents; the others are empty
    assert found.numbers(np.array([0, 14, 15, 24])).tolist() == [0, 0, 1, 1]
