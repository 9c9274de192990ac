"""The text of the toy study is in a temporary folder."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TOY_STUDY_FOLDER", str(tmp_path / "text"))
