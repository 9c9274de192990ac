"""Loading a folder runs none of its code: Python files that a run names need the user's trust."""

import json
import pathlib
import re
import shutil
import sys

import pytest

from t5x_like import config, names
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import from_pretrained
from tests.programs import in_process, tiny_t5

ROOT = pathlib.Path(__file__).parents[1]
SYSTEM = (
    "import pathlib\npathlib.Path({marker!r}).touch()\nfrom t5x_like.systems.t5 import SYSTEM\n"
)
DATA = "import pathlib\npathlib.Path({marker!r}).touch()\nfrom data.text_files import *\n"
COMMANDS = {
    "infer": "infer --config=configs/run.py:{run} --input={made}/prompts.txt",
    "evaluate": "evaluate --config=configs/run.py:{run}",
    "resume": "train --config=configs/run.py:{run}",
    "plan": "plan --config=configs/run.py:{run}",
    "convert": "convert --from={run} --to={made}/out",
    "page": "page --from={run} --port=0",
    "inspect": "inspect layers {made}/prompts.txt --from={run}",
    "initialize": "infer --config=configs/pretrained.py --config.initialize={run} --input=-",
    "measures": "evaluate --config=configs/pretrained.py --config.initialize={run}",
    "ensemble": "evaluate --config=tests/programs/tiny_t5.py:{made} --ensemble={run},{run} "
    "--config.evaluate.measures={{'documents':{{}}}}",
    "fine-tuning": "train --config=tests/programs/tiny_t5.py:{made}/new --config.initialize={run}",
    "reward": "train --config=configs/instructgpt.py:reward:{run} --config.workdir={made}/reward",
    "dpo": "train --config=configs/dpo.py:{run} --config.workdir={made}/dpo",
    "teacher": "train --config=configs/tinybert.py:demo --config.initialize={run} "
    "--config.workdir={made}/student",
}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The parameters of a T5 of no step."""
    settings = tiny_t5.get_config(str(tmp_path_factory.mktemp("state")))
    return model_side.build(of_config(settings)).initial_state()


@pytest.fixture
def made(state, tmp_path, monkeypatch):
    """A run whose system is a Python file in its folder, which makes `marker` when it runs."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(names, "_trusted", set())
    monkeypatch.setattr(names, "_trusts_all", False)
    made = tmp_path / "made"
    own = made / "run" / "own.py"
    write(made, state, system=str(own))
    own.write_text(SYSTEM.format(marker=str(made / "marker")))
    (made / "prompts.txt").write_text("one two\n")
    return made


def write(made, state, *, system, module="data/text_files.py", settings=None):
    """Writes a run of these two files."""
    stored = config.to_dict(parse(tiny_t5.get_config(str(made)))) | {"system": system}
    stored["data"]["module"] = module
    stored["data"]["settings"] = stored["data"]["settings"] if settings is None else settings
    folder = made / "run" / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    with Checkpoints(folder, every=2, metadata={"config": stored, "data_shards": 2}) as saver:
        saver.save(2, state)
    (made / "run" / "config.json").write_text(json.dumps(stored))


def run(command, made, *more):
    module, *arguments = command.format(run=made / "run", made=made).split()
    return in_process.run(f"t5x_like.{module}", *arguments, *more)


QUICK = ("infer", "evaluate", "convert", "initialize")
CASES = [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in COMMANDS]


@pytest.mark.parametrize("name", CASES)
def test_no_command_runs_the_code_of_a_folder(name, made):
    done = run(COMMANDS[name], made)
    assert not (made / "marker").exists()
    assert done.status == 2, done
    *progress, line = done.err.splitlines()
    assert line.startswith(f"error: system='{made}/run/own.py' is a Python file that {made}/")
    assert "add --trust_code" in line
    assert all(before.endswith(" ...") for before in progress), done.err


@pytest.mark.parametrize("name", ["infer", "convert"])
def test_code_runs_with_the_flag(name, made):
    more = ["--format=t5x_like"] if name == "convert" else []
    done = run(COMMANDS[name], made, "--trust_code", *more)
    assert done.status == 0, done.err
    assert (made / "marker").exists()


def test_code_runs_where_the_user_names_it(made):
    done = run(COMMANDS["infer"], made, f"--config.system={made}/run/own.py")
    assert done.status == 0, done.err
    assert (made / "marker").exists()


def test_a_data_module_of_a_folder_does_not_run(made, state):
    own = made / "run" / "own_data.py"
    own.write_text(DATA.format(marker=str(made / "marker")))
    write(made, state, system="t5", module=str(own))
    done = run(COMMANDS["evaluate"], made)
    assert done.status == 2
    assert done.err.startswith(f"error: data.module='{own}' is a Python file that {made}/")
    assert not (made / "marker").exists()
    # The user's own name counts, and so does another module than the folder's.
    done = run(COMMANDS["infer"], made, "--config.data.module=data/text_files.py")
    assert done.status == 0, done.err
    assert not (made / "marker").exists()


@pytest.mark.parametrize("modules", ["their_tasks", ["json", "their_tasks"]])
def test_a_module_that_a_folder_names_is_not_imported(modules, made, state, monkeypatch):
    monkeypatch.syspath_prepend(str(made / "run"))
    code = f"import pathlib\npathlib.Path({str(made / 'marker')!r}).touch()\n"
    (made / "run" / "their_tasks.py").write_text(code)
    write(made, state, system="t5", module="data/seqio_tasks.py", settings={"modules": modules})
    done = run(COMMANDS["evaluate"], made)
    assert done.status == 2
    assert re.match(r"error: data\.settings\.modules='(json|their_tasks)\.py' is a ", done.err)
    assert not (made / "marker").exists()
    if isinstance(modules, str):  # another process
        monkeypatch.setattr(names, "_from_folders", {})
        run(COMMANDS["evaluate"], made, "--config.data.settings.modules=their_tasks")
    else:
        run(COMMANDS["evaluate"], made, "--trust_code")
    assert (made / "marker").exists()
    del sys.modules["their_tasks"]


def test_a_function_needs_the_argument(made):
    with pytest.raises(ValueError, match=r"system=.*own.py.*trust_code=True"):
        from_pretrained(made / "run")
    assert not (made / "marker").exists()
    assert from_pretrained(made / "run", trust_code=True).system == str(made / "run" / "own.py")
    assert (made / "marker").exists()


def test_a_folder_of_hugging_face_never_names_code(made, state, tmp_path):
    """`auto_map` and `custom_pipelines` name Python files that transformers runs on request."""
    write(made, state, system="t5")
    from_pretrained(made / "run").save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    (tmp_path / "hf" / "own.py").write_text(SYSTEM.format(marker=str(made / "marker")))
    settings = json.loads(path.read_text()) | {"auto_map": {"AutoModel": "own.Model"}}
    path.write_text(json.dumps(settings))
    from_pretrained(tmp_path / "hf")
    assert not (made / "marker").exists()
