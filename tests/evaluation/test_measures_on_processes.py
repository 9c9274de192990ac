"""Every kind of measure has the same numbers on two processes as on one."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from configs import fine_tuning, instructgpt
from t5x_like import config
from t5x_like.evaluation.measures import MEASURES
from t5x_like.experiment import completion
from t5x_like.experiment.run import of_config
from t5x_like.hf.architectures import Labels
from t5x_like.pretrained import from_pretrained
from tests.programs import processes, tiny_encoder, tiny_writer

ROOT = pathlib.Path(__file__).parents[2]
WORDS = ["red", "blue", "green", "the", "cat", "dog", "sat", "ran"]
ROWS = 11  # which are no whole number of batches

OF_TEXTS = {"documents": {}, "last_word": {}}
OF_PROMPTS = {"choice": {}, "in_context": {"shots": 1}, "translation": {}, "generation": {}}
# Beside the held-out loss, which the run of each head has by default.
HEADS = {"classification": "predictions", "tagging": "predictions", "question_answering": "squad"}


def write_rows(path, row):
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(ROWS)))
    return str(path)


def labelled(kind, n):
    """The row of a number for a head; its answers are not those that a random head gives."""
    words = [WORDS[(n + place) % 8] for place in range(3 + n % 3)]
    if kind == "tagging":
        return {"words": words, "tags": ["B-X" if word in WORDS[:3] else "O" for word in words]}
    if kind == "classification":
        return {"text_a": " ".join(words), "label": ("yes", "no")[n % 2]}
    return {"question": f"the {words[0]}", "context": " ".join(words), "answers": [words[1]]}


def of_head(folder, kind):
    """The command that evaluates a tiny BERT with a head."""
    made = fine_tuning.get_config(kind)
    made.initialize, made.workdir = str(folder / "bert"), str(folder / f"{kind}_run")
    rows = write_rows(folder / f"{kind}_rows.jsonl", lambda n: labelled(kind, n))
    made.data.settings.train = made.data.settings.validation = rows
    made.data.lengths.inputs, made.data.batch_size, made.data.shards = 16, 4, 2
    if kind == "question_answering":
        made.data.objective_settings = {"stride": 4, "longest_question": 4}
    made.evaluate.batches = 0
    settings = completion.complete(of_config(made)).settings
    run = tiny_writer.write(folder / f"{kind}_run", settings)
    (run / "config.json").write_text(json.dumps(config.to_dict(settings)))
    return [f"--config=configs/run.py:{run}"]


def of_rewards(folder):
    """The documented command: its config opens a run."""
    made = instructgpt.get_config(f"reward:{folder}/gpt2")
    made.data.lengths = {"inputs": 24, "targets": 16}
    tiny_writer.write(folder / "reward", made)

    def row(n):
        turns = [("user", f"Is {n}?"), ("assistant", "no" * (1 + n % 4))]
        return {"messages": [{"role": role, "content": text} for role, text in turns]}

    return [
        f"--config=configs/instructgpt.py:rewards:{folder}/reward",
        f"--config.data.settings.train={write_rows(folder / 'shown.jsonl', row)}",
        "--config.data.settings.held_out=0.5",
        "--config.data.lengths={'inputs': 24, 'targets': 16}",
        *("--config.data.batch_size=4", "--config.data.shards=2"),
    ]


def of_generator(folder, kind, measures, *, model="gpt2", **files):
    return [
        f"--config=configs/pretrained.py:{kind}",
        f"--config.initialize={folder}/{model}",
        *(f"--config.data.settings.{name}={path}" for name, path in files.items()),
        f"--config.evaluate.measures={measures}",
        *("--config.data.batch_size=4", "--config.data.shards=2"),
        "--config.decode.max_new_tokens=8",
    ]


def of_toxicity(folder, prompts):
    """The command that scores sampled continuations with a tiny classifier."""
    model = from_pretrained(folder / "bert", head="classification", labels=2)
    model.labels = {"": Labels(("clean", "toxic"))}
    model.save_pretrained(folder / "classifier")
    measures = {"toxicity": {"classifier": str(folder / "classifier"), "samples": 2}}
    made = of_generator(folder, "choice", measures, train=prompts, validation=prompts)
    return [*made, "--config.decode.do_sample=True"]


def commands(folder):
    tiny_writer.write(folder / "gpt2", tiny_writer.settings("gpt2"))
    tiny_writer.write(folder / "xl", tiny_writer.settings("transformer_xl", memory=16))
    tiny_encoder.write(folder / "bert", "bert", words=WORDS)
    texts = write_rows(folder / "texts.jsonl", lambda n: {"text": f"text {n} of {'a b ' * n}end"})

    def prompt(n):
        choices = ["yes", "no"]
        return {"inputs": f"q{n} XXXXX a", "targets": choices[n % 2], "choices": choices}

    prompts = write_rows(folder / "prompts.jsonl", prompt)
    return {
        "rewards": of_rewards(folder),
        "texts": of_generator(folder, "documents", OF_TEXTS, files=texts),
        "memory": [
            *of_generator(folder, "documents", {"documents": {}}, model="xl", files=texts),
            "--config.data.lengths.targets=12",
        ],
        "prompts": of_generator(folder, "choice", OF_PROMPTS, train=prompts, validation=prompts),
        "toxicity": of_toxicity(folder, prompts),
        **{kind: of_head(folder, kind) for kind in HEADS},
    }


def start(folder, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.programs.measured_kinds", str(folder)],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_same(found, expected, where):
    """Numbers are sums of float32 in another order; everything else is the same."""
    assert type(found) is type(expected), where
    if isinstance(found, dict):
        assert list(found) == list(expected), where
        for name, value in found.items():
            assert_same(value, expected[name], f"{where}/{name}")
    elif isinstance(found, list):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{number}]")
    else:
        same = found == expected
        assert same or found == pytest.approx(expected, rel=1e-5, abs=1e-5, nan_ok=True), where


def read(path):
    text = path.read_text()
    return json.loads(f"[{','.join(text.splitlines())}]" if path.suffix == ".jsonl" else text)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_device")
def test_two_processes_measure_what_one_does(tmp_path):
    made = commands(tmp_path)
    measured = {"loss", "rewards", "replies", "toxicity"}
    measured |= {*OF_TEXTS, *OF_PROMPTS, *HEADS.values()}
    assert measured == set(MEASURES)
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "commands.json").write_text(json.dumps(made))
    runs = [start(tmp_path / "alone")]
    runs += [start(tmp_path / "together", **one) for one in processes.environments()]
    outputs = [process.communicate(timeout=800) for process in runs]
    assert [process.returncode for process in runs] == [0, 0, 0], outputs
    names = ["replies.json", *(f"{name}{end}" for name in made for end in (".json", ".jsonl"))]
    for name in names:
        assert_same(read(tmp_path / "together" / name), read(tmp_path / "alone" / name), name)
