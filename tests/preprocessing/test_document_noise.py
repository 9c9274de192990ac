"""BART's corruptions: what each does to one text, and how much of it, over many."""

import math

import numpy as np
import pytest

from t5x_like.objectives import document_noise
from t5x_like.objectives.document_noise import Text, corruptions

MASK = -1
TEXT = Text(np.array(list("ABC.DE.")), np.array([0, 0, 0, 0, 1, 1, 1]))
NAMES = list(corruptions("test", rate=0.3, mean_span=3.0))


class Chosen:
    """Random numbers that were thought of before."""

    def __init__(self, **answers):
        self._answers = {name: iter(values) for name, values in answers.items()}

    def __getattr__(self, name):
        return lambda *_, **__: np.array(next(self._answers[name]))


def by_eye(name, *, rate=0.3, **answers):
    """The corrupted text of the paper's figure 2, with "_" for a mask."""
    found = corruptions("test", rate=rate, mean_span=3.0)[name](Chosen(**answers), TEXT, "_")
    assert len(found.tokens) == len(found.sentences)
    return "".join(found.tokens), found.sentences.tolist()


def test_each_corruption_by_eye():
    assert by_eye("token_masking", choice=[[1, 4]]) == ("A_C._E.", [0, 0, 0, 0, 1, 1, 1])
    assert by_eye("token_deletion", choice=[[1, 4]]) == ("AC.E.", [0, 0, 0, 1, 1])
    # Spans of 2 and of 0: "A_.D_E." of places 0 to 6, where 1 and 4 are spans.
    infilled = by_eye("text_infilling", poisson=[[2, 0, 5]], choice=[[1]], rate=0.3)
    assert infilled == ("A_.DE.", [0, 0, 0, 1, 1, 1])
    assert by_eye("sentence_permutation", permutation=[[1, 0]]) == (
        "DE.ABC.",
        [1, 1, 1, 0, 0, 0, 0],
    )
    assert by_eye("document_rotation", integers=[2]) == ("C.DE.AB", [0, 0, 1, 1, 1, 0, 0])


def test_spans_of_length_0_are_masks_between_tokens_and_at_both_ends():
    # Four spans, of 0, 0, 2 and 0 tokens: two tokens are noise, and five are kept.
    def infilled(*places):
        return by_eye("text_infilling", poisson=[[0, 0, 2]], choice=[list(places)])[0]

    assert infilled(0, 3, 5) == "_AB_C_E."
    assert infilled(7, 0, 1) == "__C.DE._"


def long_text(size=1000, sentence=20):
    return Text(np.arange(size), np.arange(size) // sentence)


def many(name, *, draws=200, text=None, rate=0.3):
    corrupt = corruptions("test", rate=rate, mean_span=3.0)[name]
    generator = np.random.default_rng(0)
    return [corrupt(generator, text or long_text(), MASK) for _ in range(draws)]


@pytest.mark.parametrize(("rate", "noise"), [(0.15, 150), (0.3, 300), (0.5, 500)])
def test_exactly_the_share_of_tokens_is_noise(rate, noise):
    for found in many("token_masking", draws=20, rate=rate):
        assert (found.tokens == MASK).sum() == noise
        kept = found.tokens != MASK
        np.testing.assert_array_equal(found.tokens[kept], np.arange(1000)[kept])
    for found in many("token_deletion", draws=20, rate=rate):
        assert len(found.tokens) == 1000 - noise
        assert (np.diff(found.tokens) > 0).all()
    for found in many("text_infilling", draws=20, rate=rate):
        kept = found.tokens[found.tokens != MASK]
        assert len(kept) == 1000 - noise
        assert (np.diff(kept) > 0).all()


@pytest.mark.parametrize("name", ["token_masking", "token_deletion", "text_infilling"])
def test_noise_falls_on_every_place_alike(name):
    kept = [np.isin(np.arange(1000), found.tokens) for found in many(name, draws=400)]
    # Fewer spans reach the first tokens and the last than those that have some on both sides.
    share = np.mean(kept, axis=0)[20:-20]
    # 400 draws of 0.7 have a deviation of 0.023, and five of them are 0.115.
    np.testing.assert_allclose(share, 0.7, atol=0.115)
    # Over 48 neighbours, where a span takes several at once: 0.0033 times up to 2.
    np.testing.assert_allclose(share.reshape(20, 48).mean(axis=1), 0.7, atol=0.033)


def test_spans_have_poisson_lengths_of_which_one_in_twenty_is_0():
    generator = np.random.default_rng(1)
    sampled = [
        document_noise.span_lengths(generator, tokens=3000, mean=3.0)[:-1] for _ in range(100)
    ]
    lengths = np.concatenate(sampled)
    assert len(lengths) > 90_000
    chances = [math.exp(-3) * 3**n / math.factorial(n) for n in range(10)]
    # 100,000 draws: five deviations of a share of at most 0.25 are below 0.007.
    shares = np.bincount(lengths, minlength=10)[:10] / len(lengths)
    np.testing.assert_allclose(shares, chances, atol=0.007)
    assert abs(lengths.mean() - 3) < 0.03  # five times 1.7 / sqrt(100,000)
    assert abs(shares[0] - 0.0498) < 0.0035


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 150])
def test_spans_have_exactly_the_tokens_that_are_noise(tokens):
    generator = np.random.default_rng(2)
    for mean in (1.0, 3.0, 10.0):
        for _ in range(50):
            lengths = document_noise.span_lengths(generator, tokens=tokens, mean=mean)
            assert lengths.sum() == tokens
            assert (lengths >= 0).all()
            assert lengths[-1:].all()  # no more masks than it takes


