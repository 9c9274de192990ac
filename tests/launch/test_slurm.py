"""A run under Slurm: what is submitted, and a job whose srun is played."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

SUBMIT = ("submit", "--nodes=2", "--gpus=8", "--dry-run")


def submitted(script, *options):
    done = script("slurm.sh", *SUBMIT, *options, "--", "python", "-m", "t5x_like.train", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return shlex.split(done.stdout)


def test_a_job_is_submitted_with_a_process_for_each_gpu(script):
    assert submitted(script, "--sbatch=--partition=a100 --time=24:00:00") == [
        "sbatch",
        "--job-name=t5x_like",
        "--nodes=2",
        "--gpus-per-node=8",
        "--ntasks-per-node=8",
        "--signal=B:USR1@120",
        "--requeue",
        "--open-mode=append",
        "--output=runs/slurm-%j.log",
        "--partition=a100",
        "--time=24:00:00",
        "launch/slurm.sh",
        "job",
        "8",
        "python",
        "-m",
        "t5x_like.train",
        "a b",
    ]


def test_or_with_a_process_for_each_node(script):
    assert "--ntasks-per-node=1" in submitted(script, "--per-process=node")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "choose from submit logs cancel"),
        (["sumbit"], "slurm.sh sumbit: choose from submit"),
        (["submit", "--nodes=2", "--gpus=8"], "no command"),
        (["submit", "--nodes=2", "--", "true"], "--gpus=: how many GPUs each node has"),
        (["submit", "--nodes=0", "--gpus=8", "--", "true"], "--nodes=0"),
        (["submit", "--node=2", "--", "true"], "unknown option --node=2: choose from --nodes"),
        (["submit", "--per-process=core", "--nodes=1", "--gpus=1", "--", "true"], "gpu or node"),
        (["submit", "--nodes=1", "--gpus=1", "--", "true"], "no .venv here: launch/environment.sh"),
        (["logs"], "logs JOB: the number"),
        (["cancel", "all"], "cancel JOB: the number"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(script, stub, tmp_path, words, message):
    stub("sbatch", f"touch {tmp_path}/called")
    done = script("slurm.sh", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "called").exists()


def job_environment(tree, commands, *, tasks_per_node):
    return os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tree),
        "SLURM_JOB_ID": "1234",
        "SLURM_NTASKS_PER_NODE": str(tasks_per_node),
    }


@pytest.mark.parametrize(("tasks_per_node", "devices"), [(8, ""), (1, "0,1,2,3,4,5,6,7")])
def test_a_process_sees_its_gpu_or_all_of_its_node(
    script, tree, commands, stub, tasks_per_node, devices
):
    stub("srun", 'echo "$* | $JAX_NUM_PROCESSES | ${JAX_LOCAL_DEVICE_IDS:-}"; exit 3')
    environment = job_environment(tree, commands, tasks_per_node=tasks_per_node)
    done = script("slurm.sh", "job", "8", "train", "a b", **environment)
    assert done.stdout == f"--kill-on-bad-exit=1 --gpu-bind=none train a b | auto | {devices}\n"
    assert done.returncode == 3


RUNNING = "JobState=RUNNING Requeue=1 PreemptTime=None Restarts=0"
PREEMPTED = "JobState=RUNNING Requeue=1 PreemptTime=2026-01-02T03:04:05 Restarts=0"
ENDED_BY_SLURM = "JobState=COMPLETING Requeue=1 PreemptTime=None Restarts=0"


@pytest.fixture
def played(tree, commands, stub, tmp_path):
    """A Slurm that knows this of the job; its srun does what it does in test_slurm_cluster.py."""

    def play(job, *, srun):
        (tmp_path / "calls").touch()
        stub("srun", srun)
        stub("scancel", f'echo "scancel $*" >> {tmp_path}/calls')
        stub(
            "scontrol",
            f'if [[ $1 == show ]]; then echo "JobId=1234 {job} "; '
            f'else echo "scontrol $*" >> {tmp_path}/calls; fi',
        )
        words = ["bash", tree / "launch/slurm.sh", "job", "8", "train"]
        environment = job_environment(tree, commands, tasks_per_node=8)
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    return play


@pytest.mark.parametrize(
    ("number", "job", "calls"),
    [
        (signal.SIGUSR1, RUNNING, ["scancel --signal=TERM 1234", "scontrol requeue 1234"]),
        (signal.SIGTERM, RUNNING, ["scancel --signal=TERM 1234"]),
        (signal.SIGTERM, ENDED_BY_SLURM, []),
    ],
    ids=["time", "asked", "ended"],
)
def test_the_processes_are_asked_to_save_and_srun_gets_no_signal(
    played, tmp_path, number, job, calls
):
    killing = "trap 'echo killed; exit 137' TERM"
    with played(job, srun=f"{killing}; echo ready; sleep 1 & wait; echo saved") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 0
    assert (tmp_path / "calls").read_text().splitlines() == calls


@pytest.mark.parametrize(
    ("job", "status", "again"),
    [
        (RUNNING, 0, False),
        (RUNNING, 1, False),
        (PREEMPTED, 0, True),  # saved within the GraceTime
        (ENDED_BY_SLURM, 1, False),
    ],
)
def test_a_job_is_queued_again_where_the_command_is_not_to_blame(
    played, tmp_path, job, status, again
):
    with played(job, srun=f"exit {status}") as process:
        process.wait()
    assert process.returncode == status
    assert (tmp_path / "calls").read_text() == ("scontrol requeue 1234\n" if again else "")


@pytest.mark.slow  # two processes that import JAX
def test_the_processes_of_a_job_find_each_other(script, tree, commands, stub):
    stub(
        "srun",
        """
        shift 2  # its own options
        export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2
        for process in 0 1; do SLURM_PROCID=$process SLURM_LOCALID=$process "$@" & done
        wait""",
    )
    stub("scontrol", "")
    program = (
        "import jax; from t5x_like import partitioning; partitioning.connect_processes(); "
        "print(f'{jax.process_index()} of {jax.process_count()}\\n', end='', flush=True)"
    )
    environment = job_environment(tree, commands, tasks_per_node=2) | {"PYTHONPATH": os.getcwd()}
    words = ("job", "2", sys.executable, "-c", program)
    done = script("slurm.sh", *words, **environment)
    assert sorted(done.stdout.splitlines()) == ["0 of 2", "1 of 2"], done.stderr
