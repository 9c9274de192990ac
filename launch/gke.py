r"""Print the manifest of a run on GKE's TPUs, a JobSet with one pod on each host of its slices.

    python -m launch.gke t5-base --type=v5litepod-16 --spot \
        --image=us-west4-docker.pkg.dev/PROJECT/t5x-like/t5x-like:1 --service-account=t5x-like \
        -- python -m t5x_like.train --config=configs/t5.py:base \
        --config.workdir=/gcs/BUCKET/runs/t5_base  | kubectl apply -f -

It only prints. With --slices=2 the command runs on two such slices, which the data center network
connects. A path /gcs/BUCKET/... in the command is gs://BUCKET/..., which each pod mounts; a path
gs://... needs no mount. If a pod fails or its host is preempted, all pods start again, and the same
command resumes from its checkpoint; preemptions do not count as failures. A loss that is not finite
(exit status 3) fails the JobSet at once. docs/launching.md explains each step.

Sources: https://cloud.google.com/kubernetes-engine/docs/how-to/tpus (node labels, google.com/tpu),
https://jobset.sigs.k8s.io/docs/tasks/failure_policy (JobSet, and its rules for failed jobs; their
patterns of messages need version 0.10), Kubernetes' pkg/controller/job/pod_failure_policy.go (the
messages), https://cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice (several slices),
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy,
https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-ephemeral.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import yaml

from launch import accelerators
from launch.accelerators import Slice

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # pods' names add to it, up to 63
BUCKET = re.compile(r"/gcs/([a-z0-9][a-z0-9._-]*)")
PLACE = re.compile(r"(/gcs/|gs://)[^/]+")  # folders in which a workdir outlives its pods
NONFINITE = 3  # train's exit status for a loss that is not finite; a restart would not help
STOPPED = 143  # exit status of launch/worker.sh for a command stopped by a signal


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors print one line and exit with status 2."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}\n")
        sys.exit(2)


def manifest(
    name: str,
    *,
    slice_: Slice,
    image: str,
    command: Sequence[str],
    service_account: str,
    slices: int = 1,
    spot: bool = False,
    restarts: int = 20,
) -> dict[str, Any]:
    """Return the JobSet that runs the command on every host of its slices.

    Args:
        name: the JobSet's name.
        slice_: a TPU slice.
        image: the container's image, which launch/Dockerfile builds.
        command: the command that each host runs.
        service_account: Kubernetes' name of the account that may use the buckets.
        slices: the number of such slices.
        spot: whether the hosts may be preempted.
        restarts: how often all pods start again after a failure; preemptions do not count.
    """
    job = {
        "parallelism": slice_.hosts,
        "completions": slice_.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # a single pod cannot rejoin its slice: the JobSet restarts all pods
        "podFailurePolicy": {"rules": _job_rules()},
        "template": _pod(
            slice_, image=image, command=command, service_account=service_account, spot=spot
        ),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            # A node pool is a slice: all pods of a job must be on the same node pool.
            "annotations": {
                "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
            },
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": restarts,
                # Remaining pods hold their chips until they are deleted.
                "restartStrategy": "BlockingRecreate",
                "rules": _jobset_rules(),
            },
            "replicatedJobs": [{"name": "slice", "replicas": slices, "template": {"spec": job}}],
        },
    }


def _job_rules() -> list[dict[str, Any]]:
    """Return rules that fail the job with the reason PodFailurePolicy, for the JobSet's rules."""
    return [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [NONFINITE]}},
        # A pod whose host is preempted, drained or repaired gets a condition from Kubernetes, and
        # before it its command gets a signal; the job's controller may see only one of the two.
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [STOPPED]}},
    ]


def _jobset_rules() -> list[dict[str, Any]]:
    """Return the rules for a failed job; if none fits, all pods restart, which counts."""
    reasons = ["PodFailurePolicy"]
    return [
        {
            "name": "nonfinite",
            "action": "FailJobSet",
            "onJobFailureReasons": reasons,
            "onJobFailureMessagePatterns": [f" failed with exit code {NONFINITE} "],
        },
        {
            "name": "preempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": reasons,
        },
    ]


def _pod(
    slice_: Slice, *, image: str, command: Sequence[str], service_account: str, spot: bool
) -> dict[str, Any]:
    found = sorted({bucket for word in command for bucket in BUCKET.findall(word)})
    buckets = {f"bucket-{number}": bucket for number, bucket in enumerate(found)}
    selector = {
        "cloud.google.com/gke-tpu-accelerator": slice_.gke_accelerator,
        "cloud.google.com/gke-tpu-topology": slice_.topology,
    }
    container = {
        "name": "t5x-like",
        "image": image,
        # It forwards SIGTERM to the command, which saves, and then exits with a failure status.
        "command": ["bash", "launch/worker.sh", "run", *command],
        "env": [{"name": "JAX_NUM_PROCESSES", "value": "auto"}],
        "resources": {"limits": {"google.com/tpu": slice_.chips_per_host}},
        "volumeMounts": [
            {"name": name, "mountPath": f"/gcs/{bucket}"} for name, bucket in buckets.items()
        ],
    }
    return {
        "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": service_account,
            "nodeSelector": selector | ({"cloud.google.com/gke-spot": "true"} if spot else {}),
            "terminationGracePeriodSeconds": 300,  # time to save; a spot host gives far less
            "containers": [container],
            "volumes": [_volume(name, bucket=bucket) for name, bucket in buckets.items()],
        },
    }


