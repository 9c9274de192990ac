"""Text written by a network whose texts begin with a mark, as BART's do."""

import numpy as np
import pytest

from t5x_like.inference import text_model
from t5x_like.pretrained import from_pretrained
from tests.programs import tiny_encoder

WORDS = ["the", "cat", "sat", "on", "a", "mat"]
BEGIN, END = 2, 3  # [CLS] and [SEP]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.write(tmp_path_factory.mktemp("marked") / "run", "bart", words=WORDS)


def build(folder, *, objective="marked_text_to_text", **decode):
    settings = tiny_encoder.settings("bart")
    settings.data.vocabulary = str(folder / "vocab.txt")
    settings.data.objective = objective
    settings.data.lengths = {"inputs": 16, "targets": 16}
    settings.data.batch_size = 2
    settings.decode = {"max_new_tokens": 6, **decode}
    return text_model.build(from_pretrained(folder), settings)


def test_prompts_and_continuations_begin_and_end_with_their_marks(folder):
    model = build(folder)
    assert model.prompt("the cat") == [BEGIN, 5, 6, END]
    pair = model.pair("the cat", "sat on")
    assert pair.prompt == [BEGIN, 5, 6, END]
    assert pair.continuation == [BEGIN, 7, 8, END]
    assert model.form.start == END
    assert model.prompt(" ".join(WORDS * 9))[0] == BEGIN


def test_other_objectives_begin_with_the_text(folder):
    model = build(folder, objective="text_to_text")
    assert model.prompt("the cat") == [5, 6, END]


def test_what_is_written_is_told_without_its_first_mark(folder):
    model = build(folder, forced_bos_token_id=BEGIN, forced_eos_token_id=END)
    prompts = [model.prompt(text) for text in ("the cat", "a mat", "on")]
    written = model.generate_tokens(prompts)
    assert all(tokens[0] == BEGIN and END not in tokens for tokens in written)
    assert model.text([BEGIN, 5, 6]) == model.text([5, 6]) == "the cat"
    texts = model.generate(["the cat", "a mat", "on"])
    assert texts == [model.text(tokens) for tokens in written]
    scores = model.score([("the cat", "sat on")])
    assert scores[0].tokens == 4
    assert np.isfinite(scores[0].total)
