"""A folder of benchmarks/instructgpt.py keeps the --steps that it was made with."""

import pytest

from benchmarks import instructgpt


def test_a_folder_is_refused_with_other_steps_than_made_it(tmp_path):
    trial = tmp_path / "new" / "trial"
    instructgpt.keep_steps(trial, 0.01)
    instructgpt.keep_steps(trial, 0.01)
    with pytest.raises(
        ValueError, match=r"--steps=1.0: .*trial was made with --steps=0.01"
    ) as error:
        instructgpt.keep_steps(trial, 1.0)
    assert "\n" not in str(error.value)


def test_a_folder_from_before_steps_were_kept_was_made_with_all(tmp_path):
    (tmp_path / "texts.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"was made with --steps=1.0"):
        instructgpt.keep_steps(tmp_path, 0.5)
    instructgpt.keep_steps(tmp_path, 1.0)
