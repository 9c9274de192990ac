"""Beam search, greedy decoding and filters equal Hugging Face's on lookup-table models."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from t5x_like.decoding import (
    PowerPenalty,
    Progress,
    TopK,
    TopP,
    beam_search,
    generate,
    make_filters,
)

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "beam_search.npz")
PAD, BEAM, GREEDY = int(GOLDEN["pad_id"]), GOLDEN["beam/settings"], GOLDEN["greedy/settings"]


def rules(settings):
    return make_filters(
        no_repeat_ngram_size=settings.get("no_repeat_ngram_size"),
        min_new_tokens=settings.get("min_new_tokens", 0),
        eos_ids=settings["eos_token_id"],
    )


@pytest.mark.parametrize("number", range(len(BEAM)), ids=list(BEAM))
def test_beam_search_equals_hugging_face(table_model, number):
    settings = json.loads(str(BEAM[number]))
    expected, scores = GOLDEN[f"beam/{number}/tokens"], GOLDEN[f"beam/{number}/scores"]
    for table, tokens, score in zip(GOLDEN["tables"], expected, scores, strict=True):
        found = beam_search(
            *table_model(table, GOLDEN["starts"]),
            beams=settings["num_beams"],
            returned=settings["num_beams"],
            max_new_tokens=tokens.shape[-1],
            eos_ids=settings["eos_token_id"],
            pad_id=PAD,
            length_penalty=PowerPenalty(settings["length_penalty"]),
            early_stopping=settings["early_stopping"],
            filters=rules(settings),
        )
        np.testing.assert_array_equal(found.tokens, tokens)
        # Sums of at most 8 float32 log p, each rounded alike up to the last bit.
        np.testing.assert_allclose(found.scores, score, rtol=2e-6)
        np.testing.assert_array_equal(found.lengths, (tokens != PAD).sum(-1))


@pytest.mark.parametrize("number", range(len(GREEDY)), ids=list(GREEDY))
def test_greedy_decoding_equals_hugging_face(table_model, number):
    settings = json.loads(str(GREEDY[number]))
    for table, tokens in zip(GOLDEN["tables"], GOLDEN[f"greedy/{number}/tokens"], strict=True):
        found = generate(
            *table_model(table, GOLDEN["starts"]),
            max_new_tokens=tokens.shape[-1],
            eos_ids=settings["eos_token_id"],
            pad_id=PAD,
            filters=rules(settings),
        )
        np.testing.assert_array_equal(found.tokens, tokens)


def test_the_golden_file_has_rows_that_end_and_rows_that_do_not():
    lengths = (GOLDEN["beam/0/tokens"] != PAD).sum(-1)
    assert lengths.min() < 4
    assert lengths.max() == GOLDEN["beam/0/tokens"].shape[-1]


@pytest.mark.parametrize(("name", "make"), [("k", TopK), ("p", TopP)])
def test_top_k_and_top_p_keep_the_tokens_that_hugging_face_keeps(name, make):
    logits = GOLDEN["filters/logits"]
    progress = Progress(np.int32(0), np.zeros((len(logits), 1), np.int32))
    for setting, kept in zip(
        GOLDEN[f"filters/top_{name}"].tolist(), GOLDEN[f"filters/kept_{name}"], strict=True
    ):
        filtered = jax.jit(make(setting))(logits, progress)
        np.testing.assert_array_equal(np.isfinite(filtered), kept)
