"""Cleaning: whatever a document holds, what comes out is text, and what happened is counted."""

import re

import pytest
import tensorflow as tf

from t5x_like.batches import document_cleaning
from t5x_like.preprocessing import cleaning

LONG = "".join(f"word{number} " for number in range(120_000))  # over a million characters
CASES = {
    b"": [],
    b" \t\r\n\n ": [],
    b"\x00\x01\x02\x7f\xc2\x80": [],
    b"\x89PNG\xff\xfe\xfd\xfc\xfb": [],
    "Привет, мир".encode("cp1251"): [],
    b"one byte of this is wrong: \xff": ["one byte of this is wrong: \ufffd"],
    b"\xef\xbb\xbfa byte\x00-order\x1b mark": ["a byte-order mark"],
    "a\u00a0\u3000b\t c".encode(): ["a b c"],
    b"one\r\ntwo\rthree\x0cfour": ["one\ntwo\nthree\nfour"],
    "five\u2028six\u0085seven".encode(): ["five\nsix\nseven"],
    b"  above \n\n \n\n  below  ": ["above\n\nbelow"],
    "naïve 日本語 👩‍👩‍👧".encode(): ["naïve 日本語 👩‍👩‍👧"],
}


@pytest.fixture(autouse=True)
def _counters_at_zero():
    document_cleaning.reset_counts()


def clean(*texts: bytes, **settings) -> list[str]:
    dataset = tf.data.Dataset.from_tensor_slices({"text": list(texts)})
    return [row["text"].decode() for row in cleaning.clean(dataset, **settings).as_numpy_iterator()]


@pytest.mark.parametrize(("raw", "expected"), CASES.items())
def test_each_kind_of_dirt(raw, expected):
    assert clean(raw) == expected


def test_dirty_documents_do_not_touch_their_neighbours():
    assert clean(*CASES) == [text for texts in CASES.values() for text in texts]


def test_every_event_is_counted_by_name():
    clean(b"", b"\x01", b"\xff" * 9, b"nine good letters \xff", b"fine", LONG.encode())
    counts = document_cleaning.counts()
    pieces = -(-len(LONG) // 100_000)
    assert counts == {
        "documents": 6,
        "invalid_utf8": 2,
        "control_characters": 1,
        "not_text": 1,
        "empty": 2,
        "cut": 1,
        "kept": 2 + pieces,
    }
    assert document_cleaning.describe_counts().startswith("documents 6, invalid_utf8 2,")


def test_a_million_characters_are_cut_and_none_is_lost():
    pieces = clean(LONG.encode(), max_characters=70_000)
    assert max(map(len, pieces)) <= 70_000
    assert re.sub(r"\s", "", "".join(pieces)) == re.sub(r"\s", "", LONG)


@pytest.mark.parametrize("maximum", [1, 2, 3, 7])
def test_cutting_counts_characters_not_bytes(maximum):
    text = "aé日👩 bé"
    pieces = clean(text.encode(), max_characters=maximum)
    assert all(0 < len(piece) <= maximum for piece in pieces)
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")


def test_lines_are_kept_or_joined():
    raw = b"one \n two\n\n\n three"
    assert clean(raw, newlines="keep") == ["one\ntwo\n\nthree"]
    assert clean(raw, newlines="space") == ["one two three"]


def test_clean_text_stays_as_it_is():
    once = clean(*CASES)
    assert clean(*(text.encode() for text in once)) == once


def test_a_dataset_of_nothing_but_dirt_is_empty():
    assert clean(*[b"\x00"] * 100) == []
    assert document_cleaning.counts()["empty"] == 100


def test_pairs_are_cleaned_side_by_side_and_skipped_together():
    pairs = {
        "inputs": [b"a\x00sk ", b"no answer", b"", b"l" * 50],
        "targets": [b"\r\nanswer", b"\x01", b"no question", b"ok"],
        "id": [1, 2, 3, 4],
    }
    dataset = cleaning.clean_pairs(tf.data.Dataset.from_tensor_slices(pairs), max_characters=10)
    assert list(dataset.as_numpy_iterator()) == [
        {"inputs": b"ask", "targets": b"answer"},
        {"inputs": b"l" * 10, "targets": b"ok"},
    ]
    counts = document_cleaning.counts()
    assert (counts["documents"], counts["kept"], counts["empty"], counts["cut"]) == (4, 2, 2, 2)


def test_wrong_settings_are_found_before_anything_is_read():
    with pytest.raises(ValueError, match=r"newlines='spaces' .* Did you mean 'space'"):
        clean(b"text", newlines="spaces")
    with pytest.raises(ValueError, match="max_characters=0"):
        clean(b"text", max_characters=0)
    with pytest.raises(ValueError, match=r"event='emptied' .* Did you mean 'empty'"):
        document_cleaning.count("emptied")
