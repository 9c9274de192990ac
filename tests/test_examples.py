"""Held-out examples for a person: blanks beside their words, right or wrong, in short lines."""

import pytest

from t5x_like.inference.example_display import (
    Span,
    describe_fields,
    describe_share,
    describe_spans,
    spans,
)

MASKED = "The <extra_id_0> sat on <extra_id_1> mat."
ORIGINAL = "<extra_id_0> big  cat <extra_id_1> the"


def test_each_blank_has_the_words_of_the_model_and_of_the_original():
    found = spans(MASKED, "<extra_id_0> big cat <extra_id_1> a", ORIGINAL)
    assert found == [Span(1, "big cat", "big cat"), Span(2, "a", "the")]
    assert [span.right for span in found] == [True, False]
    assert describe_share(found, examples=1) == (
        "1 of 2 spans are filled exactly (50%), in 1 examples"
    )


@pytest.mark.parametrize(
    ("predicted", "words"),
    [
        ("<extra_id_1> the", ["", "the"]),
        ("no sentinel", ["", ""]),
        ("", ["", ""]),
        ("<extra_id_7> x <extra_id_0> dog", ["dog", ""]),
    ],
)
def test_a_blank_that_the_model_leaves_out_is_empty(predicted, words):
    assert [span.predicted for span in spans(MASKED, predicted, ORIGINAL)] == words


def test_the_sentence_has_numbered_blanks_over_a_line_for_each():
    found = spans(MASKED, "<extra_id_0> big cat <extra_id_1> a", ORIGINAL)
    assert describe_spans(MASKED, found, width=60).splitlines() == [
        "The __1__ sat on __2__ mat.",
        "              model    original",
        "  right __1__ big cat  big cat",
        "  wrong __2__ a        the",
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_long_texts_are_cut_around_the_blanks_and_wrapped(width):
    words = " ".join(f"word{n}" for n in range(400))
    masked = f"{words} <extra_id_0> {words} <extra_id_1> {words}"
    found = [Span(1, words, "x"), Span(2, "y", words)]
    shown = describe_spans(masked, found, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert len(shown) < 900
    sentence = " ".join(shown.split("              model")[0].split())
    assert "word399 __1__ word0" in sentence
    assert "word399 __2__ word0" in sentence
    assert sentence.count("...") == 3


def test_fields_are_wrapped_under_their_names():
    fields = {"inputs": "a b " * 30, "model": "", "original": "c" * 500}
    shown = describe_fields(fields, width=40)
    lines = shown.splitlines()
    assert lines[0].startswith("   inputs: a b")
    assert lines[1].startswith(" " * 11 + "b a")
    assert "    model: " in lines
    assert max(map(len, lines)) <= 40
    assert len(shown) < 500
