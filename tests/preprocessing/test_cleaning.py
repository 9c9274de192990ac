"""Cleaning: whatever a document holds, what comes out is text, and what happened is counted."""

import json
import re

import pytest
import tensorflow as tf

from t5x_like import vocabularies, vocabulary
from t5x_like.batches import document_cleaning
from t5x_like.batches.data_modules import load
from t5x_like.grain_pipeline.corpus_tasks import CorpusTasks
from t5x_like.preprocessing import cleaning
from t5x_like.preprocessing.pipeline import RegisteredTasks

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


def test_lines_are_kept():
    assert clean(b"one \n two\n\n\n three") == ["one\ntwo\n\nthree"]


def test_clean_text_stays_as_it_is():
    once = clean(*CASES)
    assert clean(*(text.encode() for text in once)) == once


def test_a_dataset_of_nothing_but_dirt_is_empty():
    assert clean(*[b"\x00"] * 100) == []
    assert document_cleaning.counts()["empty"] == 100


CODE = "def f(x):\n    if x:\n\treturn  1\n\n\n\n    return 0\n"
PAIRS = {
    "inputs": [b"Write  f:\t", b"no answer", b"", b"l" * 80, b"\xff\xfe", b"caf\xe9 and more text"],
    "targets": [CODE.encode(), b" \r\n", b"no question", b" ok", b"Latin-1", b"kept"],
    "id": [1, 2, 3, 4, 5, 6],
}
VALID = [
    {"inputs": "Write  f:\t", "targets": CODE},
    {"inputs": "l" * 60, "targets": " ok"},
    {"inputs": "caf\ufffd and more text", "targets": "kept"},
]


def test_pairs_keep_their_white_space_and_are_skipped_together():
    """So that a model of code learns indentation, and GPT-2's answers begin with a blank."""
    dataset = cleaning.clean_pairs(tf.data.Dataset.from_tensor_slices(PAIRS), max_characters=60)
    rows = [{k: v.decode() for k, v in row.items()} for row in dataset.as_numpy_iterator()]
    assert rows == VALID
    counts = document_cleaning.counts()
    assert (counts["documents"], counts["kept"], counts["empty"], counts["cut"]) == (6, 3, 2, 1)
    assert (counts["invalid_utf8"], counts["not_text"]) == (2, 1)


@pytest.mark.parametrize("driver", ["seqio", "grain"])
def test_code_keeps_its_white_space_if_it_is_not_to_be_tidied(driver, tmp_path):
    texts = [CODE, " \n", "x\x0cy\u2028  z\t", "l" * 100_000 + "  end "]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "code.jsonl").write_text(rows)
    settings = {"files": str(tmp_path / "code.jsonl"), "held_out": 0.0, "tidy": False}
    kept = [CODE, texts[2], "l" * 100_000, "  end "]
    module, plain = load("data/text_files.py"), vocabularies.load("bytes")
    assert list(vocabulary.training_texts("data/text_files.py", settings, driver=driver)) == kept
    kinds = {"seqio": RegisteredTasks, "grain": CorpusTasks}
    settings_of = {"objective": "language_modeling", "objective_settings": {}}
    for name, tidy in {"as it is": False, "tidy": True}.items():
        own = {**settings, "tidy": tidy, "name": name.replace(" ", "_")}
        tasks = kinds[driver](module, own, vocabulary=plain, **settings_of)
        found = tasks.rows(own["name"], split="train", cleaned=True)
        texts_found = [line_of(row["text"]) for row in found]
        assert (texts_found == kept) == (not tidy)
        assert len(texts_found) == len(kept)


def line_of(text):
    return text.decode() if isinstance(text, bytes) else text


def test_both_drivers_keep_the_same_of_pairs(monkeypatch):
    monkeypatch.setattr(document_cleaning, "MOST_CHARACTERS", 60)
    texts = {side: [text.decode(errors="replace") for text in PAIRS[side]] for side in VALID[0]}
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    found = [document_cleaning.clean_pair(row, ("inputs", "targets")) for row in rows]
    assert [row for row in found if row] == VALID
    assert document_cleaning.counts()["cut"] == 1


def test_wrong_settings_are_found_before_anything_is_read():
    with pytest.raises(ValueError, match="max_characters=0"):
        clean(b"text", max_characters=0)
    with pytest.raises(ValueError, match=r"event='emptied' .* Did you mean 'empty'"):
        document_cleaning.count("emptied")
