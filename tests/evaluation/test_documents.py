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
    pairs = windows(tokens, length=10, stride=stride)
    assert [token for pair in pairs for token in pair.continuation] == tokens
    for pair in pairs:
        row = [*pair.prompt, *pair.continuation]
        assert row == list(range(row[0], row[-1] + 1))  # what it reads is what stood before
        assert len(row) <= 10


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_a_stride_leaves_all_but_the_first_window_that_much_context(stride):
    first, *others = windows(list(range(40)), length=10, stride=stride)
    assert len(first.continuation) == 10
    assert all(len(pair.prompt) == 10 - stride for pair in others)


@pytest.mark.parametrize("stride", [-1, 11])
def test_a_stride_that_leaves_tokens_out_is_refused(stride):
    with pytest.raises(ValueError, match=rf"documents.stride={stride} must be from 1 to 10"):
        windows([1, 2], length=10, stride=stride)


def test_rates_are_per_token_byte_character_and_word():
    sizes = [[len(text.encode()), len(text), len(text.split())] for text in TEXTS]
    found = rates(np.array([[50.0, 10, *sizes[0]], [10.0, 2, *sizes[1]]]))
    assert len(TEXTS[0]) == 22
    assert len(TEXTS[0].encode()) == 28
    assert found["perplexity"] == pytest.approx(np.exp(5))
    assert found["bits_per_byte"] == pytest.approx(60 / np.log(2) / (28 + 7))
    assert found["bits_per_character"] == pytest.approx(60 / np.log(2) / (22 + 7))
    assert found["word_perplexity"] == pytest.approx(np.exp(60 / 6))


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
    # By hand: without overlap half of each window lacks the context, else the first four alone.
    assert near == pytest.approx(math.exp(-(20 * math.log(0.9) + 20 * math.log(0.01)) / 40))
    assert far == pytest.approx(math.exp(-(36 * math.log(0.9) + 4 * math.log(0.01)) / 40))


def test_what_is_no_document_is_refused(characters):
    model = characters(lambda before, character: 0.0)
    with pytest.raises(ValueError, match=r"no field 'text'. Did you mean 'texts'"):
        Documents().measure(model, [{"texts": "a"}])
    with pytest.raises(ValueError, match="no document with a text"):
        Documents().measure(model, [{"text": " "}])
    model.encodes = True
    with pytest.raises(ValueError, match="without an encoder"):
        Documents().measure(model, [{"text": "a"}])
