"""Decoding as the Transformer's paper has it: its length penalty, and lengths by the input's."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.decoding.settings import GenerationSettings, decoding_request
from t5x_like.pretrained import Pretrained
from t5x_like.systems import transformer

TINY = transformer.SIZES["base"] | {
    **{"vocab_size": 12, "layers": 1, "d_model": 8, "d_ff": 8, "heads": 1, "d_k": 8, "d_v": 8},
}


@functools.cache
def model():
    module = systems.build("transformer", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    params = jax.tree.map(lambda x: x / 2, init(jax.random.key(1)))  # an end is likely enough
    return Pretrained(module, params, system="transformer", config=TINY)


def penalty(**settings):
    wanted = GenerationSettings().override({"num_beams": 4, **settings})
    return decoding_request(wanted, least=0, most=9)["length_penalty"]


def test_the_penalty_is_hugging_faces_unless_the_papers_is_asked_for():
    assert penalty(length_penalty=0.6)(7) == pytest.approx(7**0.6)
    found = penalty(length_penalty=0.6, length_penalty_kind="google_nmt")
    assert [found(length) for length in (1, 7, 25)] == pytest.approx([1, 2**0.6, 5**0.6])


def best(rows, *, divide):
    """The text with the best score among all of at most two tokens, with an end or not."""
    texts = [(1,), *((a, b) for a in range(12) for b in range(12) if a != 1)]
    decoder = np.array([[0, a] for a in range(12)])
    found = []
    for row in rows:
        logits = model()(np.repeat(row[None], 12, 0), decoder_input_ids=decoder).logits
        steps = np.asarray(jax.nn.log_softmax(logits))
        scores = {
            (a, *b): (steps[0, 0, a] + sum(steps[a, 1, list(b)])) / divide(1 + len(b))
            for a, *b in texts
        }
        found.append(max(scores, key=scores.get))
    return found


def test_beams_find_the_best_of_all_texts_under_each_penalty():
    rows = np.random.default_rng(0).integers(2, 12, (6, 5))
    kinds = {
        "power": best(rows, divide=lambda length: length**2.0),
        "google_nmt": best(rows, divide=lambda length: ((5 + length) / 6) ** 2.0),
    }
    assert kinds["power"] != kinds["google_nmt"]
    for kind, expected in kinds.items():
        settings = {"num_beams": 12, "length_penalty": 2.0, "length_penalty_kind": kind}
        out = model().generate(rows, max_new_tokens=2, early_stopping="never", **settings)
        texts = [tuple(row[1:2]) if row[1] == 1 else tuple(row[1:]) for row in out.tolist()]
        assert texts == expected


def test_what_is_written_is_at_most_so_much_longer_than_what_is_read():
    settings = {"eos_token_id": None, "max_extra_tokens": 4}
    rows = np.full((1, 5), 3)
    assert model().generate(rows, **settings).shape == (1, 1 + 5 + 4)
    assert model().generate(rows, max_new_tokens=3, **settings).shape == (1, 1 + 3)
