"""The mistakes of users: each ends a command with one line and status 2, before any work begins."""

import base64
import functools
import json
import pathlib
import re
import shutil

import pytest

from t5x_like import config
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.decoding.generator import Generator
from t5x_like.experiment import model_side, training_processes
from t5x_like.experiment.run import of_config
from t5x_like.inference.predictor import Predictor
from t5x_like.pretrained import from_pretrained
from t5x_like.research.planning import compiling
from t5x_like.training import loop
from t5x_like.vocabularies import trainers
from tests.programs import in_process, tiny_encoder, tiny_t5

ROOT = pathlib.Path(__file__).parents[1]
WORDS = [*tiny_t5.WORDS, "good", "bad"]
ROWS = [{"text_a": f"{n} {WORDS[n % 12]}", "label": ("no", "yes", "so")[n % 3]} for n in range(48)]

# The command lines of mistakes.txt begin with these. {made} is a folder with the models and
# texts of the fixture, {new} an empty one.
BEGINNINGS = {
    "train": "--config=tests/programs/tiny_t5.py:{made} --config.workdir={new}/run",
    "resume": "--config=tests/programs/tiny_t5.py:{made}",
    "fine_tune": "--config=configs/fine_tuning.py:classification --config.workdir={new}/run "
    "--config.initialize={made}/bert --config.data.settings.train={made}/rows.jsonl",
    "evaluate": "--config=tests/programs/tiny_t5.py:{made}",
    "infer": "--config=tests/programs/tiny_t5.py:{made} --input={made}/prompts.txt",
    "infer_nothing": "--config=tests/programs/tiny_t5.py:{made}",
    "infer_from": "--config=configs/pretrained.py --config.data.vocabulary=bytes "
    "--input={made}/prompts.txt",
    "convert": "--from={made}/run --to={new}/out",
    "vocabulary": "--data=data/text_files.py --size=90 --output={new}/v.model",
    "plan": "--config=tests/programs/tiny_t5.py:{made}",
    "ladder": "ladder --output={new}/ladder --flops=1e12 --sizes=2x64 --system=chinchilla",
    "fit": "fit {made}/runs.csv",
    "budget": "plan --flops=1e21",
    "layers": "layers {made}/prompts.txt --from={made}/bert",
    "neighbours": "neighbours {made}/prompts.txt --from={made}/bert --word=two --text=two",
    "inspect": "",
    "study": "",
    "pyglue_baselines": "",
    "quality_filter": "--input={made}/rows.jsonl --output={new}/out --curated={made}/rows.jsonl "
    "--text=text_a",
    "deduplicate": "--input={made}/rows.jsonl --output={new}/out --text=text_a",
    "decontaminate": "--input={made}/rows.jsonl --tests={made}/rows.jsonl --text=text_a",
    "contamination": "--config=configs/pretrained.py:arithmetic --input={made}/rows.jsonl "
    "--text=text_a",
    "clean_pages": "--input={made}/rows.jsonl --output={new}/out",
    "clean_pages_beam": "--input={made}/rows.jsonl --output={new}/out",
    "books": "--input={made}/prompts.txt --output={new}/out",
    "wikipedia": "--input={made}/dump.xml --output={new}/out",
    "augment": "--input={made}/rows.jsonl --output={new}/out --model={made}/bert --text=text_a",
    "reward": "--config=configs/instructgpt.py:reward:{made}/run --config.workdir={new}/run",
    "dpo": "--config=configs/dpo.py:{made}/run --config.workdir={new}/run",
    "distill": "--config=configs/tinybert.py:demo --config.workdir={new}/run "
    "--config.initialize={made}/bert --config.data.vocabulary={made}/bert/vocab.txt",
}
MODULES = {
    **dict.fromkeys(("resume", "fine_tune", "distill", "reward", "dpo"), "t5x_like.train"),
    "infer_nothing": "--config=tests/programs/tiny_t5.py:{made}",
    **dict.fromkeys(("infer_from", "infer_nothing"), "t5x_like.infer"),
    **dict.fromkeys(("ladder", "fit", "budget"), "t5x_like.scaling"),
    **dict.fromkeys(("layers", "neighbours"), "t5x_like.inspect"),
    **{
        name: f"data.filters.{name}"
        for name in (
            *("books", "clean_pages", "clean_pages_beam", "contamination", "decontaminate"),
            *("deduplicate", "quality_filter", "wikipedia"),
        )
    },
    "augment": "data.generators.augment",
    "pyglue_baselines": "data.pyglue_baselines",
    **{
        name: f"benchmarks.{name}"
        for name in ("data_pipeline", "plans", "train_step", "beside_maxtext", "beside_flax")
    },
}


