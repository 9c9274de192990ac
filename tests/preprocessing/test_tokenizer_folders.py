"""Folders in Hugging Face's format: ids, texts and special tokens equal those of transformers 5.24.

`golden/make_tokenizer_folders.py` froze the folders, which have the files of published folders of
each family, and what transformers makes of them.
"""

import json
import lzma
import re
from pathlib import Path

import pytest

from t5x_like import vocabularies
from t5x_like.vocabularies.sentence_piece import SentencePiece

GOLDEN = Path(__file__).parents[1] / "golden"
FROZEN = json.loads(lzma.decompress((GOLDEN / "tokenizer_folders.json.xz").read_bytes()))
FOLDERS = FROZEN["folders"]
# Of `golden/make_skipped_tokens.py`: the ids of some texts, and what they are without those tokens.
SKIPPED = json.loads(lzma.decompress((GOLDEN / "skipped_tokens.json.xz").read_bytes()))
LOWERED = {
    f"{family}/added_json"
    for family in ("albert", "bert", "bert_accents", "deberta_v2_punct", "distilbert", "electra")
}
FAMILIES = sorted({name.partition("/")[0] for name in FOLDERS})


def write(name, path):
    """Write a frozen folder, with what transformers makes of it."""
    for file, number in FOLDERS[name]["files"].items():
        encoding = "latin-1" if file.endswith((".model", ".spm")) else "utf-8"
        (path / file).write_bytes(FROZEN["blobs"][number].encode(encoding))
    return FOLDERS[name]


def change(path, name, **settings):
    """Change settings of a JSON file; None takes a setting away."""
    file = path / name
    stored = json.loads(file.read_text()) if file.exists() else {}
    kept = {key: value for key, value in (stored | settings).items() if value is not None}
    file.write_text(json.dumps(kept))


def frozen_of(family):
    return [name for name in FOLDERS if name.partition("/")[0] == family]


@pytest.mark.parametrize("family", ["bigbird", "xlnet"])
def test_a_model_without_its_folder_is_known_by_its_special_tokens(family, tmp_path):
    expected = write(f"{family}/slow", tmp_path)
    for file in set(tmp_path.iterdir()) - {tmp_path / "spiece.model"}:
        file.unlink()
    for spec in (tmp_path, tmp_path / "spiece.model"):
        vocabulary = vocabularies.load(spec)
        assert vocabulary.vocab_size == expected["size"]
        assert list(map(vocabulary.encode, FROZEN["texts"])) == expected["ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_read_as_transformers_reads_it(family, tmp_path):
    for name in frozen_of(family):
        path = tmp_path / name.partition("/")[2]
        path.mkdir()
        expected = write(name, path)
        vocabulary = vocabularies.load(path)
        # Marian's counts a token once that is a piece and an added token.
        assert vocabulary.vocab_size - expected["size"] == (name == "in_python/marian_added"), name
        rows = zip(FROZEN["texts"], expected["ids"], expected["decoded"], strict=True)
        for text, ids, decoded in rows:
            assert vocabulary.encode(text) == ids, (name, text)
            # Marian's and ByT5's texts end at the end token, and ByT5's show no padding.
            if family != "in_python" or not {0, 1, 2, vocabulary.pad_id} & set(ids):
                assert vocabulary.decode(ids) == decoded, (name, text)
        whole = [*vocabulary.prefix_ids, *vocabulary.encode("one two"), *vocabulary.suffix_ids]
        assert whole == expected["whole"], name
        named = {key: id_ for key, id_ in expected["named"].items() if id_ is not None}
        assert {key: getattr(vocabulary, f"{key}_id") for key in named} == named, name
        assert set(named.values()) <= set(vocabulary.special_ids), name


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_are_skipped_as_transformers_skips_them(family, tmp_path):
    for name in frozen_of(family):
        path = tmp_path / name.partition("/")[2]
        path.mkdir()
        write(name, path)
        vocabulary = vocabularies.load(path)
        for ids, expected in SKIPPED[name]:
            found = vocabulary.decode(ids, skip_special_tokens=True)
            if name in LOWERED:  # the library does not find special tokens with lower-cased names
                shown = re.sub(r"\[(cls|sep|pad|mask|unk)\]", "", expected)
                assert "".join(found.split()) == "".join(shown.split()), (name, ids)
            # Marian's and ByT5's texts end at the first end token; <ORG> and others are special.
            elif family != "in_python" or (
                ids.count(vocabulary.eos_id) == 1 and "<O" not in expected
            ):
                assert found == expected, (name, ids)


def test_sentinels_of_t5_are_special_tokens():
    frozen = FOLDERS["t5/slow"]["files"]["spiece.model"]
    vocabulary = SentencePiece(FROZEN["blobs"][frozen].encode("latin-1"), extra_ids=100)
    for ids, expected in SKIPPED["t5/slow"]:
        if ids.count(vocabulary.eos_id) == 1:
            assert vocabulary.decode(ids, skip_special_tokens=True) == expected


def test_a_file_that_is_named_is_the_only_vocabulary(tmp_path):
    expected = write("t5/added_config", tmp_path)
    for file in ("spiece.model", ""):
        vocabulary = vocabularies.load(tmp_path / file)
        assert [vocabulary.encode(text) for text in FROZEN["texts"]] == expected["ids"]


def test_added_tokens_outside_ascii_come_back_from_bytes(tmp_path):
    """The library's decoder takes their letters for bytes, which Python's GPT-2 did not."""
    write("gpt2/slow", tmp_path)
    size = vocabularies.load(tmp_path).vocab_size
    change(tmp_path, "added_tokens.json", **{"<café>": size, "né": size + 1})
    vocabulary = vocabularies.load(tmp_path)
    text = "a <café> quick né fox"
    assert {size, size + 1} < set(vocabulary.encode(text))
    assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "config", "start"),
    [
        ("t5/json", {}, 0),
        ("bart/slow", {}, 2),
        ("mbart_50/slow", {"bos_token_id": 4, "decoder_start_token_id": None}, 4),
        ("pegasus/slow", {"decoder_start_token_id": 9}, 9),
        ("llama/saved", {}, 1),
        ("other/llama_3", {}, 330),
        ("qwen2/slow", {"bos_token_id": 7}, 7),
        ("gpt2/slow", {}, 330),
    ],
)
def test_the_decoder_begins_with_the_token_of_the_files(name, config, start, tmp_path):
    """As `decoder_start_token_id`, or bos_token_id, of transformers' generation_config."""
    write(name, tmp_path)
    change(tmp_path, "config.json", **config)
    assert vocabularies.load(tmp_path).start_id == start


