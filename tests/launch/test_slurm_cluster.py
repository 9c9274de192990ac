"""Runs under a real Slurm that cuts them off: they save at the signal, and end as if undisturbed.

The cluster is tests/programs/slurm_cluster.py, of the packages slurm-wlm and munge.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import jax
import numpy as np
import pytest

from t5x_like import checkpoints
from tests.programs import slurm_cluster, tiny_t5
from tests.programs.slurm_cluster import until

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 30

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, which must not outlive this file."""
    # munged's socket takes 107 letters at most, which a folder of pytest's may have alone.
    with (
        tempfile.TemporaryDirectory(prefix="slurm_") as folder,
        slurm_cluster.running(pathlib.Path(folder)) as started,
    ):
        yield started


class Jobs:
    """A copy of launch/ from which jobs of two processes are submitted, one on each node."""

    def __init__(self, folder: pathlib.Path, cluster: slurm_cluster.Cluster):
        self.folder = folder
        self._cluster = cluster
        shutil.copytree(ROOT / "launch", folder / "launch")
        (folder / ".venv").symlink_to(pathlib.Path(sys.prefix))
        self._environment = cluster.environment | {
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
            # A dozen starts of the same run; the first, undisturbed, compiles for all.
            "JAX_COMPILATION_CACHE_DIR": f"{cluster.folder}/compiled",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def script(self, *words: str) -> str:
        done = subprocess.run(
            ["bash", self.folder / "launch/slurm.sh", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *command: str, options: str = "") -> str:
        words = ("--nodes=2", "--gpus=1", f"--sbatch={options}", "--", *command)
        return self.script("submit", *words).split()[-1]

    def log(self, job: str) -> str:
        path = self.folder / f"runs/slurm-{job}.log"
        return path.read_text() if path.exists() else ""

    def steps(self, job: str) -> list[int]:
        return [int(step) for step in re.findall(r"^step (\d+)/", self.log(job), re.MULTILINE)]

    def ends(self, job: str) -> dict[str, str]:
        """Wait for the end of a job."""
        final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self._cluster.job(job)["JobState"] in final, what=f"the end of job {job}")
        return self._cluster.job(job)


@pytest.fixture
def jobs(cluster, tmp_path):
    cluster.wait_for_nodes("idle")
    return Jobs(tmp_path, cluster)


def training(folder: pathlib.Path, *, every: int = 1000, delay: float = 3.0) -> list[str]:
    """A command that trains to the last step; `every` so many steps it saves without a signal."""
    settings = tiny_t5.get_config(str(folder))
    settings.data.module = str(ROOT / settings.data.module)
    settings.train.steps, settings.checkpoint.every = STEPS, every
    path = folder / "settings.json"
    path.write_text(settings.to_json_best_effort())
    return ["python", "-m", "tests.programs.slow_train", str(path), str(delay)]


@pytest.fixture(scope="module")
def straight(cluster, tmp_path_factory):
    """The parameters of a run that nothing disturbs."""
    jobs = Jobs(tmp_path_factory.mktemp("straight"), cluster)
    job = jobs.submit(*training(jobs.folder, delay=0))
    assert jobs.ends(job)["JobState"] == "COMPLETED", jobs.log(job)
    return parameters(jobs.folder)


def parameters(folder: pathlib.Path):
    found, step = checkpoints.restore_params(folder / "run")
    assert step == STEPS
    return found


def urgent(cluster, _):
    """Another job needs the nodes."""
    words = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
    cluster.run("sbatch", *words, "--wrap=sleep 1")


def nearly_over(cluster, job):
    """The time of a job ends in two to three minutes; it was submitted for one day."""
    days, hours, minutes, _ = re.fullmatch(
        r"(?:(\d+)-)?(\d+):(\d+):(\d+)", cluster.job(job)["RunTime"]
    ).groups()
    passed = (int(days or 0) * 24 + int(hours)) * 60 + int(minutes)
    cluster.run("scontrol", "update", f"job={job}", f"timelimit={passed + 3}")


def down(cluster, _):
    """An administrator takes a node out, and gives it back."""
    cluster.run("scontrol", "update", f"node={cluster.nodes[1]}", "state=down", "reason=test")
    cluster.run("scontrol", "update", f"node={cluster.nodes[1]}", "state=resume")


@pytest.mark.parametrize(
    ("partition", "cut_off"),
    [("ordinary", nearly_over), ("ordinary", urgent), ("graceful", urgent), ("ordinary", down)],
    ids=["time_limit", "preemption", "grace_time", "node_down"],
)
def test_a_run_that_slurm_cuts_off_goes_on_from_the_step_of_the_signal(
    cluster, jobs, straight, partition, cut_off
):
    job = jobs.submit(*training(jobs.folder), options=f"--partition={partition} --time=1-00:00:00")
    until(lambda: 3 in jobs.steps(job), what="three steps")
    cut_off(cluster, job)
    ended = jobs.ends(job)
    log = jobs.log(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log
    assert "received a signal: saving, then stopping" in log
    assert jobs.steps(job) == list(range(1, STEPS + 1)), log  # none lost, none taken twice
    jax.tree.map(np.testing.assert_array_equal, parameters(jobs.folder), straight)


def test_a_run_that_loses_a_node_goes_on_from_its_checkpoint(cluster, jobs, straight):
    job = jobs.submit(*training(jobs.folder, every=5))
    until(lambda: 8 in jobs.steps(job), what="eight steps")
    cluster.kill_node(cluster.nodes[1])
    try:
        # Long before the controller takes the node for lost, SlurmdTimeout=300.
        until(lambda: "queue: a node does not answer" in jobs.log(job), what="the loss of the node")
    finally:
        cluster.start_node(cluster.nodes[1])
    ended = jobs.ends(job)
    steps = jobs.steps(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), jobs.log(job)
    again = next(step for step, before in zip(steps[1:], steps, strict=False) if step <= before)
    assert again in (6, 11)
    assert sorted(set(steps)) == list(range(1, STEPS + 1))
    assert len(steps) <= STEPS + 5
    jax.tree.map(np.testing.assert_array_equal, parameters(jobs.folder), straight)


def test_a_run_that_scancel_ends_has_saved_and_is_submitted_again(cluster, jobs, straight):
    command = training(jobs.folder)
    job = jobs.submit(*command)
    until(lambda: 3 in jobs.steps(job), what="three steps")
    cluster.run("scancel", job)
    assert jobs.ends(job)["JobState"] == "CANCELLED"
    last = jobs.steps(job)[-1]
    assert checkpoints.checkpoint_steps(jobs.folder / "run/checkpoints") == [last]
    second = jobs.submit(*command[:-1], "0")
    assert jobs.ends(second)["JobState"] == "COMPLETED", jobs.log(second)
    assert jobs.steps(second) == list(range(last + 1, STEPS + 1))
    jax.tree.map(np.testing.assert_array_equal, parameters(jobs.folder), straight)


# A command that takes a second to save, and prints what it does.
SAVING = """
trap 'sleep 1; echo "process $SLURM_PROCID has saved"; exit 0' TERM
echo "process $SLURM_PROCID is ready"
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize(
    "asking",
    [
        ("launch/slurm.sh", "cancel"),
        ("scancel", "--signal=TERM"),
        ("scancel", "--signal=TERM", "--full"),  # the processes, this shell and its descendants
        ("scancel", "--signal=TERM", "--batch"),  # the shell only
    ],
    ids=" ".join,
)
def test_whoever_asks_a_job_to_stop_the_processes_save_and_it_is_done(cluster, jobs, asking):
    job = jobs.submit("bash", "-c", SAVING)
    until(lambda: jobs.log(job).count("ready") == 2, what="two processes")
    if asking[0] == "scancel":
        cluster.run(*asking, job)
    else:
        jobs.script(*asking[1:], job)
    ended = jobs.ends(job)
    assert jobs.log(job).count("has saved") == 2, jobs.log(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0")


def test_a_job_that_waits_in_the_queue_is_cancelled(cluster, jobs):
    job = jobs.submit("true", options="--begin=now+1hour")
    jobs.script("cancel", job)
    assert cluster.job(job)["JobState"] == "CANCELLED"


def test_a_command_that_fails_is_not_repeated(jobs):
    job = jobs.submit("bash", "-c", "exit 2")
    ended = jobs.ends(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0")