def read_table():
    """The mistakes of mistakes.txt: "command, name" -> the arguments and the words."""
    lines = (ROOT / "tests" / "mistakes.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    pairs = [line.partition(": ") for line in lines[::2]]
    return {
        name: (arguments, words.strip())
        for (name, _, arguments), words in zip(pairs, lines[1::2], strict=True)
    }


MISTAKES = read_table()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with models that nobody trained, copies with something wrong, and texts."""
    made = tmp_path_factory.mktemp("made")
    _write_run(made)
    tiny_encoder.write(made / "bert", "bert", words=WORDS)
    from_pretrained(made / "run").save_pretrained(made / "hf")
    for name in ("no_config", "no_weights", "no_tokenizer", "truncated", "wider", "layoutlm"):
        shutil.copytree(made / "hf", made / name)
    (made / "no_config" / "config.json").unlink()
    (made / "no_weights" / "model.safetensors").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / "no_tokenizer" / name).unlink(missing_ok=True)
    weights = made / "truncated" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    for name, changes in (("wider", {"d_ff": 56}), ("layoutlm", {"model_type": "layoutlm"})):
        settings = json.loads((made / name / "config.json").read_text())
        (made / name / "config.json").write_text(json.dumps(settings | changes))
    for name, text in (("listed", "[1]"), ("typed", '{"train": {"steps": "many"}}')):
        (made / name).mkdir()
        (made / name / "config.json").write_text(text)
    (made / "flat").mkdir()
    (made / "flat" / "config.json").write_text('{"train": []}')
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (made / "rows.jsonl").write_text(lines)
    (made / "cut.jsonl").write_text(lines + '{"text_a": \n')
    (made / "latin.jsonl").write_bytes(lines.encode() + b'{"text_a": "caf\xe9", "label": "no"}\n')
    (made / "none.jsonl").write_text("")
    pair = json.dumps({"prompt": "one", "chosen": "two", "rejected": "three"}) + "\n"
    (made / "pairs.jsonl").write_text(pair * 40)
    (made / "graph.tsv").write_text("subject\trelation\tobject\n")
    (made / "columns.tsv").write_text("head\trelation\ttail\n")
    (made / "runs.csv").write_text("N,D,C,loss\n1e6,1e7,6e13,4.2\n2e6,1e7,1.2e14,4.1\n")
    (made / "words.csv").write_text("N,D,C,loss\n1e6,1e7,many,4.2\n")
    (made / "answered.jsonl").write_text('{"inputs": "one", "prediction": "two"}\n')
    (made / "numbers.jsonl").write_text('{"inputs": 3}\n')
    (made / "prompts.txt").write_text("one two\nthree four\n")
    _write_tokenizer(made / "xlnet")
    (made / "broken.py").write_text("def f(:\n")
    (made / "empty.py").write_text("")
    (made / "dump.xml").write_text("<mediawiki />")
    return made


def _write_run(made):
    """Writes a run of no step, its weights as `convert` writes them, and a damaged copy."""
    settings = tiny_t5.get_config(str(made))
    state = model_side.build(of_config(settings)).initial_state()
    own = config.to_dict(parse(settings))
    for name, metadata in (("run", {"data_shards": 2}), ("converted", {})):
        folder = made / name / "checkpoints"
        with Checkpoints(folder, every=2, metadata={"config": own, **metadata}) as saver:
            saver.save(2, state)
    (made / "run" / "config.json").write_text(json.dumps(own))
    shutil.copytree(made / "run", made / "damaged")
    (made / "damaged" / "checkpoints" / "2" / "manifest.json").unlink()


def _write_tokenizer(folder):
    """Writes XLNet's tokenizer, whose texts end with [CLS]."""
    folder.mkdir()
    golden = json.loads((ROOT / "tests" / "golden" / "xlnet_rows.json").read_text())
    (folder / "spiece.model").write_bytes(base64.b64decode(golden["model"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLNetTokenizer"}')
    (folder / "config.json").write_text('{"model_type": "xlnet"}')


@pytest.fixture(autouse=True)
def nothing_begins(monkeypatch):
    """Work that takes long where a model is large: none of it may begin."""
    monkeypatch.chdir(ROOT)
    begun = functools.partial(pytest.fail, "the work has begun")
    for place, name in (
        (loop, "fit"),
        (model_side.TaskProgram, "measure"),
        (Generator, "generate"),
        (Predictor, "__call__"),
        (compiling, "compile_step"),
        (trainers, "train"),
        (training_processes, "train"),
    ):
        monkeypatch.setattr(place, name, lambda *_, **__: begun())


def files(folder):
    """All files of a folder, with what changes when they are written; not what Python caches."""
    stats = ((path, path.stat()) for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_before_any_work(name, made, tmp_path):
    arguments, words = MISTAKES[name]
    command = name.partition(", ")[0]
    if not arguments.startswith("--config="):
        arguments = f"{BEGINNINGS.get(command, '')} {arguments}"
    folders = {"{made}": str(made), "{new}": str(tmp_path)}
    arguments = re.sub(r"{made}|{new}", lambda found: folders[found[0]], arguments).split()
    before = files(made), files(tmp_path)
    module = MODULES.get(command, f"t5x_like.{command}")
    done = in_process.run(module, *arguments)
    assert done.status == 2, done
    # `plan` and `study` show what they do until they find it.
    [error] = [line for line in done.err.splitlines() if not line.endswith(" ...")]
    assert error.startswith("error: ")
    parts = map(re.escape, words.split("..."))
    assert re.search(".*".join(parts), error), done.err
    assert (files(made), files(tmp_path)) == before


@pytest.mark.parametrize("flag", ["--input=-", "--interactive"])
def test_a_closed_standard_input_is_one_line(flag, made):
    beginning = BEGINNINGS["evaluate"].replace("{made}", str(made))
    done = in_process.run("t5x_like.infer", beginning, flag, stdin=None)
    assert done.status == 2
    assert done.err == "error: standard input is closed: give texts with --input=FILE\n"


def test_the_table_covers_all_commands():
    assert len(MISTAKES) > 100
    commands = {"train", "evaluate", "infer", "convert", "vocabulary", "plan", "study", *MODULES}
    assert {name.partition(", ")[0] for name in MISTAKES} >= commands
