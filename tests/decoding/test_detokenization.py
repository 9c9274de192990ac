"""Text as it comes: whole characters alone, and all pieces together are the text."""

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from t5x_like import vocabularies
from t5x_like.decoding.detokenization import Detokenizer, continued
from t5x_like.vocabularies.tokenizer import byte_bpe
from t5x_like.vocabularies.trainers import train

TEXT = "The café — 世界 \N{GRINNING FACE} is  open,\nfor ever. naïve"


def sentence_pieces(folder):
    path = folder / "pieces.model"
    train(["the open café is for ever"] * 20, vocab_size=275, output=path, byte_fallback=True)
    return vocabularies.load(path)


def make(kind, folder):
    if kind == "bytes":
        return vocabularies.load("bytes:0")
    if kind == "byte_bpe":
        letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
        merges = [("t", "h"), ("th", "e"), ("\u0120", "i")]
        return byte_bpe(
            letters | {"".join(merge): 256 + n for n, merge in enumerate(merges)},
            merges,
            settings={},
        )
    return sentence_pieces(folder)


@pytest.fixture(scope="module", params=["bytes", "byte_bpe", "sentence_pieces"])
def vocabulary(request, tmp_path_factory):
    return make(request.param, tmp_path_factory.mktemp("vocabulary"))


def test_pieces_are_whole_characters_and_together_the_text(vocabulary):
    tokens = vocabulary.encode(TEXT)
    text = Detokenizer(vocabulary.decode)
    pieces = [text.push([token]) for token in tokens]
    assert "".join(pieces) + text.close() == vocabulary.decode(tokens)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert pieces.count("") >= 8  # of characters of two to four bytes all but one token
    assert len([piece for piece in pieces if piece]) > len(TEXT) / 4


@pytest.mark.parametrize("cut", [1, 3, 9, 10, 12, 20])
def test_what_comes_after_a_prompt_is_what_it_adds_to_its_text(vocabulary, cut):
    prompt, after = TEXT[:cut].rstrip(" "), TEXT[len(TEXT[:cut].rstrip(" ")) :]
    tokens = vocabulary.encode(prompt)
    whole = vocabulary.encode(prompt + after)
    assert whole[: len(tokens)] == tokens
    added = continued(vocabulary.decode, whole[len(tokens) :], prompt=tokens)
    assert vocabulary.decode(tokens) + added == vocabulary.decode(whole)


def test_incomplete_characters_come_out_at_the_end(vocabulary):
    random = np.random.default_rng(0)
    for _ in range(20):
        tokens = [int(one) for one in random.integers(3, 259, 30)]
        text = Detokenizer(vocabulary.decode)
        streamed = "".join(text.push([token]) for token in tokens) + text.close()
        assert streamed == vocabulary.decode(tokens)


def test_nothing_makes_no_text(vocabulary):
    text = Detokenizer(vocabulary.decode)
    assert text.push([]) + text.close() == ""
