"""GPT's vocabulary: merges within words by hand, the end of a text, errors of bad files."""

import json

import pytest

from t5x_like import vocabularies
from t5x_like.vocabularies import trainers, word_bpe

PIECES = ["<unk>", "a", "b", "a</w>", "b</w>", ",</w>", "ab</w>", "\n</w>"]
IDS = {piece: number for number, piece in enumerate(PIECES)}


def test_words_are_merged_up_to_their_ends_in_lower_case():
    vocabulary = word_bpe.WordBpe(IDS, [("a", "b</w>")])
    assert vocabulary.encode("AB, bab\n\tba é") == [6, 5, 2, 6, 2, 3, 0]
    assert vocabulary.decode([6, 5, 2, 6]) == "ab , bab"
    assert vocabulary.unk_id == 0


def test_a_line_break_ends_a_text_and_no_text_holds_one():
    vocabulary = word_bpe.WordBpe(IDS, [])
    assert vocabulary.eos_id == 7
    assert 7 not in vocabulary.encode("a\n\nb\n")
    assert word_bpe.WordBpe({"<unk>": 0, "a</w>": 1}, []).eos_id is None


def test_a_folder_is_read_by_the_ends_of_its_pieces(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps(IDS))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    assert vocabularies.load(tmp_path) == word_bpe.WordBpe(IDS, [("a", "b</w>")])
    (tmp_path / "merges.txt").write_text("#version: 0.2\na c</w>\n")
    with pytest.raises(ValueError, match=r"merges.txt does not fit: .*c</w>"):
        vocabularies.load(tmp_path)


def test_a_vocabulary_is_of_characters_and_merges_and_ends_with_the_line_break(tmp_path):
    trainers.train(["Ab ab ab", "ba"], vocab_size=7, output=tmp_path, kind="gpt_bpe")
    pieces = json.loads((tmp_path / "vocab.json").read_text())
    assert list(pieces) == ["<unk>", "a", "b", "a</w>", "b</w>", "ab</w>", "\n</w>"]
    assert vocabularies.load(tmp_path).encode("Ab ba") == [5, 2, 3]
    for size, message in ((5, "6 characters are needed"), (50, "the text gives only 7 pieces")):
        with pytest.raises(ValueError, match=f"--size={size}: {message}"):
            trainers.train(["ab ab"], vocab_size=size, output=tmp_path, kind="gpt_bpe")