def _volume(name: str, *, bucket: str) -> dict[str, Any]:
    # All hosts write parts of one checkpoint, so that no host may cache a folder's contents.
    fresh = "implicit-dirs,metadata-cache:ttl-secs:0,metadata-cache:negative-ttl-secs:0"
    attributes = {"bucketName": bucket, "mountOptions": fresh}
    return {
        "name": name,
        "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes},
    }


def node_pool(name: str, *, slice_: Slice, spot: bool) -> list[str]:
    """Return the commands that make a node pool on which the manifest's pods can be scheduled."""
    before: list[str] = []
    words = [
        f"gcloud container node-pools create {name} --cluster=CLUSTER --location=LOCATION",
        f"--node-locations=ZONE --machine-type={slice_.machine_type} --num-nodes={slice_.hosts}",
        "--workload-metadata=GKE_METADATA",
    ]
    if slice_.hosts > 1 and slice_.gke_accelerator == "tpu7x":
        # https://cloud.google.com/kubernetes-engine/docs/concepts/tpu-ironwood
        policy = f"gcloud compute resource-policies create workload-policy {name} --region=REGION"
        before = [f"{policy} --type=HIGH_THROUGHPUT --accelerator-topology={slice_.topology}"]
        words.append(f"--placement-policy={name}")
    elif slice_.hosts > 1:
        words.append(f"--tpu-topology={slice_.topology}")
    return [*before, " ".join([*words, *(["--spot"] if spot else [])])]


def _check(name: str, *, slice_: Slice, slices: int, command: Sequence[str], restarts: int) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"NAME={name!r}: small letters, digits and hyphens, the first a letter, 40 at most"
        )
    if not slice_.machine_type:
        raise ValueError(
            f"--type={slice_.type}: GKE does not have it, but Cloud TPU has: launch/tpu_vm.sh"
        )
    if slices < 1:
        raise ValueError(f"--slices={slices}: 1 or more")
    if slices > 1 and slice_.hosts == 1:
        raise ValueError(
            f"--slices={slices} --type={slice_.type}: GKE connects slices of several hosts only, "
            "and this has one"
        )
    if restarts < 0:
        raise ValueError(f"--restarts={restarts}: 0 or more")
    if not command:
        raise ValueError("no command: ... -- python -m t5x_like.train ...")
    workdirs = [word.split("workdir=", 1)[1] for word in command if "workdir=" in word]
    for workdir in workdirs:
        if not PLACE.match(workdir):
            raise ValueError(
                f"workdir={workdir}: a pod takes its disk along; write /gcs/BUCKET/..., where the "
                "bucket is mounted, or gs://BUCKET/..."
            )


def main(arguments: Sequence[str]) -> None:
    """Print the manifest, after comments with its cost and the command for its node pool."""
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    command = words[cut + 1 :]
    parser = _Parser(prog="python -m launch.gke", description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="of the JobSet")
    parser.add_argument("--type", required=True, help="of the slice, such as v5litepod-16")
    parser.add_argument("--slices", type=int, default=1, help="number of such slices")
    parser.add_argument("--image", required=True, help="of the container (launch/Dockerfile)")
    parser.add_argument("--service-account", default="default", help="Kubernetes' name of it")
    parser.add_argument("--spot", action="store_true", help="hosts that may be preempted")
    parser.add_argument("--restarts", type=int, default=20, help="of all pods, after a failure")
    given = parser.parse_args(words[:cut])
    try:
        slice_ = accelerators.choose(given.type)
        _check(
            given.name,
            slice_=slice_,
            slices=given.slices,
            command=command,
            restarts=given.restarts,
        )
    except ValueError as error:
        parser.error(str(error))
    slices, chips, hosts = (given.slices * n for n in (1, slice_.chips, slice_.hosts))
    print(f"# {slices} {slice_.type}: an hour is {chips} chip-hours, on {hosts} hosts.")
    for number in range(slices):  # a node pool is a slice
        name = given.name if slices == 1 else f"{given.name}-{number}"
        for line in node_pool(name, slice_=slice_, spot=given.spot):
            print(f"# {line}")
    made = manifest(
        given.name,
        slice_=slice_,
        image=given.image,
        command=command,
        service_account=given.service_account,
        slices=slices,
        spot=given.spot,
        restarts=given.restarts,
    )
    print(yaml.safe_dump(made, sort_keys=False), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
