"""Training WordPiece, byte-level BPE and ALBERT's pieces: merges made by hand, repeatability."""

import json
import subprocess
import sys

import pytest

from t5x_like import vocabularies
from t5x_like.vocabularies.trainers import KINDS, train

TEXTS = [f"The value of item {n} is {n * n}, and its name is Café number {n}." for n in range(200)]
SIZES = {
    "unigram": 70,
    "albert": 70,
    "wordpiece": 110,
    "words": 300,
    "byte_bpe": 300,
    "gpt2_bpe": 290,
    "gpt_bpe": 110,
    "llama": 292,
    "palm": 292,
}
BPE = ("byte_bpe", "gpt2_bpe", "gpt_bpe")
FILES = {kind: ["merges.txt", "vocab.json"] for kind in BPE}


def output(kind, folder):
    names = {"byte_bpe": "bytes", "gpt2_bpe": "gpt2", "gpt_bpe": "gpt"}
    names |= dict.fromkeys(("wordpiece", "words"), "vocab.txt")
    return folder / names.get(kind, "some.model")


def contents(path):
    return {one.name: one.read_bytes() for one in (path.iterdir() if path.is_dir() else [path])}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_again_with_the_size_that_was_asked_for(kind, tmp_path):
    path = output(kind, tmp_path)
    train(TEXTS, vocab_size=SIZES[kind], output=path, kind=kind)
    vocabulary = vocabularies.load(path, sentinels=0)
    assert vocabulary.vocab_size == SIZES[kind]
    assert vocabulary.unk_id not in vocabulary.encode("The value of item 7")
    assert sorted(contents(path)) == FILES.get(kind, [path.name])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_documents_give_the_same_bytes(kind, tmp_path):
    first, second = output(kind, tmp_path / "a"), output(kind, tmp_path / "b")
    for path in (first, second):
        train(iter(TEXTS), vocab_size=SIZES[kind], output=path, kind=kind)
    assert contents(first) == contents(second)


@pytest.mark.slow
def test_another_process_gives_the_same_bytes(tmp_path):
    # The library `tokenizers` orders its tables at random in each process.
    for kind in ("wordpiece", "byte_bpe"):
        train(TEXTS, vocab_size=SIZES[kind], output=output(kind, tmp_path), kind=kind)
    made = contents(tmp_path / "vocab.txt") | contents(tmp_path / "bytes")
    program = f"""
from pathlib import Path
from t5x_like.vocabularies.trainers import train
train({TEXTS!r}, vocab_size=110, output=Path({str(tmp_path)!r}, "vocab.txt"), kind="wordpiece")
train({TEXTS!r}, vocab_size=300, output=Path({str(tmp_path)!r}, "bytes"), kind="byte_bpe")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert contents(tmp_path / "vocab.txt") | contents(tmp_path / "bytes") == made


def test_wordpieces_are_special_tokens_characters_and_the_most_frequent_merges(tmp_path):
    # 5 + 2 x 3 (a, b, c) pieces; then of "abc" x 3, "bc" x 2 and "ab" x 2: a ##b 5 times (before
    # ##b ##c 3 times and b ##c twice), then ab ##c 3 times.
    texts = ["abc Abc ábc", "bc\tBC", "ab-ab", "\u0007"]
    train(
        texts,
        vocab_size=13,
        output=tmp_path / "vocab.txt",
        kind="wordpiece",
        character_coverage=0.8,
    )
    pieces = (tmp_path / "vocab.txt").read_text("utf-8").split()
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert pieces == [*special_tokens, "a", "b", "c", "##a", "##b", "##c", "ab", "abc"]


def test_case_and_accents_can_be_kept(tmp_path):
    train(TEXTS, vocab_size=110, output=tmp_path / "vocab.txt", kind="wordpiece", keep_case=True)
    vocabulary = vocabularies.load(tmp_path / "vocab.txt")
    assert vocabulary.decode(vocabulary.encode("The Café")) == "The Café"
    train(TEXTS, vocab_size=110, output=tmp_path / "vocab.txt", kind="wordpiece")
    vocabulary = vocabularies.load(tmp_path / "vocab.txt")
    assert vocabulary.decode(vocabulary.encode("The Café")) == "the cafe"


def test_bytes_are_merged_across_no_word_and_the_mask_is_last(tmp_path):
    # 5 special tokens, 256 bytes; of "ab" x 2 and " ab" x 4: a b 6 times,
    # then the blank with it 4 times.
    train(["ab ab ab", "ab ab ab"], vocab_size=263, output=tmp_path / "b", kind="byte_bpe")
    merges = (tmp_path / "b" / "merges.txt").read_text("utf-8").splitlines()
    assert merges == ["#version: 0.2", "a b", "\u0120 ab"]
    ids = json.loads((tmp_path / "b" / "vocab.json").read_text("utf-8"))
    by_id = sorted(ids, key=ids.get)
    assert by_id[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert by_id[-3:] == ["ab", "\u0120ab", "<mask>"]
    assert sorted(ids.values()) == list(range(263))


def test_any_text_survives_bytes(tmp_path):
    train(TEXTS, vocab_size=280, output=tmp_path / "b", kind="byte_bpe")
    vocabulary = vocabularies.load(tmp_path / "b")
    text = "  Ünïcödé 日本 😀\u0000\n\t end "
    assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("wordpiece", 9, r"--size=9: \d+ special tokens and characters are needed"),
        ("wordpiece", 9999, r"--size=9999: the text gives only \d+ pieces"),
        ("gpt2_bpe", 256, r"--size=256: 257 special tokens and bytes are needed"),
        ("byte_bpe", 260, r"--size=260: 261 special tokens and bytes are needed"),
        ("byte_bpe", 9999, r"--size=9999: the text gives only 531 pieces"),
        ("albert", 9999, r"--size=9999: .* <= \d+"),
    ],
)
def test_a_size_that_the_text_does_not_allow_for_a_kind(kind, size, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(TEXTS, vocab_size=size, output=output(kind, tmp_path), kind=kind)
    assert list(tmp_path.iterdir()) == []


def test_a_kind_or_a_setting_that_does_not_exist(tmp_path):
    with pytest.raises(ValueError, match=r"kind='wordpieces' does not exist.* mean 'wordpiece'"):
        train(TEXTS, vocab_size=99, output=tmp_path / "vocab.txt", kind="wordpieces")
    with pytest.raises(ValueError, match=r"kind='wordpiece' has no setting 'split_digits'.*keep_c"):
        train(
            TEXTS,
            vocab_size=99,
            output=tmp_path / "vocab.txt",
            kind="wordpiece",
            split_digits=True,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_at_all(kind, tmp_path):
    with pytest.raises(ValueError, match="all documents are empty"):
        train(["", " \n"], vocab_size=300, output=output(kind, tmp_path), kind=kind)


def test_gpt2_s_vocabulary_has_the_end_of_text_last_and_no_other_special_token(tmp_path):
    train(TEXTS, vocab_size=290, output=tmp_path / "gpt2", kind="gpt2_bpe")
    vocabulary = vocabularies.load(tmp_path / "gpt2")
    assert vocabulary.special_ids == (289,)
    assert (vocabulary.eos_id, vocabulary.unk_id, vocabulary.mask_id) == (289, None, None)
    assert vocabulary.decode(vocabulary.encode(" any \u00e9 text\n")) == " any \u00e9 text\n"
