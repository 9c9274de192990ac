"""Encoders fine-tuned on labelled files, from a pretrained folder to predictions for new texts."""

import importlib.util
import json
import pathlib

import jax
import numpy as np
import pytest

from t5x_like import evaluate, infer, systems, train
from t5x_like.config import parse
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import from_pretrained
from tests.programs import command_flags, tiny_encoder

ROOT = pathlib.Path(__file__).parents[1]
TOPICS = {
    "animal": ["dog", "cat", "cow", "hen", "pig", "fox"],
    "color": ["red", "blue", "green", "white", "black", "gray"],
    "food": ["rice", "bread", "soup", "cake", "corn", "egg"],
}
FILLERS = ["the", "is", "very", "and", "was", "here", "there", "some", "no", "all"]
WORDS = [*FILLERS, *(word for words in TOPICS.values() for word in words), *TOPICS, "which", "?"]
LABELS = ("label", "value", "tags", "answers", "answer")
WRITERS = ("generation", "language_modeling")  # the heads of those that are not
HEADS = {
    name: next(iter(systems.find(name).sizes.values())).get("head", WRITERS[0])
    for name in systems.names()
}
ENCODERS = [name for name, head in HEADS.items() if head not in WRITERS]


def config_file(name):
    spec = importlib.util.spec_from_file_location(f"config_{name}", ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


def sentence(random, *words, size=8):
    """Some words among fillers, in random order."""
    chosen = [*words, *random.choice(FILLERS, size - len(words))]
    random.shuffle(chosen)
    return " ".join(chosen)


def of_topic(random, topic):
    return str(random.choice(TOPICS[topic]))


def classification(random):
    topic = str(random.choice(list(TOPICS)))
    return {"text_a": sentence(random, of_topic(random, topic)), "label": topic}


def pairs(random):
    """In which of the two texts the color stands: the words alone do not decide."""
    texts = [sentence(random, of_topic(random, topic), size=4) for topic in ("color", "animal")]
    label = str(random.choice(["first", "second"]))
    first, second = texts if label == "first" else texts[::-1]
    return {"text_a": first, "text_b": second, "label": label}


def regression(random):
    number = int(random.integers(0, 4))
    words = [of_topic(random, "food") for _ in range(number)]
    return {"text_a": sentence(random, *words), "value": number / 2 - 0.75}


def tagging(random):
    topics = [str(topic) for topic in random.choice(list(TOPICS), 3)]
    words = sentence(random, *(of_topic(random, topic) for topic in topics)).split()
    tags = {word: topic for topic, own in TOPICS.items() for word in own}
    return {"words": words, "tags": [tags.get(word, "none") for word in words]}


def question_answering(random):
    """A long context has the answer in one of its windows, or (one in five) nowhere."""
    asked, other = (str(topic) for topic in random.permutation(["animal", "color"]))
    answer = of_topic(random, asked) if random.random() < 0.8 else None
    words = [of_topic(random, other), *([answer] if answer else [])]
    context = sentence(random, *words, size=int(random.choice([6, 24])))
    return {
        "question": f"which {asked} ?",
        "context": context,
        "answers": [answer] if answer else [],
    }


def multiple_choice(random):
    """The choice of the text's topic, after a question; rows have two choices or three."""
    topic, *others = (str(topic) for topic in random.permutation(list(TOPICS)))
    answer, size = int(random.integers(0, 2)), int(random.integers(2, 4))
    choices = [of_topic(random, str(random.choice(others))) for _ in range(size)]
    choices[answer] = of_topic(random, topic)
    text = sentence(random, of_topic(random, topic), size=3)
    return {"text_a": text, "text_b": "which ?", "choices": choices, "answer": answer}


def write(path, make, *, rows, seed):
    random = np.random.default_rng(seed)
    made = [make(random) for _ in range(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return made


def settings(folder, kind, *, pretrained, **changes):
    made = config_file("fine_tuning")(kind)
    made.initialize = str(pretrained)
    made.workdir = str(folder / "run")
    made.data.settings.train = str(folder / "train.jsonl")
    made.data.settings.validation = str(folder / "validation.jsonl")
    made.data.lengths.inputs = 24
    made.train.steps = 120
    made.train.log_every = 60
    made.optimizer.learning_rate = 1e-3
    made.evaluate.every = 0
    if kind == "multiple_choice":
        made.data.objective_settings.choices = 3
    if kind == "question_answering":
        made.data.objective_settings = {"stride": 6, "longest_question": 4}
        made.predict.no_answer = True
    made.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return made


def command(main, config, monkeypatch, **values):
    """Runs a command with the flags that it has besides its config."""
    command_flags.give(monkeypatch, **values)
    main(config)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Makes the folder of a system, once."""
    folder = tmp_path_factory.mktemp("pretrained")

    def pretrained(system):
        path = folder / system
        return path if path.exists() else tiny_encoder.write(path, system, words=WORDS)

    return pretrained


@pytest.fixture
def fine_tune(tmp_path, monkeypatch, pretrained, capsys):
    """Trains; returns the results of evaluate and infer, given only the folder of the run."""

    def fine_tune(make, kind, *, system="bert", **changes):
        write(tmp_path / "train.jsonl", make, rows=1500, seed=0)
        rows = write(tmp_path / "validation.jsonl", make, rows=200, seed=1)
        train.main(parse(settings(tmp_path, kind, pretrained=pretrained(system), **changes)))
        run = parse(config_file("run")(str(tmp_path / "run")))
        command(evaluate.main, run, monkeypatch)
        measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())
        asked = [{k: v for k, v in row.items() if k not in LABELS} for row in rows]
        questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
        questions.write_text("".join(json.dumps(row) + "\n" for row in asked))
        command(infer.main, run, monkeypatch, input=str(questions), output=str(answers))
        predicted = [json.loads(line) for line in answers.read_text().splitlines()]
        assert [row["inputs"] for row in predicted] == asked
        command(infer.main, run, monkeypatch, examples=3)
        assert capsys.readouterr().out.count("    model: ") == 3
        pairs = [(row, one["prediction"]) for row, one in zip(rows, predicted, strict=True)]
        return measured["tasks"]["labelled_files"], pairs

    return fine_tune


@pytest.mark.slow
@pytest.mark.parametrize("system", [*ENCODERS, "bart", "xlnet"])
def test_classes_of_texts(system, fine_tune):
    measured, predicted = fine_tune(classification, "classification", system=system)
    assert measured["accuracy"] > 0.9
    assert measured["cross_entropy"] < measured["unigram_entropy"]
    assert np.mean([row["label"] == label for row, label in predicted]) > 0.9


@pytest.mark.slow
def test_classes_of_pairs(fine_tune):
    measured, predicted = fine_tune(pairs, "classification")
    assert measured["accuracy"] > 0.9
    assert np.mean([row["label"] == label for row, label in predicted]) > 0.9


@pytest.mark.slow
def test_numbers(fine_tune):
    measured, predicted = fine_tune(regression, "regression")
    numbers = [[row["value"], number] for row, number in predicted]
    assert np.corrcoef(np.transpose(numbers))[0, 1] > 0.9
    assert "unigram_entropy" not in measured


@pytest.mark.slow
def test_tags_of_words(fine_tune):
    measured, predicted = fine_tune(tagging, "tagging")
    assert measured["accuracy"] > 0.9
    assert np.mean([np.mean(np.equal(row["tags"], tags)) for row, tags in predicted]) > 0.9


@pytest.mark.slow
def test_answers_in_long_contexts_or_none(fine_tune):
    measured, predicted = fine_tune(question_answering, "question_answering", train__steps=400)
    assert measured["squad/exact_match"] > 0.9
    assert measured["squad/best_f1"] >= measured["squad/f1"] > 0.9
    right = [(row["answers"] or [""])[0] == text for row, text in predicted]
    assert np.mean(right) == pytest.approx(measured["squad/exact_match"])


@pytest.mark.slow
@pytest.mark.parametrize("system", ["bert", "roberta"])
def test_the_right_one_of_some_choices(system, fine_tune):
    changes = {"train__steps": 600, "data__batch_size": 32, "optimizer__learning_rate": 1e-3}
    measured, predicted = fine_tune(multiple_choice, "multiple_choice", system=system, **changes)
    assert measured["accuracy"] > 0.9
    right = [row["choices"][row["answer"]] == choice for row, choice in predicted]
    # Two choices may be the same word.
    assert np.mean(right) >= measured["accuracy"] - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["last", "second_to_last", "weighted_all"])
def test_features_of_a_frozen_encoder(kind, fine_tune, tmp_path, pretrained):
    measured, predicted = fine_tune(
        tagging,
        "tagging",
        model__layer_features=kind,
        optimizer__frozen=("embeddings", "encoder"),
        optimizer__learning_rate=1e-2,
        train__steps=400,
    )
    assert measured["accuracy"] > 0.9  # the states of an untrained encoder differ by word
    assert np.mean([np.mean(np.equal(row["tags"], tags)) for row, tags in predicted]) > 0.9
    before, after = (from_pretrained(folder) for folder in (pretrained("bert"), tmp_path / "run"))
    for part in ("embeddings", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, after.params[part], before.params[part])
    if kind == "weighted_all":
        assert np.ptp(after.params["features"]["weights"]) > 1e-3
        with pytest.raises(ValueError, match="layer_features='weighted_all': Hugging Face's class"):
            after.save_pretrained(tmp_path / "folder")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initialize": ""}, "initialize is not set: --config.initialize=FOLDER"),
        ({"initialize": "nowhere"}, "there is no folder nowhere"),
        ({"data__settings__train": ""}, "data.settings.train is not set"),
        (
            {"data__settings__label": "labl"},
            "train.jsonl:1: there is no field 'labl'. Did you mean",
        ),
        ({"model__labels": 2}, "model.labels=2, and the data has 3: animal, color, food"),
        ({"data__settings__labels": ("animal", "color")}, "'food' is not a label. Allowed: animal"),
        ({"data__objective": "regression"}, "train.jsonl:1: there is no field 'value'"),
        ({"data__module": "data/text_files.py"}, "has none for data.objective='classification'"),
        ({"data__lengths__inputs": 4}, "lengths.inputs=4: rows of labelled text need 8 tokens"),
        ({"model__head": "clasification"}, "Did you mean 'classification'"),
    ],
)
def test_a_mistake_is_one_line_before_training(
    changes, message, tmp_path, pretrained, capsys, monkeypatch
):
    folder = pretrained("bert")
    monkeypatch.setattr(model_side.TaskProgram, "initial_state", None)
    for name in ("train", "validation"):
        write(tmp_path / f"{name}.jsonl", classification, rows=40, seed=0)
    made = settings(tmp_path, "classification", pretrained=folder, **changes)
    with pytest.raises(SystemExit):
        train.main(parse(made))
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_a_run_keeps_the_settings_of_the_folder_and_the_labels(tmp_path, pretrained):
    for name in ("train", "validation"):
        write(tmp_path / f"{name}.jsonl", classification, rows=40, seed=0)
    made = settings(tmp_path, "classification", pretrained=pretrained("bert"))
    run = completion.complete(of_config(made))
    found, model = run.settings, run.settings.model
    assert (found.system, model["head"], model["labels"]) == ("bert", "classification", 3)
    assert model["d_model"] == tiny_encoder.TINY["d_model"]
    assert found.data.settings["labels"] == ("animal", "color", "food")
    # What its checkpoints keep, and `save_pretrained` writes as id2label.
    assert completion.labels(run) == {"": {"names": ["animal", "color", "food"]}}
    assert found.data.vocabulary == str(pretrained("bert") / "vocab.txt")
    assert model["dropout"] == 0.0
    made.model.dropout = 0.3
    assert completion.complete(of_config(made)).settings.model["dropout"] == 0.3
    assert completion.complete(run).settings == found
    assert made.system == ""
