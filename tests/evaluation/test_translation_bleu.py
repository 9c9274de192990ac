"""BLEU: by hand, with sacreBLEU's tokenization, and each prediction beside its own reference."""

import math

import pytest

from t5x_like.evaluation.generated_text import Translation


class Phrasebook:
    """A text model that knows some translations by heart."""

    def __init__(self, translations):
        self.translations, self.requests = translations, []

    def tokens(self, text, *, end):
        return [*text.split(), *([1] if end else [])]

    def generate(self, prompts):
        self.requests += prompts
        return [self.translations[prompt] for prompt in prompts]


def measure(translations, references, **settings):
    rows = [{"inputs": source, "targets": target} for source, target in references.items()]
    return Translation(**settings).measure(Phrasebook(translations), rows)


def test_bleu_by_hand():
    numbers, _ = measure({"a": "the cat sat on mat"}, {"a": "the cat sat on the mat"})
    # Of 5, 4, 3 and 2 runs of 1 to 4 words, so many are in the reference, which has 6 words.
    precisions = (5 / 5, 3 / 4, 2 / 3, 1 / 2)
    brevity = math.exp(1 - 6 / 5)
    assert numbers["bleu"] == pytest.approx(100 * brevity * math.prod(precisions) ** 0.25)
    assert numbers["brevity_penalty"] == pytest.approx(brevity)
    assert numbers["length_ratio"] == pytest.approx(5 / 6)


def test_each_translation_meets_its_own_reference_whatever_the_order_of_decoding():
    references = {"a b c d": "eins zwei drei vier", "a": "fünf sechs sieben acht", "a b": "x y z w"}
    model = Phrasebook(references)
    rows = [{"inputs": source, "targets": target} for source, target in references.items()]
    numbers, predictions = Translation().measure(model, rows)
    assert model.requests == ["a", "a b", "a b c d"]
    assert numbers["bleu"] == pytest.approx(100)
    assert [one["inputs"] for one in predictions] == list(references)
    assert all(one["prediction"] == one["targets"] for one in predictions)


def test_punctuation_is_split_off_unless_the_tokenizer_is_none():
    translations, references = {"a": "one two three , four ."}, {"a": "one two three, four."}
    assert measure(translations, references)[0]["bleu"] == pytest.approx(100)
    assert measure(translations, references, tokenizer="none")[0]["bleu"] < 50


def test_case_counts():
    assert measure({"a": "one two Three four"}, {"a": "one two three four"})[0]["bleu"] < 100


def test_mistakes_are_errors():
    with pytest.raises(
        ValueError, match=r"translation.tokenizer='13' does not exist. Did you mean '13a'"
    ):
        Translation(tokenizer="13")
    with pytest.raises(ValueError, match="no row to translate"):
        Translation().measure(Phrasebook({}), [])
    with pytest.raises(ValueError, match="no field 'targets'"):
        Translation().measure(Phrasebook({}), [{"inputs": "a"}])
