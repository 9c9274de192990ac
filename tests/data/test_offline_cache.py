"""seqio's offline cache: the batches and positions of tokenizing, and folders that do not fit."""

import collections
import json
import os
from pathlib import Path

import numpy as np
import pytest
import seqio

from t5x_like import config, vocabularies
from t5x_like.batches import data_modules, document_cleaning, tokenized_folder
from t5x_like.experiment.run import of_config
from t5x_like.objectives import OBJECTIVES
from t5x_like.preprocessing import offline_cache, seqio_objectives
from t5x_like.preprocessing.offline_caching import TextOfTasks
from t5x_like.preprocessing.pipeline import RegisteredTasks
from tests.programs import tokenize_command
from tests.programs.tokenize_command import assert_equal, take

ROOT = Path(__file__).parents[2]
TEXT_FILES = "data/text_files.py"
LENGTHS = {"inputs": 48, "targets": 24}
WORDS = ["the", "cat", "über", "日本", "a\u00a0b", "\r\n", "x\x07y", "😀"]


def write_texts(folder, *, files=2):
    """Files of documents, some with what cleaning changes, splits or drops."""
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, size=generator.integers(1, 40))) for _ in range(90)]
    texts[3:3] = [" \t ", "", "z" * 300, "\ufffd" * 9 + "a", "y " * 60_000]
    folder.mkdir(exist_ok=True)
    for number in range(files):
        lines = [
            json.dumps({"text": text, "answer": text[:9] + "!"}) for text in texts[number::files]
        ]
        (folder / f"{number}.jsonl").write_text("\n".join([lines[0], " \t", *lines[1:]]) + "\n")
    return folder


def write_glue(folder):
    for split, number in (("train", 40), ("validation", 9)):
        rows = [
            {"sentence": "word " * (n % 7 + 1), "label": n % 2, "idx": n} for n in range(number)
        ]
        (folder / "cola").mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "cola" / f"{split}.jsonl").write_text(text)
    return folder


def text(folder, *, vocabulary="bytes", objective="span_corruption", tasks=("c",), **changes):
    settings = {"files": f"{folder}/*.jsonl", "name": "c", "held_out": 0.2} | changes
    return TextOfTasks(str(ROOT / TEXT_FILES), settings, vocabulary, tasks, objective, {})


def pairs(folder, **changes):
    return text(folder, inputs="text", targets="answer", objective="text_to_text", **changes)


def glue(folder, objective="text_to_text"):
    module = str(ROOT / "data" / "glue.py")
    return TextOfTasks(module, {"folder": str(folder)}, "bytes", ("glue_cola",), objective, {})


def write(made, output):
    return list(tokenized_folder.write(made, str(output), processes=1))


def read(made, tokenized="", *, converter="encoder_decoder", lengths=LENGTHS, **reading):
    tasks = RegisteredTasks(
        data_modules.load(made.module),
        made.settings,
        vocabulary=vocabularies.load(made.vocabulary),
        objective=made.objective,
        objective_settings=made.objective_settings,
        tokenized=str(tokenized),
    )
    reading = {"split": "train", "batch_size": 4, "seed": 3, "shuffle_buffer": 20, **reading}
    return tasks.batches(made.tasks[0], lengths=lengths, converter=converter, **reading)


@pytest.fixture(scope="module")
def two_files(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "two")


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "one", files=1)


