"""What a run shows of its experts: in TensorBoard, in the log, on the terminal."""

import contextlib
import json
import resource

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.compat.proto import event_pb2

from t5x_like import train
from t5x_like.config import RunSettings
from t5x_like.evaluation import run_report
from t5x_like.experiment import reporting
from t5x_like.experiment.command_line import WriteError
from t5x_like.experiment.reporting import Estimate

LOAD = np.array([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]])


@pytest.fixture
def written(tmp_path, capsys):
    """A folder in which a load was written, and an evaluation; and what was printed."""
    with contextlib.closing(train.open_writer(RunSettings(), tmp_path)) as writer:
        writer.write_images(3, {"train/expert_load": LOAD[None, :, :, None]})
        values = {"tokens_dropped": 0.25, "tokens_dropped/layer_0": 0.5}
        writer.write_scalars(3, {f"held_out/{name}": value for name, value in values.items()})
    return tmp_path, capsys.readouterr().out


def events(folder, kind):
    """(step, value) of all summaries of a kind in TensorBoard's files."""
    files = [str(path) for path in (folder / "tensorboard").iterdir()]
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == kind:
                yield event.step, value


def scalars(folder):
    return [value.tag for _, value in events(folder, "scalars")]


def pictures(folder):
    """{(tag, step): uint8 [height, width, 3]} of TensorBoard's files."""
    found = {}
    for step, value in events(folder, "images"):
        png = value.tensor.string_val[2]  # after width and height
        found[value.tag, step] = tf.io.decode_png(png).numpy()
    return found


def test_a_picture_of_the_load_reaches_tensorboard(written):
    [(key, picture)] = pictures(written[0]).items()
    assert key == ("train/expert_load", 3)
    np.testing.assert_array_equal(picture, reporting.draw_load(LOAD))
    # Large enough to be read, the idle expert blue and the busy one red.
    assert min(picture.shape[:2]) > 100
    colors = picture.reshape(-1, 3).astype(int)
    for one, other in ((0, 2), (2, 0)):
        assert np.sum(colors[:, one] - colors[:, other] > 100) > 500


def test_the_terminal_shows_no_single_layers_and_the_log_shows_them(written):
    folder, printed = written
    assert printed.endswith("held out at step 3: held_out/tokens_dropped 0.2500\n")
    [line] = (folder / reporting.LOG).read_text().splitlines()
    assert json.loads(line) == {
        "step": 3,
        "held_out/tokens_dropped": 0.25,
        "held_out/tokens_dropped/layer_0": 0.5,
    }


def test_measures_are_a_table_with_intervals_and_the_log_has_the_bounds(tmp_path, capsys):
    values = {"cola/loss": 0.5, "cola/predictions/accuracy": Estimate(0.75, np.arange(101) / 100)}
    with contextlib.closing(train.open_writer(RunSettings(), tmp_path)) as writer:
        writer.write_scalars(3, values | {"epochs/cola": 2.0})
    assert capsys.readouterr().out.splitlines() == [
        "cola at step 3:",
        "  loss                         0.5000",
        "  predictions/accuracy         0.7500  [0.0250, 0.9750]",
        "epochs at step 3:",
        "  cola                         2.0000",
    ]
    [line] = (tmp_path / reporting.LOG).read_text().splitlines()
    accuracy = "cola/predictions/accuracy"
    bounds = {f"{accuracy}/low": 0.025, f"{accuracy}/high": 0.975}
    assert json.loads(line) == {"step": 3, **values, "epochs/cola": 2.0, **bounds}
    assert scalars(tmp_path) == [*values, "epochs/cola"]


def test_the_loss_of_one_task_is_a_line(tmp_path, capsys):
    reporting.EvaluationLines().write_scalars(3, {"cola/loss": 0.5, "epochs/cola": 2.0})
    expected = "held out at step 3: cola/loss 0.5000  epochs/cola 2.0000\n"
    assert capsys.readouterr().out.endswith(expected)


def test_the_progress_line_has_what_was_dropped_if_anything_can_be(capsys):
    show = reporting.ProgressLine(steps=10)
    show(3, {"loss": 2.0, "tokens_dropped": 0.031})
    show(4, {"loss": 2.0})
    assert capsys.readouterr().out == (
        "step 3/10  loss 2.0000  dropped 3.1%\nstep 4/10  loss 2.0000\n"
    )


