"""Local files: every format gives its documents, in any shards, from any position."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.preprocessing import cleaning, seqio_objectives, sources

text_files = sources.load_module(str(Path(__file__).parents[2] / "data" / "text_files.py"))

TEXTS = [f"Line {number} of the corpus, which is é." for number in range(300)]
ROWS = [
    {"text": text, "id": n, "question": f"q{n}", "answer": f"a{n}"} for n, text in enumerate(TEXTS)
]
JSON = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus")
    (path / "lines.txt").write_text("\n".join(TEXTS))
    (path / "lines.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    (path / "rows.jsonl").write_text(JSON)
    (path / "rows.json.gz").write_bytes(gzip.compress(JSON.encode()))
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, path / "rows.parquet", row_group_size=70)
    for number in range(5):
        lines = TEXTS[60 * number : 60 * (number + 1)]
        (path / f"part-{number}.txt").write_text("\n".join(lines))
    return path


SINGLE = ("lines.txt", "lines.txt.gz", "rows.jsonl", "rows.json.gz", "rows.parquet")
FILES = (*SINGLE, "part-*.txt")


def texts(dataset: tf.data.Dataset) -> list[str]:
    return [row["text"].decode() for row in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_each_document_once(folder, name):
    files = str(folder / name)
    train = texts(text_files.documents("train", files=files, held_out=0.1))
    validation = texts(text_files.documents("validation", files=files, held_out=0.1))
    assert sorted(train + validation) == sorted(TEXTS)
    assert sources.held_out(validation, fraction=0.1).numpy().all()
    assert not sources.held_out(train, fraction=0.1).numpy().any()


@pytest.mark.parametrize("shards", [2, 8])
@pytest.mark.parametrize("name", FILES)
def test_shards_are_disjoint_and_complete(folder, name, shards):
    source = text_files.source(files=str(folder / name), held_out=0.0)
    parts = [
        texts(source.get_dataset("train", shard_info=seqio.ShardInfo(shard, shards)))
        for shard in range(shards)
    ]
    assert all(parts)
    assert sorted(text for part in parts for text in part) == sorted(TEXTS)


@pytest.mark.parametrize("name", FILES)
def test_an_iterator_goes_on_from_where_it_was_saved(folder, name, tmp_path):
    source = text_files.source(files=str(folder / name), held_out=0.1)
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    dataset = cleaning.clean(source.get_dataset("train", seed=3)).with_options(options)
    iterator = iter(dataset)
    for _ in range(101):
        next(iterator)
    position = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    rest = [row["text"].numpy() for row in iterator]
    again = iter(dataset)
    tf.train.Checkpoint(iterator=again).read(position).assert_consumed()
    assert [row["text"].numpy() for row in again] == rest
    assert len(rest) > 100


def test_files_of_their_own_for_validation_are_used_whole(folder):
    files = [str(folder / f"part-{number}.txt") for number in (2, 0, 0)]
    settings = {"files": files, "validation_files": str(folder / "part-4.txt")}
    assert sorted(texts(text_files.documents("train", **settings))) == sorted(
        TEXTS[:60] + TEXTS[120:180]
    )
    assert texts(text_files.documents("validation", **settings)) == TEXTS[240:]


def test_blank_lines_and_half_pairs_are_no_errors(tmp_path):
    (tmp_path / "odd.jsonl").write_bytes(
        b'{"text": "first"}\n\n \t\r\n{"text": "half \\ud800 pair", "score": NaN}\n'
    )
    found = texts(text_files.documents("train", files=f"{tmp_path}/odd.jsonl", held_out=0.0))
    assert found == ["first", "half ? pair"]


def test_nulls_of_parquet_are_empty_documents(tmp_path):
    table = pyarrow.table({"text": ["one", None, "two"]})
    pyarrow.parquet.write_table(table, tmp_path / "nulls.parquet")
    found = text_files.documents("train", files=f"{tmp_path}/nulls.parquet", held_out=0.0)
    assert texts(found) == ["one", "", "two"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_pairs_become_a_supervised_task(folder, name):
    vocabulary = vocabularies.load("bytes")
    settings = {"files": str(folder / name), "inputs": "question", "targets": "answer"}
    text_files.register(
        vocabulary, seqio_objectives.build("text_to_text"), name="answers", held_out=0.1, **settings
    )
    task = seqio.TaskRegistry.get("answers")
    pairs = set()
    for split in task.splits:
        for row in task.get_dataset(None, split=split, shuffle=False).as_numpy_iterator():
            assert row["inputs"][-1] == row["targets"][-1] == vocabulary.eos_id
            pairs.add((vocabulary.decode(row["inputs"]), vocabulary.decode(row["targets"])))
    assert pairs == {(row["question"], row["answer"]) for row in ROWS}
    both = texts(text_files.documents("train", held_out=0.0, **settings))
    assert sorted(both) == sorted(row[side] for row in ROWS for side in ("question", "answer"))


def test_documents_become_a_task(folder):
    objective = seqio_objectives.build("span_corruption")
    files = str(folder / "lines.txt")
    for _ in range(2):
        text_files.register(vocabularies.load("bytes"), objective, files=files, documents=290)
    task = seqio.TaskRegistry.get("text_files")
    assert (task.num_input_examples("train"), task.num_input_examples("validation")) == (290, None)
    row = next(iter(task.get_dataset({"inputs": 64, "targets": 32}, split="train", seed=0)))
    assert len(row["inputs"]) == 64


WRONG = {
    "no file": (
        {"files": "{}/lnes.txt"},
        r"files='.*lnes.txt' matches no file. Did you mean 'lines.txt'",
    ),
    "no match": ({"files": "{}/*.jsnl"}, "matches no file"),
    "no folder": ({"files": "{}/nowhere/*.txt"}, "matches no file"),
    "a folder": ({"files": "{}"}, "is a folder: name files, as"),
    "no validation file": (
        {"files": "{}/lines.txt", "validation_files": "{}/line.txt"},
        "validation_files='.*line.txt' matches no file",
    ),
    "a column": ({"files": "{}/rows.jsonl", "text": "txt"}, "text='txt': .* Did you mean 'text'"),
    "numbers": (
        {"files": "{}/rows.parquet", "text": "id"},
        "text='id': .* column of strings. Its type is int64",
    ),
    "half a pair": ({"files": "{}/rows.jsonl", "inputs": "question"}, "targets=None: set"),
    "too much": (
        {"files": "{}/rows.jsonl", "text": "text", "inputs": "question", "targets": "answer"},
        "set `text` for documents, or both",
    ),
    "pairs of lines": ({"files": "{}/lines.txt", "inputs": "q", "targets": "a"}, "inputs='q'"),
    "two formats": ({"files": ["{}/lines.txt", "{}/rows.jsonl"]}, "differ in format"),
    "held_out": ({"files": "{}/lines.txt", "held_out": 2}, "held_out=2 must be from 0 to 1"),
    "a setting": ({"file": "{}/lines.txt"}, "file does not exist. Did you mean 'files'"),
    "nothing": ({}, "files is not set"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_are_found_at_once(folder, case):
    settings, message = WRONG[case]
    here = json.loads(
        json.dumps(settings).replace("{}/", f"{folder}/").replace('"{}"', f'"{folder}"')
    )
    with pytest.raises(ValueError, match=message):
        text_files.documents("train", **here)


def test_a_file_of_an_unknown_kind_or_without_objects(tmp_path):
    (tmp_path / "text.csv").write_text("a,b\n")
    (tmp_path / "list.json").write_text('[\n{"text": "a"}\n]\n')
    with pytest.raises(ValueError, match=r"text\.csv has none of the suffixes \.txt"):
        text_files.documents("train", files=f"{tmp_path}/text.csv")
    with pytest.raises(
        ValueError, match=r"list\.json:1: it is not JSON: the file may be a JSON list"
    ):
        text_files.documents("train", files=f"{tmp_path}/list.json")


@pytest.mark.parametrize(
    ("objective", "columns", "message"),
    [
        ("span_corruption", {"inputs": "question", "targets": "answer"}, "reads documents, and"),
        ("text_to_text", {"text": "text"}, "reads pairs: set their columns"),
    ],
)
def test_the_objective_must_suit_the_columns(folder, objective, columns, message):
    with pytest.raises(ValueError, match=message):
        text_files.register(
            vocabularies.load("bytes"),
            seqio_objectives.build(objective),
            files=f"{folder}/rows.jsonl",
            **columns,
        )
