"""Paths of a bucket, against an emulator, do what those of a folder do; errors are one line."""

import importlib.util
import pwd

import pytest

from t5x_like import paths, vocabularies
from t5x_like.checkpoints import checkpoint_steps, manifest
from t5x_like.experiment import command_line, reporting, run_folder
from t5x_like.experiment.run_folder import LockedError, WorkdirLock
from t5x_like.grain_pipeline.rows_of_files import open_files
from t5x_like.pretrained.weight_source import open_source
from tests.programs import storage_emulator

pytestmark = storage_emulator.QUIET


@pytest.fixture
def bucket(emulator, request):
    """A folder of the bucket, one for each test."""
    return paths.path(f"gs://bucket/{request.node.name}")


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    """A folder of this machine, and one of a bucket."""
    return tmp_path if request.param == "folder" else request.getfixturevalue("bucket")


def test_a_file_is_created_once_and_replaced_whole(place):
    file = place / "lock.json"
    assert paths.create(file, "first")
    assert not paths.create(file, "second")
    assert file.read_text() == "first"
    paths.write_whole(file, "third")
    assert file.read_text() == "third"
    assert [one.name for one in place.iterdir()] == ["lock.json"]


def test_lines_are_added_to_a_file_that_is_there(place):
    for step in (1, 2):
        writer = reporting.JsonLinesWriter(place / reporting.LOG)
        writer.write_scalars(step, {"train/loss": step / 2})
        writer.flush()
        assert max(reporting.read_log(place)["train/loss"]) == step
        writer.close()
    assert reporting.read_log(place) == {"train/loss": {1: 0.5, 2: 1.0}}


def test_a_growing_file_is_uploaded_by_its_thread(bucket, monkeypatch):
    monkeypatch.setattr(paths, "_EVERY", 0.01)
    file = paths.Growing(bucket / "log")
    file.write(b"a line\n")
    for _ in range(1000):
        if (bucket / "log").exists():
            break
    assert (bucket / "log").read_bytes() == b"a line\n"
    file.close()


def test_names_of_files_are_relative_to_their_folder(place):
    for name in ("a", "in/b", "in/it/c"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    folder = paths.absolute(place)
    assert sorted(paths.names_below(folder)) == ["a", "in/b", "in/it/c"]
    manifest.write(folder)
    assert manifest.damage(folder) is None
    (place / "in/b").write_text("d")
    assert "in/b" in manifest.damage(folder)


def test_a_checkpoint_in_a_bucket_counts_once_it_is_committed(bucket):
    (bucket / "3/metadata/metadata.json").write_text("{}")
    assert checkpoint_steps(bucket) == []
    (bucket / "3/commit_success.txt").write_text("")
    assert checkpoint_steps(bucket) == [3]


def test_a_workdir_in_a_bucket_has_one_run(bucket, monkeypatch):
    for name, seconds in (("EVERY", 0.05), ("STALE", 0.5), ("_SETTLED", 0.05)):
        monkeypatch.setattr(run_folder, name, seconds)
    lines = []
    with WorkdirLock(bucket, report=lines.append) as held:
        with pytest.raises(LockedError, match=r"gs://bucket/.* is in use by process"):
            WorkdirLock(bucket, report=lines.append).__enter__()
        held.check()
    assert not (bucket / "lock.json").exists()
    stale = '{"host": "another", "process": 1, "run": "dead"}'
    (bucket / "lock.json").write_text(stale)
    with WorkdirLock(bucket, report=lines.append):
        assert "took over the lock of process 1 on host another" in lines[-1]


def test_documents_and_a_vocabulary_are_read_from_a_bucket(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path))
    for number in (1, 2):
        (bucket / f"{number}.jsonl").write_text(f'{{"text": "document {number}"}}\n')
    files = open_files("files", f"{bucket}/*.jsonl", {"text": "text"})
    assert files.paths == [f"{bucket}/1.jsonl", f"{bucket}/2.jsonl"]
    assert [files[0], files[1]] == [{"text": "document 1"}, {"text": "document 2"}]
    (bucket / "1.jsonl").write_text('{"text": "document 3"}\n')  # not the copy of the old one
    [row] = open_files("files", f"{bucket}/1.jsonl", {"text": "text"})
    assert row == {"text": "document 3"}
    (bucket / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one"])
    )
    loaded = vocabularies.load(f"{bucket}/vocab.txt")
    assert loaded.decode(loaded.encode("one")) == "one"


@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        ("gs://absent/run", "there is no bucket 'absent': create it, or give another"),
        ("gs://", "has no bucket: gs://BUCKET/PATH"),
        ("s3://bucket/run", "must be a path of this machine, or begin with gs://"),
    ],
)
def test_a_wrong_bucket_is_named_with_its_setting(emulator, workdir, message):
    with pytest.raises(ValueError, match=r"^workdir='") as raised:
        command_line.check_folder("workdir", workdir)
    assert message in str(raised.value)


def test_a_bucket_that_may_not_be_written_is_an_error_of_files(emulator):
    for write in (paths.create, paths.write_whole):
        with pytest.raises(
            OSError, match=r"^gs://sealed/file: the account may not .*Storage Object User"
        ):
            write(paths.path("gs://sealed/file"), "text")


def test_a_folder_of_hugging_face_in_a_bucket_is_refused(bucket):
    (bucket / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"only runs and their checkpoints are read: copy"):
        open_source(bucket)


def test_without_its_library_a_bucket_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs gcsfs: pip install 't5x_like\[gcs\]'"):
        paths.path("gs://bucket/run")


def test_a_file_of_an_unknown_user_has_a_fingerprint(tmp_path, monkeypatch):
    def unknown(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    file = tmp_path / "text"
    file.write_text("abc")
    assert paths.fingerprint(file)[:2] == [3, int(file.stat().st_mtime)]
    assert paths.fingerprint(tmp_path) is None
    assert paths.fingerprint(tmp_path / "not there") is None
