"""Where tokens stand in their text: of all kinds of vocabularies, through whatever they change."""

import pytest

from t5x_like import vocabularies
from t5x_like.vocabularies.trainers import train

TEXTS = [f"The value of item {n} is {n * n}, and its name is café number {n}." for n in range(99)]
KINDS = {
    "wordpiece": "vocab.txt",
    "byte_bpe": "bytes",
    "albert": "spiece.model",
    "unigram": "t5.model",
    "bytes": "",
}
# Accents in one character and in two, quotes that become one character, letters whose lower case
# is two, marks, runs of blanks, a blank at each end, signs that no vocabulary here has.
TRICKY = " The  CAFÉ number  cafe\u0301, it's ``of''  item\t[MASK] \u0130tem 7, 北京 value-name. "


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request, tmp_path_factory):
    if request.param == "bytes":
        return vocabularies.load("bytes")
    path = tmp_path_factory.mktemp(request.param) / KINDS[request.param]
    train(TEXTS, vocab_size=300 if "byte" in request.param else 75, output=path, kind=request.param)
    return vocabularies.load(path)


@pytest.mark.parametrize("text", ["", "  ", TEXTS[7], TRICKY])
def test_the_tokens_are_those_of_encode(vocabulary, text):
    ids, offsets = vocabulary.encode_with_offsets(text)
    assert ids == vocabulary.encode(text)
    assert len(ids) == len(offsets)
    assert all(0 <= start <= end <= len(text) for start, end in offsets)


@pytest.mark.parametrize("text", [TEXTS[7], TRICKY])
def test_no_character_is_lost_and_no_token_has_a_blank_at_its_ends(vocabulary, text):
    _, offsets = vocabulary.encode_with_offsets(text)
    covered = {place for start, end in offsets for place in range(start, end)}
    lost = {text[place] for place in set(range(len(text))) - covered}
    assert lost <= {" ", "\t", "\u0301"}  # an accent that is dropped is of no token
    assert all(text[start:end] == text[start:end].strip() for start, end in offsets)


def test_tokens_stand_where_their_letters_do(vocabulary):
    text = "  The value  of CAFÉ, 49"
    ids, offsets = vocabulary.encode_with_offsets(text)
    for word in ("value", "of", ",", "49"):
        start = text.index(word)
        own = [n for n, (a, b) in enumerate(offsets) if start <= a < b <= start + len(word)]
        assert vocabulary.decode([ids[n] for n in own]).strip() == word
