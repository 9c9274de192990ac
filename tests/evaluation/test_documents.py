"""Documents in windows: every token counts once, after what its window has; rates by hand."""

import math

import numpy as np
import pytest

from t5x_like.evaluation.documents import Documents, rates, windows

TEXTS = ["Ein Äpfel-Käse ist 世界.", "no\nmore"]


@pytest.mark.parametrize("number", [1, 9, 10, 11, 20, 37])
@pytest.mark.parametrize("stride", [0, 1, 3, 10])
def test_every_token_of_a_document_is_scored_once_in_its_place(number, stride):
    tokens = list(range(number))
    pairs = windows(tokens, start=-1, length=10, stride=stride)
    assert [token for pair in pairs for token in pair.continuation] == tokens
    for pair in pairs:
        row = [*pair.prompt, *pair.continuation]
        assert row == list(range(row[0], row[-1] + 1))  # what it reads is what stood before
        assert len(row) <= 11  # the last one is only predicted


# Tokens 0, 1, ... after the prefix -1, what each window reads and what it scores: the worked
# examples of lm-eval (tests/test_utils.py, test_get_rolling_token_windows_v1, v2, v6 and empty).
ROLLING = [
    (34, 10, 1, [(-1, 9, 0, 10), (9, 19, 10, 20), (19, 29, 20, 30), (23, 33, 30, 34)]),
    (34, 10, 8, [(-1, 9, 0, 10), (2, 12, 10, 13), (5, 15, 13, 16), (8, 18, 16, 19)]),
    (9, 2, 1, [(-1, 1, 0, 2), (1, 3, 2, 4), (3, 5, 4, 6), (5, 7, 6, 8), (6, 8, 8, 9)]),
    (0, 2, 1, []),
]


@pytest.mark.parametrize(("number", "length", "context", "expected"), ROLLING)
def test_windows_are_the_rolling_windows_of_lm_eval(number, length, context, expected):
    stride = length - context + 1
    pairs = windows(list(range(number)), start=-1, length=length, stride=stride)
    found = [([*pair.prompt, *pair.continuation][:-1], pair.continuation) for pair in pairs]
    wanted = [([*range(a, b)], [*range(c, d)]) for a, b, c, d in expected]
    assert found[: len(wanted)] == wanted
    assert bool(found) == bool(wanted)


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_a_stride_leaves_all_but_the_first_window_that_much_context(stride):
    first, *others = windows(list(range(40)), start=-1, length=10, stride=stride)
    assert len(first.continuation) == 10
    assert all(len(pair.prompt) >= 10 - stride + 1 for pair in others)


@pytest.mark.parametrize("stride", [-1, 11])
def test_a_stride_that_leaves_tokens_out_is_refused(stride):
    with pytest.raises(ValueError, match=rf"documents.stride={stride} must be from 1 to 10"):
        windows([1, 2], start=0, length=10, stride=stride)


def test_rates_are_per_token_byte_character_and_word():
    sizes = [[len(text.encode()), len(text), len(text.split())] for text in TEXTS]
    found = rates(np.array([[50.0, 10, *sizes[0]], [10.0, 2, *sizes[1]]]))
    assert len(TEXTS[0]) == 22
    assert len(TEXTS[0].encode()) == 28
    assert found["perplexity"] == pytest.approx(np.exp(5))
    assert found["bits_per_byte"] == pytest.approx(60 / np.log(2) / (28 + 7))
    assert found["bits_per_character"] == pytest.approx(60 / np.log(2) / (22 + 7))
    assert found["word_perplexity"] == pytest.approx(np.exp(60 / 6))


def test_a_language_with_known_nats_has_the_excess_of_a_model_over_them(characters):
    model = characters(lambda before, character: -math.log(8), length=10)
    rows = [{"text": text, "nats": 3.0} for text in TEXTS]
    found, _ = Documents(end=False).measure(model, rows)
    words, nats = 6, 29 * math.log(8)
    assert found["nats_per_word"] == pytest.approx(nats / words)
    assert found["least_nats_per_word"] == pytest.approx(6 / words)
    assert found["excess_nats"] == pytest.approx((nats - 6) / words)
    without, _ = Documents(end=False).measure(model, [{"text": text} for text in TEXTS])
    assert "excess_nats" not in without


def test_a_likelihood_that_no_float_holds_is_an_infinite_perplexity():
    assert rates(np.array([[1e6, 10, 1, 1, 1]]))["perplexity"] == math.inf


@pytest.mark.parametrize("end", [False, True])
def test_documents_that_are_uniform_have_the_bits_of_a_uniform_distribution(characters, end):
    model = characters(lambda before, character: -math.log(8), length=10)
    rows = [{"text": text} for text in [*TEXTS, "  "]]
    found, predictions = Documents(stride=4, end=end).measure(model, rows)
    tokens = 22 + 7 + 2 * end
    assert found["tokens"] == tokens
    assert found["documents"] == 2
    assert found["perplexity"] == pytest.approx(8)
    assert found["bits_per_byte"] == pytest.approx(3 * tokens / 35)
    assert [one["tokens"] for one in predictions] == [22 + end, 7 + end]


def test_a_longer_context_is_what_a_stride_is_for(characters):
    """A model that knows what stood four characters before it."""

    def think(before, character):
        return math.log(0.9) if before[-4:-3] == character else math.log(0.01)

    rows = [{"text": "abcd" * 10}]
    model = characters(think, length=8)
    near = Documents(end=False).measure(model, rows)[0]["perplexity"]
    far = Documents(stride=1, end=False).measure(model, rows)[0]["perplexity"]
    # By hand: a later window reads one character before those that it scores, so that three of its
    # eight lack the context, and four of the first; with the stride only these four.
    assert near == pytest.approx(math.exp(-(24 * math.log(0.9) + 16 * math.log(0.01)) / 40))
    assert far == pytest.approx(math.exp(-(36 * math.log(0.9) + 4 * math.log(0.01)) / 40))


def test_what_is_no_document_is_refused(characters):
    model = characters(lambda before, character: 0.0)
    with pytest.raises(ValueError, match=r"no field 'text'. Did you mean 'texts'"):
        Documents().measure(model, [{"texts": "a"}])
    with pytest.raises(ValueError, match="no document with a text"):
        Documents().measure(model, [{"text": " "}])
    model.answers = True
    with pytest.raises(ValueError, match="without an encoder"):
        Documents().measure(model, [{"text": "a"}])
