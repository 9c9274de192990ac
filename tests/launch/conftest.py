"""A copy of the launch scripts to run, on a machine whose commands are the test's own."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder that holds launch/ and nothing else, as git sees it."""
    shutil.copytree(ROOT / "launch", tmp_path / "tree/launch")
    subprocess.run(["git", "init", "--quiet", tmp_path / "tree"], check=True)
    return tmp_path / "tree"


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """The folder that is searched first for a command."""
    (tmp_path / "commands").mkdir()
    return tmp_path / "commands"


@pytest.fixture
def script(tree: Path, commands: Path) -> Script:
    """Runs a script of launch/ with arguments, and environment variables as keywords."""

    def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("CLOUDSDK")
        }
        environment["PATH"] = f"{commands}:{environment['PATH']}"
        return subprocess.run(
            ["bash", tree / "launch" / name, *arguments],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=240,  # a loaded machine is slow; what hangs, hangs for ever
        )

    return run


@pytest.fixture
def stub(commands: Path) -> Callable[[str, str], None]:
    """Gives a command a body of shell, in place of what it does."""

    def write(name: str, body: str) -> None:
        path = commands / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)

    return write
