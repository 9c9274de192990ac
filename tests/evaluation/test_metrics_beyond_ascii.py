"""Metrics of texts in any script: words by hand, and rouge-score's own numbers for ASCII."""

import logging
import random

import pytest
from rouge_score import rouge_scorer, tokenizers

from t5x_like.evaluation.metrics import METRICS
from t5x_like.evaluation.metrics.texts import RougeWords, words

HINDI = "\u092a\u0942\u0930\u094d\u0935 \u092a\u094d\u0930\u0927\u093e\u0928"
RUSSIAN = "\u043a\u043e\u0448\u043a\u0430 \u0441\u0438\u0434\u0435\u043b\u0430"
CHINESE = "\u4eca\u5929\u5929\u6c14\u5f88\u597d"  # six characters, no spaces
SPANISH = "\u00e1ngel ni\u00f1o"


def number(name, target, predicted):
    return METRICS[name]([target], [predicted])[name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HINDI, HINDI.split()),  # vowel signs and the virama are marks, which \w does not match
        (RUSSIAN.upper(), RUSSIAN.split()),
        (CHINESE, list(CHINESE)),
        (SPANISH, SPANISH.split()),
        ("a\u0301ngel nin\u0303o", SPANISH.split()),  # the accents apart
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645!",
            ["\u0645\u06cc\u062e\u0648\u0627\u0647\u0645"],
        ),
        ("\u30b9\u30de\u30dbOS 15\u3002", ["\u30b9", "\u30de", "\u30db", "os", "15"]),
        ("\uc11c\uc6b8 \ub0a0\uc528", ["\uc11c\uc6b8", "\ub0a0\uc528"]),  # Korean has spaces
        ("\u0e01\u0e33", ["\u0e01\u0e4d\u0e32"[:2], "\u0e32"]),
        ("\u201cWell\u2014done\u201d", ["well", "done"]),
        ("\u0301 \U0001f600 \u00bf?", []),
    ],
)
def test_words_are_letters_digits_and_marks(text, expected):
    assert words(text) == expected


def test_words_of_ascii_are_those_of_rouge_score():
    draw = random.Random(0)
    theirs, ours = tokenizers.DefaultTokenizer(use_stemmer=True), RougeWords()
    alphabet = [*map(chr, range(1, 128)), *"  running flies agreed "]
    for _ in range(300):
        text = "".join(draw.choices(alphabet, k=60))
        assert ours.tokenize(text) == theirs.tokenize(text), repr(text)


@pytest.mark.parametrize("kind", ["rouge_1", "rouge_2", "rouge_l", "rouge_lsum"])
def test_rouge_of_ascii_is_that_of_rouge_score(kind):
    texts = ["The cat was found under the bed.\nIt slept.", "a cat slept under 2 beds!\nfound it"]
    theirs = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}.get(kind, "rougeLsum")
    scorer = rouge_scorer.RougeScorer([theirs], use_stemmer=True)
    expected = scorer.score(*texts)[theirs].fmeasure
    assert number(kind, *texts) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["rouge_1", "rouge_l", "rouge_lsum", "f1"])
@pytest.mark.parametrize("text", [HINDI, RUSSIAN, CHINESE, SPANISH])
def test_half_of_a_text_in_any_script_scores_by_its_words(kind, text):
    assert number(kind, text, text) == 1
    parts = list(text) if text == CHINESE else text.split()
    half = ("" if text == CHINESE else " ").join(parts[: len(parts) // 2])
    # Precision 1 and recall 1/2.
    assert number(kind, text, half) == pytest.approx(2 / 3)


def test_words_that_differ_by_an_accent_are_two_words():
    assert number("rouge_1", SPANISH, "\u00e9ngel ni\u00e9o") == 0


def test_sentences_of_a_line_end_in_other_scripts_too():
    first, second = "\u4eca\u5929\u5f88\u597d\u3002", "\u6211\u53bb\u5317\u4eac\u3002"
    assert number("rouge_lsum", first + second, second + first) == 1
    assert number("rouge_l", first + second, second + first) < 1


def test_bleu_names_a_tokenizer_that_does_not_split_the_references(caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        METRICS["bleu"]([RUSSIAN], [RUSSIAN])
        assert not caplog.records
        METRICS["bleu"]([CHINESE], [CHINESE])
    assert "take zh (Chinese) or char" in caplog.text
