"""N-grams of a prompt are not repeated, as in transformers, and positions end with their table."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like.pretrained import from_pretrained

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FROZEN = json.loads((GOLDEN / "prompt_ngrams.json").read_text())  # make_prompt_ngrams.py


@pytest.fixture(scope="module", params=["gpt2", "t5_v1_0"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name, tmp_path_factory):
    return load(name, tmp_path_factory.mktemp(name))


def load(name, folder):
    arrays = np.load(GOLDEN / f"{name}.npz")
    weights = {k.removeprefix("weights/"): arrays[k] for k in arrays if k.startswith("weights/")}
    save_file(weights, folder / "model.safetensors")
    for file in ("config.json", "generation_config.json"):
        (folder / file).write_text(str(arrays[file]))
    return from_pretrained(folder)


@pytest.mark.parametrize("number", range(len(FROZEN["settings"])))
def test_no_n_gram_of_the_prompt_is_generated_again(name, model, number):
    prompts = np.array(FROZEN["prompts"])
    found = model.generate(
        prompts,
        prompts != 0,
        max_new_tokens=FROZEN["max_new_tokens"],
        eos_token_id=None,
        **FROZEN["settings"][number],
    )
    np.testing.assert_array_equal(found, FROZEN[name][number])


def test_padding_that_does_not_count_leaves_a_row_as_it_is_without_padding(tmp_path):
    model = load("gpt2", tmp_path)
    row = np.array([[0, 5, 9, 5, 0, 0, 5]])
    request = {"max_new_tokens": 8, "eos_token_id": None, "no_repeat_ngram_size": 1}
    alone = model.generate(row[:, 1:4], **request)[:, 3:]
    padded = np.concatenate([np.zeros((1, 4), int), row[:, 1:4]], axis=1)
    mask = np.array([[0] * 4 + [1] * 3])
    found = model.generate(padded, mask, padding_counts=False, **request)[:, 7:]
    np.testing.assert_array_equal(found, alone)


def test_text_beyond_the_table_of_positions_is_refused_with_the_numbers(tmp_path):
    model = load("gpt2", tmp_path)  # of 40 positions
    row = np.array([[0, 0, 5, 9, 7]])
    # transformers counts the positions of real tokens, and never reads the last one.
    assert model.generate(row, row > 0, max_new_tokens=38, eos_token_id=None).shape == (1, 43)
    with pytest.raises(ValueError, match=r"max_new_tokens=39 after a prompt of 3 .* 41 .* has 40"):
        model.generate(row, row > 0, max_new_tokens=39)
    with pytest.raises(ValueError, match="41 tokens are more than the 40 positions"):
        model(np.ones((1, 41), int))


def test_both_sides_of_an_encoder_decoder_have_their_tables(tmp_path):
    model = load("bart", tmp_path)
    most = model.config["positions"]
    with pytest.raises(ValueError, match=rf"max_new_tokens={most + 1} .* has {most}"):
        model.generate(np.full((1, 4), 5), max_new_tokens=most + 1)
    for source, target in ((most + 1, 4), (4, most + 1)):
        with pytest.raises(ValueError, match=f"{most + 1} tokens are more than the {most}"):
            model(np.full((1, source), 5), decoder_input_ids=np.full((1, target), 5))
    with pytest.raises(ValueError, match=f"{most + 1} tokens are more than the {most}"):
        model.generate(np.full((1, most + 1), 5), max_new_tokens=2)
