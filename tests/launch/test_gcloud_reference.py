"""Every gcloud command of the scripts and of docs/launching.md, against gcloud's own reference."""

import re
import shlex

import pytest

from launch import gke
from launch.accelerators import SLICES
from tests.launch.test_launching_page import LINES
from tests.launch.test_tpu_vm import TRAIN, WHERE

# From the tree of commands and flags that comes with gcloud 528.0.0
# (google-cloud-sdk/data/cli/gcloud_completions.py, equal to `--help`): the flags used here. The
# flags of nodes are from cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources.
EVERYWHERE = {"--project", "--format", "--quiet"}
REFERENCE = {
    "artifacts repositories create": {"--location", "--repository-format"},
    "auth configure-docker": set(),
    "auth login": set(),
    "beta services identity create": {"--service"},
    "compute resource-policies create workload-policy": {
        *("--accelerator-topology", "--region", "--type"),
    },
    "compute tpus accelerator-types list": {"--zone"},
    "compute tpus queued-resources create": {
        *("--accelerator-type", "--node-count", "--node-id", "--node-prefix"),
        *("--runtime-version", "--service-account", "--spot", "--zone"),
    },
    "compute tpus queued-resources delete": {"--force", "--zone"},
    "compute tpus queued-resources describe": {"--zone"},
    "compute tpus queued-resources list": {"--zone"},
    "compute tpus queued-resources scp": {"--node", "--worker", "--zone"},
    "compute tpus queued-resources ssh": {
        *("--command", "--node", "--ssh-flag", "--worker", "--zone"),
    },
    "compute tpus tpu-vm describe": {"--zone"},
    "container clusters create": {"--addons", "--location", "--num-nodes", "--workload-pool"},
    "container clusters get-credentials": {"--location"},
    "container node-pools create": {
        *("--cluster", "--location", "--machine-type", "--node-locations", "--num-nodes"),
        *("--placement-policy", "--spot", "--tpu-topology", "--workload-metadata"),
    },
    "container node-pools delete": {"--cluster", "--location"},
    "iam service-accounts create": set(),
    "projects create": set(),
    "projects describe": set(),
    "services enable": set(),
    "storage buckets add-iam-policy-binding": {"--member", "--role"},
    "storage buckets create": {
        *("--enable-hierarchical-namespace", "--location", "--uniform-bucket-level-access"),
    },
    "storage cat": set(),
    "storage cp": {"--recursive"},
}


def check(words: list[str]) -> str:
    """The command that the words after `gcloud` begin with; the rest of it must be known."""
    line = " ".join(words)
    command = max(
        (one for one in REFERENCE if f"{line} ".startswith(f"{one} ")), key=len, default=""
    )
    assert command, f"gcloud has no command {line}"
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert flags <= REFERENCE[command] | EVERYWHERE, line
    return command


def of_the_page() -> list[list[str]]:
    """The words after `gcloud` of each command of the page, also of a command substitution."""
    found = []
    for line in LINES:
        joined = " ".join(line)
        if match := re.search(r"(?:^|\$\()gcloud (.*?)\)?$", joined):
            found.append(match[1].split())
    return found


def test_the_page_uses_commands_that_gcloud_has():
    commands = {check(words) for words in of_the_page()}
    assert {"projects describe", "storage buckets create", "container clusters create"} <= commands


@pytest.mark.parametrize(
    "action", ["create", "status", "install", "run", "logs", "stop", "delete", "watch"]
)
def test_the_scripts_print_commands_that_gcloud_has(script, action):
    words = (action, "t5", "--type=v4-16", "--spot", "--service-account=a", "--dry-run", *WHERE)
    slices = ["--node-count=2"] if action == "watch" else []
    done = script("tpu_vm.sh", *words, *slices, "--", *TRAIN)
    printed = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [check(words[1:]) for words in printed if words[0] == "gcloud"]


def test_a_watch_asks_with_commands_that_gcloud_has(tree):
    text = (tree / "launch/tpu_vm.sh").read_text().replace("\\\n", " ")
    asked = re.findall(r"\$\((gcloud .*?)\s+2>", text)
    commands = [check(shlex.split(one.replace('"${where[@]}"', ""))[1:]) for one in asked]
    assert commands == ["compute tpus queued-resources describe", "compute tpus tpu-vm describe"]


@pytest.mark.parametrize("accelerator_type", ["v6e-1", "v5p-16", "tpu7x-8", "tpu7x-16"])
def test_the_manifest_begins_with_commands_that_gcloud_has(accelerator_type):
    lines = gke.node_pool("t5", slice_=SLICES[accelerator_type], spot=True)
    assert [check(line.split()[1:]) for line in lines][-1] == "container node-pools create"
