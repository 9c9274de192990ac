"""BigBird-ETC on Natural Questions: head and loss of the released code, a run, its answers."""

import json

import jax
import numpy as np
import pytest
import tensorflow as tf

from configs import bigbird_etc as configs
from configs import run
from t5x_like import evaluate, infer, systems, train, vocabularies
from t5x_like.config import parse
from t5x_like.evaluation.metrics import METRICS
from t5x_like.experiment import command_line
from t5x_like.inference.document_answers import LongAnswers
from t5x_like.systems import bigbird_etc
from t5x_like.vocabularies import trainers
from tests.programs import benchmark_rows, command_flags

TASK = systems.find("bigbird_etc").tasks["long_answers"]


def released_loss(outputs, rows, *, tokens):
    """The formulas of run_nq_lib.py, over the tokens of a row."""

    def of_classes(logits, labels):
        one_hot = tf.one_hot(labels, depth=logits.shape[-1])
        log_probs = tf.nn.log_softmax(logits, axis=-1)
        return -tf.reduce_sum(tf.reduce_sum(one_hot * log_probs, axis=-1)).numpy()

    names = ("start_logits", "end_logits", "long_start_logits", "long_end_logits")
    labels = [*rows["answer"].T, *rows["long_answer"].T]
    terms = [of_classes(outputs["type_logits"], rows["label"])]
    for name, positions in zip(names, labels, strict=True):
        terms += [
            of_classes(outputs[name][row, :size], positions[row]) for row, size in enumerate(tokens)
        ]
    return sum(terms) / 5


def test_the_loss_is_the_released_mean_of_five():
    sizes = {"vocab_size": 32, "global_tokens": 8, "layers": 1, "d_model": 16, "d_ff": 24}
    sizes |= {"heads": 2, "block": 4, "dropout": 0.0, "head": "long_answers"}
    module = systems.build("bigbird_etc", bigbird_etc.SIZES["base"] | sizes)
    rows = {
        "encoder_input_tokens": np.random.default_rng(0).integers(5, 32, (2, 12)).astype(np.int32),
        "encoder_segment_ids": (np.arange(12) < [[12], [9]]).astype(np.int32),
        "encoder_sentences": np.repeat([[1, 2, 3, 4, 5, 0]] * 2, 2, axis=1).astype(np.int32),
        "answer": np.array([[7, 7], [0, 0]], np.int32),
        "long_answer": np.array([[6, 9], [2, 5]], np.int32),
        "label": np.array([4, 3], np.int32),
    }
    variables = module.init(jax.random.key(0), rows)
    outputs = jax.tree.map(np.asarray, module.apply(variables, rows))
    assert outputs["type_logits"].shape == (2, 5)
    total, weight, _ = TASK.loss(module, variables["params"], rows, None)
    assert weight == 2
    np.testing.assert_allclose(total, released_loss(outputs, rows, tokens=(12, 9)), rtol=1e-5)
    # The type is read from [CLS] of the text, so another token there changes it.
    tokens = rows["encoder_input_tokens"].copy()
    tokens[0, 0] = 5 + (tokens[0, 0] - 4) % 27
    other = module.apply(variables, rows | {"encoder_input_tokens": tokens})["type_logits"]
    assert np.abs(np.asarray(other) - outputs["type_logits"])[0].min() > 1e-6


def test_questions_need_global_tokens():
    TASK.check({"global_tokens": 35}, {"longest_question": 32})
    with pytest.raises(ValueError, match=r"^model.global_tokens=34: .* need 35 global tokens$"):
        TASK.check({"global_tokens": 34}, {"longest_question": 32})


