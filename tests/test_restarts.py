"""Restarts of a run: what they refuse, what they print, and which files they leave alone."""

import dataclasses
import errno
import json
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

from t5x_like import checkpoints, partitioning, train
from t5x_like.checkpoints import manifest
from t5x_like.config import parse
from t5x_like.experiment import data_side, model_side, reporting, run_folder
from t5x_like.experiment.run import of_config
from t5x_like.experiment.run_folder import WorkdirLock
from tests.programs import tiny_t5

pytestmark = pytest.mark.usefixtures("one_device")


def settings(folder, **changes):
    made = tiny_t5.get_config(str(folder))
    made.train.steps, made.evaluate.batches = 2, 1
    made.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of two steps, and of its text."""
    folder = tmp_path_factory.mktemp("trained")
    train.main(parse(settings(folder)))
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, on what is another machine for all that the run knows."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def refused(capsys, made, *, status=2):
    """The line of a restart that ends with an error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        train.main(parse(made))
    assert ended.value.code == status
    [line] = capsys.readouterr().err.splitlines()
    return line


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.json") if path.is_file()}


def test_changed_data_are_refused_unless_a_setting_allows_them(run, capsys):
    text = run / "text.txt"
    text.write_text(text.read_text() + "one more line\n")
    before = contents(run / "run")
    line = refused(capsys, settings(run, train__steps=3))
    assert "the data have changed since the checkpoint: " in line
    assert line.endswith("or continue with these by data.allow_changed=True")
    assert contents(run / "run") == before

    train.main(parse(settings(run, train__steps=3, data__allow_changed=True)))
    assert re.search("data: .*text.txt .* bytes, and had", capsys.readouterr().out)
    stored = checkpoints.read_metadata(run / "run")["fingerprints"]
    assert stored["files"][str(text)][0] == text.stat().st_size  # the run's own now


@pytest.mark.slow
def test_a_checkpoint_without_fingerprints_resumes(run, monkeypatch):
    found = run_folder.stored(run / "run", of_config(settings(run)))
    assert found.fingerprints["files"]
    old = dataclasses.replace(found, fingerprints={})
    monkeypatch.setattr(run_folder, "stored", lambda *_: old)
    train.main(parse(settings(run, train__steps=3)))
    assert checkpoints.checkpoint_steps(run / "run" / "checkpoints")[-1] == 3


def test_a_second_run_in_the_workdir_is_refused(run, capsys):
    with WorkdirLock(run / "run", report=print):
        line = refused(capsys, settings(run, train__steps=3))
    assert re.search("workdir='.*/run' is in use by process .* on host .*: stop that run", line)


def test_a_full_disk_is_one_line_and_leaves_the_newest_checkpoint(run, capsys, monkeypatch):
    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = checkpoints.restore_params(run / "run")[0]
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", full)
        line = refused(capsys, settings(run, train__steps=3))
    assert re.search("cannot write the checkpoint of step 3 to .*: .*No space left on device", line)
    after, step = checkpoints.restore_params(run / "run")
    assert step == 2
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_a_full_disk_under_the_log_is_one_line(run, capsys, monkeypatch):
    full = reporting.JsonLinesWriter(pathlib.Path("/dev/full"))
    monkeypatch.setattr(reporting, "JsonLinesWriter", lambda path: full)
    line = refused(capsys, settings(run, train__steps=3))
    assert line.startswith("error: cannot write /dev/full: No space left on device: make room")
    assert checkpoints.checkpoint_steps(run / "run" / "checkpoints") == [2]


@pytest.fixture
def poisoned(monkeypatch):
    """Makes the loss of the fourth batch of training NaN; the numbers of batches, as trained."""
    numbers, seen, put = {}, [], model_side.TaskProgram.put

    def key(batch):
        return batch["decoder_target_tokens"].tobytes()

    def poison(self, batch):
        number = numbers.get(key(batch))
        seen.append(number)
        if number == 4:
            batch = batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * np.nan}
        return put(self, batch)

    def begin(made):
        mesh = partitioning.make_mesh(made.mesh.to_dict())
        batches = data_side.build(of_config(made).parts[0], mesh, shards=2).train_batches
        numbers.update({key(next(batches)): number for number in range(1, 12)})
        monkeypatch.setattr(model_side.TaskProgram, "put", poison)
        return seen

    return begin


