"""What the pages name exists: commands, their flags, config files and settings; light ones run."""

import contextlib
import functools
import io
import pathlib
import re
import runpy
import shlex
import sys
import warnings

import pytest

from t5x_like import config, scaling, systems
from t5x_like.config import SETTINGS
from t5x_like.experiment import command_line
from t5x_like.training import optimizers

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "data/*.md", "launch/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
# Sections whose settings are all known; other sections take the arguments of functions.
CLOSED = ("data", "train", "mesh", "checkpoint", "evaluate", "lora", "cost")
OTHERS = "docs/coming_from.md"
FOR_A_READER = "configs/t5_on_tpu.py"  # written while following docs/launching.md
OPEN = [name for name, (default, _) in SETTINGS.items() if isinstance(default, dict)]


def read(page):
    return (ROOT / page).read_text("utf-8")


def commands(page):
    """The commands of this package in the blocks of a page: (name, arguments)."""
    for block in re.findall(r"^```sh\n(.*?)^```", read(page), re.DOTALL | re.MULTILINE):
        for line in _lines(block.replace("\\\n", " ")):
            if found := re.search(r"(?:-m t5x_like\.|\bt5x-like )(\w+)(.*)", line, re.DOTALL):
                words = shlex.split(found[2], comments=True)
                ends = (n for n, word in enumerate(words) if word in ("|", "&&", "&", ">", ";"))
                yield found[1], words[: next(ends, None)]


def _lines(block):
    """The lines of a block; an argument in quotes may contain line ends."""
    line = ""
    for part in block.splitlines():
        line = f"{line}\n{part}" if line else part
        with contextlib.suppress(ValueError):  # a quote is open
            shlex.split(line, comments=True)
            yield line
            line = ""


@functools.cache
def help_of(*command):
    """The help of a command of the package."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [*command, "--help"])
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(SystemExit):
            # A module that a test has imported is run again, which gets a warning.
            runpy.run_module(f"t5x_like.{command[0]}", run_name="__main__")
    return printed.getvalue()


def is_setting(key):
    """Whether a run has a setting, or a section that takes settings of any name."""
    return key in SETTINGS or any(key.startswith(f"{section}.") for section in OPEN)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_have_their_flags_and_files(page):
    for name, words in commands(page):
        assert (ROOT / "t5x_like" / f"{name}.py").is_file(), name
        action = words[:1] if name in ("scaling", "inspect") else []
        for word in (word for word in words if word.startswith("--")):
            flag, _, value = word.partition("=")
            if flag.startswith("--config."):
                assert is_setting(flag.removeprefix("--config.")), (page, word)
            elif not flag.startswith("--gin"):
                assert re.search(rf"(?<![\w-]){flag}(?![\w-])", help_of(name, *action)), (
                    page,
                    word,
                )
            if flag == "--config" and value.startswith("configs/") and value != FOR_A_READER:
                assert (ROOT / value.partition(":")[0]).is_file(), (page, word)


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_that_a_page_names_exist(page):
    text = read(page)
    if page == OTHERS:  # the other columns have the settings of other programs
        text = " ".join(row[-1] for row in rows_for_people_from_others())
    named = re.findall(r"`(?:--config\.)?((?:[a-z]+\.)+[a-z_0-9]+)[`=:]", text)
    settings = {key for key in named if key.partition(".")[0] in CLOSED}
    files = {key for key in settings if key.endswith((".py", ".md"))}
    modules = {key for key in settings if (ROOT / f"{key.replace('.', '/')}.py").is_file()}
    assert {key for key in settings - files - modules if not is_setting(key)} == set()


def rows_for_people_from_others():
    lines = [line for line in read(OTHERS).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_table_for_people_from_other_trainers_has_no_empty_row():
    rows = rows_for_people_from_others()
    assert len(rows) > 50
    assert all(len(row) == 7 and all(row[1:]) for row in rows)
    # The last column is what is here, or that it is not and what to do instead.
    assert [row[0] for row in rows if len(row[-1]) < 5 and row[-1] != "here"] == []
    model = {
        name for one in systems.names() for own in systems.find(one).sizes.values() for name in own
    }
    train = set(optimizers._COMMON_SETTINGS) | {"first_moment"}
    for section, known in {"model": model, "optimizer": train}.items():
        named = set(re.findall(rf"`{section}\.([a-z_0-9]+)[`=]", " ".join(row[-1] for row in rows)))
        assert named - known - {"generate"} == set()


CONFIGS = [
    (name, words)
    for name, words in commands("README.md")
    # A run's own config needs the run, and a model of the hub its files.
    if any(word.startswith("--config=") for word in words) and "configs/run.py" not in str(words)
]


@pytest.mark.parametrize("words", [words for _, words in CONFIGS], ids=lambda words: words[0])
def test_the_configs_of_the_readme_can_be_read(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    settings, _ = command_line.parse(words)
    assert config.parse(settings).system or config.parse(settings).initialize


@pytest.mark.slow
def test_the_scaling_laws_of_the_readme_are_fitted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    found = [words for name, words in commands("README.md") if name == "scaling"]
    assert {words[0] for words in found} == {"fit", "plan"}
    for words in found:
        scaling.main(
            [re.sub(r"--json=.*", f"--json={tmp_path / 'fit.json'}", word) for word in words]
        )
        assert len(capsys.readouterr().out) > 100
    assert (tmp_path / "fit.json").stat().st_size > 100
