"""LLaMA's and PaLM's vocabularies: round trips, digits, special tokens, Hugging Face's ids."""

import base64
import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from t5x_like import vocabularies
from t5x_like.vocabularies.trainers import train

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "llama_tokenizer.json").read_text())
TEXTS = [f"def f_{n}(x):\n    return x +  {n * n}\t# item {n} of é\n" for n in range(99)]
HARD = [
    *("", " ", "  two  blanks  ", "\ttabs\t\tand\n\nlines\r\n", "    indented\n        deeper"),
    *(
        "1234567890 and 3.14159",
        "emoji 😀👩‍👩‍👧 🇩🇪",
        "日本 Ünïcödé \u0000\u0007",
        "<s> </s> <unk> <0x41>",
    ),
]


@pytest.fixture(scope="module", params=["llama", "palm"])
def vocabulary(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.model"
    train(TEXTS, vocab_size=290, output=path, kind=request.param)
    return vocabularies.load(path.parent)


@pytest.mark.parametrize("text", HARD)
def test_every_text_comes_back_as_it_was(vocabulary, text):
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert not set(ids) & set(vocabulary.special_ids)


def test_digits_are_pieces_of_their_own_and_the_unseen_is_spelled_in_bytes(vocabulary):
    pieces = [vocabulary.pieces[one] for one in vocabulary.encode("é 250 ☃")]
    digits = [piece for piece in pieces if any(map(str.isdigit, piece))]
    assert digits == ["2", "5", "0", "<0xE2>", "<0x98>", "<0x83>"]
    assert not any(sum(map(str.isdigit, one)) > 1 for one in vocabulary.pieces if one[:1] != "<")


def test_the_ids_are_those_of_llama(vocabulary):
    assert vocabulary.pieces[:5] == ("<unk>", "<s>", "</s>", "<0x00>", "<0x01>")
    assert (vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id) == (0, 1, 2)
    assert (vocabulary.pad_id, vocabulary.start_id, vocabulary.vocab_size) == (0, 1, 290)
    assert (vocabulary.special_ids, vocabulary.mask_id) == ((0, 1, 2), None)


def test_decoding_names_special_tokens_and_ids_that_are_none(vocabulary):
    ids = vocabulary.encode("item")
    assert vocabulary.decode([1, *ids, 2, 0, 9999, -1]) == "<s>item</s><unk><unk><unk>"


def test_pieces_are_where_they_stand_in_the_text(vocabulary):
    text = "item 😀 2"
    ids, ranges = vocabulary.encode_with_offsets(text)
    assert ids == vocabulary.encode(text)
    assert "".join(text[first:end] for first, end in ranges) == "item😀2"


def test_text_is_cut_as_hugging_face_does(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(base64.b64decode(GOLDEN["tokenizer.model"]))
    vocabulary = vocabularies.load(tmp_path)
    for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"], strict=True):
        assert vocabulary.encode(text) == ids, text
        assert vocabulary.decode(ids) == text


def test_a_tokenizer_json_of_llama_3_begins_and_ends_texts_with_its_special_tokens(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {piece: number for number, piece in enumerate([*alphabet, "he", "\u0120he"])}
    merges = [("h", "e"), ("\u0120", "he")]
    tokenizer = tokenizers.Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = vocabularies.load(tmp_path)
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.start_id) == (258, 259, 258)
    assert vocabulary.special_ids == (258, 259)
    for text in HARD:
        assert vocabulary.decode(vocabulary.encode(text)) == text
    assert [vocabulary.pieces[one] for one in vocabulary.encode("he he")] == ["he", "\u0120he"]
