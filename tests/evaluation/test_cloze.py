"""The last word and the blank: prompts, and which answer wins, by hand."""

import math

import numpy as np
import pytest

from t5x_like.evaluation.cloze import ClozeChoice, LastWord


def test_the_last_word_is_asked_after_all_that_stands_before_it(characters):
    model = characters(lambda before, character: -1.0)
    rows = [{"text": text} for text in ("He saw a  dog", "one\ntwo.\n", "to\u00a0be or")]
    LastWord().measure(model, rows)
    assert model.requests == [("He saw a", "  dog"), ("one", "\ntwo."), ("to\u00a0be", " or")]


def test_accuracy_and_perplexity_are_those_of_words(characters):
    def think(before, character):
        return math.log(0.6 if "cat" in before else 0.25)

    texts = ["a cat sat", "a dog ran off"]
    found, predictions = LastWord().measure(
        characters(think, length=8), [{"text": text} for text in texts]
    )
    assert found["accuracy"] == 0.5
    log_probs = [4 * math.log(0.6), 4 * math.log(0.25)]  # " sat" and " off"
    assert found["perplexity"] == pytest.approx(math.exp(-np.mean(log_probs)))
    assert found["cut"] == 1.0
    assert [one["correct"] for one in predictions] == [True, False]


@pytest.mark.parametrize("text", ["", "word", "  word  "])
def test_a_text_of_one_word_is_refused(characters, text):
    with pytest.raises(ValueError, match="needs two words"):
        LastWord().measure(characters(lambda before, character: 0.0), [{"text": text}])


ROW = {
    "inputs": "It rained. The XXXXX fell off the roof.",
    "choices": ["cat", "water", "sky"],
    "targets": "water",
}


def test_a_choice_is_as_likely_as_it_and_the_rest_of_the_sentence(characters):
    """The rest decides: only after "water" is it expected."""

    def think(before, character):
        return -1.0 if before.endswith("The ") or "The water" in before else -2.0

    model = characters(think)
    found, predictions = ClozeChoice().measure(model, [ROW])
    assert model.requests[0] == ("It rained. The ", "cat fell off the roof.")
    assert found["accuracy"] == 1.0
    rest = " fell off the roof."
    assert predictions[0]["log_probs"] == pytest.approx(
        [-1 - 2 * (2 + len(rest)), -1 - 2 * 4 - len(rest), -1 - 2 * (2 + len(rest))]
    )


def test_longer_answers_lose_by_log_p_and_not_per_token(characters):
    row = {"inputs": "Name:", "choices": ["a", "abcdef"], "targets": "abcdef"}
    model = characters(lambda before, character: -0.5 if "ab" in before else -1.0)
    found, _ = ClozeChoice().measure(model, [row])
    assert model.requests[0] == ("Name: ", "a")
    assert (found["accuracy"], found["accuracy_per_token"]) == (0.0, 1.0)
    assert found["chance_accuracy"] == 1 / 2


def test_rows_without_choices_are_refused(characters):
    model = characters(lambda before, character: 0.0)
    with pytest.raises(ValueError, match="needs a field `choices`"):
        ClozeChoice().measure(model, [{"inputs": "a", "targets": "b"}])
    with pytest.raises(ValueError, match="is not one of the choices"):
        ClozeChoice().measure(model, [{**ROW, "targets": "waters"}])
