"""The commands of docs/launching.md, as far as the launch scripts can read them."""

import re
import shlex
from pathlib import Path

import pytest

from launch import gke

PAGE = (Path(__file__).resolve().parents[2] / "docs/launching.md").read_text("utf-8")
BLOCKS = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
LINES = [shlex.split(re.sub(r"\$\w+", "name", line), comments=True) for line in BLOCKS.splitlines()]
ON_SLICES = [words[1:] for words in LINES if words[:1] == ["launch/tpu_vm.sh"]]
ON_SLURM = [words[1:] for words in LINES if words[:2] == ["launch/slurm.sh", "submit"]]
ON_GKE = [words[3:] for words in LINES if words[:3] == ["python", "-m", "launch.gke"]]


def test_the_page_has_a_command_for_every_action():
    actions = {words[0] for words in ON_SLICES}
    assert actions == {"watch", "create", "status", "install", "run", "logs", "stop", "delete"}
    assert (len(ON_SLURM), len(ON_GKE)) == (1, 1)


@pytest.mark.parametrize("words", ON_SLICES, ids=" ".join)
def test_the_page_uses_slices_as_the_script_does(script, words):
    done = script(
        "tpu_vm.sh",
        *(*words[:2], "--dry-run", *words[2:]),
        CLOUDSDK_CORE_PROJECT="my-project",
        CLOUDSDK_COMPUTE_ZONE="us-west4-a",
    )
    assert done.returncode == 0, done.stderr


def test_the_page_submits_to_slurm_as_the_script_does(script):
    words = ON_SLURM[0]
    done = script("slurm.sh", words[0], "--dry-run", *words[1:])
    assert done.returncode == 0, done.stderr


def test_the_page_prints_the_manifest_as_the_script_does(capsys):
    words = ON_GKE[0]
    gke.main(words[: words.index(">")])
    assert "kind: JobSet" in capsys.readouterr().out
