"""UniLM tuned on pairs writes the answers to sources that it has not seen, and stops."""

import json

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from data import text_files
from t5x_like import systems
from t5x_like.batches import converters
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.preprocessing import seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.pretrained.encoder_model import PretrainedEncoder
from t5x_like.systems import unilm
from tests.word_vocabulary import WordVocabulary

LETTERS = "abcdefgh"
VOCABULARY = WordVocabulary([*LETTERS, *LETTERS.upper()])
CONFIG = unilm.SIZES["base"] | {
    "head": "masked_lm",
    "vocab_size": VOCABULARY.vocab_size,
    "positions": 16,
    "layers": 2,
    "d_model": 64,
    "d_ff": 128,
    "heads": 4,
    "dropout": 0.0,
    "sep_id": VOCABULARY.sep_id,
    "mask_id": VOCABULARY.mask_id,
}


def pairs(count, *, seed):
    """Two to five letters, and the same as capitals from the last to the first."""
    random = np.random.default_rng(seed)
    words = [random.choice(list(LETTERS), random.integers(2, 6)) for _ in range(count)]
    return [(" ".join(word), " ".join(word[::-1]).upper()) for word in words]


def batches(path):
    """Of masked targets, from a file of pairs."""
    lines = [json.dumps({"q": q, "a": a}) for q, a in pairs(4000, seed=0)]
    path.write_text("\n".join(lines) + "\n")
    objective = seqio_objectives.build("masked_targets", target_length=6)
    text_files.register(VOCABULARY, objective, files=str(path), inputs="q", targets="a", held_out=0)
    return SeqioBatches(
        "text_files",
        split="train",
        batch_size=64,
        lengths={"inputs": 13},
        converter=converters.build("encoder", **objective.converter_settings),
        shards=1,
    )


@pytest.mark.slow
def test_tuned_on_pairs_it_answers_new_sources_and_ends(tmp_path):
    module = systems.build("unilm", CONFIG)
    variables = module.init(jax.random.key(0), module.example_batch())
    params = nn.unbox(variables)["params"]
    optimizer = optax.adam(optax.linear_schedule(2e-3, 0.0, 700))

    @jax.jit
    def step(params, state, batch, key):
        def mean(params):
            total, weight, _ = unilm.loss(module, params, batch, key, predicted=0.5)
            return total / weight

        updates, state = optimizer.update(jax.grad(mean)(params), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for number, batch in zip(range(700), batches(tmp_path / "pairs.jsonl"), strict=False):
        params, state = step(params, state, batch, jax.random.key(number))

    seen = dict(pairs(4000, seed=0))
    new = [pair for pair in pairs(400, seed=1) if pair[0] not in seen][:64]
    rows = [[VOCABULARY.cls_id, *VOCABULARY.encode(q), VOCABULARY.sep_id] for q, _ in new]
    sources = np.array([[0] * (7 - len(row)) + row for row in rows])
    settings = GenerationSettings(eos_token_id=VOCABULARY.sep_id)
    model = PretrainedEncoder(module, params, system="unilm", config=CONFIG, generation=settings)
    for way in ({}, {"num_beams": 3}):
        written = model.generate(sources, max_new_tokens=8, **way)[:, 7:]
        ended = [row[: list(row).index(VOCABULARY.sep_id)] for row in written.tolist()]
        answers = [VOCABULARY.decode(row) for row in ended]
        right = np.mean([answer == a for answer, (_, a) in zip(answers, new, strict=True)])
        assert right > 0.9
