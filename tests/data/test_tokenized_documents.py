"""Tokenized documents: the batches and positions of tokenizing, and folders that do not fit."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from t5x_like import vocabularies
from t5x_like.batches import converters, data_modules, tokenized_folder
from t5x_like.batches.tokenized_folder import TokenizedFolder
from t5x_like.grain_pipeline import tokenized_documents
from t5x_like.grain_pipeline.corpus_tasks import CorpusTasks
from tests.programs import tokenize_command
from tests.programs.tokenize_command import assert_equal, take

ROOT = Path(__file__).parents[2]
MODULE = str(ROOT / "data" / "grain_files.py")
LENGTHS = {"inputs": 48, "targets": 24}
WORDS = ["the", "cat", "über", "日本", "a\u00a0b", "\r\n", "x\x07y", "😀"]


def settings(folder):
    return {"files": f"{folder}/*.jsonl", "name": "c", "held_out": 0.2}


def documents(folder, *, vocabulary="bytes", **changes):
    own = settings(folder) | changes
    return tokenized_documents.CorpusText(MODULE, own, vocabulary, ("c",), rows=20)


def write(source, output, **changes):
    return list(tokenized_folder.write(documents(source, **changes), str(output), processes=1))


def write_texts(folder, *, seed=0):
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, size=generator.integers(1, 40))) for _ in range(60)]
    texts[3:3] = [" \t ", "", "z" * 300, "\ufffd" * 9 + "a", "y " * 60_000]
    lines = [json.dumps({"text": text}) for text in texts]
    lines[7:7] = ["", " \t"]
    for name, part in (("a", lines[:30]), ("b", lines[30:])):
        (folder / f"{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two files of documents, some with what cleaning changes, splits or drops."""
    folder = tmp_path_factory.mktemp("documents")
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def tokenized(source, tmp_path_factory):
    """The folder of the documents."""
    folder = tmp_path_factory.mktemp("tokenized") / "folder"
    assert write(source, folder)[-1] == (8, 8)  # 67 rows of two splits
    return folder


def read(source, tokenized="", *, objective="span_corruption", vocabulary="bytes", **reading):
    made = CorpusTasks(
        data_modules.load(MODULE),
        settings(source),
        vocabulary=vocabularies.load(vocabulary),
        objective=objective,
        objective_settings={},
        tokenized=str(tokenized),
    )
    kind = "decoder" if objective == "language_modeling" else "encoder_decoder"
    reading = {"split": "train", "batch_size": 4, "shards": 2, "seed": 3, **reading}
    return made.batches("c", lengths=LENGTHS, converter=converters.build(kind), **reading)


@pytest.mark.parametrize("pieces", [[], [[]], [[7]], [[1, 2], [], [3]]])
def test_a_record_has_the_pieces(pieces):
    assert tokenized_documents.unpack(tokenized_documents.pack(pieces)) == pieces