def test_the_time_left_is_that_of_the_phase(capsys):
    rates = {"tokens_per_second": 1234.0, "seconds_left": 3661.0}
    for phase, left in (("", "left"), ("long", "left of long")):
        reporting.ProgressLine(steps=10, phase=phase)(3, rates)
        assert capsys.readouterr().out == f"step 3/10  1,234 tokens/s  1:01:01 {left}\n"


def test_a_full_disk_is_named_and_leaves_whole_lines(tmp_path):
    path = tmp_path / reporting.LOG
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.closing(reporting.JsonLinesWriter(path)) as writer:
        writer.write_scalars(1, {"loss": 2.0})
        try:  # the file ends in the middle of the next line
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, limits[1]))
            with pytest.raises(WriteError, match=r"cannot write .*/metrics.jsonl: File too large"):
                writer.write_scalars(2, {"loss": 1.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        writer.write_scalars(3, {"loss": 0.5})
    assert reporting.read_log(tmp_path) == {"loss": {1: 2.0, 3: 0.5}}


def test_a_run_ends_with_its_accuracies_beside_those_of_a_constant():
    log = {
        "held_out/next_sentence/accuracy": {10: 0.5, 20: 0.612},
        "held_out/next_sentence/constant_accuracy": {10: 0.575, 20: 0.575},
        "held_out/accuracy": {20: 0.3},  # of tokens: no classes
        "other/constant_accuracy": {20: 0.9},
    }
    assert run_report.accuracies(log, prefix="held_out/") == [
        "held-out next_sentence/accuracy 61.2%, of always the most frequent class 57.5%"
    ]


def test_a_run_ends_with_its_accuracies_by_the_number_of_examples():
    measure = "held_out/in_context"
    log = {
        f"{measure}/0_shots/accuracy": {10: 0.5, 20: 0.6},
        f"{measure}/8_shots/accuracy": {20: 0.8},
        f"{measure}/8_shots/accuracy_per_token": {20: 0.8},
        f"{measure}/constant_accuracy": {20: 0.125},
    }
    assert run_report.accuracies(log, prefix="held_out/") == [
        f"held-out in_context/{right}, of always the most frequent class 12.5%"
        for right in ("0_shots/accuracy 60.0%", "8_shots/accuracy 80.0%")
    ]


# The end of a log after a kill, a full disk, or a text editor that leaves out the last line's end.
TORN = {
    "torn": (b'{"step": 3, "trai', [1, 2], 3),
    "no end": (b'{"step": 3, "train/loss": 1.5}', [1, 2, 3], None),
    "binary": (b"\x89PNG\xff\x00", [1, 2], 3),
    "another": (b'[1, 2]\n{"step": "3"}\n{"loss": 2}\n{"step": 3, "text": "a"}\n', [1, 2], 3),
}


@pytest.mark.parametrize("case", TORN)
def test_a_log_goes_on_after_what_cannot_be_read(case, tmp_path, capsys):
    content, steps, bad = TORN[case]
    path = tmp_path / reporting.LOG
    lines = [json.dumps({"step": n, "train/loss": 9.0 - n}) + "\n" for n in (1, 2)]
    path.write_bytes("".join(lines).encode() + content)
    with contextlib.closing(reporting.JsonLinesWriter(path)) as writer:
        writer.write_scalars(4, {"train/loss": 1.0})
    reporting._warn.cache_clear()
    for _ in range(2):
        assert sorted(reporting.read_log(tmp_path)["train/loss"]) == [*steps, 4]
    said = capsys.readouterr().out
    assert said.count("\n") == (bad is not None)
    assert bad is None or said.startswith(f"{path}:{bad}: it cannot be read, and is left out")


def test_a_log_that_is_not_there_is_one_line_and_an_empty_plot(tmp_path, capsys):
    reporting._warn.cache_clear()
    assert reporting.read_log(tmp_path) == {}
    assert reporting.plot_loss(tmp_path, unigram_entropy=None).exists()
    said = capsys.readouterr().out
    assert said == f"{tmp_path / reporting.LOG} does not exist: the run has no log\n"
