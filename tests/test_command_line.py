"""The command line: settings of every type, mistakes in one line, help at once."""

import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import pytest

from t5x_like import config
from t5x_like.experiment import command_line
from t5x_like.experiment.run import of_config

ROOT = pathlib.Path(__file__).parents[1]
T5 = "--config=configs/t5.py:demo"
CONFIG_COMMANDS = ("train", "evaluate", "infer", "plan", "tokenize")


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("train.steps=7", "train.steps", 7),
        ("model.dropout=1", "model.dropout", 1.0),
        ("optimizer.learning_rate=2e-3", "optimizer.learning_rate", 2e-3),
        ("data.pack=True", "data.pack", True),
        ("data.pack=false", "data.pack", False),
        ("workdir=runs/7", "workdir", "runs/7"),
        ("workdir=7", "workdir", "7"),
        ("evaluate.tasks=('a', 'b')", "evaluate.tasks", ("a", "b")),
        ("evaluate.tasks=a", "evaluate.tasks", ("a",)),
        # What the config lacks, in parts that take any setting.
        ("data.settings.files=corpus/*.gz", "data.settings.files", "corpus/*.gz"),
        ("optimizer.b1=0.8", "optimizer.b1", 0.8),
        ("data.settings.corpora.web.weight=3", "data.settings.corpora.web.weight", 3),
    ],
)
def test_a_setting_is_read_by_its_type(flag, key, value):
    found, rest = command_line.parse([T5, f"--config.{flag}", "--average=5"])
    assert rest == ["--average=5"]
    for part in key.split("."):
        found = found[part]
    assert found == value
    assert type(found) is type(value)


def test_a_dict_is_replaced_by_a_dict():
    found, _ = command_line.parse([T5, "--config.data.objective_settings={'rate': 0.3}"])
    assert found.data.objective_settings.to_dict() == {"rate": 0.3}


def test_values_may_follow_after_a_blank_and_a_bool_needs_none():
    line = ["--config", "configs/t5.py:demo", "--config.train.steps", "9", "--config.data.pack"]
    found, rest = command_line.parse([*line, "--stream"])
    assert (found.train.steps, found.data.pack, rest) == (9, True, ["--stream"])


def test_what_a_folder_leaves_open_takes_its_type():
    line = ["--config=configs/fine_tuning.py", "--config.model.dropout=0.2"]
    found, _ = command_line.parse(line)
    assert found.model.dropout == 0.2
    assert found.model.dtype is None


def test_numbers_follow_what_is_set_in_the_shell():
    line = ["--config=configs/bert.py:base", "--config.train.steps=20000"]
    found, _ = command_line.parse(line)
    assert found.optimizer.decay_steps == 20_000
    assert [phase.last for phase in of_config(found).phases] == [18_000, 20_000]
    line = [*line, "--config.optimizer.decay_steps=30000"]
    found, _ = command_line.parse(line)
    assert (found.train.steps, found.optimizer.decay_steps) == (20_000, 30_000)


def test_the_schedule_of_an_earlier_run_follows_its_steps(tmp_path):
    made, _ = command_line.parse(["--config=configs/bert.py:base", "--config.train.steps=20000"])
    (tmp_path / "config.json").write_text(made.to_json_best_effort())
    line = [f"--config=configs/run.py:{tmp_path}", "--config.optimizer.warmup_steps=5"]
    again, _ = command_line.parse([*line, "--config.train.steps=50000"])
    assert again.workdir == str(tmp_path)
    assert again.optimizer.decay_steps == 50_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"--config is not set; .*Allowed: configs/albert\.py, "),
        (["--config=configs/t6.py"], r"'configs/t6.py' does not .*Did you mean 'configs/t5.py'\?"),
        (["--config=confgs/t5.py"], r"'confgs/t5.py' does not .*Did you mean 'configs/t5.py'\?"),
        (["--config=configs/t5.py:tiny"], "has no size 'tiny': choose demo, fine_tuning, "),
        (["--config=configs/gpt.py:smal"], "no size 'smal': choose demo, classification, .*base"),
        (["--config=configs/plans.py:gpt4"], "no plan 'gpt4': choose t5_11b_v4"),
        (["--config=configs/fine_tuning.py:x"], "no kind 'x': choose classification"),
        (["--config=configs/run.py:runs/nothing"], "'runs/nothing' is not the folder of a run"),
        (["--config=configs/run.py"], "missing a required argument: 'folder'"),
        (["--config=README.md"], "'README.md' is not a Python file"),
        (["--config=t5x_like/names.py"], "has no function get_config"),
        ([T5, "--config.train.steps=abc"], "train.steps='abc' must be a whole number; it was \\d+"),
        ([T5, "--config.train.steps=1.5"], "train.steps='1.5' must be a whole number"),
        ([T5, "--config.model.dropout=lots"], "model.dropout='lots' must be a number; it was 0.0"),
        ([T5, "--config.data.pack=maybe"], "data.pack='maybe' must be True or False"),
        ([T5, "--config.data=3"], "data='3' must be a dict"),
        ([T5, "--config.trian.steps=3"], r"'trian' does not exist. Did you mean 'train'\?"),
        ([T5, "--config.train.step=3"], r"'step' does not exist. Did you mean 'steps'\?"),
        ([T5, "--config.train.steps.all=3"], "train.steps is a value and has no settings"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        command_line.parse(arguments)


def test_what_an_error_holds_is_freed_before_the_exit(monkeypatch):
    """The threads of a tf.data iterator that outlives the interpreter would keep the process."""
    freed = []

    class Iterator:
        def __init__(self):
            self.cycle = self

    def fail():
        iterator = Iterator()
        weakref.finalize(iterator, freed.append, "iterator")
        raise ValueError("damaged")

    def leave(status):
        freed.append(status)
        raise SystemExit(status)

    def fail_again():
        try:
            fail()
        except ValueError as error:
            raise ValueError("a line") from error

    monkeypatch.setattr("t5x_like.config.sys.exit", leave)
    with pytest.raises(SystemExit), config.one_line_errors():
        fail_again()
    assert freed == ["iterator", 2]


def test_a_config_file_that_fails_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ValueError, match=r"mine.py. cannot be read: ModuleNotFoundError: No"):
        command_line.parse([f"--config={tmp_path}/mine.py"])


