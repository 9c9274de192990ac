"""Ensembles: averaged logits and probabilities, and `evaluate` with several runs."""

import dataclasses
import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import config, evaluate, systems, vocabularies
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.evaluation import ensembles, measures
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import Pretrained
from t5x_like.pretrained.loading import ensemble
from t5x_like.systems import t5
from tests.programs import command_flags, tiny_encoder
from tests.test_fine_tuning import WORDS, classification, config_file, write

TINY = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "heads": 2, "d_kv": 8}
LABELS = ("animal", "color", "food")
# Means of float32 logits of order 1, by two programs.
TOLERANCE = 1e-5

pytestmark = pytest.mark.usefixtures("one_device")


def described(**changes):
    """A model without parameters."""
    settings = t5.SIZES["small"] | TINY | {"vocab_size": 32, "dropout": 0.0} | changes
    return Pretrained(systems.build("t5", settings), {}, system="t5", config=settings)


def make(seed, **changes):
    model = described(**changes)
    module = model.module
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch())["params"]))
    model.params = jax.tree.map(lambda x: 3 * x, init(jax.random.key(seed)))
    return model


@pytest.fixture(scope="module")
def members():
    return [make(0), make(1, decoder_layers=2)]


@pytest.fixture(scope="module")
def together(members):
    return ensemble(members)


PROMPTS = np.random.default_rng(0).integers(2, 32, (3, 6)).astype(np.int32)


def test_the_logits_of_models_that_generate_are_averaged(members, together):
    targets = np.arange(3, 15, dtype=np.int32).reshape(3, 4)
    own = [one(PROMPTS, decoder_input_ids=targets).logits for one in members]
    found = together(PROMPTS, decoder_input_ids=targets).logits
    np.testing.assert_allclose(found, (own[0] + own[1]) / 2, atol=TOLERANCE)
    assert float(jnp.max(jnp.abs(own[0] - own[1]))) > 0.1


def test_generation_follows_the_averaged_logits(members, together):
    found = together.generate(PROMPTS, max_new_tokens=5, eos_token_id=None)
    full = np.zeros((3, 6), np.int32)
    for place in range(5):  # anew for each token, without a cache
        logits = sum(one(PROMPTS, decoder_input_ids=full).logits for one in members)
        full[:, place + 1] = np.argmax(logits[:, place], axis=-1)
    np.testing.assert_array_equal(found, full)
    beams = together.generate(PROMPTS, max_new_tokens=5, num_beams=2, eos_token_id=None)
    assert beams.shape == (3, 6)


def test_models_whose_outputs_do_not_fit_are_refused(members):
    with pytest.raises(ValueError, match="an ensemble of 1: two models or more"):
        ensemble(members[:1])
    with pytest.raises(ValueError, match=r"have model.vocab_size=32 and 40: their outputs"):
        ensemble([members[0], described(vocab_size=40)])
    with pytest.raises(ValueError, match=r"read encoder\+decoder and decoder: choose"):
        ensemble([members[0], described(architecture="decoder")])


