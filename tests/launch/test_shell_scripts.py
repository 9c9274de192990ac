"""The shell scripts: what shellcheck finds in them."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def shell_scripts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [
        file
        for file in files
        if file.is_file() and file.read_bytes()[:30].startswith(b"#!/usr/bin/env bash")
    ]


def test_shellcheck_finds_nothing():
    shellcheck = Path(sysconfig.get_path("scripts"), "shellcheck")
    scripts = shell_scripts()
    assert ROOT / "launch/tpu_vm.sh" in scripts
    found = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


SCRIPTS = sorted(path.name for path in (ROOT / "launch").glob("*.sh"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_prints_the_purpose_and_does_nothing_else(name, tmp_path):
    # A copy, because a script that did more would find nothing beside it.
    script, copy = ROOT / "launch" / name, tmp_path / "launch" / name
    copy.parent.mkdir()
    copy.write_text(script.read_text())
    made = subprocess.run(["bash", copy, "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith(script.read_text().split("\n")[1].removeprefix("# "))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [copy]


@pytest.mark.parametrize("module", ["accelerators", "gke", "serve"])
def test_help_of_the_programs_beside_them(module):
    command = [sys.executable, "-m", f"launch.{module}", "--help"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (made.returncode, made.stderr) == (0, "")
    assert len(made.stdout.splitlines()) > 5


def test_the_second_line_of_every_script_is_its_purpose():
    seconds = {file.name: file.read_text().split("\n")[1] for file in shell_scripts()}
    assert {name: line for name, line in seconds.items() if not line.startswith("# ")} == {}
