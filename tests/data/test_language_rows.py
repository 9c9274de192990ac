"""Generated rows in files, as labelled_files reads them."""

import pytest

from data import labelled_files
from data.generators import language_rows
from data.languages import homonyms
from data.languages.language import rows_of


def test_the_files_have_the_rows_of_the_language(tmp_path):
    settings = ["documents=20", "validation=30", "around=1"]
    assert language_rows.write("homonyms", "fields", settings, str(tmp_path)) == 50
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")}
    found = labelled_files.read("classification", **files, labels=range(8))
    expected = homonyms.corpora(documents=20, validation=30, around=1)["fields"]
    for split, number in (("train", 20), ("validation", 30)):
        rows = [(row["text_a"], row["label"]) for row in found.numbered(split)]
        assert len(rows) == number
        assert rows == [(one["text_a"], one["label"]) for one in rows_of(expected.splits[split])]
    with pytest.raises(ValueError, match=r"train.jsonl exists already"):
        language_rows.write("homonyms", "fields", settings, str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("homonym", "fields", []), r"language='homonym' does not exist. Did you mean 'homonyms'"),
        (("homonyms", "field", []), r"task='field' does not exist. Did you mean 'fields'"),
        (("homonyms", "fields", ["aruond=1"]), r"settings.aruond.* Did you mean 'around'"),
        (("homonyms", "fields", ["around"]), r"'around' must be NAME=NUMBER"),
        (("homonyms", "fields", ["documents=0"]), r"documents=0 must be 1 or more"),
    ],
)
def test_a_mistake_is_named_before_a_file_is_written(arguments, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        language_rows.write(*arguments, str(tmp_path / "rows"))
    assert not (tmp_path / "rows").exists()
