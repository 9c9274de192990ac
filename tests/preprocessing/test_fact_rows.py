"""Rows of a question, paragraphs and supporting facts: a worked example, cuts, lost answers."""

import numpy as np
import pytest

from t5x_like import objectives, vocabularies
from t5x_like.objectives import ExampleSpec, Feature
from t5x_like.objectives.supporting_facts import FactWriter

WORDS = ["who", "left", "ann", "came", "bo", "it", "rained", "new", "york", ".", "?", "##er"]
QUESTION = {
    "question": "Who left?",
    "context": ["Ann\nAnn  came.", "Bo\nBo left.\n It rained.\n"],
    "answer": "Bo",
    "fact_titles": ["Bo"],
    "fact_numbers": [0],
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return vocabularies.load(path)


def examples_of(vocabulary, *, length=64, sentences=16, **changes):
    made = objectives.build("supporting_facts", sentences=sentences)
    features = {"inputs": Feature(vocabulary, add_eos=False)}
    write = made.plan(ExampleSpec({"inputs": length}, features))
    return write(QUESTION | changes, np.random.default_rng(0))


def words_of(vocabulary, example):
    return [vocabulary.piece(token) for token in example["inputs"]]


def answer_of(vocabulary, example):
    first, last = example["answer"]
    return words_of(vocabulary, example)[first : last + 1]


def test_a_row_can_be_read(vocabulary):
    """The example of the docstring, written by hand."""
    [found] = examples_of(vocabulary)
    wanted = "[CLS] who left ? ann ann came . bo bo left . it rained ."
    assert words_of(vocabulary, found) == wanted.split()
    assert found["sentences"].tolist() == [1, 2, 3, 4, 5, 6, 6, 6, 7, 8, 8, 8, 9, 9, 9]
    assert found["paragraphs"].tolist() == [1, 2, 2, 2, *[3] * 4, *[4] * 7]
    assert found["titles"].tolist() == [*[0] * 4, *[5] * 4, *[7] * 7]
    assert found["facts"].tolist() == [*[0] * 8, *[1] * 4, *[0] * 3]
    assert found["answer"].tolist() == [8, 8]
    assert found["label"].tolist() == [0]


def test_an_answer_is_the_first_text_like_it_in_a_supporting_sentence(vocabulary):
    context = ["New York\nYork left. York came.", "Bo\nNew Yorker."]
    facts = {"fact_titles": ["New York", "Bo"], "fact_numbers": [0, 0]}
    [found] = examples_of(vocabulary, context=context, answer="New  York", **facts)
    assert (answer_of(vocabulary, found), found["answer"][0]) == (["new", "york"], 4)
    # The letters of an answer may end within a word, whose whole token is the answer.
    of_bo = {"fact_titles": ["Bo"], "fact_numbers": [0]}
    [found] = examples_of(vocabulary, context=context, answer="ew York", **of_bo)
    assert (answer_of(vocabulary, found), found["answer"][0]) == (["new", "york"], 13)


@pytest.mark.parametrize(("answer", "label"), [("yes", 1), ("no", 2)])
def test_yes_and_no_are_answered_at_the_first_token(answer, label, vocabulary):
    [found] = examples_of(vocabulary, answer=answer)
    assert (found["answer"].tolist(), found["label"].tolist()) == ([0, 0], [label])


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": "Ann"},  # not in a supporting sentence
        {"answer": "bo"},  # in lower case
        {"fact_titles": ["Cleo"]},
        {"fact_numbers": [1], "answer": "left"},
        {"fact_titles": [], "fact_numbers": [], "answer": "yes"},
        {"length": 8},  # the paragraph is lost
    ],
)
def test_a_question_without_its_answer_or_facts_has_no_example(changes, vocabulary):
    assert examples_of(vocabulary, **changes) == []


def test_what_does_not_fit_is_left_out(vocabulary):
    """As in the released code, a shorter sentence may follow one that is left out."""
    context = ["Ann\nAnn came. It rained. It rained.\nAnn.", "Bo\nBo left."]
    write = FactWriter(vocabulary, length=4 + 3 + 4)
    row = write("Who left?", context)
    words = [vocabulary.piece(token) for token in row.tokens[4:]]
    assert words == ["ann", "ann", ".", "bo", "bo", "left", "."]
    assert [line.fact for line in row.lines[4:]] == [("Ann", -1), ("Ann", 1), ("Bo", -1), ("Bo", 0)]
    # With too few sentences, or no room for its title, a paragraph is lost.
    row = FactWriter(vocabulary, length=64, sentences=6)("Who left?", context)
    assert [line.fact for line in row.lines[4:]] == [("Ann", -1), ("Ann", 0)]
    row = FactWriter(vocabulary, length=8)("Who left?", ["New York York York York\nBo", "Bo\nBo"])
    assert [line.fact for line in row.lines[4:]] == [("Bo", -1), ("Bo", 0)]
    row = FactWriter(vocabulary, length=8)("Who " * 9, context)
    assert (len(row.tokens), row.tokens[0]) == (8, vocabulary.cls_id)


def test_a_title_without_a_token_keeps_its_paragraph_and_a_blank_sentence_its_number(vocabulary):
    row = FactWriter(vocabulary, length=64)("Who", ["\u200b\n \nBo left."])
    assert [vocabulary.piece(token) for token in row.tokens[2:]] == ["[UNK]", "bo", "left", "."]
    assert row.lines[-1].fact == ("\u200b", 1)
    assert row.features["titles"].tolist() == [0, 0, 3, 3, 3, 3]
    assert row.text(3, 4) == "Bo left"


def test_settings_that_leave_no_room_are_refused(vocabulary):
    with pytest.raises(ValueError, match="sentences=3 must be 4 or more"):
        objectives.build("supporting_facts", sentences=3)
    with pytest.raises(ValueError, match=r"lengths.inputs=7: rows of questions need 8 or more"):
        examples_of(vocabulary, length=7)