@pytest.fixture(scope="module")
def cache_of_two(two_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "folder"
    assert write(text(two_files), folder) == [(1, 3), (2, 3), (3, 3)]
    return folder


@pytest.fixture(scope="module")
def cache_of_one(one_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "folder"
    assert write(text(one_file), folder)[-1] == (2, 2)
    return folder


def test_the_setting_of_a_config_reads_it(two_files, cache_of_two, tmp_path):
    made = text(two_files)
    settings = config.defaults()
    settings.data.update({"module": made.module, "vocabulary": "bytes", "task": "c"})
    settings.data.update({"objective": made.objective, "settings": made.settings})
    settings.data.tokenized = str(cache_of_two)
    reading = {"split": "train", "batch_size": 4, "lengths": LENGTHS, "shuffle_buffer": 20}
    found = (of_config(settings).parts[0].text).tasks().batches("c", **reading, shards=2, seed=3)
    assert_equal(take(found, 9), take(read(made, shards=2), 9))
    settings.data.tokenized = str(tmp_path)
    with pytest.raises(ValueError, match=r"has no tokenized.json: make it by t5x-like tokenize"):
        (of_config(settings).parts[0].text).tasks()


def test_it_has_the_layout_of_seqio_which_reads_it(two_files, cache_of_two, monkeypatch):
    files = sorted(os.path.relpath(file, cache_of_two) for file in cache_of_two.rglob("*"))
    assert files == [
        "c",
        "c/COMPLETED",
        "c/info.train.json",
        "c/info.validation.json",
        "c/stats.train.json",
        "c/stats.validation.json",
        "c/train.tfrecord-00000-of-00002",
        "c/train.tfrecord-00001-of-00002",
        "c/validation.tfrecord-00000-of-00001",
        "tokenized.json",
    ]
    text(two_files).open()
    task = seqio.TaskRegistry.get("c")
    monkeypatch.setattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES", [str(cache_of_two)])
    for split in task.splits:
        stats = task.get_cached_stats(split)
        found, expected = (
            [*task.get_dataset(LENGTHS, split, cached, shuffle=False, seed=1).as_numpy_iterator()]
            for cached in (True, False)
        )
        if split == "validation":  # whose order is the same
            assert_equal(found, expected)
        documents = task.source.get_dataset(split, shuffle=False)
        lengths = [len(row["targets"]) for row in task.preprocess_precache(documents)]
        assert stats["examples"] == len(lengths)
        assert stats["targets_tokens"] == sum(lengths)
        assert stats["targets_max_tokens"] == max(lengths)


@pytest.mark.parametrize("objective", ["span_corruption", "language_modeling"])
def test_one_folder_has_the_batches_of_the_text_for_several_objectives(
    two_files, cache_of_two, objective
):
    made = text(two_files, objective=objective)
    kind = "decoder" if objective == "language_modeling" else "encoder_decoder"
    in_order = {"split": "validation", "shuffle": False, "repeat": False, "converter": kind}
    for pack in (False, True):
        expected = list(read(made, **in_order, pack=pack))
        assert_equal(list(read(made, cache_of_two, **in_order, pack=pack)), expected)
    # A shard has one file; several epochs of it.
    expected = take(read(made, shards=2, converter=kind), 100)
    assert_equal(take(read(made, cache_of_two, shards=2, converter=kind), 100), expected)


def test_training_of_one_shard_of_one_file_has_the_batches_of_the_text(one_file, cache_of_one):
    made = text(one_file)
    assert_equal(take(read(made, cache_of_one), 60), take(read(made), 60))


def test_the_text_is_not_read(one_file, cache_of_one):
    document_cleaning.reset_counts()
    take(read(text(one_file), cache_of_one), 60)
    assert not any(document_cleaning.counts().values())
    take(read(text(one_file)), 1)
    assert document_cleaning.counts()["documents"]


def test_an_epoch_has_the_examples_of_the_text_in_whatever_order(two_files, tmp_path):
    made = pairs(two_files)
    write(made, tmp_path / "folder")

    def examples(tokenized, shards):
        one_pass = read(made, tokenized, repeat=False, shards=shards, batch_size=6)
        return collections.Counter(
            (inputs.tobytes(), targets.tobytes())
            for batch in one_pass
            for inputs, targets in zip(
                batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True
            )
            if targets.any()
        )

    expected = examples("", 1)
    assert sum(expected.values()) > 50
    assert [examples(tmp_path / "folder", shards) for shards in (1, 2, 3)] == [expected] * 3


def test_rows_in_memory_have_the_batches_of_the_text_in_any_shards(tmp_path):
    made = glue(write_glue(tmp_path / "glue"))
    write(made, tmp_path / "folder")
    for shards, split in ((1, "train"), (4, "train"), (2, "validation")):
        expected = take(read(made, shards=shards, split=split), 12)
        found = read(made, tmp_path / "folder", shards=shards, split=split)
        assert_equal(take(found, 12), expected)


def test_sentences_have_the_batches_of_the_text(one_file, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "a", "b", "x", "##y"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    made = text(one_file, vocabulary=str(tmp_path / "vocab.txt"), objective="bart")
    write(made, tmp_path / "folder")
    lengths = {"inputs": 64, "targets": 64}
    expected = take(read(made, lengths=lengths), 20)
    assert_equal(take(read(made, tmp_path / "folder", lengths=lengths), 20), expected)


@pytest.mark.parametrize("pack", [False, True])
def test_a_position_is_resumed_bitwise(two_files, cache_of_two, pack):
    made = text(two_files)
    whole = read(made, cache_of_two, pack=pack)
    take(whole, 11)
    state, expected = whole.state(), take(whole, 60)
    again = read(made, cache_of_two, pack=pack)
    again.restore(state)
    assert_equal(take(again, 60), expected)
    with pytest.raises(ValueError, match=r"cannot be restored: .* whether data.tokenized is set"):
        read(made, pack=pack).restore(state)


def test_the_same_command_again_writes_nothing(two_files, cache_of_two):
    before = {file: file.stat().st_mtime_ns for file in cache_of_two.rglob("*")}
    assert write(text(two_files), cache_of_two) == [(3, 3)]
    assert before == {file: file.stat().st_mtime_ns for file in cache_of_two.rglob("*")}


def test_an_interrupted_folder_is_not_read_and_goes_on(two_files, cache_of_two, tmp_path):
    folder = tmp_path / "folder"
    writing = tokenized_folder.write(text(two_files), str(folder), processes=1)
    assert next(writing) == (1, 3)
    writing.close()
    with pytest.raises(ValueError, match="is unfinished: go on with it by t5x-like tokenize"):
        read(text(two_files), folder)
    (folder / "c" / "train.tfrecord-00001-of-00002.123.unfinished").write_bytes(b"half")
    assert write(text(two_files), folder)[0] == (2, 3)
    for file in cache_of_two.rglob("*"):
        if file.is_file():
            assert (folder / file.relative_to(cache_of_two)).read_bytes() == file.read_bytes()
    assert len(list(folder.rglob("*"))) == len(list(cache_of_two.rglob("*")))


def test_other_text_or_tokens_are_refused(two_files, cache_of_two, tmp_path):
    take(read(text(write_texts(tmp_path / "moved")), cache_of_two), 1)
    cases = {
        "data.vocabulary is another vocabulary": text(two_files, vocabulary="bytes:10"),
        "data.settings.held_out of c/train is 0.3, and was 0.2": text(two_files, held_out=0.3),
        "preprocessors of c/train is .*sentences.tokenize": text(two_files, objective="bart"),
        "it has c/train, c/validation, and not d/train": text(two_files, name="d", tasks=("d",)),
    }
    (tmp_path / "moved" / "1.jsonl").write_text('{"text": "more"}\n')
    cases["the files of c/train have changed"] = text(tmp_path / "moved")
    for message, made in cases.items():
        with pytest.raises(ValueError, match=r"was made of other text or tokens: " + message) as e:
            read(made, cache_of_two)
        assert "\n" not in str(e.value)
        with pytest.raises(ValueError, match=r"--output=.* was made of other .*: " + message):
            write(made, cache_of_two)


def test_a_folder_of_an_earlier_version_is_read(two_files, cache_of_two):
    # What fc00013 wrote, where these preprocessors were in other modules.
    before = {
        "span_corruption": "t5x_like.preprocessing.objectives.running_text.chunking.tokenize",
        "bert": "t5x_like.preprocessing.objectives.masked.sentences.tokenize",
    }
    record = json.loads((cache_of_two / "tokenized.json").read_text())
    [_, step] = record["identity"]["splits"]["c/train"]["preprocessors"]
    assert step == before["span_corruption"]
    for objective, name in before.items():
        origin = offline_cache.Origin(None, {}, objective, {})
        assert origin._step(seqio_objectives.build(objective).preprocessors[0]) == name


def test_other_rows_in_memory_are_refused(tmp_path):
    made = glue(write_glue(tmp_path / "glue"))
    write(made, tmp_path / "folder")
    file = tmp_path / "glue" / "cola" / "train.jsonl"
    file.write_text(file.read_text().replace("word", "words", 1))
    with pytest.raises(ValueError, match=r"rows of glue_cola/train is '\w+', and was '\w+'"):
        read(made, tmp_path / "folder")


def test_a_damaged_folder_is_refused(two_files, tmp_path):
    made, folder = text(two_files), tmp_path / "folder"
    write(made, folder)
    info = folder / "c" / "info.train.json"
    info.write_text(info.read_text()[:-20])
    with pytest.raises(ValueError, match=r"is damaged: .*info.train.json cannot be read") as caught:
        read(made, folder)
    assert "\n" not in str(caught.value)
    file = folder / "c" / "train.tfrecord-00001-of-00002"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"is damaged: c/train.tfrecord-00001-of-00002 has"):
        read(made, folder)
    file.unlink()
    with pytest.raises(ValueError, match=r"is damaged: .* has 0 bytes"):
        read(made, folder)
    with pytest.raises(ValueError, match=r"has no tokenized.json: make it by t5x-like tokenize"):
        read(made, tmp_path)


def test_a_task_that_tokenizes_and_truncates_at_once_is_refused(tmp_path):
    made = glue(write_glue(tmp_path / "glue"), objective="classification")
    with pytest.raises(ValueError, match=r"'glue_cola' with data.objective='classification' can"):
        write(made, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("name", [*OBJECTIVES])
def test_nothing_before_the_cache_depends_on_lengths_or_seeds(name, caplog):
    if name.startswith("knowledge_"):
        return  # these read a knowledge graph
    made = seqio_objectives.build(name)
    source = seqio.TextLineDataSource({"train": "none"})
    task = seqio.Task("t", source=source, preprocessors=made.cacheable, output_features={})
    assert len(task.preprocessors) in (1, len(made.preprocessors) + 1)  # seqio checks them
    assert "but occurs before" not in caplog.text


@pytest.mark.slow
def test_the_command_tokenizes_in_processes_and_resumes_after_a_kill(tmp_path):
    generator = np.random.default_rng(0)
    for number in range(12):
        lines = [" ".join(generator.choice(WORDS[:4], size=30)) for _ in range(2_000)]
        rows = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (tmp_path / f"{number:02d}.jsonl").write_text(rows)
    output = tmp_path / "folder"
    own = text(tmp_path).settings
    tokenize_command.run_twice(
        TEXT_FILES, own, output, pattern="*.tfrecord-000??-of-000??", files=13
    )
    made = text(tmp_path)
    assert_equal(
        take(read(made, output, shards=12, batch_size=12), 5),
        take(read(made, shards=12, batch_size=12), 5),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--config.data.task=d", "task 'd' (data.task, evaluate.tasks) is not registered"),
        ("--config.data.settings.held_out=2", "held_out=2"),
        ("--config.data.vocabulary=no.model", "'no.model' does not exist"),
        ("--config.data.objective=pair_classification", "data.objective='pair_classification'"),
    ],
)
def test_a_mistake_is_one_line(two_files, tmp_path, more, message):
    output = tmp_path / "folder"
    done = tokenize_command.run(TEXT_FILES, text(two_files).settings, output, more)
    tokenize_command.assert_one_line(done, message, output=output)
