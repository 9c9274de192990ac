"""What happens on each machine of a run."""

import signal
import subprocess
import time

import pytest

SAVING = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


def until(true, *, seconds=60.0):
    """Waits for a condition, as long as a loaded machine may need."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("status", [0, 1, 7])
def test_run_gives_the_status_of_its_command(script, status):
    assert script("worker.sh", "run", "bash", "-c", f"exit {status}").returncode == status


def test_a_stopped_run_saves_first_and_does_not_end_in_success(tree):
    words = ["bash", tree / "launch/worker.sh", "run", "bash", "-c", SAVING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 143


def state(script):
    return script("worker.sh", "state").stdout.strip().removeprefix("state=")


def test_a_machine_reports_the_state_of_its_command(script, tree):
    assert state(script) == "new"
    (tree / ".venv").mkdir()
    (tree / ".venv/.installed").touch()
    assert state(script) == "installed"

    assert script("worker.sh", "start", "--", "bash", "-c", "echo step 3").stdout == "started\n"
    until(lambda: state(script) == "finished step 3")

    script("worker.sh", "start", "--", "false")
    until(lambda: state(script) == "failed")

    script("worker.sh", "start", "--", "bash", "-c", "echo error: loss is nan; exit 3")
    until(lambda: state(script) == "nonfinite error: loss is nan")


def test_a_command_is_started_once_and_stopped_in_good_order(script, tree):
    assert script("worker.sh", "start", "--", "bash", "-c", SAVING).stdout == "started\n"
    until(lambda: state(script) == "running ready")
    assert script("worker.sh", "start", "--", "false").stdout == "runs already\n"
    script("worker.sh", "stop")
    assert state(script) == "stopped saved"
    assert (tree / "runs/worker/exit").read_text() == "143\n"


def test_a_command_that_a_restart_of_the_machine_ended_has_failed(script, tree):
    (tree / "runs/worker").mkdir(parents=True)
    (tree / "runs/worker/pid").write_text("1\n")  # another program has the number now
    assert state(script) == "failed"


def test_the_command_sees_what_connects_the_processes(script, tree):
    words = ("bash", "-c", "echo $JAX_NUM_PROCESSES ${PATH%%:*}")
    script("worker.sh", "start", "--", *words)
    until(lambda: state(script) == f"finished auto {tree}/.venv/bin")


def test_a_bucket_is_mounted_before_the_command_starts(script, stub, tmp_path):
    stub("mountpoint", "exit 1")
    stub("sudo", f'echo "sudo $*" >> {tmp_path}/calls')
    stub("gcsfuse", f'echo "gcsfuse $*" >> {tmp_path}/calls')
    assert script("worker.sh", "start", "my-bucket", "--", "true").returncode == 0
    calls = (tmp_path / "calls").read_text()
    assert "sudo mkdir -p /gcs/my-bucket\n" in calls
    assert calls.endswith("my-bucket /gcs/my-bucket\n")
    assert "--metadata-cache-ttl-secs=0 " in calls
