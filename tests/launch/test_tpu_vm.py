"""A Cloud TPU slice: the commands that are printed, and a watch over a slice that is played."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHERE = ("--project=my-project", "--zone=us-west4-a")
TRAIN = (
    "python",
    "-m",
    "t5x_like.train",
    "--config=configs/t5.py:base",
    "--config.workdir=/gcs/my-bucket/runs/t5",
)


@pytest.fixture
def cloud(tmp_path, commands, stub):
    """A cloud with nothing in it."""
    (tmp_path / "cloud").mkdir()
    shutil.copy(Path(__file__).with_name("gcloud"), commands)
    stub("mountpoint", "exit 0")
    return tmp_path / "cloud"


def calls(cloud):
    """What was asked of it, as "queued-resources create" and the like, repetitions left out."""
    asked = [" ".join(line.split()[2:4]) for line in (cloud / "calls").read_text().splitlines()]
    return [one for one, before in zip(asked, ["", *asked[:-1]], strict=True) if one != before]


def dry(script, *words):
    done = script("tpu_vm.sh", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_slice_is_asked_for_with_its_software(script):
    assert dry(
        script, "create", "t5", "--type=v5litepod-16", "--spot", "--dry-run",
        "--service-account=me@my-project.iam.gserviceaccount.com", *WHERE,
    ) == [
        "gcloud compute tpus queued-resources create t5 --node-id=t5 "
        "--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite --spot "
        "--service-account=me@my-project.iam.gserviceaccount.com "
        "--project=my-project --zone=us-west4-a"
    ]  # fmt: skip


def test_other_flags_of_gcloud_are_passed_on(script):
    # gcloud's reference: `queued-resources create --reserved --network`, in alpha
    # --provisioning-model and --reservation; its `ssh` and `scp` have --tunnel-through-iap.
    create, *_ = dry(
        script, "watch", "t5", "--type=v5litepod-16", "--dry-run", *WHERE,
        "--create=--reserved", "--create=--network=my net", "--", *TRAIN,
    )  # fmt: skip
    assert "v2-alpha-tpuv5-lite --reserved --network='my net' --project" in create
    flex = "--create=--provisioning-model=flex-start"
    (line,) = dry(script, "create", "t5", "--type=v6e-8", "--alpha", flex, "--dry-run", *WHERE)
    assert line.startswith("gcloud alpha compute tpus queued-resources create t5 ")
    assert "--provisioning-model=flex-start" in line
    iap = "--ssh=--tunnel-through-iap"
    lines = dry(script, "install", "t5", iap, "--dry-run", *WHERE)
    over_ssh = [line for line in lines if " scp " in line or " ssh " in line]
    assert len(over_ssh) == 2
    assert all("--tunnel-through-iap" in line for line in over_ssh)


def test_several_slices_are_one_request(script):
    # gcloud's reference: `--node-count`, with `--node-prefix` in place of `--node-id`.
    words = ("create", "t5", "--type=v5litepod-16", "--node-count=2", "--dry-run", *WHERE)
    done = script("tpu_vm.sh", *words)
    assert " create t5 --node-count=2 --node-prefix=t5 --accelerator-type=v5litep" in done.stdout
    assert "--node-id" not in done.stdout
    assert done.stderr == "An hour of 2 v5litepod-16 is 32 chip-hours, on 8 hosts\n"
    (line,) = dry(script, "logs", "t5", "--node=1", "--worker=3", "--dry-run", *WHERE)
    assert " --node=1 --worker=3 " in line


@pytest.mark.parametrize("name", ["tpu_vm.sh", "slurm.sh"])
def test_help_is_the_scripts_comment(script, name):
    done = script(name, "--help")
    assert done.returncode == 0
    first, *_, last = done.stdout.rstrip().splitlines()
    text = (ROOT / "launch" / name).read_text()
    assert text.startswith(f"#!/usr/bin/env bash\n# {first}\n")
    assert f"# {last}\nset -euo pipefail" in text


@pytest.mark.parametrize(
    ("accelerator_type", "runtime_version"),
    [
        ("v3-8", "tpu-ubuntu2204-base"),
        ("v4-8", "tpu-ubuntu2204-base"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-8", "v2-alpha-tpuv6e"),
    ],
)
def test_on_demand_is_the_default(script, accelerator_type, runtime_version):
    (line,) = dry(script, "create", "t5", f"--type={accelerator_type}", "--dry-run", *WHERE)
    assert f"--runtime-version={runtime_version} --project" in line
    assert "--spot" not in line


def test_the_command_reaches_all_workers_word_by_word(script):
    words = (*TRAIN, "--config.train.note=it's two words")
    (line,) = dry(script, "run", "t5", "--dry-run", *WHERE, "--", *words)
    assert line.startswith("gcloud compute tpus queued-resources ssh t5 --project=my-project ")
    assert " --node=all --worker=all --ssh-flag='-o ConnectTimeout=30' " in line
    assert "--command='bash t5x_like/launch/worker.sh start my-bucket -- py" in line


def test_all_buckets_of_a_word_are_mounted_once(script):
    files = "--config.data.settings.files=/gcs/corpus/a.json,/gcs/my-bucket/b.json,/gcs/c_4.org/*"
    (line,) = dry(script, "run", "t5", "--dry-run", *WHERE, "--", *TRAIN, files, "--x=['/gcs/d']")
    assert "worker.sh start my-bucket corpus c_4.org d -- python" in line


def test_a_workdir_in_a_bucket_needs_no_mount(script):
    words = ("python", "-m", "t5x_like.train", "--config.workdir=gs://my-bucket/runs/t5")
    (line,) = dry(script, "run", "t5", "--dry-run", *WHERE, "--", *words)
    assert "--command='bash t5x_like/launch/worker.sh start -- python" in line
    assert line.endswith("--config.workdir=gs://my-bucket/runs/t5'")
    assert dry(script, "watch", "t5", "--type=v4-8", "--dry-run", *WHERE, "--", *words)


def test_project_and_zone_may_stand_in_the_environment(script):
    done = script(
        "tpu_vm.sh",
        *("delete", "t5", "--dry-run"),
        CLOUDSDK_CORE_PROJECT="my-project",
        CLOUDSDK_COMPUTE_ZONE="us-west4-a",
    )
    assert done.stdout == (
        "gcloud compute tpus queued-resources delete t5 --force --quiet "
        "--project=my-project --zone=us-west4-a\n"
    )


@pytest.mark.parametrize("action", ["create", "status", "install", "run", "logs", "stop", "watch"])
def test_a_dry_run_runs_nothing(script, tree, cloud, action):
    files = sorted(tree.rglob("*"))
    words = (action, "t5", "--type=v4-16", "--dry-run", *WHERE, "--", *TRAIN)
    assert all(" " in line for line in dry(script, *words))
    assert not (cloud / "calls").exists()
    assert sorted(tree.rglob("*")) == files


def test_a_dry_run_needs_no_project(script):
    lines = dry(script, "create", "t5", "--type=v4-16", "--dry-run")
    assert any("--project=PROJECT" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["creat", "t5", *WHERE], "unknown action creat: choose from create status"),
        (["create"], "ACTION NAME"),
        (["create", "T5", *WHERE], "NAME=T5: small letters"),
        (["create", "t5", "--zone=us-west4-a"], "no project: set --project=ID"),
        (["create", "t5", "--project=p"], "no zone: set --zone=us-west4-a"),
        (["create", "t5", "--project=p", "--zone=us-west4"], "--zone=us-west4 is not a zone"),
        (["create", "t5", *WHERE], "no accelerator type: --type="),
        (["create", "t5", *WHERE, "--type=v5e-16"], "Did you mean 'v5litepod-16'?"),
        (["create", "t5", *WHERE, "--type=tpu7x-8"], "tpu7x-8: Cloud TPU does not have it, but"),
        (["create", "t5", *WHERE, "--preemptible"], "unknown option --preemptible: choose from"),
        (["create", "t5", *WHERE, "--create=reserved"], "unknown option --create=reserved: choose"),
        (["create", "t5", *WHERE, "--type=v4-8", "--node-count=0"], "--node-count=0: a whole"),
        (["run", "t5", *WHERE], "no command: run t5"),
        (["watch", "t5", *WHERE, "--type=v4-8", "--", "true"], "BUCKET/... or gs://BUCKET"),
        (["watch", "t5", *WHERE, "--type=v4-8", "--every=1m", "--", *TRAIN], "--every=1m"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(script, cloud, words, message):
    done = script("tpu_vm.sh", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (cloud / "calls").exists()


def watch(script, cloud, program, *options):
    """Watches a command; the words $BUCKET in it are a folder that outlives the slice."""
    (cloud / "bucket").mkdir()
    (cloud / "program").write_text(program)
    words = ("bash", str(cloud / "program"), "--config.workdir=/gcs/my-bucket/runs/t5")
    return script(
        "tpu_vm.sh",
        *("watch", "t5", "--type=v4-16", "--every=0", *WHERE, *options, "--", *words),
        CLOUD=str(cloud),
        BUCKET=str(cloud / "bucket"),
    )


FIRST, LAST = "queued-resources create", "queued-resources delete"
ROUND = [FIRST, "queued-resources describe", "tpu-vm describe", "queued-resources ssh"]


def test_a_watch_goes_on_after_a_preemption(script, cloud):
    # The first command to run has its slice taken away, whichever worker's it is, and the second
    # finds where it was.
    program = """
        if mkdir "$BUCKET/checkpoint" 2> /dev/null; then
            echo SUSPENDED > "$CLOUD/request"
            touch "$BUCKET/checkpoint/taken"
        fi
        until [[ -e $BUCKET/checkpoint/taken ]]; do sleep 0.02; done
        if [[ $(< "$CLOUD/request") == SUSPENDED ]]; then sleep 600; fi
        echo "$PWD went on" >> "$BUCKET/log"
    """
    done = watch(script, cloud, program, "--delete", "--spot")
    assert done.returncode == 0, done.stdout + done.stderr
    asked = calls(cloud)
    assert asked.count(FIRST) == asked.count("queued-resources scp") == 2
    assert asked.count(LAST) == 2
    assert asked[-1] == LAST
    assert "t5: SUSPENDED" in done.stdout
    assert (cloud / "bucket/log").read_text().count("went on") == 2  # once on each worker


def test_a_watch_runs_on_the_workers_of_all_slices_and_replaces_all_when_one_is_gone(
    script, cloud, commands, stub
):
    # The request still is ACTIVE when the second slice is taken away, as in the first round here.
    (commands / "gcloud").rename(commands / "played_gcloud")
    stub(
        "gcloud",
        """
        if [[ "$3 $4 $5" == "tpu-vm describe t5-1" && ! -e $BUCKET/taken ]]; then
            touch "$BUCKET/taken"
            echo PREEMPTED
            exit
        fi
        played_gcloud "$@"
        """,
    )
    done = watch(script, cloud, 'echo "$PWD" >> "$BUCKET/log"', "--node-count=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (calls(cloud).count(FIRST), calls(cloud).count(LAST)) == (2, 1)
    assert "t5: PREEMPTED" in done.stdout
    assert "t5 takes 16 chip-hours an hour until" in done.stdout
    assert len(set((cloud / "bucket/log").read_text().split())) == 4


def test_a_watch_starts_all_workers_again_when_one_fails(script, cloud):
    program = """
        if mkdir "$BUCKET/failed" 2> /dev/null; then
            until [[ -e $BUCKET/waiting ]]; do sleep 0.02; done
            exit 1
        fi
        if [[ ! -e $BUCKET/waiting ]]; then touch "$BUCKET/waiting"; sleep 600; fi
        echo "$PWD" >> "$BUCKET/log"
    """
    done = watch(script, cloud, program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert calls(cloud).count(FIRST) == 1
    assert LAST not in calls(cloud)
    assert "t5 takes 8 chip-hours an hour until launch/tpu_vm.sh delete t5" in done.stdout
    assert len(set((cloud / "bucket/log").read_text().split())) == 2


def test_a_watch_gives_up_on_a_command_that_always_fails(script, cloud):
    done = watch(script, cloud, "echo no such config; exit 2", "--restarts=1", "--delete")
    assert done.returncode == 1
    assert "gave up after 1 failures: the command failed" in done.stdout
    assert "no such config\n" in done.stdout
    assert calls(cloud)[-1] == LAST


def test_a_watch_does_not_repeat_a_loss_that_is_not_finite(script, cloud):
    program = """
        if mkdir "$BUCKET/first" 2> /dev/null; then echo "error: loss is nan"; exit 3; fi
        sleep 0.2
        exit 1
    """
    done = watch(script, cloud, program)
    assert done.returncode == 3
    assert "t5: the loss is not finite, as it would be again: see train.on_nonfinite" in done.stdout
    asked = [line for line in (cloud / "calls").read_text().splitlines() if " start " in line]
    assert len(asked) == 1


def test_a_watch_replaces_a_slice_whose_worker_stays_unreachable(script, cloud, commands, stub):
    # The second worker of the first slice answers nobody; gcloud then prints ssh's error, and ends.
    (commands / "gcloud").rename(commands / "played_gcloud")
    stub(
        "gcloud",
        """
        if [[ $4 == ssh && $(grep -c "resources create" "$CLOUD/calls") == 1 ]]; then
            echo "$*" >> "$CLOUD/calls"
            echo "state=running step 3"
            echo "ssh: connect to host 10.0.0.2 port 22: Connection timed out" >&2
            exit 255
        fi
        played_gcloud "$@"
        """,
    )
    done = watch(script, cloud, "true", "--restarts=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "t5: unreachable: ssh: connect to host 10.0.0.2 port 22" in done.stdout
    assert (cloud / "calls").read_text().count("worker.sh state") >= 10
    assert calls(cloud).count(FIRST) == 2
    assert "t5: finished" in done.stdout


def test_a_watch_waits_for_a_worker_that_answers_again(script, cloud, commands, stub):
    (commands / "gcloud").rename(commands / "played_gcloud")
    stub(
        "gcloud",
        """
        if [[ $4 == ssh ]] && (($(grep -c "worker.sh state" "$CLOUD/calls") < 9)); then
            echo "$*" >> "$CLOUD/calls"
            exit 255
        fi
        played_gcloud "$@"
        """,
    )
    done = watch(script, cloud, "true", "--restarts=0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert LAST not in calls(cloud)


def test_a_watch_gives_up_on_slices_that_never_answer(script, cloud, commands, stub):
    (commands / "gcloud").rename(commands / "played_gcloud")
    stub("gcloud", 'if [[ $4 == ssh ]]; then exit 255; fi; played_gcloud "$@"')
    done = watch(script, cloud, "true", "--restarts=1", "--delete")
    assert done.returncode == 1
    assert "gave up after 1 failures: a worker has not answered 10 times" in done.stdout
    assert (calls(cloud).count(FIRST), calls(cloud).count(LAST)) == (2, 2)


def test_a_watch_gives_up_on_a_request_that_always_fails(script, cloud, commands, stub):
    (commands / "gcloud").rename(commands / "played_gcloud")
    stub(
        "gcloud",
        'played_gcloud "$@" && if [[ $4 == create ]]; then echo FAILED > "$CLOUD/request"; fi',
    )
    done = watch(script, cloud, "true", "--restarts=2", "--delete")
    assert done.returncode == 1
    assert (calls(cloud).count(FIRST), calls(cloud).count(LAST)) == (3, 3)
    assert "gave up after 2 failures: the request FAILED" in done.stdout
