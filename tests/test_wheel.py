"""What the wheel has: the package, and nothing else."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from t5x_like import __main__ as command

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_has_the_package_and_the_command(tmp_path):
    clone = tmp_path / "clone"  # a build writes into the folder
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "t5x_like", clone / "t5x_like", ignore=ignored)
    for part in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, clone)
    build = ["pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", *build], cwd=clone, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        [entry] = [name for name in names if name.endswith("entry_points.txt")]
        assert "t5x-like = t5x_like.__main__:main" in file.read(entry).decode()
        [metadata] = [name for name in names if name.endswith("/METADATA")]
        required = file.read(metadata).decode().splitlines()
    package = {name for name in names if ".dist-info/" not in name}
    files = {path for path in (clone / "t5x_like").rglob("*") if path.is_file()}
    assert package == {path.relative_to(clone).as_posix() for path in files}
    for name in ("seqio", "tensorflow", "tensorflow-datasets"):
        own = [one for one in required if one.startswith(f"Requires-Dist: {name}>")]
        assert own
        assert all("extra ==" in one for one in own)


def test_the_command_lists_its_commands_and_refuses_others(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["t5x-like"])
    command.main()
    listed = capsys.readouterr().out
    own = {path.stem for path in (ROOT / "t5x_like").glob("*.py")}
    assert command.COMMANDS.keys() <= own
    assert all(f"  {name} " in listed for name in command.COMMANDS)
    monkeypatch.setattr(sys, "argv", ["t5x-like", "trian"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "command='trian' does not exist. Did you mean 'train'?" in capsys.readouterr().err