def damaged(name, tmp_path, change_content):
    write(name, tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    change_content(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))


DAMAGE = [
    # Each ends in a panic of tokenizers 0.23.3, the first of them in the end of the process.
    (
        "other/llama_3",
        lambda content: content["model"].update(continuing_subword_prefix="x"),
        r"continuing_subword_prefix='x', and the merge",
    ),
    (
        "umt5",
        lambda content: content["normalizer"].update(precompiled_charsmap=0),
        "precompiled_charsmap=0; allowed: bytes in base64",
    ),
    (
        "other/llama_3",
        lambda content: content["post_processor"].update(special_tokens={}),
        r"'<\|begin_of_text\|>' in its post_processor, and no such token",
    ),
    ("other/llama_3", lambda content: content.pop("model"), "it has no model with a vocab"),
    (
        "other/llama_3",
        lambda content: content.update(added_tokens=[{"id": 3}]),
        r"added token \{'id': 3\}; allowed: an object",
    ),
    ("t5/saved", lambda content: content["model"].update(vocab=[]), "damaged|pieces|vocab"),
]


@pytest.mark.parametrize(("name", "change_content", "message"), DAMAGE)
def test_a_damaged_tokenizer_is_one_line(name, change_content, message, tmp_path, capfd):
    damaged("other/umt5" if name == "umt5" else name, tmp_path, change_content)
    with pytest.raises(ValueError, match=message) as caught:
        vocabularies.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert capfd.readouterr().err == ""  # a panic writes there


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("tokenizer_config.json", {"eos_token": 3}, "has eos_token=3; allowed: a text"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "the id 'x'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": "a"}}, "without `content`"),
        ("tokenizer_config.json", {"tokenizer_class": "MPNetTokenizer"}, "'MPNetTokenizer' and no"),
        ("tokenizer_config.json", {"tokenizer_class": 3}, "tokenizer_class=3; allowed: the name"),
    ],
)
def test_a_wrong_setting_of_a_tokenizer_is_named(file, settings, message, tmp_path):
    write("bert/slow", tmp_path)
    change(tmp_path, file, **settings)
    with pytest.raises(ValueError, match=message):
        vocabularies.load(tmp_path)


def test_tokens_that_only_the_class_has_need_a_row_of_the_network(tmp_path):
    """GPT-NeoX's class has <|padding|> where the files do not, and transformers adds a row."""
    write("gpt2/slow", tmp_path)
    change(tmp_path, "config.json", model_type="gpt_neox")
    size = len(json.loads((tmp_path / "vocab.json").read_text()))
    assert vocabularies.load(tmp_path).vocab_size == size + 1
    change(tmp_path, "config.json", vocab_size=size)
    assert vocabularies.load(tmp_path).vocab_size == size
