"""The pronoun that the second sentence of a pair has replaced, and its noun."""

import pytest

from t5x_like.preprocessing.benchmark_tasks.pronouns import marked_pronoun


@pytest.mark.parametrize(
    ("premise", "hypothesis", "marked", "noun"),
    [
        # The example of T5's released code.
        (
            "The fish ate the worm. It was tasty.",
            "The worm was tasty.",
            "The fish ate the worm. *It* was tasty.",
            "The worm",
        ),
        # Of two pronouns the one with more of its words in the second sentence.
        (
            "He put the vase on the shelf, and it fell over.",
            "He put the vase on the shelf, and the vase fell over.",
            "He put the vase on the shelf, and *it* fell over.",
            "the vase",
        ),
        # At the end, with punctuation and a capital.
        (
            "Ann waited, and Bo came to meet her.",
            "Bo came to meet Ann.",
            "Ann waited, and Bo came to meet *her* .",
            "Ann",
        ),
        # A possessive is none in the noun.
        (
            "Tom asked Ann for her book.",
            "Tom asked Ann for Ann's book.",
            "Tom asked Ann for *her* book.",
            "Ann",
        ),
        # What comes before another article is not the noun.
        (
            "When they met, the cook greeted him.",
            "In a kitchen the boy met.",
            "When *they* met, the cook greeted him.",
            "the boy",
        ),
    ],
)
def test_the_pronoun_is_marked_and_its_noun_found(premise, hypothesis, marked, noun):
    assert marked_pronoun(premise, hypothesis) == (marked, noun)


@pytest.mark.parametrize(
    ("premise", "hypothesis", "message"),
    [
        ("Ann left.", "Ann left.", "sentence1='Ann left.' has none of he, her, him"),
        ("It rained.", "Snow falls.", "sentence2='Snow falls.' has nothing in the place"),
    ],
)
def test_pairs_without_one_are_refused(premise, hypothesis, message):
    with pytest.raises(ValueError, match=message):
        marked_pronoun(premise, hypothesis)
