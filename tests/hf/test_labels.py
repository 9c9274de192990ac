"""Names of labels and problem_type: from a folder to the outputs and back, as in transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import convert
from t5x_like.experiment import command_line, completion
from t5x_like.experiment.run import of_config
from t5x_like.hf.architectures import Labels, read_labels
from t5x_like.inference import predictions
from t5x_like.pretrained import from_pretrained
from tests.programs import in_process

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = np.load(ROOT / "tests" / "golden" / "labels.npz")  # make_labels.py
NAMES = ("negative", "neutral", "positive")
TEXTS = json.loads(str(GOLDEN["texts"]))


def write(folder, **changes):
    folder.mkdir()
    prefix = "weights/"
    names = [name for name in GOLDEN if name.startswith(prefix)]
    save_file({n.removeprefix(prefix): GOLDEN[n] for n in names}, folder / "model.safetensors")
    config = json.loads(str(GOLDEN["config.json"])) | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(json.loads(str(GOLDEN["words"]))) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return folder


def ask(folder, *flags):
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    done = in_process.run(
        "t5x_like.infer",
        "--config=configs/pretrained.py",
        f"--config.initialize={folder}",
        f"--input={folder}/texts.txt",
        f"--output={folder}/answers.jsonl",
        *flags,
    )
    assert done.status == 0, done.err
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def test_names_come_from_the_folder_and_go_back(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = write(tmp_path / "hf")
    read = json.loads((folder / "config.json").read_text())
    # Through a checkpoint and directly.
    convert.convert(folder, tmp_path / "own", form="t5x_like", dtype="float32")
    for number, source in enumerate((folder, tmp_path / "own")):
        from_pretrained(source).save_pretrained(tmp_path / f"out_{number}")
        written = json.loads((tmp_path / f"out_{number}" / "config.json").read_text())
        for name in ("id2label", "label2id", "problem_type"):
            assert written[name] == read[name], name


@pytest.mark.parametrize("problem", json.loads(str(GOLDEN["labels"])))
def test_losses_of_each_problem_are_those_of_transformers(problem, tmp_path):
    model = from_pretrained(write(tmp_path / "hf", problem_type=problem or None))
    batch = {name: GOLDEN[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    labels = np.array(json.loads(str(GOLDEN["labels"]))[problem])
    found = model(**batch, labels=labels)
    # Two programs' float32.
    assert float(found.loss) == pytest.approx(float(GOLDEN[f"loss/{problem}"]), abs=1e-5)


def test_several_labels_have_the_probabilities_of_the_pipeline(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    answers = ask(write(tmp_path / "hf"))  # the frozen config.json is of several labels
    for answer, expected in zip(answers, json.loads(str(GOLDEN["answers"])), strict=True):
        scores = {one["label"]: one["score"] for one in expected}
        assert answer["probabilities"] == pytest.approx(scores, abs=1e-5)
        assert answer["prediction"] == [name for name in NAMES if scores[name] > 0.5]


def test_one_label_and_numbers_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    [first, *_] = ask(write(tmp_path / "hf", problem_type=None))
    assert set(first["probabilities"]) == set(NAMES)
    assert sum(first["probabilities"].values()) == pytest.approx(1)
    assert first["prediction"] == max(first["probabilities"], key=first["probabilities"].get)
    [first, *_] = ask(write(tmp_path / "numbers", problem_type="regression"))
    assert set(first["prediction"]) == set(NAMES)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ("LABEL_0", "LABEL_1")),
        ({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"1": "b", "0": "a"}, "num_labels": 5}, ("a", "b")),  # id2label counts
        ({"id2label": {"0": 0, "1": True}}, ("0", "True")),
    ],
)
def test_names_are_found_as_in_transformers(config, names):
    assert read_labels(config) == Labels(names)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label with the keys 0, 2; allowed: 0, 1"),
        ({"problem_type": "multi_label"}, "problem_type='multi_label'; allowed: 'regression'"),
        (
            {"problem_type": "single_label_classification", "num_labels": 1},
            "problem_type='single_label_classification' and one label",
        ),
    ],
)
def test_labels_that_fit_nothing_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        read_labels(config)


def test_another_head_has_no_names_of_the_folder(tmp_path):
    model = from_pretrained(write(tmp_path / "hf"), labels=4)
    assert model.head_labels == Labels()


def test_data_with_the_names_in_another_order_goes_by_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    model = from_pretrained(write(tmp_path / "hf", problem_type=None))
    assert predictions.outputs_of(NAMES, model) is None
    assert predictions.outputs_of(("a", "b", "c"), model) is None
    assert predictions.outputs_of((), model) is None
    assert predictions.outputs_of(("positive", "negative", "neutral"), model) == [2, 0, 1]
    part = configs_pretrained(tmp_path / "hf")
    text = part.text
    text.__dict__["labels"] = ("positive", "negative", "neutral")  # of a data module
    items = [{"text_a": one} for one in TEXTS]
    ours = predictions.build(model, part)(items)
    text.__dict__["labels"] = ()
    theirs = predictions.build(model, part)(items)
    for one, other in zip(ours, theirs, strict=True):
        assert one["prediction"] == other["prediction"]
        assert one["probabilities"] == pytest.approx(other["probabilities"])
        assert list(one["probabilities"]) == ["positive", "negative", "neutral"]


def of_fine_tuning(folder, *, system="", model=None, **settings):
    """Returns the run that fine-tunes a folder on texts with its three labels."""
    rows = [json.dumps({"text_a": TEXTS[0], "label": name}) + "\n" for name in NAMES]
    (folder / "rows.jsonl").write_text("".join(rows))
    made = command_line.load_file("configs/fine_tuning.py:classification")
    made.initialize, made.system = str(folder), system
    if model is not None:
        made.model = {**model, "labels": 0}
        made.data.vocabulary, made.data.converter = str(folder / "vocab.txt"), "encoder"
        made.data.lengths.inputs = 16
    file = str(folder / "rows.jsonl")
    made.data.settings = {"train": file, "validation": file, **settings}
    return completion.complete(of_config(made))


def test_training_goes_on_with_the_labels_in_the_order_of_the_head(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    order = ("positive", "negative", "neutral")
    own = {"problem_type": None, "id2label": dict(enumerate(order))}
    run = of_fine_tuning(write(tmp_path / "hf", **own), labels=())
    assert run.parts[0].text.labels == order
    completion.check_labels(run)
    other = of_fine_tuning(tmp_path / "hf", labels=NAMES)
    with pytest.raises(ValueError, match=r"labels positive, negative, neutral, and the data nega"):
        completion.check_labels(other)
    new = of_fine_tuning(write(tmp_path / "new", **own | {"id2label": {0: "a", 1: "b"}}), labels=())
    assert new.parts[0].text.labels == NAMES
    completion.check_labels(new)  # the head is new
    (tmp_path / "new" / "config.json").rename(tmp_path / "new" / "none.json")
    planned = of_fine_tuning(tmp_path / "new", labels=(), system="bert", model=new.settings.model)
    assert planned.parts[0].text.labels == NAMES  # the folder will be there when the run starts


def test_training_refuses_a_head_that_gives_a_text_several_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = of_fine_tuning(write(tmp_path / "hf"), labels=())
    with pytest.raises(ValueError, match=r"problem_type='multi_label_classification', and a run"):
        completion.check_labels(run)


def configs_pretrained(folder):
    settings = command_line.load_file("configs/pretrained.py")
    settings.initialize = str(folder)
    return completion.complete(of_config(settings)).parts[0]