def run_of(folder, seed, *, words=WORDS, labels=LABELS):
    """A run of no step of an encoder with a randomly initialized head for classes."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*tiny_encoder.SPECIAL_TOKENS, *words]) + "\n")
    made = tiny_encoder.settings("bert")
    made.model.head, made.model.labels = "classification", 3
    made.train.seed, made.data.vocabulary = seed, str(folder / "vocab.txt")
    made.data.settings = {"labels": labels}
    digest = vocabularies.load(made.data.vocabulary).digest
    metadata = {
        "config": config.to_dict(parse(made)),
        "data_shards": 1,
        "fingerprints": {"vocabulary": digest, "read": {}, "files": {}},
    }
    with Checkpoints(folder / "checkpoints", every=1, metadata=metadata) as saver:
        state = model_side.build(of_config(made)).initial_state()
        head = jax.tree.map(lambda x: 100 * x, state.params["head"])
        saver.save(1, state.replace(params={**state.params, "head": head}), None)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensembles")
    write(folder / "rows.jsonl", classification, rows=24, seed=0)
    return folder, [run_of(folder / f"run_{seed}", seed) for seed in (0, 1)]


def settings(runs):
    folder, members = runs
    made = config_file("fine_tuning")("classification")
    made.initialize, made.workdir = str(members[0]), str(folder / "evaluated")
    made.data.settings.train = made.data.settings.validation = str(folder / "rows.jsonl")
    made.data.settings.labels = LABELS
    made.data.lengths.inputs, made.model.labels = 12, 3
    return made


def predicted(runs, monkeypatch, **flags):
    made, (folder, _) = settings(runs), runs
    made.evaluate.predictions = str(folder / "predictions.jsonl")
    command_flags.give(monkeypatch, **flags)
    evaluate.main(parse(made))
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    return np.array([[*json.loads(line)["probabilities"].values()] for line in lines])


@pytest.mark.slow
def test_evaluate_averages_the_probabilities_of_heads(runs, monkeypatch, capsys):
    folder, members = runs
    own = [predicted(runs, monkeypatch, checkpoint=str(one)) for one in members]
    assert "cross_entropy" in capsys.readouterr().out
    found = predicted(runs, monkeypatch, ensemble=",".join(map(str, members)))
    assert found.shape == (24, 3)
    np.testing.assert_allclose(found, (own[0] + own[1]) / 2, atol=TOLERANCE)
    assert np.max(np.abs(own[0] - own[1])) > 0.1
    numbers = json.loads((folder / "evaluated" / "evaluation.json").read_text())["tasks"]
    assert "predictions/accuracy" in numbers["labelled_files"]
    assert "cross_entropy" not in capsys.readouterr().out  # the loss is that of one model


def test_members_with_other_vocabularies_or_labels_are_refused(runs, tmp_path):
    made, first = settings(runs), str(runs[1][0])
    made.data.vocabulary = f"{first}/vocab.txt"
    words = run_of(tmp_path / "words", 0, words=WORDS[::-1])
    with pytest.raises(ValueError, match=r"the vocabulary of .*words, .* differs from the config"):
        ensembles.load([first, str(words)], made, mesh=None, average=1)
    (tmp_path / "words" / "vocab.txt").write_text(Path(f"{first}/vocab.txt").read_text())
    with pytest.raises(ValueError, match="another vocabulary than the one in the run's checkpoint"):
        ensembles.load([first, str(words)], made, mesh=None, average=1)
    labels = run_of(tmp_path / "labels", 0, labels=LABELS[::-1])
    with pytest.raises(ValueError, match=r"labels of .*labels are food, color, animal, and those"):
        ensembles.load([first, str(labels)], made, mesh=None, average=1)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"loss": {}, "predictions": {}},
            r'evaluate.measures.loss is .*measures="{.predictions.: {}}"',
        ),
        ({"mine": {"kind": "loss"}}, r"evaluate.measures.mine is the loss of one model"),
    ],
)
def test_a_loss_that_the_config_names_is_refused(chosen, message, runs):
    made = completion.complete(of_config(settings(runs)))
    by_default = measures.of_part(made.parts[0], data_task="labelled_files")
    assert list(ensembles.measurable(by_default, chosen={})) == ["predictions"]
    evaluate_settings = dataclasses.replace(made.settings.evaluate, measures=chosen)
    [part] = made.replace(evaluate=evaluate_settings).parts
    found = measures.of_part(part, data_task="labelled_files")
    with pytest.raises(ValueError, match=message):
        ensembles.measurable(found, chosen=chosen)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ensemble": "a,b", "checkpoint": "c"}, "--ensemble and --checkpoint are both set"),
        ({"ensemble": "nowhere,none"}, "--ensemble: there is no folder nowhere"),
    ],
)
def test_a_mistake_is_one_line(flags, message, runs, monkeypatch, capsys):
    command_flags.give(monkeypatch, **flags)
    with pytest.raises(SystemExit) as ended:
        evaluate.main(parse(settings(runs)))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
