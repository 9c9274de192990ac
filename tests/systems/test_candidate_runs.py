"""BigBird-ETC on WikiHop's rows: a run, its accuracy, its answers, and the mistakes of its rows."""

import json

import numpy as np
import pytest

from configs import bigbird_etc, run
from data.generators import generated_homes
from t5x_like import evaluate, infer, train
from t5x_like.config import parse
from t5x_like.vocabularies import trainers
from tests.programs import command_flags


def write(folder, rows):
    for split in ("train", "validation"):
        path = folder / "wiki_hop" / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def rows():
    made = generated_homes.candidate_rows("train", seed=0)
    return [next(made) for _ in range(12)]


@pytest.fixture
def settings(rows, tmp_path):
    write(tmp_path, rows)
    made = bigbird_etc.get_config("wikihop_demo")
    texts = (" ".join([row["question"], *row["candidates"], *row["supports"]]) for row in rows)
    made.data.vocabulary = str(tmp_path / "vocabulary")
    trainers.train(texts, vocab_size=280, output=made.data.vocabulary, kind="byte_bpe")
    made.data.settings.folder, made.workdir = str(tmp_path), str(tmp_path / "run")
    made.data.batch_size, made.train.steps, made.evaluate.every = 4, 2, 0
    made.data.lengths.inputs, made.data.objective_settings.longest_question = 64, 12
    made.model.update({"layers": 1, "d_model": 16, "d_ff": 24, "heads": 2})
    return made


@pytest.mark.usefixtures("one_device")
def test_a_run_is_measured_and_answers_with_a_candidate(settings, rows, tmp_path, monkeypatch):
    train.main(parse(settings))
    stored = run.get_config(settings.workdir)
    command_flags.give(monkeypatch)
    evaluate.main(parse(stored))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    items = [
        {
            "text_a": "\n".join(row["supports"]),
            "text_b": row["question"],
            "choices": row["candidates"],
        }
        for row in rows
    ]
    asked, answers = tmp_path / "new.jsonl", tmp_path / "answers.jsonl"
    asked.write_text("".join(json.dumps(item) + "\n" for item in items))
    command_flags.give(monkeypatch, input=str(asked), output=str(answers))
    infer.main(parse(stored))
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    for one, row in zip(found, rows, strict=True):
        assert one["prediction"] == row["candidates"][one["answer"]]
        assert len(one["probabilities"]) == 4
        assert sum(one["probabilities"]) == pytest.approx(1, abs=1e-5)
    # The rows of both splits are the same.
    right = [one["prediction"] == row["answer"] for one, row in zip(found, rows, strict=True)]
    assert measured["tasks"]["wiki_hop"]["accuracy"] == pytest.approx(np.mean(right))


def refused(settings, capsys):
    """The line that ends a run with status 2."""
    with pytest.raises(SystemExit) as error:
        train.main(parse(settings))
    assert error.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_network_with_too_few_global_tokens_is_refused_before_training(settings, capsys):
    settings.data.objective_settings.choices = 5
    line = refused(settings, capsys)
    assert line.startswith("error: model.global_tokens=16: data.objective_settings.choices=5 ")
    assert line.endswith("longest_question=12 tokens of a question need 17 global tokens")


@pytest.mark.usefixtures("one_device")
def test_rows_that_do_not_fit_are_named(settings, rows, tmp_path, capsys):
    more = {**rows[2], "candidates": [*rows[2]["candidates"], "chad"]}
    write(tmp_path, [*rows[:2], more, *rows[3:]])
    problem = "wiki_hop/validation.jsonl:3: it has 5 choices, and data.objective_settings.choices=4"
    assert refused(settings, capsys).endswith(problem)
    write(tmp_path, [*rows[:2], {**rows[2], "answer": "chad"}])
    problem = "wiki_hop/validation.jsonl:3: answer='chad' is not one of the 4 candidates."
    assert refused(settings, capsys).endswith(problem)
    write(tmp_path, rows)
    settings.data.lengths.inputs = 27
    assert refused(settings, capsys).startswith("error: data.lengths.inputs=27: choices=4, longest")