@pytest.fixture(scope="module")
def prediction(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    words = ["who", "left", "ann", "came", "bo", "it", "rained", "."]
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    sizes = {"length": 14, "stride": 3, "longest_question": 2}
    return LongAnswers(vocabulary=vocabularies.load(path), labels=(), **sizes)


ITEM = {"question": "Who left?", "context": ["Ann came.", "It rained.", "Ann left.", "Bo left."]}


def predicted(prediction, *, kinds=("short", "short"), changes=(), item=ITEM):
    """The answers from logits of 0 but for some, (number of the row, name, position, logit)."""
    rows = prediction.rows(item)
    names = ("start_logits", "end_logits", "long_start_logits", "long_end_logits")
    types = ("none", "yes", "no", "long", "short")
    batch = prediction.collate(rows, batch_size=2)
    shape = batch["allowed"].shape
    outputs = {name: np.zeros(shape, np.float32) for name in names}
    outputs["type_logits"] = np.eye(5)[[types.index(kind) for kind in kinds]]
    for row, name, position, logit in changes:
        outputs[name][row, position] = logit
    results = jax.tree.map(np.asarray, prediction.results(outputs, batch))
    each = [{name: array[n] for name, array in results.items()} for n in range(2)]
    return prediction.predict(item, rows, each)


LONG = [(1, "long_start_logits", 10, 2.0), (1, "long_end_logits", 12, 3.0)]  # "Bo left."
SHORT = [(1, "start_logits", 10, 4.0), (1, "end_logits", 11, 1.0)]


def test_the_best_paragraph_and_span_of_all_parts_are_the_answers(prediction):
    found = predicted(prediction, changes=[*LONG, *SHORT])
    assert found["spans"] == {"long": "6-8", "short": "6-8"}
    assert (found["prediction"], found["long_answer"]) == ("Bo left.", "Bo left.")
    assert (found["long_score"], found["short_score"]) == (5.0, 5.0)
    # A part that rates no answer as highly has a lower score; the first part has "Ann came.".
    first = [(0, "long_start_logits", 4, 2.0), (0, "long_end_logits", 6, 1.0)]
    found = predicted(prediction, changes=[*LONG, *first, (1, "long_start_logits", 0, 3.0)])
    assert (found["spans"]["long"], found["long_score"]) == ("0-2", 3.0)


def test_answers_below_the_threshold_and_types_are_no_span(prediction):
    nothing = predicted(prediction, kinds=("none", "none"))
    assert nothing["spans"] == {"long": "none", "short": "none"}
    assert (nothing["prediction"], nothing["long_answer"]) == ("", "")
    found = predicted(prediction, kinds=("no", "yes"), changes=[*LONG, *SHORT])
    assert (found["spans"], found["prediction"]) == ({"long": "6-8", "short": "yes"}, "yes")
    found = predicted(prediction, kinds=("no", "long"), changes=[*LONG, *SHORT])
    assert (found["spans"], found["prediction"]) == ({"long": "6-8", "short": "none"}, "")


def test_a_short_answer_stays_within_its_paragraph(prediction):
    """Its best start is in "It rained." and its best end in "Ann left."."""
    ends = [(0, "start_logits", 8, 3.0), (0, "end_logits", 9, 1.0), (0, "end_logits", 11, 2.0)]
    found = predicted(prediction, changes=ends)
    assert (found["prediction"], found["short_score"]) == ("rained.", 4.0)


def test_a_page_without_a_whole_paragraph_has_a_score_of_null(prediction):
    item = {"question": "Who left?", "context": ["Ann left. " * 4]}  # 12 tokens: two parts
    found = predicted(prediction, item=item)
    assert (found["spans"]["long"], found["long_answer"]) == ("none", "")
    written = json.loads(command_line.as_standard_json(found), parse_constant=pytest.fail)
    assert written["long_score"] is None
    assert written["short_score"] == 0.0


@pytest.fixture
def settings(tmp_path):
    folder = benchmark_rows.write(
        tmp_path, {"natural_questions_long": benchmark_rows.natural_questions_long}, rows=6
    )
    made = configs.get_config("natural_questions")
    base = configs.get_config("demo")
    made.system, made.initialize = "bigbird_etc", ""
    sizes = {"vocab_size": 128, "layers": 1, "d_model": 16, "d_ff": 24, "heads": 2, "block": 4}
    made.model = {**base.model, **made.model, **sizes, "global_tokens": 16, "dropout": 0.0}
    made.model.dtype = "float32"
    made.data.vocabulary = str(tmp_path / "vocab.txt")
    texts = ((folder / "natural_questions_long" / "train.jsonl").read_text().splitlines()) * 9
    trainers.train(iter(texts), vocab_size=128, output=made.data.vocabulary, kind="wordpiece")
    made.data.settings.folder, made.workdir = str(folder), str(tmp_path / "run")
    made.data.batch_size, made.train.steps, made.evaluate.every = 4, 2, 0
    made.data.lengths.inputs = 32
    made.data.objective_settings = {"longest_question": 8, "stride": 8}
    return made


@pytest.mark.usefixtures("one_device")
def test_a_run_is_measured_and_answers(settings, tmp_path, monkeypatch):
    train.main(parse(settings))
    stored = run.get_config(settings.workdir)
    command_flags.give(monkeypatch)
    evaluate.main(parse(stored))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    numbers = measured["tasks"]["natural_questions_long"]
    named = METRICS["long_and_short_answers"].numbers
    assert all(0 <= numbers[f"benchmark/{name}"] <= 1 for name in named)
    asked, answers = tmp_path / "new.jsonl", tmp_path / "answers.jsonl"
    asked.write_text(json.dumps(ITEM) + "\n")
    command_flags.give(monkeypatch, input=str(asked), output=str(answers))
    infer.main(parse(stored))
    found = json.loads(answers.read_text())
    assert found["long_answer"] in ("", *ITEM["context"])
    assert found["prediction"] in " ".join([*ITEM["context"], "yes no"])
