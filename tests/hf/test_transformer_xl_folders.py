"""Folders of Hugging Face's Transformer-XL: their logits, and documents read with a memory."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from configs import pretrained as configs
from t5x_like import evaluate, from_pretrained, vocabularies
from t5x_like.config import parse
from t5x_like.research.inspection import inspected
from tests.programs import command_flags

GOLDEN = Path(__file__).parents[1] / "golden" / "transformer_xl_folders.npz"
NETWORKS = ("published", "as_wide", "one_table")
# Float32 sums of two frameworks differ in their order, by 1e-6; a wrong distance changes log
# probabilities by 1e-2 and more.
TOLERANCE = 1e-4


@functools.cache
def arrays():
    return dict(np.load(GOLDEN))


def tensors(name):
    prefix = f"{name}/tensors/"
    return {k.removeprefix(prefix): v for k, v in arrays().items() if k.startswith(prefix)}


def write(folder, name, *, copies=False):
    """Write a folder; with `copies` also the tensors that tie the output layer, as old files do."""
    folder.mkdir(exist_ok=True)
    config = json.loads(str(arrays()[f"{name}/config"]))
    (folder / "config.json").write_text(json.dumps(config))
    own = tensors(name)
    if copies:
        for key in arrays()[f"{name}/names"].tolist():
            original = key.replace("crit.out_layers", "transformer.word_emb.emb_layers")
            original = original.replace("crit.out_projs", "transformer.word_emb.emb_projs")
            original = original if original in own else f"transformer.{key.rpartition('.')[2]}"
            if key not in own:
                own[key] = own[original]
    safetensors.numpy.save_file(own, folder / "model.safetensors")
    return folder


def document():
    return [0, *(byte + 3 for byte in str(arrays()["document"]).encode()), 1]


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_the_first_row(tmp_path, name, copies):
    """Before there is a memory, the network's logits are those of a text."""
    model = from_pretrained(write(tmp_path / name, name, copies=copies))
    tokens, row = np.array([document()]), int(arrays()["row"])
    logits = np.float64(model(input_ids=tokens[:, :row]).logits[0])
    found = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    expected = arrays()[f"{name}/log_probs"][:row]
    own = found[np.arange(row), tokens[0, 1 : row + 1]]
    np.testing.assert_allclose(own, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_document_is_read_with_the_memory(tmp_path, name, monkeypatch):
    """`evaluate` gives the total of Hugging Face's class, which reads it in rows with `mems`."""
    write(tmp_path / "model", name)
    text = str(arrays()["document"])
    texts = tmp_path / "texts.jsonl"
    # In a batch with a shorter and a longer document.
    lines = [{"text": one} for one in (text[:12], text, text * 2)]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = configs.get_config("documents")
    settings.initialize = str(tmp_path / "model")
    settings.data.update(
        {
            "vocabulary": "bytes:0",
            "lengths": {"targets": int(arrays()["row"])},
            "batch_size": 8,
        }
    )
    settings.data.settings.files = str(texts)
    settings.evaluate.batches = 0
    settings.evaluate.predictions = str(tmp_path / "predictions.jsonl")
    command_flags.give(monkeypatch, output=str(tmp_path / "evaluation.json"))
    evaluate.main(parse(settings))
    written = Path(settings.evaluate.predictions).read_text()
    found = [json.loads(line) for line in written.splitlines()]
    own = next(row for row in found if row["text"] == text)
    assert own["tokens"] == len(document()) - 1
    total = float(np.sum(arrays()[f"{name}/log_probs"], dtype=np.float64))
    assert own["log_prob"] == pytest.approx(total, abs=len(document()) * TOLERANCE)


def test_it_is_written_as_it_was_read(tmp_path, caplog):
    for name in NETWORKS:
        model = from_pretrained(write(tmp_path / name, name))
        model.save_pretrained(tmp_path / f"{name}_again")
        again = safetensors.numpy.load_file(tmp_path / f"{name}_again" / "model.safetensors")
        own = tensors(name)
        own.pop("transformer.pos_emb.inv_freq")
        assert again.keys() == own.keys()
        for key, tensor in own.items():
            np.testing.assert_array_equal(again[key], tensor)
        written = json.loads((tmp_path / f"{name}_again" / "config.json").read_text())
        read = json.loads(str(arrays()[f"{name}/config"]))
        for key in ("cutoffs", "div_val", "clamp_len", "mem_len", "same_length", "untie_r"):
            assert written[key] == read[key]
        from_pretrained(tmp_path / f"{name}_again")
        assert "without an effect" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_embed": 12}, "d_embed=12; allowed: 24"),
        ({"attn_type": 2}, "attn_type=2; allowed: 0"),
        ({"pre_lnorm": True}, "pre_lnorm=True; allowed: False"),
        ({"tie_projs": [False, False, True]}, r"tie_projs=.*allowed: \[False, True, True\]"),
        ({"cutoffs": "105"}, "cutoffs='105'; allowed: a list of integers"),
        ({"cutoffs": []}, "div_val above 1 and no cutoffs"),
    ],
)
def test_other_networks_are_refused(tmp_path, changes, message):
    folder = write(tmp_path / "model", "published")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_its_words_are_those_of_vocab_txt(tmp_path):
    folder = write(tmp_path / "model", "published")
    (folder / "vocab.txt").write_text("<eos> 12\n<unk> 9\nthe 7\n, 6\ncat 1\n")
    vocabulary = vocabularies.load(folder)
    assert vocabulary.encode("the cat , the <unk>\nA cat") == [2, 4, 3, 2, 1, 0, 1, 4]
    assert vocabulary.decode([2, 4, 0, 3]) == "the cat \n ,"
    assert (vocabulary.eos_id, vocabulary.unk_id, vocabulary.vocab_size) == (0, 1, 5)


def test_its_layers_are_inspected(tmp_path):
    """Its config.json has no longest row, and `inspect` and the page ask for none."""
    folder = write(tmp_path / "model", "published")
    words = ("<eos>", "<unk>", *(f"w{n}" for n in range(257)))
    (folder / "vocab.txt").write_text("\n".join(words))
    model = inspected.load(str(folder))
    tokens = model.read("w3 w4 w5")
    assert tokens[-3:] == [5, 6, 7]
    states = model.of_tokens(tokens)
    assert states.hidden["decoder"].shape == (4, len(tokens), 24)


def test_a_pickle_is_not_read(tmp_path):
    folder = write(tmp_path / "model", "published")
    (folder / "vocab.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match=r"no vocab\.txt .* Its vocab\.pkl is a pickle"):
        vocabularies.load(folder)
    (folder / "vocab.txt").write_text("<eos>\nthe\n")
    with pytest.raises(ValueError, match="lacks the word <unk>"):
        vocabularies.load(folder)
