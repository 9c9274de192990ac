"""Labelled files for GPT: the rows of each kind to read by eye, truncation, bad rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from t5x_like.batches import converters
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.vocabularies import word_bpe

labelled = sources.load_module(str(Path(__file__).parents[2] / "data" / "labelled_files.py"))

LETTERS = "abcdefghijkl"
IDS = {piece: n for n, piece in enumerate(["<unk>", *(one + "</w>" for one in LETTERS), "\n</w>"])}
VOCABULARY = word_bpe.WordBpe(IDS, [])
SHOWN = {number: piece.removesuffix("</w>") for piece, number in IDS.items()}
SHOWN |= {len(IDS): "<", len(IDS) + 1: "$", len(IDS) + 2: ">"}


def batch(tmp_path, kind, raw, *, length=8, size=2, **settings):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in raw))
    objective = seqio_objectives.build(kind, **settings)
    labelled.register(VOCABULARY, objective, train=str(path), validation=str(path))
    return next(
        SeqioBatches(
            "labelled_files",
            split="validation",
            batch_size=size,
            lengths={"inputs": length},
            converter=converters.build("decoder_rows", **objective.converter_settings),
            shuffle=False,
            repeat=False,
        )
    )


def shown(made):
    """The rows of each example in letters; every other place must be padding."""
    tokens, segments = made["decoder_input_tokens"], made["decoder_segment_ids"]
    assert np.all((segments == 0) | (segments == 1))
    assert np.all(np.diff(segments) <= 0)
    assert not np.any(tokens[segments == 0])
    return [
        ["".join(SHOWN[n] for n in row[real > 0]) for row, real in zip(*example, strict=True)]
        for example in zip(tokens, segments, strict=True)
    ]


def test_a_text_or_a_pair_is_one_row(tmp_path):
    texts = [{"text_a": "a b", "label": "no"}, {"text_a": "a b c d e f g h", "label": "yes"}]
    made = batch(tmp_path, "gpt_classification", texts, size=3)
    assert made["decoder_input_tokens"].shape == (3, 1, 8)
    assert shown(made) == [["<ab>"], ["<abcdef>"], [""]]
    assert made["label"].tolist() == [0, 1, 0]
    pairs = [
        {"text_a": "a b c d e", "text_b": "f", "label": "1"},
        {"text_a": "a b c d e", "text_b": "f g h i j", "label": "0"},
        {"text_a": "a", "text_b": "f g h i j", "label": "1"},
        {"text_a": "a", "text_b": "", "label": "1"},
    ]
    made = batch(tmp_path, "gpt_classification", pairs, size=4)
    assert shown(made) == [["<abcd$f>"], ["<abc$fg>"], ["<a$fghi>"], ["<a$>"]]
    assert made["label"].tolist() == [1, 0, 1, 1]


def test_two_texts_alike_are_a_row_for_each_order(tmp_path):
    rows = [{"text_a": "a b", "text_b": "c", "label": "x"}]
    made = batch(tmp_path, "gpt_similarity", rows, size=1)
    assert {name: values.dtype for name, values in made.items()} == dict.fromkeys(
        ("decoder_input_tokens", "decoder_segment_ids", "label"), np.int32
    )
    assert shown(made) == [["<ab$c>", "<c$ab>"]]


def test_the_similarity_of_two_texts_is_a_number(tmp_path):
    rows = [{"text_a": "a b", "text_b": "c", "value": n} for n in (-0.5, 3)]
    made = batch(tmp_path, "gpt_regression", rows)
    assert shown(made) == [["<ab$c>", "<c$ab>"]] * 2
    assert made["value"].dtype == np.float32
    assert made["value"].tolist() == [-0.5, 3.0]


def test_a_choice_is_a_row_for_each_answer(tmp_path):
    rows = [
        {"text_a": "a b", "text_b": "c", "choices": ["d", "e f", "g"], "answer": 2},
        {"text_a": "a", "text_b": "b", "choices": ["c", "d"], "answer": 0},
    ]
    made = batch(tmp_path, "gpt_multiple_choice", rows, choices=3)
    assert shown(made) == [["<abc$d>", "<abc$ef>", "<abc$g>"], ["<ab$c>", "<ab$d>", ""]]
    assert made["label"].tolist() == [2, 0]


def test_an_answer_that_is_not_among_the_choices_is_named_with_its_line(tmp_path):
    row = {"text_a": "a", "choices": ["b", "c"], "answer": 1}
    for wrong, message in (
        ({"answer": 2}, "answer=2 must be one of 0 to 1"),
        ({"answer": True}, "answer=True must be one of 0 to 1"),
        ({"choices": "b c"}, "choices='b c' must be a list of strings"),
    ):
        with pytest.raises(ValueError, match=rf"rows.jsonl:2: {message}"):
            batch(tmp_path, "gpt_multiple_choice", [row, row | wrong])
    with pytest.raises(ValueError, match=r"rows.jsonl:1: it has 3 choices, .*choices=2"):
        batch(tmp_path, "gpt_multiple_choice", [row | {"choices": ["b", "c", "d"]}], choices=2)


def test_the_texts_of_a_vocabulary_have_the_choices(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text_a": "a", "choices": ["b", "c"], "answer": 1}))
    files = {"train": str(path), "validation": str(path)}
    found = labelled.documents("train", kind="gpt_multiple_choice", **files)
    assert [row["text"] for row in found.as_numpy_iterator()] == [b"a", b"b", b"c"]
