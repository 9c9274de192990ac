"""BigBird-ETC on HotpotQA: masks, head and loss of the released code, a run, its answers."""

import json

import flax.linen as nn
import jax
import numpy as np
import pytest
import tensorflow as tf

from configs import bigbird_etc as configs
from configs import run
from data.generators import generated_homes
from t5x_like import evaluate, infer, systems, train
from t5x_like.config import parse
from t5x_like.losses import forward
from t5x_like.systems import bigbird_etc
from t5x_like.vocabularies import trainers
from tests.programs import command_flags

SIZES = bigbird_etc.SIZES["base"] | {
    "head": "supporting_facts",
    "vocab_size": 32,
    "global_tokens": 12,
    "layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "block": 4,
    "dropout": 0.0,
}
TASK = systems.find("bigbird_etc").tasks["supporting_facts"]


def make_rows():
    """[CLS], a question of 2 tokens, 2 paragraphs of a title and 2 sentences; a shorter row."""
    sizes = [1, 1, 1, 2, 3, 2, 1, 4, 3]  # tokens of each sentence
    paragraphs, titles = [1, 2, 2, 3, 3, 3, 4, 4, 4], [0, 0, 0, 4, 4, 4, 7, 7, 7]
    facts = [0, 0, 0, 1, 0, 1, 0, 0, 0]
    values = {
        "sentences": range(1, 10),
        "paragraphs": paragraphs,
        "titles": titles,
        "facts": facts,
        "segment_ids": [1] * 9,
    }
    rows = {f"encoder_{name}": np.zeros((2, 20), np.int32) for name in values}
    for name, of_sentences in values.items():
        rows[f"encoder_{name}"][0, :18] = np.repeat([*of_sentences], sizes)
        rows[f"encoder_{name}"][1, :5] = rows[f"encoder_{name}"][0, :5]
    tokens = np.random.default_rng(0).integers(5, 32, (2, 20)).astype(np.int32)
    tokens *= rows["encoder_segment_ids"]
    labels = {"label": np.array([0, 2], np.int32), "answer": np.array([[8, 9], [0, 0]], np.int32)}
    return rows | labels | {"encoder_input_tokens": tokens}


@pytest.fixture(scope="module")
def network():
    module = systems.build("bigbird_etc", SIZES)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    leaves, tree = jax.tree.flatten(params)
    random = np.random.default_rng(5)
    params = jax.tree.unflatten(tree, [x + 0.4 * random.normal(size=x.shape) for x in leaves])
    compiled = jax.jit(lambda rows: forward(module, params, rows, None))
    return module, params, lambda rows: jax.tree.map(np.asarray, compiled(rows))


@pytest.mark.parametrize(
    ("token", "seen_by"),
    [
        (7, {0, 3, 4}),  # in the first sentence of the first paragraph: [CLS], title, sentence
        (4, {0, 3}),  # in its title
        (1, {0, 1}),  # in the question
        (0, {0}),
        (15, {0, 6, 8}),  # in the second sentence of the second paragraph
    ],
)
def test_a_token_is_seen_by_its_sentence_its_paragraph_and_the_first_token(token, seen_by, network):
    """The masks of make_global_local_transformer_side_inputs, with one layer."""
    run_network, rows = network[2], make_rows()
    tokens = rows["encoder_input_tokens"].copy()
    tokens[0, token] = 5 + (tokens[0, token] - 4) % 27
    before, after = (
        run_network(rows | {"encoder_input_tokens": ids})["fact_logits"][0, :9]
        for ids in (rows["encoder_input_tokens"], tokens)
    )
    changed = np.abs(after - before) > 1e-6
    assert {*np.flatnonzero(changed)} == seen_by


def test_text_is_read_within_its_paragraph(network):
    run_network, rows = network[2], make_rows()
    tokens = rows["encoder_input_tokens"].copy()
    tokens[0, 9] = 5 + (tokens[0, 9] - 4) % 27  # the last of the first paragraph
    before, after = (
        run_network(rows | {"encoder_input_tokens": ids})["start_logits"][0, :18]
        for ids in (rows["encoder_input_tokens"], tokens)
    )
    # Tokens 4 to 15 are near, and tokens 3 to 9 in its paragraph.
    assert {*np.flatnonzero(np.abs(after - before) > 1e-6)} == {4, 5, 6, 7, 8, 9}


def released_loss(outputs, rows):
    """The formulas of run_finetuning_lib.py, without the logits that stand for padding."""

    def of_classes(logits, labels):
        one_hot = tf.one_hot(labels, depth=logits.shape[-1])
        return -tf.reduce_sum(one_hot * tf.nn.log_softmax(logits)).numpy()

    total = 0.0
    for row, (tokens, sentences) in enumerate([(18, 9), (5, 4)]):
        facts = np.zeros(12, np.float32)
        facts[[3, 5] if row == 0 else [3]] = 1
        here = slice(3, sentences)  # titles and sentences
        cross_entropies = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=facts[here], logits=outputs["fact_logits"][row, here]
        )
        first, last = rows["answer"][row]
        losses = [
            tf.reduce_sum(cross_entropies).numpy(),
            of_classes(outputs["type_logits"][row], rows["label"][row]),
            of_classes(outputs["start_logits"][row, :tokens], first),
            of_classes(outputs["end_logits"][row, :tokens], last),
        ]
        total += sum(losses) / len(losses)
    return total


