"""The manifest of a run on GKE, against the schema of its parts."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from launch import gke
from launch.accelerators import SLICES
from t5x_like.training.loop import NonFiniteError

SCHEMA = json.loads(Path(__file__).with_name("jobset_schema.json").read_text())
TRAIN = (
    "python",
    "-m",
    "t5x_like.train",
    "--config.workdir=/gcs/my_bucket.org/runs/t5",
    "--config.data.settings.data_dir=/gcs/corpora/c4",
)


def made(capsys, *words, command=TRAIN):
    gke.main([*words, "--", *command])
    text = capsys.readouterr().out
    return yaml.safe_load(text), text


def pod(manifest):
    (job,) = manifest["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("accelerator_type", [name for name in SLICES if name[:2] != "v2"])
def test_the_manifest_of_every_slice_follows_the_schema(accelerator_type, spot):
    manifest = gke.manifest(
        "t5",
        slice_=SLICES[accelerator_type],
        image="image:1",
        command=TRAIN,
        service_account="default",
        spot=spot,
    )
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)


def test_the_schema_is_strict():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    manifest = gke.manifest(
        "t5", slice_=SLICES["v4-8"], image="i", command=(), service_account="default"
    )
    manifest["spec"]["failurePolicy"]["maxRestart"] = 3
    with pytest.raises(jsonschema.ValidationError, match="'maxRestart' was unexpected"):
        jsonschema.Draft202012Validator(SCHEMA).validate(manifest)


def test_a_pod_for_each_host_with_all_its_chips(capsys):
    manifest, text = made(capsys, "t5", "--type=v5litepod-16", "--image=i")
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (4, 4, "Indexed")
    (container,) = pod(manifest)["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod(manifest)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert "an hour is 16 chip-hours, on 4 hosts" in text
    assert "--machine-type=ct5lp-hightpu-4t --num-nodes=4 --workload-metadata" in text
    assert "--tpu-topology=4x4\n" in text


def test_several_slices_are_replicas_of_a_job_each_on_its_node_pool(capsys):
    # cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice: `replicas` is the number of
    # slices, and the annotation puts each job on a node pool of its own.
    manifest, text = made(capsys, "t5", "--type=v5litepod-16", "--image=i", "--slices=2")
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    (replicated,) = manifest["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 2
    assert replicated["template"]["spec"]["completions"] == 4
    assert list(manifest["metadata"]["annotations"].values()) == ["cloud.google.com/gke-nodepool"]
    assert "# 2 v5litepod-16: an hour is 32 chip-hours, on 8 hosts." in text
    pools = re.findall(r"node-pools create (\S+) ", text)
    assert pools == ["t5-0", "t5-1"]


def test_a_tpu7x_is_joined_by_a_policy(capsys):
    # cloud.google.com/kubernetes-engine/docs/concepts/tpu-ironwood: it replaces --tpu-topology.
    manifest, text = made(capsys, "t5", "--type=tpu7x-128", "--image=i")
    assert pod(manifest)["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "tpu7x"
    policy, pool = (line for line in text.splitlines() if line.startswith("# gcloud "))
    assert "workload-policy t5 " in policy
    assert "--type=HIGH_THROUGHPUT --accelerator-topology=4x4x4" in policy
    assert "--placement-policy=t5" in pool
    assert "--tpu-topology" not in text


def test_one_host_is_a_node_pool_without_topology(capsys):
    _, text = made(capsys, "t5", "--type=v6e-8", "--image=i", "--spot")
    assert "--machine-type=ct6e-standard-8t --num-nodes=1 " in text
    assert "--tpu-topology" not in text
    assert "--spot\n" in text


def test_the_command_runs_where_its_end_by_a_signal_is_no_success(capsys):
    words = (*TRAIN, "--config.note=it's: two words")
    manifest, _ = made(capsys, "t5", "--type=v4-8", "--image=i", command=words)
    (container,) = pod(manifest)["containers"]
    assert container["command"] == ["bash", "launch/worker.sh", "run", *words]
    assert container["env"] == [{"name": "JAX_NUM_PROCESSES", "value": "auto"}]


def test_buckets_of_the_command_are_mounted_where_it_looks_for_them(capsys):
    manifest, _ = made(capsys, "t5", "--type=v4-8", "--image=i")
    volumes = {
        one["name"]: one["csi"]["volumeAttributes"]["bucketName"]
        for one in pod(manifest)["volumes"]
    }
    (container,) = pod(manifest)["containers"]
    mounts = {volumes[one["name"]]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts == {"my_bucket.org": "/gcs/my_bucket.org", "corpora": "/gcs/corpora"}


def test_all_buckets_of_a_word_are_mounted(capsys):
    words = ("train", "--files=/gcs/a/x.json,/gcs/b/y.json", "--x=['/gcs/c']")
    manifest, _ = made(capsys, "t5", "--type=v4-8", "--image=i", command=words)
    (container,) = pod(manifest)["containers"]
    mounts = [one["mountPath"] for one in container["volumeMounts"]]
    assert mounts == ["/gcs/a", "/gcs/b", "/gcs/c"]


def test_a_workdir_in_a_bucket_needs_no_mount(capsys):
    manifest, _ = made(
        capsys, "t5", "--type=v4-8", "--image=i", command=("train", "--config.workdir=gs://b/t5")
    )
    (container,) = pod(manifest)["containers"]
    assert (pod(manifest)["volumes"], container["volumeMounts"]) == ([], [])
    assert container["command"][-1] == "--config.workdir=gs://b/t5"


def outcome(manifest, *, status, conditions=()):
    """What JobSet does when a pod ends with a status and these conditions.

    The order and the meaning of the rules are in the descriptions of the CustomResourceDefinition;
    the messages are those of Kubernetes' pkg/controller/job/pod_failure_policy.go.
    """
    (replicated,) = manifest["spec"]["replicatedJobs"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(replicated["template"]["spec"]["podFailurePolicy"]["rules"]):
        ending = f"matching {rule['action']} rule at index {index}"
        for condition in rule.get("onPodConditions", []):
            if condition["type"] in conditions:
                reason = "PodFailurePolicy"
                message = (
                    f"Pod default/t5-slice-0-0-abcde has condition {condition['type']} {ending}"
                )
        if status in rule.get("onExitCodes", {"values": []})["values"]:
            reason = "PodFailurePolicy"
            message = (
                "Container t5x-like for pod default/t5-slice-0-0-abcde failed with exit code "
                f"{status} {ending}"
            )
        if reason == "PodFailurePolicy":
            break
    for rule in manifest["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        fits = any(re.search(pattern, message) for pattern in patterns)
        if reason in rule["onJobFailureReasons"] and fits:
            return rule["action"]
    return "RestartJobSet"


@pytest.mark.parametrize(
    ("pod_ended", "action"),
    [
        ({"status": NonFiniteError.STATUS}, "FailJobSet"),
        # A host that is preempted: the pod is marked, and its command saves or is killed.
        ({"status": 143, "conditions": ["DisruptionTarget"]}, "RestartJobSetAndIgnoreMaxRestarts"),
        ({"status": 137, "conditions": ["DisruptionTarget"]}, "RestartJobSetAndIgnoreMaxRestarts"),
        ({"status": 143}, "RestartJobSetAndIgnoreMaxRestarts"),
        # A fault of the command, or too little memory: these count.
        ({"status": 1}, "RestartJobSet"),
        ({"status": 137}, "RestartJobSet"),
        ({"status": 33}, "RestartJobSet"),
    ],
)
def test_preemptions_do_not_count_as_failures_and_a_loss_that_is_not_finite_ends_all(
    capsys, pod_ended, action
):
    manifest, _ = made(capsys, "t5", "--type=v4-8", "--image=i", "--spot")
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] == 20
    assert outcome(manifest, **pod_ended) == action


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["t5", "--type=v5e-16", "--image=i", "--", *TRAIN], "Did you mean 'v5litepod-16'"),
        (["t5", "--type=v4-8", "--", *TRAIN], "required: --image"),
        (["T5", "--type=v4-8", "--image=i", "--", *TRAIN], "NAME='T5'"),
        (["t" * 41, "--type=v4-8", "--image=i", "--", *TRAIN], "40 at most"),
        (["t5", "--type=v4-8", "--image=i"], "no command"),
        (["t5", "--type=v4-16", "--image=i", "--slices=0", "--", *TRAIN], "--slices=0: 1 or more"),
        (["t5", "--type=v2-8", "--image=i", "--", *TRAIN], "--type=v2-8: GKE does not have it"),
        (
            ["t5", "--type=v4-8", "--image=i", "--slices=2", "--", *TRAIN],
            "--slices=2 --type=v4-8: GKE connects slices of several hosts only",
        ),
        (["t5", "--type=v4-8", "--image=i", "--restarts=-1", "--", *TRAIN], "--restarts=-1"),
        (
            ["t5", "--type=v4-8", "--image=i", "--", "--config.workdir=gs://"],
            "workdir=gs://: a pod",
        ),
        (
            ["t5", "--type=v4-8", "--image=i", "--", "--config.workdir=runs/t5"],
            "write /gcs/BUCKET/..., where the bucket is mounted, or gs://BUCKET/...",
        ),
        (["t5", "--type=v4-8", "--image=i", "--sport", "--", *TRAIN], "--sport"),
    ],
)
def test_bad_input_is_one_line(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        gke.main(words)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
