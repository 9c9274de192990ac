"""The shell scripts: what shellcheck finds in them."""

import subprocess
import sysconfig
from pathlib import Path

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


def test_the_second_line_of_every_script_is_its_purpose():
    seconds = {file.name: file.read_text().split("\n")[1] for file in shell_scripts()}
    assert {name: line for name, line in seconds.items() if not line.startswith("# ")} == {}
