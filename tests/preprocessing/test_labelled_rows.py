"""Rows of labelled text: special tokens, segments, truncation, words, windows."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.batches.labelled_rows import RowWriter
from t5x_like.objectives import labelled

XLNET = json.loads((Path(__file__).parents[1] / "golden" / "xlnet_rows.json").read_text())

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["he", "did", "not", "come", "here", "jim", "hen", "##son", "was", "it", ".", "?", "who"]
BYTES = ["<s>", "<pad>", "</s>", "<unk>", "\u0120", *"hecamwid", "<mask>"]
# 12 tokens: it was jim hen ##son . he did not come here .
CONTEXT = "It was  Jim Henson. He did not come here."


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    return vocabularies.load(path)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roberta")
    (folder / "vocab.json").write_text(json.dumps({piece: n for n, piece in enumerate(BYTES)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return vocabularies.load(folder)


def pieces(vocabulary, row):
    return " ".join(vocabulary.pieces[token] for token in row.tokens)


def test_a_text_and_a_pair_of_bert(bert):
    writer = RowWriter(bert, length=12)
    one = writer.of_text("He did come")
    assert pieces(bert, one) == "[CLS] he did come [SEP]"
    assert one.token_types.tolist() == [0] * 5
    pair = writer.of_text("He did", "Henson was here")
    assert pieces(bert, pair) == "[CLS] he did [SEP] hen ##son was here [SEP]"
    assert pair.token_types.tolist() == [0] * 4 + [1] * 5


def test_a_text_and_a_pair_of_roberta(roberta):
    writer = RowWriter(roberta, length=16)
    assert pieces(roberta, writer.of_text("he")) == "<s> h e </s>"
    pair = writer.of_text("he", "came")
    assert pieces(roberta, pair) == "<s> h e </s> </s> c a m e </s>"
    assert not pair.token_types.any()


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (9, 2, (6, 2)),
        (2, 9, (2, 6)),
        (9, 9, (4, 4)),
        (5, 4, (4, 4)),
        (3, 5, (3, 5)),
        (0, 9, (0, 8)),
    ],
)
def test_the_longer_text_of_a_pair_loses_its_end_first(bert, first, second, kept):
    row = RowWriter(bert, length=11).of_text("he " * first, "was " * second)
    expected = ["[CLS]", *["he"] * kept[0], "[SEP]", *["was"] * kept[1], "[SEP]"]
    assert pieces(bert, row).split() == expected


def test_a_single_text_loses_its_end(bert):
    row = RowWriter(bert, length=8).of_text("jim " + "he " * 20)
    assert pieces(bert, row).split() == ["[CLS]", "jim", *["he"] * 5, "[SEP]"]


def test_a_word_is_found_at_its_first_token(bert):
    row, places = RowWriter(bert, length=12).of_words(["Jim", "Henson", "\u0301", "was", "here"])
    assert pieces(bert, row) == "[CLS] jim hen ##son was here [SEP]"
    assert places.tolist() == [1, 2, -1, 4, 5]  # of the accent alone nothing is left


def test_a_word_beyond_the_row_is_nowhere(bert):
    _, places = RowWriter(bert, length=8).of_words(["he"] * 9)
    assert places.tolist() == [1, 2, 3, 4, 5, 6, -1, -1, -1]


def test_windows_overlap_and_lose_nothing(bert):
    windows = RowWriter(bert, length=10).windows("Who?", CONTEXT, stride=2)
    assert [pieces(bert, window.row) for window in windows] == [
        "[CLS] who ? [SEP] it was jim hen ##son [SEP]",
        "[CLS] who ? [SEP] jim hen ##son . he [SEP]",
        "[CLS] who ? [SEP] ##son . he did not [SEP]",
        "[CLS] who ? [SEP] he did not come here [SEP]",
        "[CLS] who ? [SEP] not come here . [SEP]",
    ]
    assert all(window.row.token_types.tolist()[:4] == [0] * 4 for window in windows)
    assert all(window.row.token_types[4:].all() for window in windows)


def test_a_stride_beyond_the_window_skips_nothing(bert):
    windows = RowWriter(bert, length=10).windows("Who?", CONTEXT, stride=128)
    shown = [token for window in windows for token in window.row.tokens[4:-1]]
    assert shown == bert.encode(CONTEXT)


def test_an_answer_is_in_the_windows_that_have_all_of_it(bert):
    windows = RowWriter(bert, length=10).windows("Who?", CONTEXT, stride=2)
    start = CONTEXT.index("Jim")
    places = [window.places(start, start + len("Jim Henson")) for window in windows]
    assert places == [(6, 8), (4, 6), (0, 0), (0, 0), (0, 0)]
    for window, (first, last) in zip(windows[:2], places[:2], strict=True):
        a, b = window.characters(first, last)
        assert CONTEXT[a:b] == "Jim Henson"


def test_every_answer_is_found_as_it_stands(bert):
    [window] = RowWriter(bert, length=40).windows("Who?", CONTEXT)
    words = CONTEXT.split()
    for first in range(len(words)):
        start = len(CONTEXT) - len(CONTEXT.split(None, first)[-1]) if first else 0
        for word in (words[first], words[first].rstrip(".")):
            a, b = window.characters(*window.places(start, start + len(word)))
            assert CONTEXT[a:b] == word


def test_what_has_no_room_is_an_error(bert):
    with pytest.raises(ValueError, match=r"lengths.inputs=4: .* 8 tokens or more"):
        RowWriter(bert, length=4)
    with pytest.raises(ValueError, match=r"lengths.inputs=64: with longest_question=64 .* 75"):
        RowWriter(bert, length=64).check_windows(stride=128, longest_question=64)
    with pytest.raises(ValueError, match="stride=0"):
        RowWriter(bert, length=64).check_windows(stride=0, longest_question=8)
    with pytest.raises(ValueError, match="has no cls_id"):
        RowWriter(vocabularies.load("bytes"), length=64)


def test_an_empty_text_is_special_tokens_alone(bert):
    writer = RowWriter(bert, length=40)
    assert pieces(bert, writer.of_text("", "")) == "[CLS] [SEP] [SEP]"
    [window] = writer.windows("", "")
    assert np.array_equal(window.places(0, 1), (0, 0))


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlnet")
    (folder / "spiece.model").write_bytes(base64.b64decode(XLNET["model"]))
    (folder / "config.json").write_text('{"model_type": "xlnet"}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLNetTokenizer"}')
    return vocabularies.load(folder)


@pytest.mark.parametrize("row", XLNET["rows"], ids=lambda row: row["texts"][0][:9])
def test_rows_of_xlnets_tokenizer_are_transformers(xlnet, row):
    found = RowWriter(xlnet, length=XLNET["length"]).of_text(*row["texts"])
    assert found.tokens.tolist() == row["tokens"]
    assert found.token_types.tolist() == row["types"]


def test_words_and_answers_of_rows_that_begin_with_text(xlnet):
    writer = RowWriter(xlnet, length=24)
    row, places = writer.of_words(["a", "b", "dog"])
    assert places[0] == 0
    assert row.tokens[places].tolist() == [xlnet.encode(word)[0] for word in ("a", "b", "dog")]
    assert row.tokens[-2:].tolist() == [xlnet.sep_id, xlnet.cls_id]
    [window] = writer.windows("who ?", "a dog b")
    start, end = window.places(2, 5)
    assert xlnet.decode(window.row.tokens[start : end + 1]) == "dog"
    assert window.characters(start, end) == (2, 5)
    assert window.places(0, 0) == (len(window.row.tokens) - 1,) * 2
    example = labelled.write_answers(writer, stride=8, longest_question=4)(
        {"question": "who ?", "context": "a dog b", "answer_text": "", "answer_start": -1}
    )
    assert example[0]["inputs"][example[0]["answer"]].tolist() == [xlnet.cls_id] * 2
