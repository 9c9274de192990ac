"""Ratings of given responses, and the filter of dialogs: thresholds, going on, bad rows."""

import json

import pytest

from data.filters import dialog_filter
from t5x_like.batches import dialog_rows
from t5x_like.inference.dialog_model import CandidateSampler, Dialog, DialogSettings, Rater
from tests.programs import dialog_models

# Float32 sums in another order: rows have other padding.
ROUNDING = 2e-5


def test_a_text_is_rated_as_the_candidate_with_its_tokens():
    model = dialog_models.make()
    context = ["w1 w2", "w3", "w4"]
    sampler = CandidateSampler(model, DialogSettings(candidates=8, seed=3))
    [candidates] = sampler([dialog_rows.response_prompt(context)])
    same = [one for one in candidates if model.vocabulary.encode(one.text) == [*one.tokens]]
    assert len(same) > 3
    rated = Rater(model)([Dialog(context, one.text) for one in same])
    for one, own in zip(same, rated, strict=True):
        assert own == pytest.approx(one.ratings, abs=ROUNDING)


def by_length(dialogs):
    """A response of n words is sensible by n tenths, and unsafe if it says so."""
    return [
        {
            "sensible": len(one.response.split()) / 10,
            "specific": 1.0,
            "interesting": 0.0,
            "unsafe": float("burn" in one.response),
        }
        for one in dialogs
    ]


@pytest.fixture
def write(tmp_path):
    def write(name, *rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write


def test_what_is_kept_passes_all_thresholds_and_finished_files_stay(write, tmp_path):
    rows = [{"context": ["a"], "response": text, "n": 1} for text in ("b " * 5, "b", "burn " * 9)]
    files = [write("one.jsonl", *rows), write("two.jsonl", *rows[:1])]
    settings = {"rate": by_length, "least": {"sensible": 0.5}, "unsafe_above": 0.5, "rows": 2}
    output = str(tmp_path / "kept")
    assert dialog_filter.filter_files(files[:1], output, **settings) == {
        "read": 3,
        "kept": 1,
        "there": 0,
    }
    [kept] = (tmp_path / "kept" / "one.jsonl").read_text().splitlines()
    assert json.loads(kept) == rows[0] | {"probabilities": by_length([Dialog(["a"], "b " * 5)])[0]}
    counts = dialog_filter.filter_files(files, output, **settings)
    assert counts == {"read": 1, "kept": 1, "there": 1}


def test_a_bad_row_leaves_no_file_that_looks_whole(write, tmp_path):
    file = write("one.jsonl", {"context": ["a"], "response": "b"}, {"context": "a"})
    with pytest.raises(ValueError, match=r"one\.jsonl:2: context='a' is not a list of turns"):
        dialog_filter.filter_files(
            [file], str(tmp_path / "kept"), rate=by_length, least={}, unsafe_above=1.0
        )
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--least", "sensibl=0.5"], "Did you mean 'sensible'"),
        (["--least", "sensible=2"], "--least sensible='2' must be a probability"),
        (["--unsafe_above", "half"], "--unsafe_above='half' must be a probability"),
        (["--rows", "0"], "--rows=0 must be 1 or more"),
        ([], "--run='nowhere' is not the folder of a run"),
    ],
)
def test_a_bad_flag_is_one_line(write, tmp_path, capsys, flags, message):
    file = write("one.jsonl", {"context": ["a"], "response": "b"})
    with pytest.raises(SystemExit) as ended:
        dialog_filter.main(
            ["--input", file, "--output", str(tmp_path / "kept"), "--run", "nowhere", *flags]
        )
    error = capsys.readouterr().err.strip()
    assert ended.value.code == 2
    assert message in error
    assert "\n" not in error