@pytest.mark.parametrize("objective", ["span_corruption", "language_modeling"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_batches_are_those_of_the_text_byte_for_byte(
    source, tokenized, objective, split, monkeypatch
):
    one_pass = {"objective": objective, "split": split, "shuffle": False, "repeat": False}
    expected = list(read(source, **one_pass, pack=True))
    shuffled = take(read(source, objective=objective, split=split), 30)
    monkeypatch.setattr(tokenized_documents, "clean", lambda text: pytest.fail("it reads the text"))
    assert_equal(list(read(source, tokenized, **one_pass, pack=True)), expected)
    assert_equal(take(read(source, tokenized, objective=objective, split=split), 30), shuffled)


@pytest.mark.parametrize("pack", [False, True])
def test_a_position_is_resumed_from_the_folder_and_from_the_text(source, tokenized, pack):
    whole = read(source, tokenized, pack=pack)
    take(whole, 11)
    state, expected = whole.state(), take(whole, 20)
    for folder in (tokenized, ""):
        again = read(source, folder, pack=pack)
        again.restore(state)
        assert_equal(take(again, 20), expected)


def test_the_same_command_again_writes_nothing(source, tokenized):
    before = {file: file.stat().st_mtime_ns for file in tokenized.rglob("*")}
    assert write(source, tokenized) == [(8, 8)]
    assert before == {file: file.stat().st_mtime_ns for file in tokenized.rglob("*")}


def test_an_interrupted_folder_is_not_read_and_goes_on(source, tokenized, tmp_path):
    folder = tmp_path / "folder"
    writing = tokenized_folder.write(documents(source), str(folder), processes=1)
    assert [next(writing), next(writing)] == [(1, 8), (2, 8)]
    writing.close()
    with pytest.raises(ValueError, match="is unfinished: go on with it by t5x-like tokenize"):
        read(source, folder)
    (folder / "c" / "train-00002-of-00004.123.unfinished").write_bytes(b"half")
    kept = (folder / "c" / "train-00000-of-00004.array_record").stat().st_mtime_ns
    assert write(source, folder)[0] == (3, 8)
    assert kept == (folder / "c" / "train-00000-of-00004.array_record").stat().st_mtime_ns
    assert [file.name for file in sorted(folder.rglob("*"))] == [
        file.name for file in sorted(tokenized.rglob("*"))
    ]
    assert_equal(take(read(source, folder), 9), take(read(source, tokenized), 9))


def test_other_documents_or_tokens_are_refused(source, tokenized, tmp_path):
    with pytest.raises(ValueError, match=r"text or tokens: data.vocabulary is another vocabulary"):
        read(source, tokenized, vocabulary="bytes:10")
    write_texts(tmp_path)
    take(read(tmp_path, tokenized), 1)  # the same content in another folder
    text = (tmp_path / "b.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(text.replace("cat", "dog", 1))
    with pytest.raises(ValueError, match="the files of c/train have changed") as caught:
        read(tmp_path, tokenized)
    assert "\n" not in str(caught.value)
    (tmp_path / "b.jsonl").write_text(text + '{"text": "more"}\n')
    with pytest.raises(ValueError, match="rows of c/train is 68, and was 67"):
        read(tmp_path, tokenized)
    with pytest.raises(ValueError, match=r"--output=.* made of other .*: rows of c/train is 68"):
        write(tmp_path, tokenized)
    with pytest.raises(ValueError, match=r"held_out of c/train is 0.3, and was 0.2"):
        write(source, tokenized, held_out=0.3)


@pytest.mark.parametrize(
    "content", ["[]", "null", "{}", '{"identity": 1}', '{"identity": {"splits": []}, "files": {}}']
)
def test_a_record_with_other_json_is_refused(content, tmp_path):
    (tmp_path / "tokenized.json").write_text(content)
    with pytest.raises(ValueError, match=r"data.tokenized=.*: tokenized.json is another file"):
        TokenizedFolder(str(tmp_path))


def test_a_damaged_folder_is_refused(source, tmp_path):
    write(source, tmp_path / "folder")
    file = tmp_path / "folder" / "c" / "train-00001-of-00004.array_record"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"is damaged: c/train-00001-of-00004.array_record has"):
        read(source, tmp_path / "folder")
    file.unlink()
    with pytest.raises(ValueError, match=r"is damaged: .* has 0 bytes"):
        read(source, tmp_path / "folder")
    with pytest.raises(ValueError, match=r"has no tokenized.json: make it by t5x-like tokenize"):
        read(source, tmp_path)
    with pytest.raises(ValueError, match=r"--output=.* has other files"):
        write(source, tmp_path)


def test_a_file_that_is_written_meanwhile_makes_no_folder(tmp_path):
    write_texts(tmp_path)
    writing = tokenized_folder.write(documents(tmp_path), str(tmp_path / "folder"), processes=1)
    next(writing)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl: it has been written since it was opened"):
        list(writing)
    with pytest.raises(ValueError, match=r"is unfinished"):
        read(tmp_path, tmp_path / "folder")
    with pytest.raises(ValueError, match="delete"):  # it began with other documents
        write(tmp_path, tmp_path / "folder")


def test_documents_that_change_meanwhile_make_no_folder(tmp_path):
    write_texts(tmp_path)
    writing = tokenized_folder.write(documents(tmp_path), str(tmp_path / "folder"), processes=1)
    next(writing)
    (tmp_path / "c.jsonl").write_text('{"text": "more"}\n')
    with pytest.raises(ValueError, match="the documents were changed meanwhile"):
        list(writing)
    with pytest.raises(ValueError, match=r"has no tokenized.json"):
        read(tmp_path, tmp_path / "folder")


@pytest.mark.slow
def test_the_command_tokenizes_in_processes_and_resumes_after_a_kill(tmp_path):
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(WORDS[:4], size=30)) for _ in range(60_000)]
    text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
    (tmp_path / "a.jsonl").write_text(text)
    output = tmp_path / "folder"
    own = settings(tmp_path)
    tokenize_command.run_twice(MODULE, own, output, pattern="*.array_record", files=12)
    assert_equal(take(read(tmp_path, output), 5), take(read(tmp_path), 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--processes=-1", "--processes=-1 must be 0 or more"),
        ("--output=", "--output is empty: give it a value"),
        ("--config.data.task=d", "data.task='d' does not exist"),
        ("--config.data.vocabulary=no.model", "'no.model' does not exist"),
    ],
)
def test_a_mistake_is_one_line(source, tmp_path, more, message):
    output = tmp_path / "folder"
    done = tokenize_command.run(MODULE, settings(source), output, more)
    tokenize_command.assert_one_line(done, message, output=output)
