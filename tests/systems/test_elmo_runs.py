"""ELMo by the commands: pretrain on a file, then tag words and classify texts on top of it."""

import json

import jax
import numpy as np
import pytest

from configs import elmo
from t5x_like import train
from t5x_like.config import parse
from t5x_like.experiment.run import of_config
from t5x_like.inference import predictions
from t5x_like.pretrained import from_pretrained

WORDS = ("they", "play", "the", "long", "zoë", "was", ".")
SMALL = {"filters": ((1, 4), (2, 4)), "highways": 1, "cell": 8, "d_model": 8}


def lines(number):
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, random.integers(2, 9))) for _ in range(number)]


def common(made, folder):
    made.data.vocabulary = str(folder / "vocab.txt")
    made.train.log_every = 1
    made.train.steps = 2
    made.evaluate.every = 0
    made.evaluate.batches = 1
    made.data.batch_size = 8
    made.mesh = {"data": 4, "fsdp": 1, "expert": 1, "model": 2}
    return made


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The folder of a run of two steps of language modeling."""
    folder = tmp_path_factory.mktemp("elmo")
    (folder / "vocab.txt").write_text("\n".join(("<S>", "</S>", "<UNK>", *WORDS, "x", "y")))
    (folder / "text.txt").write_text("\n".join(lines(200)))
    made = common(elmo.get_config("demo"), folder)
    made.workdir = str(folder / "run")
    made.model.update(SMALL | {"vocab_size": 12})
    made.loss.sampled = 4
    made.data.module = "data/text_files.py"
    made.data.task = "text_files"
    made.data.settings = {"files": str(folder / "text.txt"), "held_out": 0.2}
    made.data.lengths = {"inputs": 6}
    train.main(parse(made))
    return folder


def rows(kind):
    for line in lines(60):
        words = line.split()
        if kind == "word_tagging":
            yield {"words": words, "tags": ["O" if len(word) < 4 else "W" for word in words]}
        else:
            yield {"text_a": line, "label": "yes" if "play" in words else "no"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("word_tagging", "tagging"),
        ("word_tagging", "chained_tagging"),
        ("word_classification", "classification"),
    ],
)
def test_a_task_is_trained_on_a_frozen_language_model_and_predicts(
    pretrained, tmp_path, kind, head
):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(kind)))
    made = common(elmo.get_config(kind), pretrained)
    made.workdir = str(tmp_path / "run")
    made.model.head = head
    made.initialize = str(pretrained / "run")
    made.data.settings.train = str(tmp_path / "rows.jsonl")
    made.data.lengths = {"inputs": 12}
    train.main(parse(made))
    before, after = (
        from_pretrained(one / "run", head="features") for one in (pretrained, tmp_path)
    )
    for name in ("words", "lstm"):
        leaves = zip(leaves_of(before, name), leaves_of(after, name), strict=True)
        assert all(np.array_equal(a, b) for a, b in leaves)
    model = from_pretrained(tmp_path / "run")
    assert np.any(np.asarray(model.params["mix_input"]["weights"]) != 0)
    made.model = model.config
    predictor = predictions.build(model, of_config(made).parts[0])
    if kind == "word_tagging":
        [found] = predictor([{"words": ["they", "unseen", "."]}])
        assert len(found["prediction"]) == 3
        assert {*found["prediction"]} <= {"O", "W"}
    else:
        [found] = predictor([{"text_a": "they play unseen."}])
        assert found["prediction"] in ("yes", "no")
        assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def leaves_of(model, name):
    return jax.tree.leaves(jax.device_get(model.params[name]))
