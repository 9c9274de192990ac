"""Folders are written with their tokenizer: copied from a folder, or made from a vocabulary."""

import json

import pytest

from t5x_like import convert, vocabularies
from t5x_like.pretrained import from_pretrained
from t5x_like.pretrained.model import Pretrained
from t5x_like.vocabularies import chat, saving
from tests.programs import tiny_encoder

TEXT = "the cat, caf\u00e9 [MASK] 12  and"
TOKENIZER = {
    "tokenizer_config.json": b'{"tokenizer_class": "T5Tokenizer", "auto_map": {"AutoModel": "x"}}',
    "spiece.model": b"\x00pieces\xff",
    "special_tokens_map.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
}
OTHERS = {"x.py": b"raise SystemExit", "README.md": b"mine", "notes.txt": b"mine"}


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)


def tokenizer_of(folder):
    others = ("config.json", "generation_config.json", "model.safetensors", "README.md")
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name not in others}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return tiny_encoder.write(folder, "bert", words=["the", "cat", "##s", "cafe", "12", ","])


def test_the_tokenizer_of_a_folder_is_copied_unchanged(v1_1, tmp_path):
    folder, out = v1_1.write(tmp_path / "in"), tmp_path / "out"
    write(folder, {**TOKENIZER, **OTHERS})
    (tmp_path / "blob").write_bytes(b"{}")
    (folder / "added_tokens.json").symlink_to(tmp_path / "blob")  # as in a cache of the hub
    out.mkdir()
    (out / "tokenizer.json").write_text("of an earlier model")
    from_pretrained(folder).save_pretrained(out)
    assert tokenizer_of(out) == {**TOKENIZER, "added_tokens.json": b"{}"}
    assert not (out / "added_tokens.json").is_symlink()


def test_it_comes_back_from_a_checkpoint(v1_1, tmp_path):
    write(v1_1.write(tmp_path / "in"), TOKENIZER)
    for source, target, form in (("in", "ours", "t5x_like"), ("ours", "out", "hf")):
        flags = {"from": tmp_path / source, "to": tmp_path / target, "format": form}
        convert.main([f"--{name}={value}" for name, value in flags.items()])
    assert tokenizer_of(tmp_path / "out") == TOKENIZER


def test_a_folder_that_is_saved_in_place_keeps_its_tokenizer(v1_1, tmp_path):
    folder = v1_1.write(tmp_path)
    write(folder, TOKENIZER)
    from_pretrained(folder).save_pretrained(folder)
    assert tokenizer_of(folder) == TOKENIZER


def test_the_vocabulary_of_a_run_becomes_a_tokenizer(run, tmp_path):
    convert.main([f"--from={run}", f"--to={tmp_path / 'out'}"])
    assert tokenizer_of(tmp_path / "out").keys() == {"tokenizer.json", "tokenizer_config.json"}
    original, written = (vocabularies.load(one) for one in (run / "vocab.txt", tmp_path / "out"))
    assert written.encode(TEXT) == original.encode(TEXT)
    assert written.decode(original.encode(TEXT)) == original.decode(original.encode(TEXT))
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 64
    assert "token_type_ids" in settings["model_input_names"]
    assert (settings["mask_token"], settings["pad_token"]) == ("[MASK]", "[PAD]")


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ({"model_type": "albert", "type_vocab_size": 2}, True),
        ({"model_type": "xlnet"}, True),
        ({"model_type": "roberta", "type_vocab_size": 1}, False),
    ],
)
@pytest.mark.parametrize("settings", [None, {"do_lower_case": True}])
def test_a_copied_tokenizer_is_asked_for_the_token_types_that_the_network_reads(
    model, asks, settings, tmp_path
):
    # The classes of ALBERT and XLNet in transformers 5.24 return none by themselves.
    source, folder = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    folder.mkdir()
    write(source, {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n"})
    (source / "config.json").write_text(json.dumps(model))
    if settings is not None:
        (source / "tokenizer_config.json").write_text(json.dumps(settings))
    saving.save(str(source), folder, saving.Network(config=model, encodes=True))
    assert (folder / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()
    file = folder / "tokenizer_config.json"
    written = json.loads(file.read_text()) if file.exists() else None
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    assert written == ({**(settings or {}), **names} if asks else settings)


def test_a_tokenizer_that_was_written_is_copied_from_then_on(run, tmp_path):
    from_pretrained(run).save_pretrained(tmp_path / "one")
    from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    assert tokenizer_of(tmp_path / "one") == tokenizer_of(tmp_path / "two") != {}


def test_a_vocabulary_that_is_gone_is_one_line(run, tmp_path, caplog):
    model = from_pretrained(run)
    model.vocabulary = str(tmp_path / "gone.model")
    model.save_pretrained(tmp_path / "out")
    (record,) = caplog.records
    assert "no tokenizer is written: vocabulary=" in record.getMessage()
    assert "does not exist" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert tokenizer_of(tmp_path / "out") == {}
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_model_without_a_known_vocabulary_has_no_tokenizer(run, tmp_path, caplog):
    model = from_pretrained(run)
    new = Pretrained(model.module, model.params, system=model.system, config=model.config)
    new.save_pretrained(tmp_path / "out")
    assert tokenizer_of(tmp_path / "out") == {}
    assert caplog.records == []


def test_a_run_is_written_with_a_model_card_that_replaces_no_other(run, tmp_path):
    model, card = from_pretrained(run), tmp_path / "README.md"
    model.save_pretrained(tmp_path)
    assert "BertForPreTraining.from_pretrained" in card.read_text()
    card.write_text("mine")
    model.save_pretrained(tmp_path)
    assert card.read_text() == "mine"
    from_pretrained(tmp_path).save_pretrained(tmp_path / "without_run")
    assert not (tmp_path / "without_run" / "README.md").exists()


def test_the_chat_template_of_a_run_is_written_in_jinja(run, tmp_path):
    model = from_pretrained(run)
    model.card.settings["data"]["settings"] = {"template": "plain"}
    model.save_pretrained(tmp_path)
    written = (tmp_path / "chat_template.jinja").read_text()
    assert written == chat.find_template("plain").jinja
