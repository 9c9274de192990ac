"""K-BERT from labelled files and a graph: the same rows in training and prediction, what it learns.

The names in the texts are invented, and those held out are new: only the graph has their kind.
"""

import json
import pathlib

import numpy as np
import pytest

from configs import k_bert as configs
from configs import run as run_config
from t5x_like import evaluate, infer, train, vocabularies
from t5x_like.batches import converters
from t5x_like.config import parse
from t5x_like.inference import predictions
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.systems import k_bert
from tests.programs import command_flags, tiny_encoder

labelled = sources.load_module(
    str(pathlib.Path(__file__).parents[2] / "data" / "labelled_files.py")
)
KINDS = {"animal": ["dog", "cat", "cow"], "color": ["red", "blue", "gray"]}
FILLERS = ["the", "is", "very", "and", "was", "here"]
SYLLABLES = ["ba", "do", "gi", "ku", "me", "no", "pa", "ru", "si", "to", "we", "zu"]
NAMES = [f"{a} {b}" for a in SYLLABLES for b in SYLLABLES if a != b]
WORDS = [*FILLERS, *SYLLABLES, *KINDS, *KINDS["animal"], *KINDS["color"], "kind", "which", "?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A vocabulary, and a graph of the kinds of all names."""
    folder = tmp_path_factory.mktemp("k_bert")
    (folder / "vocab.txt").write_text("\n".join([*tiny_encoder.SPECIAL_TOKENS, *WORDS]))
    rows = [f"{name}\tkind\t{kind_of(name)}" for name in NAMES]
    (folder / "graph.tsv").write_text("\n".join(["subject\trelation\tobject", *rows]))
    return folder


def kind_of(name):
    return ("animal", "color")[NAMES.index(name) * 7 % 5 % 2]


def text(random, *names):
    words = [*names, *random.choice(FILLERS, 4)]
    random.shuffle(words)
    return " ".join(words)


def classification(random, names):
    name = str(random.choice(names))
    return {"text_a": text(random, name), "label": kind_of(name)}


def tagging(random, names):
    chosen = [str(one) for one in random.choice(names, 2)]
    words, tags = [], []
    for part in [chosen[0], *random.choice(FILLERS, 3), chosen[1]]:
        own = str(part).split()
        words += own
        tags += [kind_of(str(part)) if len(own) > 1 else "none"] * len(own)
    return {"words": words, "tags": tags}


def question_answering(random, names):
    first, second = ([n for n in names if kind_of(n) == kind] for kind in KINDS)
    pair = str(random.choice(first)), str(random.choice(second))
    return {"question": "which animal ?", "context": text(random, *pair), "answers": [pair[0]]}


MAKE = {
    "base": classification,
    "tagging": tagging,
    "question_answering": question_answering,
}


def write(path, make, *, names, rows, seed=0):
    random = np.random.default_rng(seed)
    made = [make(random, names) for _ in range(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return made


@pytest.mark.parametrize(
    ("kind", "prediction"),
    [
        ("base", "knowledge_classes"),
        ("tagging", "knowledge_tags"),
        ("question_answering", "knowledge_answers"),
    ],
)
def test_prediction_reads_the_rows_of_training(kind, prediction, folder, tmp_path):
    config = configs.get_config(kind)
    assert k_bert.SYSTEM.task(config.model.to_dict()).prediction == prediction
    own = config.data.objective_settings.to_dict() | {"graph": str(folder / "graph.tsv")}
    own |= {"reserved": 8, "longest_question": 4} if "stride" in own else {}
    objective = seqio_objectives.build(config.data.objective, **own)
    vocabulary = vocabularies.load(folder / "vocab.txt")
    rows = write(tmp_path / "rows.jsonl", MAKE[kind], names=NAMES, rows=8)
    path = str(tmp_path / "rows.jsonl")
    labelled.register(vocabulary, objective, train=path, validation=path)
    trained = next(
        SeqioBatches(
            "labelled_files",
            split="validation",
            batch_size=8,
            lengths={"inputs": 32},
            converter=converters.build("encoder", **objective.converter_settings),
            shuffle=False,
            repeat=False,
        )
    )
    head = predictions.make(prediction, vocabulary=vocabulary, labels=(), length=32, settings=own)
    found = head.collate([row for item in rows for row in head.rows(item)], batch_size=8)
    allowed, no_answer = found.pop("allowed"), found.pop("no_answer")
    assert np.all(no_answer == 0)  # [CLS], which has no branch before it
    assert (found["encoder_branches"] > 0).any(axis=1).all()
    for name, values in found.items():
        np.testing.assert_array_equal(values, trained[name], err_msg=name)
    if kind == "tagging":  # a tag for each word, none for a branch
        words = [len(row["words"]) for row in rows]
        assert trained["encoder_loss_weights"].sum(axis=1).tolist() == words
        assert not trained["encoder_loss_weights"][found["encoder_branches"] > 0].any()
    if kind == "question_answering":
        assert not allowed[found["encoder_branches"] > 0].any()
        assert all(allowed[number, trained["answer"][number]].all() for number in range(8))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
def test_what_only_the_graph_has_is_learned(kind, folder, tmp_path, monkeypatch):
    new = NAMES[::4]
    known = [name for name in NAMES if name not in new]
    write(tmp_path / "train.jsonl", MAKE[kind], names=known, rows=1500)
    rows = write(tmp_path / "validation.jsonl", MAKE[kind], names=new, rows=150, seed=1)
    made = configs.get_config(kind)
    made.model.update({k: v for k, v in tiny_encoder.TINY.items() if k in made.model})
    made.workdir = str(tmp_path / "run")
    made.data.vocabulary = str(folder / "vocab.txt")
    made.data.objective_settings.graph = str(folder / "graph.tsv")
    for name in ("train", "validation"):
        made.data.settings[name] = str(tmp_path / f"{name}.jsonl")
    made.data.lengths.inputs = 32
    if kind == "question_answering":
        made.data.objective_settings.update({"reserved": 8, "longest_question": 4})
    made.train.steps, made.train.log_every = 400, 100
    made.data.batch_size = 32
    made.optimizer.learning_rate = 1e-3
    made.evaluate.every = 0
    train.main(parse(made))
    run = run_config.get_config(made.workdir)
    command_flags.give(monkeypatch)
    evaluate.main(parse(run))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    numbers = measured["tasks"]["labelled_files"]
    reached = {"base": "accuracy", "tagging": "predictions/tag_accuracy"}
    assert numbers[reached.get(kind, "squad/exact_match")] > 0.9
    asked = [
        {k: v for k, v in row.items() if k not in ("label", "tags", "answers")} for row in rows
    ]
    questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in asked))
    command_flags.give(monkeypatch, input=str(questions), output=str(answers))
    infer.main(parse(run))
    predicted = [json.loads(line)["prediction"] for line in answers.read_text().splitlines()]
    labels = [row.get("label", row.get("tags", row.get("answers", [""])[:1])) for row in rows]
    right = [
        (one == [two]) if kind == "question_answering" else one == two
        for two, one in zip(predicted, labels, strict=True)
    ]
    assert np.mean(right) > 0.85
