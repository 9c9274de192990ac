"""Files for the servers of GLUE and SuperGLUE, from test rows without labels."""

import json
import pathlib

import pytest

from t5x_like import evaluate
from t5x_like.config import parse
from t5x_like.evaluation import submissions
from t5x_like.preprocessing import sources
from tests.programs import benchmark_rows, command_flags
from tests.test_runs_from_folders import config_file

ROOT = pathlib.Path(__file__).parents[2]
MODULES = {
    name: sources.load_module(str(ROOT / "data" / f"{name}.py")) for name in ("glue", "super_glue")
}
ROWS = 4


def without_labels(make):
    """A row as Hugging Face hosts those of hidden tests."""

    def row(n):
        own = {**make(n), "label": -1}
        own.setdefault("idx", n)
        return own | ({"answers": []} if "answers" in own else {})

    return row


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hidden")
    for name, suite in (("glue", benchmark_rows.GLUE), ("super_glue", benchmark_rows.SUPER_GLUE)):
        for task, make in suite.items():
            (folder / name / task).mkdir(parents=True)
            lines = [json.dumps(without_labels(make)(n)) for n in range(ROWS)]
            for split in ("test", "test_matched", "test_mismatched"):
                (folder / name / task / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def hidden(suite, task, folder, objective="text_to_text", **settings):
    module = MODULES[suite]
    name = f"{suite}_{task}"
    return module.hidden_test(objective, task=name, folder=str(folder / suite), **settings)


TASKS = [(suite, task) for suite, module in MODULES.items() for task in module.SUBMISSIONS]


@pytest.mark.parametrize(("suite", "task"), TASKS)
def test_every_hidden_test_is_read_as_text(suite, task, folder):
    _, _, rows = hidden(suite, task, folder)
    assert len(rows) == ROWS
    assert all(row["inputs"] and "index" in row for row in rows)


def written(suite, task, folder, texts, path):
    """The lines of the file for these generated texts."""
    submission, labels, rows = hidden(suite, task, folder)
    predicted = [{"prediction": text} for text in texts]
    found, unknown = submissions.official(submission.form, predicted, rows, labels)
    submissions.write(path / submission.file, [row["index"] for row in rows], found)
    return (path / submission.file).read_text().splitlines(), unknown


@pytest.mark.parametrize(
    ("task", "texts", "file", "lines"),
    [
        ("cola", ["acceptable", "unacceptable", "acceptable", "?"], "CoLA.tsv", "1 0 1 0"),
        ("mnli", ["neutral", "entailment"] * 2, "MNLI-m.tsv", "neutral entailment " * 2),
        ("mnli_mismatched", ["contradiction"] * 4, "MNLI-mm.tsv", "contradiction " * 4),
        (
            "qnli",
            ["not_entailment", "entailment"] * 2,
            "QNLI.tsv",
            "not_entailment entailment " * 2,
        ),
        ("stsb", ["2.6", "7", "-1", "much"], "STS-B.tsv", "2.6 5.0 0.0 0.0"),
        ("wnli", ["entailment", "not_entailment"] * 2, "WNLI.tsv", "1 0 1 0"),
    ],
)
def test_glue_takes_columns(task, texts, file, lines, folder, tmp_path):
    found, unknown = written("glue", task, folder, texts, tmp_path)
    assert (tmp_path / file).exists()
    assert found == ["index\tprediction", *(f"{n}\t{one}" for n, one in enumerate(lines.split()))]
    assert unknown == (texts[-1] == "?")


def test_wnli_as_wsc_is_1_where_the_text_is_the_noun(folder, tmp_path):
    _, _, rows = hidden("glue", "wnli_as_wsc", folder)
    texts = [rows[0]["targets"].upper(), "nobody", rows[2]["targets"], "nobody"]
    lines, _ = written("glue", "wnli_as_wsc", folder, texts, tmp_path)
    assert lines[1:] == ["0\t1", "1\t0", "2\t1", "3\t0"]


@pytest.mark.parametrize(
    ("task", "texts", "labels"),
    [
        ("boolq", ["True", "False"] * 2, ["true", "false"] * 2),
        ("cb", ["neutral", "entailment"] * 2, ["neutral", "entailment"] * 2),
        ("copa", ["choice2", "choice1"] * 2, [1, 0] * 2),
        ("record", [" wren", "owl", "a fox", "x"], ["wren", "owl", "a fox", "x"]),
        ("wic", ["True", "False"] * 2, ["true", "false"] * 2),
        ("axb", ["entailment", "not_entailment"] * 2, ["entailment", "not_entailment"] * 2),
    ],
)
def test_super_glue_takes_lines_of_json(task, texts, labels, folder, tmp_path):
    lines, _ = written("super_glue", task, folder, texts, tmp_path)
    found = [json.loads(line) for line in lines]
    assert [one["label"] for one in found] == labels
    assert all(one.keys() == {"idx", "label"} and isinstance(one["idx"], int) for one in found)


def test_wsc_has_names_and_multirc_answers_by_passage(folder, tmp_path):
    _, _, rows = hidden("super_glue", "wsc", folder)
    texts = [rows[0]["targets"], "nobody", "nobody", "nobody"]
    lines, _ = written("super_glue", "wsc", folder, texts, tmp_path)
    assert [json.loads(line)["label"] for line in lines] == ["True", "False", "False", "False"]
    _, _, rows = hidden("super_glue", "multirc", folder)
    lines, _ = written("super_glue", "multirc", folder, ["True", "False"] * 2, tmp_path)
    found = {
        (passage["idx"], question["idx"], answer["idx"]): answer["label"]
        for passage in map(json.loads, lines)
        for question in passage["passage"]["questions"]
        for answer in question["answers"]
    }
    expected = [
        tuple(row["index"][name] for name in ("paragraph", "question", "answer")) for row in rows
    ]
    assert found == dict(zip(expected, [1, 0, 1, 0], strict=True))


def test_heads_predict_labelled_rows(folder):
    _, labels, rows = hidden("glue", "rte", folder, "classification")
    assert {"text_a", "text_b", "index"} <= rows[0].keys()
    found, _ = submissions.official("name", [{"prediction": labels[1]}] * ROWS, rows, labels)
    assert found == ["not_entailment"] * ROWS
    _, labels, rows = hidden("super_glue", "copa", folder, "multiple_choice", choices=2)
    chosen = [{"prediction": "it rains", "answer": 1}] * ROWS
    assert submissions.official("number", chosen, rows, labels)[0] == [1] * ROWS


@pytest.mark.parametrize(
    ("suite", "task", "objective", "message"),
    [
        ("super_glue", "dpr", "text_to_text", "the task='super_glue_dpr' does not exist"),
        ("super_glue", "record", "multiple_choice", "is written only from generated text"),
        ("glue", "cola", "regression", "is not a form of glue_cola"),
    ],
)
def test_tasks_without_such_a_file_are_refused(suite, task, objective, message, folder):
    with pytest.raises(ValueError, match=message):
        hidden(suite, task, folder, objective)


def test_the_command_refuses_data_without_a_hidden_test(tmp_path, monkeypatch, capsys):
    made = config_file("t5")("small")
    made.data.vocabulary, made.data.module = "bytes", "data/text_files.py"
    command_flags.give(monkeypatch, submission=str(tmp_path / "files"))
    with pytest.raises(SystemExit) as ended:
        evaluate.main(parse(made))
    assert ended.value.code == 2
    assert "data.module='data/text_files.py' has no hidden test" in capsys.readouterr().err