def test_a_span_is_one_mask_so_that_a_tenth_of_the_text_is_masks():
    masks = [(found.tokens == MASK).sum() for found in many("text_infilling")]
    # 300 tokens in spans of 3, the last one cut: 100 and a little, deviation 6.
    assert abs(np.mean(masks) - 100.5) < 2
    assert 70 < min(masks) < max(masks) < 130


def test_sentences_stay_whole_in_an_order_that_is_any():
    text = Text(np.arange(9), np.array([0, 0, 0, 0, 1, 1, 2, 2, 2]))
    orders = {}
    for found in many("sentence_permutation", draws=1200, text=text):
        changes = np.flatnonzero(np.diff(found.sentences, prepend=-1))
        order = tuple(found.sentences[changes].tolist())
        orders[order] = orders.get(order, 0) + 1
        for number in range(3):
            inside = found.tokens[found.sentences == number]
            np.testing.assert_array_equal(inside, text.tokens[text.sentences == number])
    assert len(orders) == 6
    assert max(abs(count - 200) for count in orders.values()) < 65  # five times 12.9


def test_a_rotation_begins_at_any_token():
    firsts = [found.tokens[0] for found in many("document_rotation", draws=2000)]
    for found in many("document_rotation", draws=20):
        np.testing.assert_array_equal(np.diff(found.tokens) % 1000, 1)
    # The mean of 2000 uniform numbers below 1000: five times 289 / sqrt(2000).
    assert abs(np.mean(firsts) - 499.5) < 33
    assert len(set(firsts)) > 800


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_any_two_corruptions_follow_each_other(first, second):
    known = corruptions("test", rate=0.3, mean_span=3.0)
    for size in (1, 2, 3, 40):
        text = Text(np.arange(size), np.arange(size) // 8)
        generator = np.random.default_rng(size)
        found = known[second](generator, known[first](generator, text, MASK), MASK)
        assert len(found.tokens) == len(found.sentences) > 0
        assert set(found.tokens.tolist()) <= {MASK, *range(size)}
        assert set(found.sentences.tolist()) <= set(text.sentences.tolist())


def test_masks_go_with_their_sentences():
    known = corruptions("test", rate=0.3, mean_span=3.0)
    generator = np.random.default_rng(0)
    text = long_text(100, sentence=10)
    noisy = known["text_infilling"](generator, text, MASK)
    for number in range(10):
        before = noisy.tokens[noisy.sentences == number].tolist()
        after = known["sentence_permutation"](generator, noisy, MASK)
        assert after.tokens[after.sentences == number].tolist() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.0}, "test: rate must lie between 0 and 1, exclusive, got 0.0"),
        ({"rate": 1.0}, "got 1.0"),
        ({"mean_span": 0.5}, "test: mean_span=0.5 must be 1 token or more"),
    ],
)
def test_shares_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        corruptions("test", **{"rate": 0.3, "mean_span": 3.0, **settings})
