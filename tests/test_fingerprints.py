"""Fingerprints of vocabulary and data files: what counts as a change, and what does not."""

import os
import pathlib
import shutil

import jax
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from t5x_like import partitioning
from t5x_like.experiment import data_side, fingerprints
from t5x_like.experiment.run import of_config
from t5x_like.paths import _ENDS
from t5x_like.vocabularies.trainers import train
from tests.programs import tiny_t5

LINES = [f"{n} {' '.join(tiny_t5.WORDS[(n + i) % 10] for i in range(7))}" for n in range(60)]


def of_run(folder, *, vocabulary="bytes", **data):
    """The fingerprints of a run on the files of a folder."""
    made = tiny_t5.get_config(str(folder / "unused"))
    made.data.vocabulary = str(vocabulary)
    made.data.settings = data.pop("settings", {"files": f"{folder}/*.txt"})
    made.data.update(data)
    mesh = partitioning.make_mesh({"data": 1}, devices=jax.devices()[:1])
    inputs = data_side.build(of_config(made).parts[0], mesh)
    return fingerprints.of_run([(of_config(made).phases[0], {"": inputs})], models=())


def compare(before, now, *, allow_changed=False):
    return fingerprints.compare(before, now, vocabulary="v.model", allow_changed=allow_changed)


@pytest.fixture
def corpus(tmp_path):
    """Two files, the first of them longer than its beginning and end."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(LINES * (4 * _ENDS // len("\n".join(LINES)))))
    (folder / "b.txt").write_text("\n".join(LINES))
    return folder


@pytest.fixture
def before(corpus):
    return of_run(corpus)


def at(path: pathlib.Path, place: int) -> None:
    """Changes a byte; the size and the time of modification stay."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    text = bytearray(path.read_bytes())
    text[place] ^= 1
    path.write_bytes(text)
    os.utime(path, ns=times)


def append(path):
    path.write_text(path.read_text() + "x")


def exchange(path):
    other = path.with_name("b.txt")
    texts = path.read_text(), other.read_text()
    path.write_text(texts[1])
    other.write_text(texts[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (append, r"a.txt of text_files/train has \d+ bytes, and had \d+"),
        (lambda path: at(path, 3), "a.txt of text_files/train has another content"),
        (lambda path: at(path, -3), "a.txt of text_files/train has another content"),
        (exchange, "a.txt of text_files/train has"),
        (lambda path: path.unlink(), "text_files/train has 1 files, and had 2"),
        (lambda path: shutil.copy(path, path.with_name("c.txt")), "has 3 files, and had 2"),
    ],
)
def test_changed_files_are_named_and_refused(corpus, before, change, words):
    change(corpus / "a.txt")
    now = of_run(corpus)
    with pytest.raises(ValueError, match=f"the data have changed since the checkpoint: .*{words}"):
        compare(before, now)
    assert compare(before, now, allow_changed=True)[0].startswith("data: ")


def test_the_same_files_on_another_machine_are_the_same(corpus, before, tmp_path):
    shutil.copytree(corpus, tmp_path / "elsewhere" / "corpus")
    for path in (tmp_path / "elsewhere" / "corpus").iterdir():
        os.utime(path, (1, 1))
    assert compare(before, of_run(tmp_path / "elsewhere" / "corpus")) == []


def test_files_that_were_written_again_are_only_reported(corpus, before):
    os.utime(corpus / "b.txt", (1, 1))
    [line] = compare(before, of_run(corpus))
    assert line.startswith(f"data: 1 files were written again, {corpus}/b.txt for one")


def test_files_that_an_older_config_did_not_read_are_no_change(corpus, before):
    (corpus / "validation").mkdir()
    shutil.copy(corpus / "b.txt", corpus / "validation" / "b.txt")
    now = of_run(corpus, settings={"files": f"{corpus}/*.txt", "held_out": 0.5})
    phase = {f"second/{key}": [*paths, "more"] for key, paths in now["read"].items()}
    assert compare(before, now | {"read": now["read"] | phase}) == []


def test_another_vocabulary_of_the_same_size_is_refused_even_where_data_may_change(
    corpus, tmp_path
):
    both = []
    for name, texts in (("one", LINES), ("two", [line.upper() for line in LINES])):
        path = tmp_path / name / "v.model"
        path.parent.mkdir()
        train(texts, vocab_size=40, output=path)
        both.append(of_run(corpus, vocabulary=path))
    shutil.copy(tmp_path / "one" / "v.model", tmp_path / "copy.model")
    assert compare(both[0], of_run(corpus, vocabulary=tmp_path / "copy.model")) == []
    with pytest.raises(ValueError, match=r"data.vocabulary='v.model' is another vocabulary"):
        compare(*both, allow_changed=True)


def test_a_checkpoint_from_before_has_none(before):
    assert compare({}, before) == []


def test_files_of_parquet_pairs_and_labelled_rows_are_found(tmp_path):
    table = pyarrow.table({"text": LINES})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("\n".join(LINES) + "\n")
    (tmp_path / "rows.jsonl").write_text('{"text_a": "one", "label": "yes"}\n' * 30)
    modules = {
        "text_files": {"files": str(tmp_path / "a.parquet"), "held_out": 0.2},
        "parallel_text": {
            "source": str(tmp_path / "a.en"),
            "target": str(tmp_path / "a.de"),
            "held_out": 0.2,
        },
    }
    objectives = {"text_files": "span_corruption", "parallel_text": "translation"}
    expected = {"text_files": ["a.parquet"], "parallel_text": ["a.en", "a.de"]}
    for name, settings in modules.items():
        found = of_run(
            tmp_path,
            module=f"data/{name}.py",
            task=name,
            settings=settings,
            objective=objectives[name],
        )
        assert found["read"][f"{name}/train"] == [str(tmp_path / file) for file in expected[name]]
        assert len(found["files"]) == len(expected[name])
        assert all(np.ndim(one) == 1 for one in found["files"].values())


def test_another_commit_of_a_model_is_reported_and_no_error(before):
    old, new = (before | {"hub": {"owner/model": one}} for one in ("1a2b", "3c4d"))
    assert compare(old, new) == [
        "owner/model of the hub had commit 1a2b at the checkpoint, and has 3c4d now"
    ]
    assert compare(old, old) == compare(old, before) == compare(before, new) == []
