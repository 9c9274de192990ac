"""Runs under a real Slurm that cuts them off: they save at the signal, and end as if undisturbed.

The cluster is tests/programs/slurm_cluster.py, of the packages slurm-wlm and munge.
"""

import functools
import json
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
DELAY = 3.0  # seconds of each step before the job is cut off

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

    def logs(self) -> str:
        """What its jobs have printed."""
        paths = sorted((self.folder / "runs").glob("slurm-*.log"))
        return "".join(path.read_text() for path in paths)

    def ends(self, job: str) -> dict[str, str]:
        """Wait for the end of a job."""
        final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self._cluster.job(job)["JobState"] in final, what=f"the end of job {job}")
        return self._cluster.job(job)


@pytest.fixture
def jobs(cluster, tmp_path):
    cluster.wait_for_nodes("idle")
    return Jobs(tmp_path, cluster)


class Train:
    """`train` with a tiny T5, from text to the last checkpoint."""

    STEPS, PATH = 30, "run"

    @staticmethod
    def command(folder: pathlib.Path, *, every: int = 1000, delay: float = DELAY) -> list[str]:
        settings = tiny_t5.get_config(str(folder))
        settings.data.module = str(ROOT / settings.data.module)
        settings.train.steps, settings.checkpoint.every = Train.STEPS, every
        path = folder / "settings.json"
        path.write_text(settings.to_json_best_effort())
        return ["python", "-m", "tests.programs.slow_train", str(path), str(delay)]

    @staticmethod
    def steps(jobs: Jobs) -> list[int]:
        return [int(step) for step in re.findall(r"^step (\d+)/", jobs.logs(), re.MULTILINE)]


class Loop:
    """The loop of `train` with its checkpoints and signals, and two arrays for a network."""

    STEPS, PATH = 30, "."

    @staticmethod
    def command(folder: pathlib.Path, *, every: int = 1000, delay: float = DELAY) -> list[str]:
        words = f"{folder} --steps {Loop.STEPS} --every {every}"
        slowly = f"if [[ ! $SLURM_RESTART_COUNT ]]; then set -- --delay {delay}; fi"
        return ["bash", "-c", f'{slowly}; exec python -m tests.programs.tiny_run {words} "$@"']

    @staticmethod
    def steps(jobs: Jobs) -> list[int]:
        path = jobs.folder / "examples-0.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)[0] for line in lines]


Run = type[Train] | type[Loop]


def parameters(run: Run, folder: pathlib.Path):
    found, step = checkpoints.restore_params(folder / run.PATH)
    assert step == run.STEPS
    return found


@pytest.fixture(scope="module")
def straight(cluster, tmp_path_factory):
    """The parameters of a run that nothing disturbs."""

    @functools.cache
    def of(run: Run):
        jobs = Jobs(tmp_path_factory.mktemp("straight"), cluster)
        job = jobs.submit(*run.command(jobs.folder, delay=0))
        assert jobs.ends(job)["JobState"] == "COMPLETED", jobs.logs()
        return parameters(run, jobs.folder)

    return of


def urgent(cluster, _):
    """Another job needs the nodes."""
    words = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
    cluster.run("sbatch", *words, "--wrap=sleep 1")


def nearly_over(cluster, job):
    """The time of a job, a day, ends in two to three minutes; when it is queued again, in a day."""
    hours, minutes, _ = map(int, re.split("[:-]", cluster.job(job)["RunTime"]))
    cluster.run("scontrol", "update", f"job={job}", f"timelimit={60 * hours + minutes + 3}")
    until(lambda: cluster.job(job)["Restarts"] == "1", what="a job that is queued again")
    cluster.run("scontrol", "update", f"job={job}", "timelimit=1-00:00:00")


