"""Trains with the real wandb and mlflow, without a network: killed, resumed, compared with the log.

python -m tests.programs.real_trackers FOLDER

It also compares the stand-ins that the tests use with the real packages. The tests do not run it:
these packages are extras. It needs them beside this package, and an empty folder; MLflow's data is
there, unless MLFLOW_TRACKING_URI names a new server. Passed with wandb 0.31.0 and mlflow 3.17.2.
"""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator

from t5x_like import config
from t5x_like.config import parse
from t5x_like.experiment import reporting
from tests.programs import tiny_t5, tracker_stand_ins

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = 1 << 15


def main(folder: pathlib.Path) -> None:
    """Train to step 3, where the process is killed; resume; and compare."""
    os.environ["WANDB_MODE"] = "offline"
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    made = tiny_t5.get_config(str(folder))
    made.train.trackers = ("wandb", "mlflow")
    path = folder / "settings.json"
    for status, killed_at in ((-signal.SIGKILL, 3), (0, 99)):
        path.write_text(json.dumps(config.to_dict(parse(made))))
        command = [sys.executable, "-m", "tests.programs.killed_run", str(path), str(killed_at)]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == status
        made.train.steps = 6
    compare(folder)
    compare_stand_ins(folder)  # last: it sets WANDB_SERVICE, and processes then share wandb's


def compare_stand_ins(folder: pathlib.Path) -> None:
    """Compare the answers of the packages and of their stand-ins."""
    import mlflow
    import wandb

    own = tracker_stand_ins.Wandb(), tracker_stand_ins.Mlflow()
    own[0].offline = True
    expected = tracker_stand_ins.answers(wandb, mlflow, folder)
    found = tracker_stand_ins.answers(*own, folder)
    assert found == expected, f"{found} of the stand-ins, and {expected}"


def compare(folder: pathlib.Path) -> None:
    """Compare what both have of the run with its log."""
    log = reporting.read_log(folder / "run")
    assert sorted(log["train/loss"]) == [1, 2, 3, 4, 5, 6]
    logged = sorted((name, step, v) for name, own in log.items() for step, v in own.items())
    ids = json.loads((folder / "run" / "trackers.json").read_text())
    at_mlflow = mlflow_metrics(ids["mlflow"]["run_id"])
    at_wandb = wandb_metrics(folder / "run" / "wandb", ids["wandb"]["id"])
    # An offline run has the repeated steps in both folders, or lost the first in the kill.
    at_wandb = sorted({one[:2]: one for one in at_wandb}.values())
    # The speed of a step that was taken twice differs.
    assert [one[:2] for one in at_mlflow] == [one[:2] for one in logged]
    assert [one[:2] for one in at_wandb] == [one[:2] for one in logged]
    for found in (at_mlflow, at_wandb):
        assert [one for one in found if "loss" in one[0]] == [
            one for one in logged if "loss" in one[0]
        ]
    print(f"{len(logged)} numbers, at both, at MLflow each once")


def mlflow_metrics(run_id: str) -> list[tuple[str, int, float]]:
    """(name, step, value) of all metrics of a run, after checking its parameters."""
    import mlflow

    client = mlflow.MlflowClient()
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.steps"] == "4"
    assert run.data.tags["train.steps"] == "6"
    assert run.data.params["model.d_model"] == "32"
    histories = (client.get_metric_history(run_id, name) for name in run.data.metrics)
    return sorted((one.key, one.step, one.value) for history in histories for one in history)


def wandb_metrics(folder: pathlib.Path, run_id: str) -> list[tuple[str, int, float]]:
    """(name, step, value) of all metrics in the offline folders of a run."""
    from wandb.proto import wandb_internal_pb2

    folders = sorted(folder.glob(f"offline-run-*-{run_id}"))
    assert len(folders) == 2
    found = []
    for own in folders:
        for content in records((own / f"run-{run_id}.wandb").read_bytes()):
            record = wandb_internal_pb2.Record.FromString(content)
            row = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            step = row.pop("_step", record.history.step.num)
            found += [(name, step, v) for name, v in row.items() if not name.startswith("_")]
    return sorted(found)


def records(content: bytes) -> Iterator[bytes]:
    """The records of wandb's file, in LevelDB's format of logs after a header of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(content):
        room = BLOCK - at % BLOCK
        if room < 7:  # padding at the end of a block
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part
            yield record
            record = b""


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
