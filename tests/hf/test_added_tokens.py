"""Tokens that are added to a model: ids and logits of transformers, new rows, and tasks by tokens.

`golden/make_added_tokens.py` froze what transformers 5.23 makes of the folders that
`programs/added_tokens.py` writes.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from configs import gpt2
from t5x_like import convert, evaluate, infer, train, vocabularies
from t5x_like.config import parse
from t5x_like.pretrained import from_pretrained, new_rows
from t5x_like.systems import gpt
from t5x_like.vocabularies import new_tokens
from tests.programs import added_tokens, command_flags, tiny_writer

GOLDEN = Path(__file__).parents[1] / "golden" / "added_tokens.json"
FROZEN = json.loads(GOLDEN.read_text("utf-8"))
STEP = 7
# Float32 sums of two frameworks differ in their order.
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", FROZEN["folders"])
def test_transformers_reads_the_new_tokens_with_the_same_ids(name, tmp_path):
    vocabulary = vocabularies.load(added_tokens.write(name, tmp_path))
    frozen = FROZEN["folders"][name]
    assert [vocabulary.encode(text) for text in FROZEN["texts"]] == frozen["ids"]
    assert vocabulary.vocab_size == frozen["size"]
    new = [vocabulary.encode(token)[0] for token in added_tokens.TOKENS]
    assert set(new) <= set(vocabulary.special_ids)
    assert vocabulary.decode(new, skip_special_tokens=True) == ""


def test_the_logits_of_a_model_with_more_rows_are_those_of_transformers(tmp_path):
    frozen = FROZEN["folders"][added_tokens.MODEL]
    model = from_pretrained(added_tokens.write(added_tokens.MODEL, tmp_path))
    assert (
        model.config["vocab_size"] == 359 + len(added_tokens.MORE) > tiny_writer.TINY["vocab_size"]
    )
    logits = np.ravel(model(np.array(frozen["ids"][:1])).logits)[::STEP]
    np.testing.assert_allclose(logits, frozen["logits"], atol=TOLERANCE, rtol=0)


# Tied and untied output layers, with and without a bias; a table narrower than the model.
SYSTEMS = {
    "gpt2": {},
    "llama": {},
    "gpt_j": {"rotary_width": 8},
    "gpt_neox": {},
    "opt": {"d_embedding": 16, "post_norm": True},
    "mixtral": {},
    "t5": {},
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("number", [3, 40])
def test_a_new_token_has_the_mean_of_all_rows(system, number, tmp_path):
    made = tiny_writer.settings(system, **SYSTEMS[system])
    model = from_pretrained(tiny_writer.write(tmp_path / "run", made))
    first = vocabularies.load("bytes").vocab_size
    more = new_rows.with_rows(model, first=first, number=number)
    assert more.config["vocab_size"] == max(384, first + number)
    tokens = {"input_ids": np.array([[5, 8, 70, 4]])}
    if system == "t5":
        tokens["decoder_input_ids"] = np.array([[0, 9, 11]])
    before, after = model(**tokens).logits, more(**tokens).logits
    # The same sums, in a product of another width.
    tolerance = {"rtol": 1e-5, "atol": 1e-4}
    np.testing.assert_allclose(after[..., :first], before[..., :first], **tolerance)
    # Logits are linear in the rows of the output layer.
    mean = jnp.mean(before[..., :first], axis=-1, keepdims=True)
    new = after[..., first : first + number]
    np.testing.assert_allclose(new, jnp.broadcast_to(mean, new.shape), **tolerance)
    left = after[..., first + number :]
    np.testing.assert_allclose(left, before[..., first + number :], **tolerance)


WORDS = {"one": ("un", "eins"), "two": ("deux", "zwei"), "three": ("trois", "drei")}
LANGUAGES = ("<to-fr>", "<to-de>")


@pytest.mark.usefixtures("one_device")
def test_a_token_at_the_end_of_the_inputs_names_the_task(tmp_path, monkeypatch):
    tiny_writer.write(tmp_path / "plain", tiny_writer.settings("gpt2"), scale=1.0)
    convert.main(
        [f"--from={tmp_path / 'plain'}", f"--to={tmp_path / 'tasks'}", "--tokens", *LANGUAGES]
    )
    rows = [
        {"inputs": f"{word} {token}", "targets": target}
        for word, targets in WORDS.items()
        for token, target in zip(LANGUAGES, targets, strict=True)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = gpt2.get_config("fine_tuning")
    settings.initialize, settings.workdir = str(tmp_path / "tasks"), str(tmp_path / "run")
    names = {"inputs": "inputs", "targets": "targets"}
    settings.data.settings = {"files": str(file), "validation_files": str(file), **names}
    settings.data.lengths = {"inputs": 12, "targets": 8}
    settings.data.batch_size = 6
    settings.data.shards = 1
    settings.train.steps = 120
    settings.optimizer.learning_rate = 1e-2
    settings.decode.max_new_tokens = 8
    train.main(parse(settings))
    command_flags.give(monkeypatch)
    evaluate.main(parse(settings))
    [measured] = json.loads((tmp_path / "run" / "evaluation.json").read_text())["tasks"].values()
    assert measured["generation/exact_match"] == 1
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("".join(f"two {token}\n" for token in LANGUAGES))
    command_flags.give(monkeypatch, input=str(source), output=str(out))
    infer.main(parse(settings))
    found = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    assert found == list(WORDS["two"])


@pytest.mark.parametrize("token", ["", " <a>", "<a>\n"])
def test_a_token_without_text_or_with_blanks_is_refused(token):
    with pytest.raises(ValueError, match="is empty or has blanks at its ends"):
        new_tokens.check(["<b>", token], vocabularies.load("bytes"))


def test_a_vocabulary_without_a_tokenizer_file_gets_no_tokens(tmp_path):
    """Bytes of an encoder-decoder are written as a ByT5Tokenizer, which has no tokenizer.json."""
    model = from_pretrained(tiny_writer.write(tmp_path / "run", tiny_writer.settings("t5")))
    with pytest.raises(ValueError, match=r"cannot be added to ByteTokens.* has no tokenizer.json"):
        new_rows.save_with_tokens(model, tmp_path / "out", ["<to-fr>"])
    assert not (tmp_path / "out").exists()


def test_a_model_whose_vocabulary_is_not_known_gets_no_tokens(tmp_path):
    model = from_pretrained(tiny_writer.write(tmp_path / "run", tiny_writer.settings("gpt2")))
    model.vocabulary = ""
    with pytest.raises(ValueError, match="the model's vocabulary is not known"):
        new_rows.save_with_tokens(model, tmp_path / "out", ["<to-fr>"])
    assert not (tmp_path / "out").exists()


# Settings that the LSTM does not read have their defaults.
LSTM = {name: gpt.SIZES["lstm"][name] for name in ("layers", "d_ff", "heads", "positions")}


@pytest.mark.parametrize(
    ("system", "settings"), [("gpt3", {}), ("palm", {}), ("gpt", {"lstm": 7, **LSTM})]
)
def test_networks_that_hugging_face_lacks_get_tokens_in_a_checkpoint(system, settings, tmp_path):
    """Their vocabulary is read as transformers reads GPT-2's folder with these bytes and tokens."""
    made = tiny_writer.settings(system, **settings)
    run, out = tiny_writer.write(tmp_path / "run", made), tmp_path / "out"
    flags = [f"--from={run}", f"--to={out}", "--format=t5x_like"]
    convert.main([*flags, "--tokens", *added_tokens.TOKENS])
    before, after = from_pretrained(run), from_pretrained(out)
    frozen, vocabulary = FROZEN["folders"]["bytes_decoder"], vocabularies.load(after.vocabulary)
    assert [vocabulary.encode(text) for text in FROZEN["texts"]] == frozen["ids"]
    first = vocabularies.load("bytes").vocab_size
    tokens = np.array([[5, 8, 70, 4]])
    one, two = before(tokens).logits, after(tokens).logits
    np.testing.assert_allclose(two[..., :first], one[..., :first], rtol=1e-5, atol=1e-4)
    mean = jnp.mean(one[..., :first], axis=-1)
    np.testing.assert_allclose(two[..., first], mean, rtol=1e-5, atol=1e-4)


def test_a_token_that_a_checkpoint_has_is_refused_before_it_is_written(tmp_path):
    run = tiny_writer.write(tmp_path / "run", tiny_writer.settings("gpt2"))
    with pytest.raises(ValueError, match="has the token '</s>' already, with id 1"):
        new_rows.with_tokens(from_pretrained(run), tmp_path / "out" / "vocabulary", ["</s>"])
    assert not (tmp_path / "out").exists()