def test_a_broken_config_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not JSON: Expecting"):
        command_line.parse([f"--config=configs/run.py:{tmp_path}"])


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env={key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"},
    )


COMMANDS = (
    *(f"t5x_like.{name}" for name in (*CONFIG_COMMANDS, "page", "convert", "vocabulary")),
    *("t5x_like.inspect", "t5x_like.scaling", "t5x_like.study", "launch.gke"),
    *(
        "data.filters.quality_filter",
        "data.filters.deduplicate",
        "data.filters.decontaminate",
        "data.filters.contamination",
        "data.generators.augment",
    ),
)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_is_silent_and_loads_nothing_that_takes_seconds(module):
    done = python("-X", "importtime", "-m", module, "--help")
    assert done.returncode == 0
    assert re.search(rf"python (-m {module}|{module.replace('.', '/')}\.py)", done.stdout)
    if module.removeprefix("t5x_like.") in CONFIG_COMMANDS:
        assert all(f"--config.{key}=" in done.stdout for key in config.SETTINGS)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"jax", "flax", "tensorflow", "seqio", "torch"}
    assert all(line.startswith("import time:") for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--averge=2", T5], r"--averge does not exist. Did you mean '--average'? Allowed: --av"),
        (["--average=two", T5], "flag --average=two"),
        ([T5, "train.steps=3"], "'train.steps=3' is not a flag: settings are written --config.key"),
        ([T5, "--config.train.microbatches=3"], "train.microbatches=3 does not divide"),
    ],
)
def test_a_wrong_flag_is_one_line(arguments, message):
    done = python("-m", "t5x_like.evaluate", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


def test_tensorflow_is_loaded_in_silence():
    program = (
        "from t5x_like.experiment import startup; startup.silence_tensorflow(); "
        "import tensorflow as tf; tf.data.Dataset.range(3); import sys; sys.stderr.write('end')"
    )
    assert python("-c", program).stderr == "end"


def test_ctrl_c_ends_a_command_without_a_traceback():
    program = (
        "from t5x_like.experiment import command_line; command_line.end_quietly_on_interrupt(); "
        "raise KeyboardInterrupt"
    )
    done = python("-c", program)
    assert done.returncode == -signal.SIGINT  # of which a shell makes 130
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("setting", "given", "expected"),
    [
        ("auto", None, r".*/cache/t5x_like/compiled/\w+-[0-9a-f]{8}"),
        ("{folder}/own", None, ".*/own"),
        ("auto", "/given", "/given"),
        ("", None, None),
        ("{folder}/file/below", None, None),
    ],
)
def test_compiled_programs_are_kept_where_the_setting_says(
    setting, given, expected, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("T5X_LIKE_CACHE", raising=False)
    made = config.defaults()
    made.compilation_cache = setting.format(folder=tmp_path)
    names = (
        "jax_compilation_cache_dir",
        "jax_compilation_cache_max_size",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = [getattr(jax.config, name) for name in names]
    try:
        jax.config.update(names[0], given)
        command_line.keep_compiled_programs(made)
        found = jax.config.jax_compilation_cache_dir
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
    assert re.fullmatch(expected, found) if expected else found is None


def test_json_keeps_letters_and_escapes_what_utf8_lacks():
    value = {"text": "na\u00efve \u6771\u4eac \U0001f600\u2028\n", "half": "\udc80"}
    content = command_line.as_json(value)
    assert json.loads(content) == value
    expected = '{"text": "na\u00efve \u6771\u4eac \U0001f600\u2028\\n", "half": "\\udc80"}\n'
    assert content.decode() == expected


def test_numbers_that_json_lacks_are_null():
    """ECMA-404, section 8: "Numeric values that cannot be represented [...] are not permitted"."""
    rows = [{"score": -math.inf, "both": (math.nan, 1.5)}, {"text": "NaN", "n": 3, "is": True}]
    content = command_line.as_standard_json(rows)
    expected = [{"score": None, "both": [None, 1.5]}, {"text": "NaN", "n": 3, "is": True}]
    assert json.loads(content, parse_constant=pytest.fail) == expected


@pytest.mark.parametrize(
    "work",
    [
        lambda: jnp.zeros(1 << 50),
        lambda: jax.jit(lambda x: jnp.sort(jnp.outer(x, x), axis=0)[0])(jnp.zeros(1 << 24)),
    ],
    ids=["result", "temporary"],
)
def test_too_little_memory_of_a_device_is_one_line(work, capsys):
    with pytest.raises(SystemExit) as end, command_line.memory_errors():
        work().block_until_ready()
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(r"error: .*Out of memory allocating \d{15,} bytes", line)
    assert "Less memory is needed with a smaller data.batch_size or data.lengths" in line


def test_other_errors_of_xla_stay(capsys):
    x = jnp.zeros(1)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"), command_line.memory_errors():
        x.block_until_ready()
    assert not capsys.readouterr().err
