"""Models of the hub by their names, read offline from a cache as huggingface_hub's docs lay it out.

The layout is huggingface.co/docs/huggingface_hub/guides/manage-cache: the files by their hashes,
the commit of each branch, and for each commit a folder of links to the files.
"""

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from t5x_like import convert, hub, vocabularies
from t5x_like.config.run_settings import RunSettings
from t5x_like.experiment import completion
from t5x_like.experiment.run import Run
from t5x_like.pretrained import from_pretrained
from t5x_like.pretrained.weight_source import open_source
from tests.hf.test_filled_masks import ROOT, make

MODEL = "owner/a-model_1.0"
FIRST, SECOND = "1" * 40, "2" * 40


def cached(cache, name, folder, *, commit, refs):
    """Put the files of a folder into a cache as a commit with branches and tags."""
    model = cache / f"models--{name.replace('/', '--')}"
    snapshot = model / "snapshots" / commit
    for path in (model / "blobs", model / "refs", snapshot):
        path.mkdir(parents=True, exist_ok=True)
    for ref in refs:
        (model / "refs" / ref).write_text(commit)
    for file in folder.iterdir():
        blob = model / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache whose model has two commits, main and the tag v1, which is another network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    hub.folder.cache_clear()
    for name, commit, refs in (("bert", FIRST, ["v1"]), ("roberta", SECOND, ["main"])):
        (tmp_path / name).mkdir()
        make(name, tmp_path / name)
        cached(tmp_path / "home" / "hub", MODEL, tmp_path / name, commit=commit, refs=refs)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "home" / "hub"
    hub.folder.cache_clear()


@pytest.mark.parametrize(
    ("name", "system", "commit"),
    [
        (MODEL, "roberta", SECOND),
        (f"{MODEL}@main", "roberta", SECOND),
        (f"{MODEL}@v1", "bert", FIRST),
        (f"{MODEL}@{FIRST}", "bert", FIRST),
    ],
)
def test_a_name_is_the_folder_of_its_commit(cache, tmp_path, name, system, commit):
    assert open_source(Path(name)).system == system
    assert hub.commits(name, "not/read") == {name: commit}
    here = vocabularies.load(tmp_path / system)
    assert vocabularies.load(name) == here
    settings = RunSettings(system="", initialize=name)
    made = completion.complete(Run(dataclasses.replace(settings, model={}))).settings
    assert (made.system, made.initialize, made.data.vocabulary) == (system, name, name)


def test_the_oldest_models_have_names_without_an_owner(cache, tmp_path):
    """Such as gpt2 and t5-small; any other word without an owner is a path."""
    cached(cache, "bert-base-uncased", tmp_path / "bert", commit=FIRST, refs=["main"])
    assert open_source(Path("bert-base-uncased")).system == "bert"
    assert vocabularies.load("bert-base-uncased") == vocabularies.load(tmp_path / "bert")
    with pytest.raises(ValueError, match=r"gpt2 is not in the cache of huggingface_hub"):
        open_source(Path("gpt2"))
    for path in ("runs", "bytes", "vocabulary.model", "bert_demo", "model"):
        assert not hub.names(path)


def test_a_folder_of_this_machine_comes_first(cache, tmp_path):
    (tmp_path / MODEL).parent.mkdir()
    (tmp_path / "bert").rename(tmp_path / MODEL)
    assert open_source(Path(MODEL)).system == "bert"


def test_the_library_reads_its_settings_from_the_environment(cache, tmp_path):
    program = f"from t5x_like import hub; print(hub.folder({MODEL!r}))"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip().endswith(f"home/hub/models--owner--a-model_1.0/snapshots/{SECOND}")


def test_a_model_is_converted_by_its_name_with_its_tokenizer(cache, tmp_path):
    convert.convert(Path(MODEL), tmp_path / "to", form="hf", dtype="float32")
    for file in ("vocab.json", "merges.txt"):
        assert (tmp_path / "to" / file).read_bytes() == (tmp_path / "roberta" / file).read_bytes()
    assert from_pretrained(tmp_path / "to").system == "roberta"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("owner/other", "owner/other is not in the cache of huggingface_hub, and HF_HUB_OFFLINE"),
        (f"{MODEL}@v2", "is not in the cache of huggingface_hub, and HF_HUB_OFFLINE is set"),
        ("owner/a--b", "cannot be downloaded from the hub: "),
        ("a/b/c", r"^there is no folder a/b/c\.$"),
    ],
)
def test_a_model_that_is_not_there_is_one_line(cache, name, problem):
    with pytest.raises(ValueError, match=problem) as error:
        open_source(Path(name))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"there is no folder {name}.")
    with pytest.raises(ValueError, match="does not exist"):
        vocabularies.load(name)


def test_without_the_library_the_extra_is_named(cache, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 't5x_like\[hub\]'"):
        open_source(Path(MODEL))
