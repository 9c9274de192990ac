"""Rows of candidates, a question and documents: a worked example, mentions, cuts, mistakes."""

import numpy as np
import pytest

from t5x_like import objectives, vocabularies
from t5x_like.objectives import ExampleSpec, Feature
from t5x_like.objectives.candidates import CandidateWriter

WORDS = [
    *("oslo", "bergen", "new", "york", "home", "ann", "the", "of", "is", "wet", "it", "rains"),
    *(".", "##land"),
]
QUESTION = {
    "choices": ["oslo", "bergen"],
    "text_a": "The home of Ann is Oslo.\n\n Oslo is wet.  It rains. ",
    "text_b": "home ann",
    "answer": 0,
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return vocabularies.load(path)


def example_of(vocabulary, row, *, length=64, **changes):
    settings = {"choices": 2, "longest_choice": 2, "longest_question": 4} | changes
    made = objectives.build("candidates", **settings)
    features = {"inputs": Feature(vocabulary, add_eos=False)}
    write = made.plan(ExampleSpec({"inputs": length}, features))
    [example] = write(row, np.random.default_rng(0))
    return example


def words_of(vocabulary, example):
    return [vocabulary.piece(token) for token in example["inputs"]]


def test_a_row_can_be_read(vocabulary):
    """The example of the docstring, written by hand."""
    found = example_of(vocabulary, QUESTION)
    wanted = "oslo bergen home ann the home of ann is oslo . oslo is wet . it rains ."
    assert words_of(vocabulary, found) == wanted.split()
    assert found["sentences"].tolist() == [1, 2, 3, 4, *[5] * 7, *[6] * 4, *[7] * 3]
    assert found["paragraphs"].tolist() == [1, 2, 3, 3, *[4] * 7, *[5] * 7]
    assert found["candidates"].tolist() == [1, 2, 0, 0, *[0] * 5, 1, 0, 1, *[0] * 6]
    assert found["label"].tolist() == [0]


def test_a_mention_is_whole_words_and_the_longest(vocabulary):
    choices = ["york", "new york", "oslo"]
    row = CandidateWriter(vocabulary, length=64)(choices, "New York is york. Osloland", "home")
    assert [vocabulary.piece(token) for token in row.tokens[5:]] == [
        *("new", "york", "is", "york", "."),
        *("oslo", "##land"),
    ]
    assert row.candidates.tolist() == [1, 2, 2, 3, 0, 2, 2, 0, 1, 0, 0, 0]


def test_documents_lose_their_last_sentences_and_never_a_candidate(vocabulary):
    text = "Oslo is wet. It rains. It rains.\nBergen is wet. The home is new."
    row = {**QUESTION, "text_a": text}
    whole = example_of(vocabulary, row)
    assert len(whole["inputs"]) == 4 + 4 + 3 + 3 + 4 + 5
    # The first document has three sentences and loses one; both have two, and the first loses one.
    found = example_of(vocabulary, row, length=4 + 4 + 4 + 5)
    wanted = "oslo bergen home ann oslo is wet . bergen is wet . the home is new ."
    assert words_of(vocabulary, found) == wanted.split()
    # Of the second sentence two words fit.
    found = example_of(vocabulary, row, length=4 + 4 + 2 + 4 + 5)
    assert words_of(vocabulary, found)[4:10] == ["oslo", "is", "wet", ".", "it", "rains"]
    assert found["paragraphs"].tolist() == [1, 2, 3, 3, *[4] * 6, *[5] * 9]
    # Nothing but the candidates and the question, whose end is cut only by its own setting.
    made = {"choices": 3, "longest_question": 1, "longest_choice": 1}
    found = example_of(
        vocabulary, {**row, "choices": ["oslo", "new york", "new"]}, length=4, **made
    )
    assert words_of(vocabulary, found) == ["oslo", "new", "new", "home"]
    assert found["candidates"].tolist() == [1, 2, 3, 0]


def test_a_candidate_that_the_vocabulary_drops_keeps_its_number(vocabulary):
    row = CandidateWriter(vocabulary, length=64)(["oslo", "\u200b", " "], "is Oslo", "home")
    assert [vocabulary.piece(token) for token in row.tokens] == [
        *("oslo", "[UNK]", "[UNK]", "home", "is", "oslo"),
    ]
    assert row.candidates.tolist() == [1, 2, 3, 0, 0, 1]


def test_candidates_that_may_not_fit_are_refused_before_a_row_is_read(vocabulary):
    with pytest.raises(
        ValueError, match=r"^data.lengths.inputs=10: choices=3, longest_choice=3 .* need 11 tokens"
    ):
        example_of(vocabulary, QUESTION, length=10, choices=3, longest_choice=3, longest_question=2)
    with pytest.raises(ValueError, match="choices=1 must be 2 or more"):
        objectives.build("candidates", choices=1)
    with pytest.raises(ValueError, match="longest_choice=0"):
        objectives.build("candidates", longest_choice=0)
