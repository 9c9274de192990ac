"""NDCG, ERR, METEOR, NIST and distinct n-grams: other implementations, and counts by hand."""

import math

import numpy as np
import pytest
import sklearn.metrics
from nltk.translate import nist_score

from t5x_like.evaluation.metrics import METRICS
from t5x_like.evaluation.metrics.texts import tokens


def test_ndcg_is_scikit_learn_s():
    random = np.random.default_rng(0)
    for _ in range(20):
        size = random.integers(2, 9)
        grades = random.integers(4, size=[5, size])
        scores = random.integers(4, size=[5, size])  # with ties
        targets = [dict(enumerate(own.tolist())) for own in grades]
        found = METRICS["ndcg"](targets, scores.tolist())["ndcg"]
        assert found == pytest.approx(sklearn.metrics.ndcg_score(grades, scores))


def test_ndcg_of_one_or_several_right_choices():
    scores = [0.1, 0.9, 0.5, 0.3]
    assert METRICS["ndcg"]([3], [scores])["ndcg"] == pytest.approx(1 / 2)  # rank 3: 1 / log2(4)
    assert METRICS["ndcg"]([[1, 3]], [scores])["ndcg"] == pytest.approx(
        (1 + 1 / 2) / (1 + 1 / math.log2(3))
    )
    assert METRICS["ndcg"]([{0: 0}], [scores])["ndcg"] == 0


def test_err_by_hand():
    # Of the highest grade 2, R(2) = 3/4 and R(1) = 1/4.
    best_first = 3 / 4 + (1 / 3) * (1 / 4) * (1 / 4)
    best_last = (1 / 2) * (1 / 4) + (1 / 3) * (3 / 4) * (3 / 4)
    targets = [{0: 2, 2: 1}, {2: 2, 1: 1}]
    scores = [[0.9, 0.5, 0.1]] * 2
    assert METRICS["err"](targets[:1], scores[:1])["err"] == pytest.approx(best_first)
    assert METRICS["err"](targets, scores)["err"] == pytest.approx((best_first + best_last) / 2)
    # Of one right choice R(1) = 1/2.
    assert METRICS["err"]([1, [0]], scores)["err"] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert METRICS["err"]([0], [[0.0] * 3])["err"] == pytest.approx(1 / 6)  # as if it were last
    with pytest.raises(ValueError, match=r"a grade of \{0: -1\} is below 0"):
        METRICS["err"]([{0: -1}], scores[:1])


@pytest.mark.parametrize("name", ["ndcg", "err", "mean_reciprocal_rank"])
@pytest.mark.parametrize("choice", [-1, 3])
def test_a_right_choice_that_is_not_among_the_choices_is_refused(name, choice):
    """Python would read -1 as the last choice."""
    with pytest.raises(ValueError, match=f"choice {choice} is not one of the choices 0 to 2"):
        METRICS[name]([[0, choice]], [[0.9, 0.5, 0.1]])


HYPOTHESES = [
    "It is a guide to action which ensures that the military always obeys the commands of the "
    "party.",
    "It is to insure the troops forever hearing the activity guidebook that party direct.",
    "A short one.",
]
REFERENCES = [
    [
        "It is a guide to action that ensures that the military will forever heed Party commands.",
        "It is the guiding principle which guarantees the military forces always being under the "
        "command of the Party.",
    ],
    [
        "The army hears the guidebook for 1,000 years.",
        "It is the practical guide for the army always to heed the directions of the party.",
    ],
    ["A short one, really.", "One short sentence."],
]


@pytest.mark.parametrize(("number", "expected"), [(1, 2.5650), (2, 4.0955)])
def test_nist_equals_mteval_s(number, expected):
    """`mteval-v13a.pl -r REFERENCES -s SOURCE -t HYPOTHESES`, of these texts as SGML."""
    targets = [own[:number] for own in REFERENCES]
    assert METRICS["nist"](targets, HYPOTHESES)["nist"] == pytest.approx(expected, abs=5e-5)


def test_nist_of_one_reference_is_nltk_s():
    random = np.random.default_rng(0)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "bed"]
    targets, predictions = (
        [" ".join(random.choice(words, size=random.integers(5, 12))) for _ in range(30)]
        for _ in range(2)
    )
    expected = nist_score.corpus_nist(
        [[text.split()] for text in targets], [text.split() for text in predictions]
    )
    assert METRICS["nist"](targets, predictions)["nist"] == pytest.approx(expected)


def test_nist_of_short_and_empty_texts():
    # By hand: each of two words has the information log2(2 / 1), the pair log2(1 / 1).
    assert METRICS["nist"](["so it"], ["so it"])["nist"] == pytest.approx(1)
    assert METRICS["nist"](["so it"], [""])["nist"] == 0
    assert METRICS["nist"]([""], ["so it"])["nist"] == 0
    # Two thirds of the words: the information log2(3) of each, and half of it for brevity.
    assert METRICS["nist"](["so it is"], ["so it"])["nist"] == pytest.approx(math.log2(3) / 2)


@pytest.mark.parametrize(
    ("reference", "text", "expected"),
    [
        # Banerjee and Lavie 2005: P = 6/6, R = 6/7, two chunks of the six matched words.
        (
            "the president then spoke to the audience",
            "The president spoke to the audience",
            10 * (6 / 7) / (6 / 7 + 9) * (1 - 0.5 * (2 / 6) ** 3),
        ),
        ("dogs running", "dog runs", 1 - 0.5 * (1 / 2) ** 3),  # stems: dog, run
        ("a large car", "a big car", (2 / 3) * (1 - 0.5)),  # no synonyms: two chunks of two words
        ("a cat", "my dog", 0.0),
        ("a cat", "", 0.0),
    ],
)
def test_meteor_is_the_paper_s_formula(reference, text, expected):
    assert METRICS["meteor"]([reference], [text])["meteor"] == pytest.approx(expected)


def test_meteor_of_the_example_in_nltk_s_documentation():
    reference, text = REFERENCES[0][0].rstrip("."), HYPOTHESES[0].rstrip(".")
    found = METRICS["meteor"]([reference], [text])["meteor"]
    assert found == pytest.approx(0.6944, abs=5e-5)
    assert METRICS["meteor"]([["none", reference]], [text])["meteor"] == found


def test_distinct_ngrams_by_hand():
    texts = ["I do not know.", "I do not know what to do."]
    # i, do, not, know, what, to and the full stop; of pairs, "i do", "do not", "not know",
    # "know .", "know what", "what to", "to do", "do ."; both of 5 + 8 words.
    assert METRICS["distinct_1"]([""] * 2, texts) == {"distinct_1": pytest.approx(7 / 13)}
    assert METRICS["distinct_2"]([""] * 2, texts) == {"distinct_2": pytest.approx(8 / 13)}
    assert METRICS["distinct_1"](["a"], [""]) == {"distinct_1": 0}
    # Resamples repeat texts, and have the value of all texts among theirs nevertheless.
    [estimate] = METRICS["distinct_1"].statistics([""] * 2, texts).estimates().values()
    low, high = estimate.interval
    assert low < estimate < high


def test_words_of_scripts_without_spaces_are_characters():
    assert tokens("Hello, 世界!") == ["hello", ",", "世", "界", "!"]
