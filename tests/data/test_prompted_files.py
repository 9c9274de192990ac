"""Files of tasks for prompts: rows as they stand, bad ones named, both splits, training on them."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches, source_rows

SPEC = importlib.util.spec_from_file_location(
    "prompted_files", pathlib.Path(__file__).parents[2] / "data" / "prompted_files.py"
)
prompted_files = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prompted_files)

ROWS = [
    {"inputs": "Is grün green?", "targets": "yes", "choices": ["yes", "no"], "by": "me"},
    {"inputs": "Is 2 odd?", "targets": "no", "choices": ["yes", "no", "maybe"], "by": "you"},
]


@pytest.fixture
def write(tmp_path):
    def write(name, rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    return write


def register(**settings):
    objective = seqio_objectives.build("text_to_text")
    prompted_files.register(vocabularies.load("bytes:0"), objective, **settings)


def plain(row):
    return {
        name: [one.decode() for one in value] if np.ndim(value) else value.decode()
        for name, value in row.items()
    }


def test_rows_come_as_they_stand_in_the_files(write):
    register(validation=write("asked.jsonl", [ROWS[0], "", ROWS[1]]))
    assert [*map(plain, source_rows("prompted_files", split="validation"))] == ROWS
    assert list(source_rows("prompted_files", split="train")) == []


def test_a_row_may_have_several_right_answers(write):
    rows = [
        {"inputs": "Who?", "targets": ["Jane Austen", "Austen"], "id": 7},
        {"inputs": "Where?", "targets": "Bath", "id": 8},
    ]
    register(train=write("train.jsonl", rows))
    found = [*map(plain, source_rows("prompted_files", split="train"))]
    assert [row["targets"] for row in found] == ["Jane Austen", "Bath"]
    assert [row["answers"] for row in found] == [["Jane Austen", "Austen"], ["Bath"]]
    assert [row["id"] for row in found] == ["7", "8"]


def test_fields_may_have_other_names(write):
    rows = [{"question": "Why?", "answer": "So.", "options": ["So.", "No."]}]
    register(
        train=write("train.jsonl", rows), inputs="question", targets="answer", choices="options"
    )
    [row] = source_rows("prompted_files", split="train")
    assert plain(row) == {"inputs": "Why?", "targets": "So.", "choices": ["So.", "No."]}


def test_pairs_can_be_trained_on(write):
    register(train=write("train.jsonl", ROWS))
    lengths = {"inputs": 24, "targets": 8}
    batches = SeqioBatches("prompted_files", split="train", batch_size=2, lengths=lengths)
    vocabulary = vocabularies.load("bytes:0")
    texts = {vocabulary.decode(row.tolist()) for row in next(batches)["decoder_target_tokens"]}
    assert texts <= {"yes", "no"}
    documents = prompted_files.documents("train", train=write("train.jsonl", ROWS))
    found = [row["text"].decode() for row in documents.as_numpy_iterator()]
    assert found == ["Is grün green?", "yes", "Is 2 odd?", "no"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "asked.jsonl:2: it is not JSON"),
        ("[1]", "asked.jsonl:2: it is not a JSON object"),
        ({"input": "a", "targets": "b"}, "there is no string 'inputs'. Did you mean 'input'"),
        ({**ROWS[0], "targets": 1}, "there is no string 'targets'"),
        ({**ROWS[0], "targets": []}, "the list 'targets' of right answers is empty"),
        ({**ROWS[0], "targets": ["yes", 1]}, "nor a list of strings"),
        ({**ROWS[0], "targets": ["yes", "maybe"]}, "'maybe' is not one of two or more choices"),
        ({**ROWS[0], "targets": "maybe"}, "'maybe' is not one of two or more choices"),
        ({**ROWS[0], "choices": ["yes"]}, "'yes' is not one of two or more choices"),
        ({**ROWS[0], "choices": "yes"}, "choices='yes' is not a list of strings"),
        ({"inputs": "a", "targets": "b"}, r"the fields \['inputs', 'targets'\] are not"),
    ],
)
def test_a_bad_row_is_named_by_its_file_and_line(write, line, message):
    with pytest.raises(ValueError, match=message):
        register(validation=write("asked.jsonl", [ROWS[0], line]))


def test_files_that_are_not_there_are_named(write):
    write("asked.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"validation is not set"):
        register()
    near = write("asked.jsonl", ROWS).replace("asked", "aske")
    with pytest.raises(ValueError, match=r"is not a file. Did you mean 'asked.jsonl'"):
        register(train=near)
    with pytest.raises(ValueError, match="it has no rows"):
        register(train=write("none.jsonl", []))