@pytest.mark.slow
def test_data_whose_loss_is_not_finite_stop_the_run_or_are_left_out(run, capsys, poisoned):
    made = settings(run, train__steps=6)
    seen = poisoned(made)
    line = refused(capsys, made, status=3)
    assert "at or shortly before step 4" in line
    assert checkpoints.checkpoint_steps(run / "run" / "checkpoints")[-1] == 2

    seen.clear()
    made.train.on_nonfinite = "skip_data"
    train.main(parse(made))
    out = capsys.readouterr().out
    assert "Going on without 2 batches" in out
    trained = [number for number in seen if number]
    assert trained[:2] == [3, 4]
    assert trained[-4:] == [5, 6, 7, 8]
    log = reporting.read_log(run / "run")["train/loss"]
    assert sorted(log) == [1, 2, 3, 4, 5, 6]
    assert np.isfinite(list(log.values())).all()


def test_another_number_of_shards_is_refused(run, capsys):
    line = refused(capsys, settings(run, data__shards=4, train__steps=4))
    assert "data.shards=4, and this run reads its data in 2 shards" in line
    assert "set data.shards=2, or another workdir" in line


# What a kill, a full disk and a copy that went wrong leave.
@pytest.mark.slow
@pytest.mark.parametrize("content", [b'{"step": 2, "trai', b"\x89PNG\r\n\xff\x00" * 40, None])
def test_a_log_that_cannot_be_read_ends_no_run(run, capsys, content):
    log = run / "run" / reporting.LOG
    if content is None:
        log.unlink()
    else:
        log.write_bytes(log.read_bytes() + content)
    for steps in (2, 3):
        reporting._warn.cache_clear()
        train.main(parse(settings(run, train__steps=steps)))
        out = capsys.readouterr().out
        assert "loss curve: " in out
        assert (f"{log}:" in out) == (content is not None)
    assert 3 in reporting.read_log(run / "run")["train/loss"]


@pytest.mark.slow
def test_data_that_are_damaged_inside_end_a_run_with_one_line(run, capsys):
    made = settings(run, train__steps=30, data__allow_changed=True)
    text = pathlib.Path(made.data.settings.files)
    lines = text.read_bytes().splitlines(keepends=True)
    text.write_bytes(b"".join([*lines[:200], b"caf\xe9\n", *lines[200:]]))
    line = refused(capsys, made)
    assert line.startswith(f"error: {text}:201: it is not UTF-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__seed": 7}, r"data\.seed=7: the run in workdir='.*' has data\.seed=0: set it, or"),
        ({"model__d_ff": 64}, r"params has .*/kernel as float32\[.*\], the model as float32\[.*\]"),
    ],
)
def test_a_restart_is_refused_before_the_data_are_opened(
    run, capsys, monkeypatch, changes, message
):
    monkeypatch.setattr(data_side, "build", lambda *_, **__: pytest.fail("the data are opened"))
    before = contents(run / "run")
    line = refused(capsys, settings(run, train__steps=4, **changes))
    assert re.search(message, line)
    assert contents(run / "run") == before


@pytest.mark.slow
def test_a_restart_prints_what_has_changed_and_keeps_each_config(run, capsys):
    kept = run / "run" / "configs"
    assert [path.name for path in kept.iterdir()] == ["0001_step_0.json"]
    train.main(
        parse(settings(run, train__steps=3, optimizer__learning_rate=0.02, loss__z_loss=1e-4))
    )
    changes = [line for line in capsys.readouterr().out.splitlines() if "changed" in line]
    assert [line for line in changes if "data.settings.files" not in line] == [
        "changed since step 2: loss.z_loss: not set -> 0.0001",
        "changed since step 2: optimizer.learning_rate: 0.01 -> 0.02",
        "changed since step 2: train.steps: 2 -> 3",
    ]
    assert sorted(path.name for path in kept.iterdir()) == ["0001_step_0.json", "0002_step_2.json"]
    assert json.loads((kept / "0001_step_0.json").read_text())["train"]["steps"] == 2
    newest = (run / "run" / "config.json").read_text()
    assert newest == (kept / "0002_step_2.json").read_text()
    assert json.loads(newest)["optimizer"]["learning_rate"] == 0.02
