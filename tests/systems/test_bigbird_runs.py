"""BigBird in runs: a stopped run goes on bit for bit, with random blocks, with hidden sentences."""

import importlib
import json

import jax
import numpy as np
import pytest

from t5x_like import checkpoints, train
from t5x_like.config import parse
from t5x_like.vocabularies import trainers

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
# The name, the kind and the size of the vocabulary of each.
VOCABULARIES = {
    "bigbird": ("vocabulary.model", "albert", 30),
    "bigbird_etc": ("vocabulary", "byte_bpe", 300),
}


def documents():
    """Sixty documents of six sentences, of three to six words each."""
    random = np.random.default_rng(0)
    for _ in range(60):
        sentences = (random.choice(WORDS, random.integers(3, 7)) for _ in range(6))
        yield " ".join(" ".join(words).capitalize() + "." for words in sentences)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("bigbird") / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents()))
    return file


def settings(system, corpus, workdir, *, steps):
    """The demo, tiny, on rows of 16 blocks of four tokens."""
    made = importlib.import_module(f"configs.{system}").get_config("demo")
    name, kind, size = VOCABULARIES[system]
    vocabulary = workdir.parent / name
    if not vocabulary.exists():
        trainers.train(documents(), vocab_size=size, output=str(vocabulary), kind=kind)
    made.workdir, made.data.vocabulary = str(workdir), str(vocabulary)
    made.data.update({"module": "data/text_files.py", "task": "text_files", "shards": 2})
    made.data.settings = {"files": str(corpus), "validation_files": str(corpus)}
    made.data.lengths, made.data.batch_size = {"inputs": 64}, 8
    made.model.update({"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "block": 4})
    made.model.vocab_size = 512
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 1e-3}
    made.train.steps, made.checkpoint.every, made.evaluate.every = steps, 3, 0
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("system", VOCABULARIES)
def test_a_run_that_stopped_goes_on_bit_for_bit(system, corpus, tmp_path, capsys):
    train.main(parse(settings(system, corpus, tmp_path / "whole", steps=6)))
    train.main(parse(settings(system, corpus, tmp_path / "half", steps=3)))
    capsys.readouterr()
    train.main(parse(settings(system, corpus, tmp_path / "half", steps=6)))
    assert "going on from step 3" in capsys.readouterr().out
    whole, half = (
        checkpoints.restore_params(tmp_path / name / "checkpoints")[0] for name in ("whole", "half")
    )
    jax.tree.map(np.testing.assert_array_equal, whole, half)
