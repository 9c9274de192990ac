"""Rows of a question and a page: a worked example, windows, labels of answers that are cut."""

import numpy as np
import pytest

from t5x_like import objectives, vocabularies
from t5x_like.objectives import ExampleSpec, Feature
from t5x_like.objectives.page_answers import Page

WORDS = ["who", "left", "ann", "came", "bo", "it", "rained", "."]
QUESTION = {
    "question": "Who left?",
    "context": ["Ann  came.", "Bo left."],
    "long_answers": ["2-4"],
    "short_answers": ["2-3"],
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return vocabularies.load(path)


def examples_of(vocabulary, *, length=32, stride=4, longest_question=2, **changes):
    made = objectives.build("long_answers", stride=stride, longest_question=longest_question)
    features = {"inputs": Feature(vocabulary, add_eos=False)}
    write = made.plan(ExampleSpec({"inputs": length}, features))
    return write(QUESTION | changes, np.random.default_rng(0))


def labels_of(example):
    return [example[name].tolist() for name in ("long_answer", "answer", "label")]


def test_a_row_can_be_read(vocabulary):
    """The example of the docstring, written by hand."""
    [found] = examples_of(vocabulary)
    wanted = "[CLS] who left [SEP] ann came . bo left . [SEP]"
    assert [vocabulary.piece(token) for token in found["inputs"]] == wanted.split()
    assert found["sentences"].tolist() == [1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 0]
    assert labels_of(found) == [[7, 9], [7, 7], [4]]


@pytest.mark.parametrize(
    ("long_answer", "short_answer", "expected"),
    [
        ("none", "none", [[0, 0], [0, 0], [0]]),
        ("0-2", "yes", [[4, 6], [0, 0], [1]]),
        ("none", "no", [[0, 0], [0, 0], [2]]),
        ("2-4", "none", [[7, 9], [0, 0], [3]]),
        ("2-4", "2-3 3-4", [[7, 9], [7, 9], [4]]),  # from the first span to the last
    ],
)
def test_the_types_are_those_of_the_released_code(long_answer, short_answer, expected, vocabulary):
    answers = {"long_answers": [long_answer, "0-1"], "short_answers": [short_answer, "none"]}
    [found] = examples_of(vocabulary, **answers)
    assert labels_of(found) == expected


def test_a_part_of_a_page_without_its_answer_has_none(vocabulary):
    """Parts of 9 tokens of a page of 12, every 3."""
    changes = {"context": ["Ann came.", "It rained.", "Ann left.", "Bo left."], "stride": 3}
    changes |= {"long_answers": ["6-8"], "short_answers": ["6-7"], "length": 14}
    first, second = examples_of(vocabulary, **changes)
    assert first["sentences"].tolist() == [1, 2, 3, 4, *[5] * 3, *[6] * 3, *[7] * 3, 0]
    assert labels_of(first) == [[0, 0], [0, 0], [0]]
    assert labels_of(second) == [[10, 12], [10, 10], [4]]
    changes["stride"] = 1  # the third part begins at the last word of the first paragraph
    third = examples_of(vocabulary, **changes)[2]
    assert third["sentences"].tolist() == [1, 2, 3, 4, 5, *[6] * 3, *[7] * 3, *[8] * 2, 0]
    # Of the long answer the last token is missing, and the short answer is there.
    assert labels_of(third) == [[0, 0], [11, 11], [4]]


def test_words_are_numbered_over_all_paragraphs():
    page = Page(["Ann  came.", " ", "Bo left."])
    assert page.text == "Ann came. Bo left."
    assert page.paragraphs.tolist() == [[0, 9], [10, 18]]
    assert page.characters("1-3 3-4") == (4, 18)
    assert page.characters("none") == (0, 0)
    assert page.numbers(5, 11) == "1-3"
    assert page.numbers(10, 12) == "2-3"


def test_rows_without_room_for_the_page_are_refused(vocabulary):
    with pytest.raises(ValueError, match=r"lengths.inputs=12: .*need 13 tokens or more"):
        examples_of(vocabulary, length=12)
