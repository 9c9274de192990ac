"""Vocabularies of this package, written for transformers: ids and texts equal AutoTokenizer's.

`golden/make_saved_tokenizers.py` froze the vocabularies, the files that this package wrote for
them, and what transformers 5.24 makes of these.
"""

import hashlib
import json
import lzma
import unicodedata
from pathlib import Path

import pytest

from t5x_like import vocabularies
from t5x_like.vocabularies import saving
from t5x_like.vocabularies.trainers import train

GOLDEN = Path(__file__).parents[1] / "golden" / "saved_tokenizers.json.xz"
FROZEN = json.loads(lzma.decompress(GOLDEN.read_bytes()))
KINDS, TEXTS = FROZEN["kinds"], FROZEN["texts"]
PIECES = ["unigram", "unigram_bytes", "unigram_kept", "unigram_words", "llama", "mistral", "palm"]
BYTES = ["bytes", "bytes_0", "bytes_decoder"]
# Their names are read as letters here, and as special tokens by transformers.
NAMED = ("<s>", "</s>", "<pad>", "<unk>")
# tokenizer.json lists Python's combining characters: in 3.12 and 3.13 those of Unicode 15, of which
# transformers 5.24 read the frozen texts as it reads the files of 3.11.
WITH_UNICODE_15 = {
    "albert": "b8a500b0201c1bcbf5136d0c5e408e6662b3b84377c9952c59d869e3921b7c29",
    "albert_case": "ee5df326145b7cf6bd02761df1bde0f12025facb28a96213eae25861300917e3",
}
TIED = "xxxxxxxxxxxx"  # several ways to split it are equally likely


def spec_of(name, folder):
    """Write a frozen vocabulary, and return its path or name."""
    frozen = KINDS[name]
    for file, content in frozen["files"].items():
        (folder / file).write_bytes(content.encode("latin-1"))
    return str(folder / frozen["spec"]) if frozen["files"] else frozen["spec"]


def save(name, folder, **config):
    """Write the tokenizer of a frozen vocabulary; return the vocabulary and the new folder."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "out").mkdir(exist_ok=True)
    frozen = KINDS[name]
    spec, config = spec_of(name, folder / "in"), {**frozen["config"], **config}
    (folder / "out" / "config.json").write_text(json.dumps(config))
    network = saving.Network(config, encodes=frozen["encodes"], length=64)
    saving.save(spec, folder / "out", network)
    return vocabularies.load(spec), folder / "out"


def digest(path):
    content = json.dumps(json.loads(path.read_bytes()), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def compared(name):
    """Return the texts that have equal ids, with the ids and decoded texts of transformers."""
    frozen = KINDS[name]
    for text, *row in zip(TEXTS, frozen["ids"], frozen["decoded"], strict=True):
        has_names = name in (*PIECES, *BYTES) and any(one in text for one in NAMED)
        has_sentinels = name in BYTES and "<extra_id_" in text
        if not has_names and not has_sentinels and not (name in PIECES and TIED in text):
            yield text, *row


@pytest.mark.parametrize("name", KINDS)
def test_transformers_reads_the_ids_of_the_vocabulary(name, tmp_path):
    vocabulary, folder = save(name, tmp_path)
    written = {path.name: digest(path) for path in folder.iterdir() if path.name != "config.json"}
    frozen = KINDS[name]["written"]
    if name in WITH_UNICODE_15 and unicodedata.unidata_version > "15":
        frozen = frozen | {"tokenizer.json": WITH_UNICODE_15[name]}
    assert written == frozen, "make_saved_tokenizers.py compares the new files"
    rows = list(compared(name))
    assert len(rows) >= len(TEXTS) - 4
    for text, ids, decoded in rows:
        assert vocabulary.encode(text) == ids, text
        if vocabulary.unk_id not in ids:
            assert vocabulary.decode(ids) == decoded, text


@pytest.mark.parametrize("name", KINDS)
def test_the_written_folder_is_read_again_with_the_same_ids(name, tmp_path):
    vocabulary, folder = save(name, tmp_path)
    again = vocabularies.load(folder)
    frozen = KINDS[name]
    assert [again.encode(text) for text in TEXTS] == frozen["ids"]
    whole = [*again.prefix_ids, *again.encode("one two"), *again.suffix_ids]
    assert whole == frozen["whole"]
    for role in ("vocab_size", "extra_ids", "sentinels", "first_sentinel"):
        assert getattr(again, role) == getattr(vocabulary, role), role
    for role in ("unk_id", "bos_id", "eos_id", "cls_id", "sep_id", "mask_id", "start_id"):
        assert getattr(again, role) == getattr(vocabulary, role), role
    assert again.vocab_size == frozen["size"]


def test_the_tokens_around_a_text_are_those_that_the_network_reads():
    def ends(name):
        return KINDS[name]["whole"][0], KINDS[name]["whole"][-1]

    assert ends("unigram")[1] == 1  # </s> of an encoder-decoder
    assert 1 not in KINDS["unigram_words"]["whole"]  # a decoder continues the text
    assert ends("llama")[0] == 1
    assert ends("wordpiece") == (2, 3)
    assert ends("byte_bpe") == (0, 2)
    pair = KINDS["wordpiece"]["pair"]
    assert pair["token_type_ids"] == sorted(pair["token_type_ids"])
    assert sum(pair["token_type_ids"]) > 0
    assert "token_type_ids" not in KINDS["unigram"]["pair"]
    assert {kind["length"] for kind in KINDS.values()} == {64}


@pytest.mark.parametrize("name", ["unigram", "albert"])
def test_decomposed_letters_are_split_as_by_sentencepiece(name, tmp_path):
    vocabulary, folder = save(name, tmp_path)
    again = vocabularies.load(folder)
    for text in TEXTS:
        for form in ("NFD", "NFKD"):
            letters = unicodedata.normalize(form, text)
            if TIED not in text and not any(one in letters for one in NAMED):
                assert again.encode(letters) == vocabulary.encode(letters), letters


def test_whole_words_have_no_tokenizer_in_transformers(tmp_path):
    train(["a few words here"], vocab_size=5, output=tmp_path / "vocab.txt", kind="words")
    out = tmp_path / "out"
    out.mkdir()
    network = saving.Network({"model_type": "bert"}, encodes=True)
    with pytest.raises(ValueError, match="no tokenizer for the vocabulary WordVocabulary") as found:
        saving.save(str(tmp_path / "vocab.txt"), out, network)
    assert "\n" not in str(found.value)
    assert list(out.iterdir()) == []


def test_a_network_whose_class_transformers_does_not_look_up_is_refused(tmp_path):
    """Transformers reads every tokenizer of a Qwen2 by the rules of Qwen2."""
    with pytest.raises(ValueError, match="with other ids, in a folder with model_type='qwen2'"):
        save("gpt2_bpe", tmp_path, model_type="qwen2")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["config.json"]


def test_the_folder_of_the_vocabulary_itself_stays_as_it_is(tmp_path):
    spec = spec_of("wordpiece", tmp_path)
    network = saving.Network({"model_type": "bert"}, encodes=True)
    with pytest.raises(ValueError, match=r"the folder has the vocabulary .*: choose another"):
        saving.save(spec, tmp_path, network)
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]


def test_files_of_another_tokenizer_are_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    for name in ("added_tokens.json", "special_tokens_map.json"):
        (tmp_path / "out" / name).write_text('{"x": 3}')
    (tmp_path / "out" / "notes.txt").write_text("mine")
    _, folder = save("unigram", tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "notes.txt",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