def test_the_loss_is_the_released_mean_of_four(network):
    module, params, run_network = network
    rows = make_rows()
    total, weight, metrics = TASK.loss(module, params, rows, None)
    outputs = run_network(rows)
    assert (weight, outputs["type_logits"].shape) == (2, (2, 3))
    np.testing.assert_allclose(total, released_loss(outputs, rows), rtol=1e-5)
    right = (outputs["fact_logits"][0, 3:9] > 0) == [1, 0, 1, 0, 0, 0]
    right = [*right, outputs["fact_logits"][1, 3] > 0]
    assert metrics["facts/accuracy"][0] / metrics["facts/accuracy"][1] == np.mean(right)


def test_each_head_is_a_dense_layer_as_released(network):
    module, params, run_network = network
    rows = make_rows()
    encode = lambda network, b: network._encode(b, deterministic=True, collect=())[0]  # noqa: E731
    states = np.asarray(module.apply({"params": params}, rows, method=encode))
    outputs, head = run_network(rows), params["head"]
    layers = {
        "fact_logits": (states[:, :12], head["fact"], 0),
        "type_logits": (states[:, :1], head["type"], slice(None)),
        "start_logits": (states[:, 12:], head["span"]["answer"], 0),
        "end_logits": (states[:, 12:], head["span"]["answer"], 1),
    }
    for name, (inputs, layer, column) in layers.items():
        expected = (inputs @ layer["kernel"] + layer["bias"])[..., column]
        expected = expected[:, 0] if name == "type_logits" else expected
        np.testing.assert_allclose(outputs[name], expected, atol=2e-5, err_msg=name)


def test_sentences_need_global_tokens():
    TASK.check({"global_tokens": 256}, {"sentences": 256})
    with pytest.raises(ValueError, match=r"^model.global_tokens=255: .*sentences=256 need as many"):
        TASK.check({"global_tokens": 255}, {"sentences": 256})


@pytest.fixture
def rows():
    made = generated_homes.evidence_rows("train", seed=0)
    return [next(made) for _ in range(12)]


@pytest.fixture
def settings(rows, tmp_path):
    (tmp_path / "hotpot_qa").mkdir()
    for split in ("train", "validation"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "hotpot_qa" / f"{split}.jsonl").write_text(lines)
    made = configs.get_config("hotpotqa_demo")
    texts = (f"{row['question']} {row['context']}" for row in rows)
    made.data.vocabulary = str(tmp_path / "vocab.txt")
    trainers.train(texts, vocab_size=120, output=made.data.vocabulary, kind="wordpiece")
    made.data.settings.folder, made.workdir = str(tmp_path), str(tmp_path / "run")
    made.data.batch_size, made.train.steps, made.evaluate.every = 4, 2, 0
    made.data.lengths.inputs, made.data.objective_settings.sentences = 64, 24
    sizes = {"layers": 1, "d_model": 16, "d_ff": 24, "heads": 2, "global_tokens": 24}
    made.model.update(sizes)
    return made


@pytest.mark.usefixtures("one_device")
def test_a_run_is_measured_and_answers_with_facts(settings, rows, tmp_path, monkeypatch):
    train.main(parse(settings))
    stored = run.get_config(settings.workdir)
    command_flags.give(monkeypatch)
    evaluate.main(parse(stored))
    measured = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    texts = [
        ["\n".join([title, *sentences]) for title, sentences in zip(*columns, strict=True)]
        for columns in ((row["context"]["title"], row["context"]["sentences"]) for row in rows)
    ]
    items = [
        {"question": row["question"], "context": text}
        for row, text in zip(rows, texts, strict=True)
    ]
    asked, answers = tmp_path / "new.jsonl", tmp_path / "answers.jsonl"
    asked.write_text("".join(json.dumps(item) + "\n" for item in items))
    command_flags.give(monkeypatch, input=str(asked), output=str(answers))
    infer.main(parse(stored))
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    for one, row, text in zip(found, rows, texts, strict=True):
        assert one["type"] in ("span", "yes", "no")
        assert one["prediction"] in ("", one["type"]) or one["prediction"] in "\n".join(text)
        facts = [[title, n] for title in row["context"]["title"] for n in (0, 1)]
        assert [fact for fact in facts if fact in one["facts"]] == one["facts"]
    # The rows of both splits are the same. One fact is right, so the F1 is 2 / (1 + predicted).
    facts = [
        [[*fact] for fact in zip(*row["supporting_facts"].values(), strict=True)] for row in rows
    ]
    f1 = [
        2 / (1 + len(one["facts"])) if fact in one["facts"] else 0
        for one, [fact] in zip(found, facts, strict=True)
    ]
    assert 0 < np.mean(f1) < 1
    measured = measured["tasks"]["hotpot_qa"]
    assert measured["benchmark/fact_f1"] == pytest.approx(np.mean(f1))


def test_more_sentences_than_global_tokens_are_refused_before_training(settings, capsys):
    settings.data.objective_settings.sentences = 25
    with pytest.raises(SystemExit):
        train.main(parse(settings))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: model.global_tokens=24: data.objective_settings.sentences=25 ")
