"""GPT fine-tuned on labelled files of each kind, from a folder to how well it does."""

import importlib.util
import json
import pathlib

import flax.traverse_util
import numpy as np
import pytest

from t5x_like import evaluate, infer, train
from t5x_like.config import parse
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from tests.programs import command_flags, tiny_gpt

ROOT = pathlib.Path(__file__).parents[1]
ANIMALS = ["dog", "cat", "cow", "hen", "pig", "fox"]
COLORS = ["red", "blue", "green", "white", "black", "gray"]
FILLERS = ["the", "is", "very", "and", "was", "here", "there", "some", "no", "all"]
WORDS = [*FILLERS, *ANIMALS, *COLORS]


def config_file(name):
    spec = importlib.util.spec_from_file_location(f"config_{name}", ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


def sentence(random, *words, size=5):
    """Some words among fillers, in random order."""
    chosen = [*words, *random.choice(FILLERS, size - len(words))]
    random.shuffle(chosen)
    return " ".join(chosen)


def classification(random):
    label = str(random.choice(["animal", "color"]))
    word = str(random.choice(ANIMALS if label == "animal" else COLORS))
    return {"text_a": sentence(random, word), "label": label}


def entailment(random):
    """In which of the two texts the color stands: the words alone do not decide."""
    texts = [sentence(random, str(random.choice(words))) for words in (COLORS, ANIMALS)]
    label = str(random.choice(["first", "second"]))
    first, second = texts if label == "first" else texts[::-1]
    return {"text_a": first, "text_b": second, "label": label}


def similarity(random):
    """Whether both are of animals; a color may be in either."""
    numbers = [int(number) for number in random.integers(0, 2, 2)]
    words = [str(random.choice([COLORS, ANIMALS][number])) for number in numbers]
    first, second = (sentence(random, word) for word in words)
    return {"text_a": first, "text_b": second, "label": "yes" if all(numbers) else "no"}


def multiple_choice(random):
    """The answer of the kind that the text is of; some rows have two choices, some three."""
    words = [ANIMALS, COLORS]
    wanted = int(random.integers(0, 2))
    answer, size = int(random.integers(0, 2)), int(random.integers(2, 4))
    choices = [str(random.choice(words[1 - wanted])) for _ in range(size)]
    choices[answer] = str(random.choice(words[wanted]))
    return {
        "text_a": sentence(random, str(random.choice(words[wanted]))),
        "choices": choices,
        "answer": answer,
    }


def regression(random):
    """How many of the two texts are of animals; the order does not matter."""
    row = similarity(random)
    texts = [row["text_a"].split(), row["text_b"].split()]
    number = sum(bool(set(words) & set(ANIMALS)) for words in texts)
    return {"text_a": row["text_a"], "text_b": row["text_b"], "value": number - 1.0}


MAKE = {
    "classification": classification,
    "entailment": entailment,
    "similarity": similarity,
    "multiple_choice": multiple_choice,
}


def write(path, make, *, rows, seed):
    random = np.random.default_rng(seed)
    path.write_text("".join(json.dumps(make(random)) + "\n" for _ in range(rows)))


def settings(folder, kind, *, pretrained, **changes):
    made = config_file("gpt")(kind)
    made.initialize = str(pretrained)
    made.workdir = str(folder / "run")
    made.data.settings.train = str(folder / "train.jsonl")
    made.data.settings.validation = str(folder / "validation.jsonl")
    made.data.lengths.inputs = 16
    made.train.steps = 200
    made.train.log_every = 100
    made.optimizer.learning_rate = 2e-3
    made.optimizer.warmup_steps = 20
    made.evaluate.every = 0
    if kind == "multiple_choice":
        made.data.objective_settings.choices = 3
    made.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return made


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return tiny_gpt.write(tmp_path_factory.mktemp("pretrained") / "gpt", words=WORDS)


@pytest.mark.slow
def test_similarity_is_learned_as_a_number(tmp_path, pretrained, monkeypatch):
    write(tmp_path / "train.jsonl", regression, rows=1500, seed=0)
    write(tmp_path / "validation.jsonl", regression, rows=200, seed=1)
    train.main(parse(settings(tmp_path, "regression", pretrained=pretrained)))
    run = config_file("run")(str(tmp_path / "run"))
    command_flags.give(monkeypatch)
    evaluate.main(parse(run))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())["tasks"]
    measured = measured["labelled_files"]
    assert measured["squared_error"] < 0.1  # of a mean, 0.5
    total = measured["squared_error"] + 0.5 * measured["language_modeling"]
    assert measured["loss"] == pytest.approx(total, rel=1e-5)
    rows = [json.loads(line) for line in (tmp_path / "validation.jsonl").read_text().splitlines()]
    swapped = [{"text_a": row["text_b"], "text_b": row["text_a"]} for row in rows]
    found = []
    for number, asked in enumerate((rows, swapped)):
        questions, answers = tmp_path / f"questions{number}.jsonl", tmp_path / f"{number}.jsonl"
        names = ("text_a", "text_b")
        lines = (json.dumps({name: row[name] for name in names}) for row in asked)
        questions.write_text("".join(line + "\n" for line in lines))
        command_flags.give(monkeypatch, input=str(questions), output=str(answers))
        infer.main(parse(run))
        found.append([json.loads(line)["prediction"] for line in answers.read_text().splitlines()])
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)  # the sum of both orders
    errors = np.square(np.array(found[0]) - [row["value"] for row in rows])
    assert errors.mean() == pytest.approx(measured["squared_error"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
def test_every_kind_is_learned_measured_and_predicted(
    kind, tmp_path, pretrained, monkeypatch, capsys
):
    write(tmp_path / "train.jsonl", MAKE[kind], rows=1500, seed=0)
    write(tmp_path / "validation.jsonl", MAKE[kind], rows=200, seed=1)
    train.main(parse(settings(tmp_path, kind, pretrained=pretrained)))
    run = config_file("run")(str(tmp_path / "run"))
    command_flags.give(monkeypatch)
    evaluate.main(parse(run))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())["tasks"]
    measured = measured["labelled_files"]
    assert measured["accuracy"] > 0.9
    assert measured["cross_entropy"] < measured["unigram_entropy"] < 1.1
    total = measured["cross_entropy"] + 0.5 * measured["language_modeling"]
    assert measured["loss"] == pytest.approx(total, rel=1e-5)
    # infer, given only the folder of the run, is right as often.
    rows = [json.loads(line) for line in (tmp_path / "validation.jsonl").read_text().splitlines()]
    inputs = [{k: v for k, v in row.items() if k not in ("label", "answer")} for row in rows]
    questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in inputs))
    command_flags.give(monkeypatch, input=str(questions), output=str(answers))
    infer.main(parse(run))
    predicted = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["inputs"] for row in predicted] == inputs
    wanted = [row.get("label", row.get("answer")) for row in rows]
    found = [row.get("answer", row["prediction"]) for row in predicted]
    assert np.mean(np.equal(wanted, found)) == pytest.approx(measured["accuracy"])
    command_flags.give(monkeypatch, examples=2)
    capsys.readouterr()
    infer.main(parse(run))
    assert capsys.readouterr().out.count("    model: ") == 2