def down(cluster, _):
    """An administrator takes a node out, and gives it back."""
    node = cluster.nodes[1]
    cluster.run("scontrol", "update", f"node={node}", "state=down", "reason=test")

    def is_back() -> bool:
        # A node that has registered again is back already (ReturnToService), and is not resumed.
        cluster.run("scontrol", "update", f"node={node}", "state=resume", check=False)
        return "State=DOWN" not in cluster.run("scontrol", "show", "node", node)

    until(is_back, what="a node that is back")


@pytest.mark.parametrize(
    ("run", "partition", "cut_off"),
    [
        (Train, "ordinary", nearly_over),
        (Train, "ordinary", urgent),
        (Loop, "graceful", urgent),
        (Loop, "ordinary", down),
    ],
    ids=["time_limit", "preemption", "grace_time", "node_down"],
)
def test_a_run_that_slurm_cuts_off_resumes_from_the_step_of_the_signal(
    cluster, jobs, straight, run, partition, cut_off
):
    expected = straight(run)
    options = f"--partition={partition} --time=1-00:00:00"
    job = jobs.submit(*run.command(jobs.folder), options=options)
    until(lambda: 3 in run.steps(jobs), what="three steps")
    cut_off(cluster, job)
    ended = jobs.ends(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), jobs.logs()
    # None lost, and none taken twice.
    assert run.steps(jobs) == list(range(1, run.STEPS + 1)), jobs.logs()
    jax.tree.map(np.testing.assert_array_equal, parameters(run, jobs.folder), expected)


def test_a_run_that_loses_a_node_resumes_from_its_checkpoint(cluster, jobs, straight):
    expected = straight(Loop)
    job = jobs.submit(*Loop.command(jobs.folder, every=5))
    until(lambda: 8 in Loop.steps(jobs), what="eight steps")
    cluster.kill_node(cluster.nodes[1])
    try:
        until(lambda: cluster.job(job)["Restarts"] == "1", what="a job that has lost its node")
    finally:
        cluster.start_node(cluster.nodes[1])
    ended = jobs.ends(job)
    steps = Loop.steps(jobs)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), jobs.logs()
    again = next(step for step, before in zip(steps[1:], steps, strict=False) if step <= before)
    assert again in (6, 11)
    assert sorted(set(steps)) == list(range(1, Loop.STEPS + 1))
    assert len(steps) <= Loop.STEPS + 5
    jax.tree.map(np.testing.assert_array_equal, parameters(Loop, jobs.folder), expected)


def test_a_run_that_scancel_ends_has_saved_and_is_submitted_again(cluster, jobs, straight):
    expected = straight(Loop)
    job = jobs.submit(*Loop.command(jobs.folder))
    until(lambda: 3 in Loop.steps(jobs), what="three steps")
    cluster.run("scancel", job)
    assert jobs.ends(job)["JobState"] == "CANCELLED"
    last = Loop.steps(jobs)[-1]
    assert checkpoints.checkpoint_steps(jobs.folder / "checkpoints") == [last]
    second = jobs.submit(*Loop.command(jobs.folder, delay=0))
    assert jobs.ends(second)["JobState"] == "COMPLETED", jobs.logs()
    assert Loop.steps(jobs) == list(range(1, Loop.STEPS + 1))
    jax.tree.map(np.testing.assert_array_equal, parameters(Loop, jobs.folder), expected)


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
    until(lambda: jobs.logs().count("ready") == 2, what="two processes")
    if asking[0] == "scancel":
        cluster.run(*asking, job)
    else:
        jobs.script(*asking[1:], job)
    ended = jobs.ends(job)
    assert jobs.logs().count("has saved") == 2, jobs.logs()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0")


def test_a_job_that_waits_in_the_queue_is_cancelled(cluster, jobs):
    job = jobs.submit("true", options="--begin=now+1hour")
    jobs.script("cancel", job)
    assert cluster.job(job)["JobState"] == "CANCELLED"


def test_a_command_that_fails_is_not_repeated(jobs):
    job = jobs.submit("bash", "-c", "exit 2")
    ended = jobs.ends(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0")
