"""One part of the test files at a time, as continuous integration takes them."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.programs import shards

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "tests").rglob("test_*.py"))


def test_each_file_is_in_one_of_eight_parts_and_no_part_is_empty():
    parts = [[number for number in range(1, 9) if shards.has((number, 8), path)] for path in FILES]
    assert {len(found) for found in parts} == {1}
    assert {found[0] for found in parts} == set(range(1, 9))


def test_a_test_ends_by_its_own_limit_before_its_process_is_ended():
    recipe = (ROOT / "Makefile").read_text()
    of_test, of_process = map(
        int, re.search(r"--timeout=(\d+) -o faulthandler_timeout=(\d+)", recipe).groups()
    )
    marks = [re.findall(r"mark\.timeout\((\d+)\)", path.read_text()) for path in FILES]
    longest = max(int(limit) for limits in marks for limit in limits)
    assert max(longest, of_test) < of_process


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "3/", "a/b", "3/8/1", "-1/8"])
def test_a_part_that_does_not_exist_is_refused(text):
    with pytest.raises(ValueError, match="a part and the number of parts, such as 3/8"):
        shards.parse(text)


@pytest.mark.slow  # imports what the tests import
def test_the_parts_together_are_all_tests():
    def collected(*words):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/launch", *words]
        # A `-v` of whoever runs the tests would cancel -q.
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=240, env=env
        )

    def names(*words):
        return {line for line in collected(*words).stdout.splitlines() if "::" in line}

    first, second = names("--shard=1/2"), names("--shard=2/2")
    assert first
    assert second
    assert not first & second
    assert first | second == names()
    refused = collected("--shard=3/2")
    assert refused.returncode == 4
    assert "ERROR: --shard='3/2': a part and the number of parts" in refused.stderr


def ci(function, folder, **variables):
    """What a function of .ci/run prints in a folder."""
    text = (ROOT / ".ci/run").read_text()
    functions = re.findall(r"^\w+\(\) {\n.*?^}\n", text, re.MULTILINE | re.DOTALL)
    script = "\n".join(["set -euo pipefail", *functions, function])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, env=variables or None
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def git(folder, *words):
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", folder, *author, *words], check=True, capture_output=True)


def test_eight_commits_run_all_parts_and_a_shallow_clone_runs_one(tmp_path):
    git(tmp_path, "init", "origin")
    found = []
    for number in range(8):
        git(tmp_path / "origin", "commit", "--allow-empty", "--message", f"{number}")
        found.append(ci("part", tmp_path / "origin"))
    assert sorted(found) == [str(number) for number in range(1, 9)]

    git(tmp_path, "clone", "--depth=1", f"file://{tmp_path}/origin", "shallow")
    assert ci("part", tmp_path / "shallow") in found


def test_packages_that_cannot_be_installed_are_one_line(tmp_path):
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho no mirror answers >&2\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    line = ci("install", tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert line.count("\n") == 0
    assert "slurm-wlm munge chromium chromium-driver" in line