def test_a_run_begins_with_the_folder_s_rows_and_draws_the_others(tmp_path, pretrained):
    for name in ("train", "validation"):
        write(tmp_path / f"{name}.jsonl", classification, rows=40, seed=0)
    made = completion.complete(
        of_config(settings(tmp_path, "classification", pretrained=pretrained))
    )
    sizes = (made.settings.model["labels"], made.settings.model["d_model"])
    assert (made.settings.system, *sizes) == ("gpt", 2, 64)
    model = {**made.settings.model, "head": "language_modeling", "added_tokens": 0}
    old = made.replace(model=model, initialize=str(pretrained), loss={})
    before, after = (
        flax.traverse_util.flatten_dict(model_side.build(one).initial_state().params, sep="/")
        for one in (old, made)
    )
    tables = [params.pop("token_embedder/embedding") for params in (before, after)]
    assert tables[1].shape[0] == tables[0].shape[0] + 3
    np.testing.assert_array_equal(tables[1][:-3], tables[0])
    np.testing.assert_allclose(np.std(tables[1][-3:]), 0.02, rtol=0.2)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert set(after) - set(before) == {"head/classifier/kernel", "head/classifier/bias"}


@pytest.mark.parametrize("loop", ["auto", "scan"])
def test_the_first_layers_are_read_and_the_others_drawn(pretrained, tmp_path, loop):
    """Radford et al. 2018, figure 2 (left): 0 layers are the embeddings alone."""
    for name in ("train", "validation"):
        write(tmp_path / f"{name}.jsonl", classification, rows=40, seed=0)
    made = completion.complete(
        of_config(
            settings(
                tmp_path,
                "classification",
                pretrained=pretrained,
                model__loop=loop,
                train__seed=1,
                initialize_layers=-1,
            )
        )
    )
    tables, layers = [], []
    for number in (-1, 0, 1, 2):
        params = model_side.build(made.replace(initialize_layers=number)).initial_state().params
        tables.append(np.asarray(params["token_embedder"]["embedding"]))
        block = params["decoder"]["layers"]["block"]
        layers.append(np.asarray(block["feed_forward"]["wi"]["kernel"]))
    whole, none, one, both = layers
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])
    np.testing.assert_array_equal(both, whole)
    np.testing.assert_array_equal(one, np.stack([whole[0], none[1]]))
    assert np.abs(none - whole).reshape(2, -1).max(axis=1).min() > 0.01
    with pytest.raises(ValueError, match="initialize_layers=3: decoder/layers has 2"):
        model_side.build(made.replace(initialize_layers=3))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("classification", {"model__added_tokens": 0}, "model.added_tokens=0: the head"),
        ("classification", {"data__lengths__inputs": 4}, "lengths.inputs=4: rows of labelled text"),
        ("similarity", {"data__settings__text_b": ""}, "lack text_b"),
        ("multiple_choice", {"data__settings__answer": "label"}, "must be one of 0 to"),
        ("multiple_choice", {"data__objective_settings__choices": 1}, "must be 2 or more"),
        ("classification", {"data__converter": "decoder"}, "reads targets, but the examples"),
    ],
)
def test_a_mistake_is_one_line_before_training(
    kind, changes, message, tmp_path, pretrained, capsys, monkeypatch
):
    monkeypatch.setattr(model_side.TaskProgram, "initial_state", None)
    make = {"similarity": classification, "multiple_choice": of_words}.get(kind, classification)
    for name in ("train", "validation"):
        write(tmp_path / f"{name}.jsonl", make, rows=40, seed=0)
    with pytest.raises(SystemExit):
        train.main(parse(settings(tmp_path, kind, pretrained=pretrained, **changes)))
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def of_words(random):
    return multiple_choice(random) | {"label": "animal"}
