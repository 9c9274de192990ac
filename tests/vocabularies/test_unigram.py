"""The unigram model beside all segmentations, and two libraries' encodings."""

import collections
import itertools
import math
import re

import pytest
import sentencepiece
from tokenizers import models

from t5x_like.vocabularies import trainers
from t5x_like.vocabularies.algorithms import unigram
from t5x_like.vocabularies.algorithms.unigram import BEGIN

WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "banana": 2}
SCORES = unigram.seeds(WORDS, longest=4)


def segmentations(word, scores):
    """Every way to cut a word into pieces, with its probability."""
    for number in range(len(word)):
        for cuts in itertools.combinations(range(1, len(word)), number):
            ends = [0, *cuts, len(word)]
            pieces = [word[start:end] for start, end in itertools.pairwise(ends)]
            if scores.keys() >= set(pieces):
                yield pieces, math.exp(sum(scores[piece] for piece in pieces))


def probability(word, scores):
    return sum(probability for _, probability in segmentations(word, scores))


def log_likelihood(words, scores):
    return sum(count * math.log(probability(word, scores)) for word, count in words.items())


def test_the_example_has_words_with_many_segmentations_and_repeated_pieces():
    assert len(list(segmentations("newest", SCORES))) > 20
    assert {"an", "ana", "est", "low"} < SCORES.keys()
    assert SCORES["n"] == pytest.approx(math.log((6 + 2 * 2) / sum(seed_counts().values())))


def seed_counts():
    counts = collections.Counter()
    for word, count in WORDS.items():
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            counts[word[start:end]] += count
    return {one: counts[one] for one in SCORES}


def test_forward_and_backward_are_the_sum_over_all_segmentations():
    for word in WORDS:
        expected = math.log(probability(word, SCORES))
        assert unigram.forward(word, SCORES)[-1] == pytest.approx(expected)
        assert unigram.backward(word, SCORES)[0] == pytest.approx(expected)


def test_expected_counts_are_the_average_over_all_segmentations():
    expected = dict.fromkeys(SCORES, 0.0)
    for word, count in WORDS.items():
        for pieces, share in segmentations(word, SCORES):
            for piece in pieces:
                expected[piece] += count * share / probability(word, SCORES)
    assert unigram.expected_counts(WORDS, SCORES) == pytest.approx(expected)


def test_a_step_by_hand():
    # ab is one piece (1/2) or two (1/4 * 1/4): of 9 parts 8 and 1.
    scores = {"a": math.log(1 / 4), "b": math.log(1 / 4), "ab": math.log(1 / 2)}
    expected = unigram.expected_counts({"ab": 9}, scores)
    assert expected == pytest.approx({"a": 1, "b": 1, "ab": 8})
    probabilities = {one: math.exp(score) for one, score in unigram.maximize(expected).items()}
    assert probabilities == pytest.approx({"a": 0.1, "b": 0.1, "ab": 0.8})
    # Without ab the word has 1/9 of its probability.
    assert unigram.losses({"ab": 9}, scores)["ab"] == pytest.approx(9 * math.log(9))


def test_the_likelihood_never_falls():
    scores, before = SCORES, -math.inf
    for _ in range(10):
        scores = unigram.maximize(unigram.expected_counts(WORDS, scores))
        after = log_likelihood(WORDS, scores)
        assert after > before - 1e-4  # characters stay with a count of 1e-6
        before = after


@pytest.mark.parametrize("steps", [0, 30])  # after 30, some pieces are nearly sure
def test_a_loss_is_the_difference_without_the_piece(steps):
    scores = SCORES
    for _ in range(steps):
        scores = unigram.maximize(unigram.expected_counts(WORDS, scores))
    whole = log_likelihood(WORDS, scores)
    lost = unigram.losses(WORDS, scores)
    for piece in scores:
        if len(piece) > 1:
            rest = {one: score for one, score in scores.items() if one != piece}
            expected = whole - log_likelihood(WORDS, rest)
            assert lost[piece] == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_pruning_reaches_the_size_and_keeps_all_characters(frequent_words):
    scores = unigram.train(frequent_words, 150)
    assert len(scores) == 150
    assert set(BEGIN).union(*frequent_words) <= scores.keys()
    assert sum(map(math.exp, scores.values())) == pytest.approx(1, abs=1e-3)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert unigram.train(dict(reversed(frequent_words.items())), 150).keys() == scores.keys()


def test_the_best_segmentation_is_the_most_probable_of_all():
    scores = SCORES | {BEGIN: -3.0, BEGIN + "new": -6.0}
    for word in [*WORDS, "lowest", "banal"]:
        best, _ = max(segmentations(BEGIN + word, scores), key=lambda way: way[1])
        assert unigram.encode(word, scores) == best


def test_an_unknown_character_is_a_piece():
    assert unigram.encode("loxw", SCORES | {BEGIN: -3.0}) == [BEGIN, "lo", "x", "w"]


def test_encodings_equal_the_library_with_the_same_scores(frequent_words, held_out_words):
    scores = unigram.train(frequent_words, 250)
    model = models.Unigram([("<unk>", 0.0), *scores.items()], unk_id=0)
    known = set(scores)
    words = [word for word in held_out_words if set(word) <= known]
    for word in [*words, "\u00fea\u00fe", "\u00fe"]:
        expected = [token.value for token in model.tokenize(BEGIN + word)]
        assert unigram.encode(word, scores) == expected
    assert len(words) > 400


def test_encodings_equal_a_trained_sentencepiece(page_words, held_out_words, tmp_path):
    path = str(tmp_path / "some.model")
    letters = {word: count for word, count in page_words.items() if re.fullmatch("[a-z]+", word)}
    texts = (" ".join([word] * count) for word, count in letters.items())
    trainers.train(texts, vocab_size=500, output=path)
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    pieces = {model.id_to_piece(n): model.get_score(n) for n in range(len(model))}
    scores = {piece: score for piece, score in pieces.items() if not piece.startswith("<")}
    words = [word for word in held_out_words if re.fullmatch("[a-z]+", word)]
    for word in words:
        assert unigram.encode(word, scores) == model.encode(word, out_type=str)
    assert len(words) > 400


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ({}, {"size": 9}, "There are no words to learn pieces from."),
        ({"ab": 1}, {"size": 2}, "size=2: at least 3 are needed, since each character is a piece."),
        ({"ab": 1}, {"size": 9}, "size=9: the words give only 3 pieces."),
        (
            {"ab": 1},
            {"size": 3, "keep": 1.0},
            "keep=1.0, iterations=2: between 0 and 1; at least 1",
        ),
    ],
)
def test_what_cannot_be_learned_is_told_in_one_line(words, settings, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        unigram.train(words, **settings)
