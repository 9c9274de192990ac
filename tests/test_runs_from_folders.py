"""Runs that start from folders as published, from their files to the folder out."""

import dataclasses
import functools
import importlib.util
import json
import pathlib

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from t5x_like import train
from t5x_like.config import parse
from t5x_like.experiment import completion, model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained import from_pretrained
from t5x_like.vocabularies import trainers
from t5x_like.vocabularies.sentence_piece import SentencePiece
from tests.golden import drawn_weights
from tests.programs import tiny_writer, xlm_r

ROOT = pathlib.Path(__file__).parents[1]
WORDS = ["good", "bad", "it", "was", "very"]


def config_file(name):
    spec = importlib.util.spec_from_file_location(f"config_{name}", ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


def folder_of(name, path):
    """The folder of PyTorch's in tests/golden/mutations.npz, without a tokenizer."""
    stored = np.load(ROOT / "tests" / "golden" / "mutations.npz")[f"{name}/folder.json"]
    stored = json.loads(str(stored))
    path.mkdir()
    (path / "config.json").write_text(json.dumps(stored["config"]))
    tensors = {key: drawn_weights.draw(key, shape) for key, shape in stored["tensors"].items()}
    save_file(tensors, path / "model.safetensors")
    return path


def xlm_roberta(path):
    folder = folder_of("xlm_roberta", path / "folder")
    (folder / "sentencepiece.bpe.model").write_bytes(b"under other ids")
    xlm_r.write_tokenizer(folder, words=WORDS)
    rows = [{"text_a": f"it was {word}", "label": word} for word in WORDS[:2]] * 16
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = config_file("fine_tuning")("classification")
    made.data.settings.train = made.data.settings.validation = str(path / "rows.jsonl")
    made.data.lengths.inputs = 12
    return made, folder


def t5(name, path):
    folder = folder_of(name, path / "folder")
    texts = [f"it was {word} and {word}" for word in WORDS] * 20
    trainers.train(texts, vocab_size=20, output=path / "spiece.model")
    own = (path / "spiece.model").read_bytes()
    (folder / "spiece.model").write_bytes(SentencePiece(own, extra_ids=5).model)  # as mT5's
    return pairs(path), folder


def write_tokenizer(folder, pieces, *, first):
    """A tokenizer.json whose ids begin with `first`, 41 of them."""
    names = [*first, *(f"\u2581{word}" for word in pieces)]
    names += [f"piece{n}" for n in range(41 - len(names))]
    model = tokenizers.models.Unigram([(name, -1.0) for name in names], first.index("<unk>"))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens(first)
    tokenizer.save(str(folder / "tokenizer.json"))


def pegasus(path):
    folder = folder_of("pegasus", path / "folder")
    write_tokenizer(folder, WORDS, first=["<pad>", "</s>", "<unk>"])
    return pairs(path), folder


def mbart(path):
    folder = folder_of("mbart", path / "folder")
    write_tokenizer(folder, WORDS, first=["<s>", "<pad>", "</s>", "<unk>", "<mask>", "de_DE"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decoder_start_token_id": 5}))
    return pairs(path), folder


def pairs(path):
    rows = [{"inputs": f"it was {word}", "targets": word} for word in WORDS] * 16
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = config_file("t5")("fine_tuning")
    made.data.settings = {
        "files": str(path / "rows.jsonl"),
        "inputs": "inputs",
        "targets": "targets",
        "held_out": 0.2,
    }
    made.data.lengths = {"inputs": 16, "targets": 12}
    made.evaluate.measures.generation.every, made.checkpoint.best = 0, ""
    return made


FOLDERS = {
    "xlm-roberta": xlm_roberta,
    "mt5": functools.partial(t5, "mt5"),
    "umt5": functools.partial(t5, "umt5"),
    "pegasus": pegasus,
    "mbart": mbart,
}
STARTS = {"mt5": 0, "umt5": 0, "pegasus": 0, "mbart": 5}


def decoder(name, path):
    folder = folder_of(name, path / "folder")
    xlm_r.write_tokenizer(folder, words=WORDS)
    rows = [{"prompt": f"it was {word}", "response": word} for word in WORDS] * 16
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = config_file("instructgpt")(f"sft:{folder}")
    made.data.settings.train = str(path / "rows.jsonl")
    return made, folder


DECODERS = ("mixtral", "opt", "opt_350m", "gpt_neox", "gptj")


def settings(model_type, path, **changes):
    made, folder = (
        decoder(model_type, path) if model_type in DECODERS else FOLDERS[model_type](path)
    )
    made.initialize, made.workdir = str(folder), str(path / "run")
    made.data.batch_size, made.train.steps, made.train.log_every = 8, 2, 1
    made.evaluate.every = 0
    made.update_from_flattened_dict(changes)
    return made, folder


@pytest.mark.parametrize("model_type", ["xlm-roberta", "mt5"])
def test_a_run_starts_with_the_weights_and_the_tokens_of_the_folder(model_type, tmp_path):
    made, folder = settings(model_type, tmp_path)
    completed = completion.complete(of_config(made))
    assert completed.settings.system == {"xlm-roberta": "roberta", "mt5": "t5"}[model_type]
    assert completed.settings.data.vocabulary == str(folder)
    params = model_side.build(completed).initial_state().params
    expected = from_pretrained(folder).params
    parts = expected.keys() - {"head"}
    assert parts
    for part in parts:
        jax.tree.map(np.testing.assert_array_equal, params[part], expected[part])


@pytest.mark.parametrize("model_type", STARTS)
def test_the_decoder_begins_as_the_folder_s_does(model_type, tmp_path):
    made, folder = settings(model_type, tmp_path)
    completed = completion.complete(of_config(made))
    assert completed.parts[0].text.converter.start == STARTS[model_type]
    config = json.loads((folder / "config.json").read_text())
    assert config["decoder_start_token_id"] == STARTS[model_type]
    data = dataclasses.replace(completed.settings.data, converter_settings={"start": 3})
    assert completed.replace(data=data).parts[0].text.converter.start == 3


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [*FOLDERS, *DECODERS])
def test_a_run_trains_and_is_written_under_the_folder_s_model_type(model_type, tmp_path):
    made, folder = settings(model_type, tmp_path)
    train.main(parse(made))
    made.train.steps = 3
    train.main(parse(made))  # resumed
    from_pretrained(tmp_path / "run").save_pretrained(tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert found["model_type"] == json.loads((folder / "config.json").read_text())["model_type"]
    before, after = (load_file(one / "model.safetensors") for one in (folder, tmp_path / "out"))
    shared = before.keys() & after.keys()
    assert len(shared) > 20
    assert any(not np.array_equal(before[name], after[name]) for name in shared)


def test_a_run_whose_vocabulary_has_moved_says_which_ids_special_tokens_have(tmp_path, caplog):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    made = tiny_writer.settings("gpt2")
    made.data.vocabulary = str(vocabulary)
    made.model.vocab_size = 10
    run = tiny_writer.write(tmp_path / "run", made)
    assert from_pretrained(run).generation.eos_token_id == 3
    assert not caplog.text
    vocabulary.rename(tmp_path / "moved.txt")
    assert from_pretrained(run).generation.eos_token_id == 1
    assert "the vocabulary cannot be read, so special tokens have T5's ids" in caplog.text
