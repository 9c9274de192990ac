"""WordPiece: scores by hand and by counting anew, the library's pieces and encodings."""

import collections
import math
import re

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from t5x_like.vocabularies.algorithms import bpe, wordpiece

WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
HUGS = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}


def segmented(words):
    return bpe.SegmentedWords({word: wordpiece.symbols(word) for word in words}, words)


def test_the_score_is_the_count_of_the_pair_over_those_of_its_parts():
    words = segmented(HUGS)
    assert wordpiece.ratio(words, ("##g", "##s")) == 5 / (20 * 5)
    assert wordpiece.ratio(words, ("##u", "##g")) == 20 / (36 * 20)
    assert wordpiece.ratio(words, ("h", "##u")) == 15 / (15 * 36)
    # b h p ##g ##n ##s ##u; then every pair has 1/36, and h ##u comes first in the words.
    # Of hu ##gs is 5 / (15 * 5) left, of hu ##g 10 / (15 * 15).
    pieces = wordpiece.train(HUGS, 7 + 4, ties="first")
    assert pieces[:7] == ["b", "h", "p", "##g", "##n", "##s", "##u"]
    assert pieces[7:] == ["##gs", "hu", "hugs", "hug"]


def test_the_worked_example_of_bpe_has_other_merges_by_likelihood():
    # 3 / (3 * 3) for w ##i and ##i ##d, then 3 / (3 * 3) for wi ##d; l ##o has 7 / (7 * 7).
    # Nine e s and nine s t have only 9 / (17 * 9) and 9 / (9 * 9).
    assert wordpiece.train(WORDS, 11 + 5)[11:] == ["wi", "wid", "lo", "##st", "low"]
    assert wordpiece.train(WORDS, 11 + 4, score="likelihood")[11:] == ["##st", "lo", "##est", "ne"]
    assert wordpiece.train(WORDS, 11 + 3, score="frequency")[11:] == ["##es", "##est", "lo"]


def log_likelihood(segmentation, words):
    counts = collections.Counter()
    for word, pieces in segmentation.items():
        counts.update(dict.fromkeys(pieces, 0))
        for piece in pieces:
            counts[piece] += words[word]
    return sum(count * math.log(count / counts.total()) for count in counts.values())


@pytest.mark.parametrize("words", [WORDS, HUGS, {"abab": 3, "baa": 2, "xaby": 4}])
def test_the_gain_in_likelihood_is_that_of_counting_anew(words):
    table = segmented(words)
    before = log_likelihood(table.segmentation, words)
    for pair in list(table.pairs):
        after = {
            word: bpe.merge(pieces, pair, "".join(pair))
            for word, pieces in table.segmentation.items()
        }
        gain = log_likelihood(after, words) - before
        assert wordpiece.likelihood(table, pair) == pytest.approx(gain, abs=1e-9)


def test_pairs_that_overlap_can_be_learned_by_every_score():
    for score in wordpiece.SCORES:
        assert len(wordpiece.train({"aaaaaaa": 3}, 5, score=score)) == 5


def test_the_longest_piece_is_taken_first_and_one_gap_makes_a_word_unknown():
    pieces = {"un", "##aff", "##able", "una", "##ffable", "##f", "u"}
    assert wordpiece.encode("unaffable", pieces) == ["una", "##ffable"]
    assert wordpiece.encode("unaff", pieces) == ["una", "##f", "##f"]
    assert wordpiece.encode("unable", pieces) == ["[UNK]"]  # una, then nothing; no way back


def test_the_librarys_trainer_is_bpe_with_marks(page_words):
    characters = sorted(set().union(*page_words))
    marked = sorted({f"##{character}" for word in page_words for character in word[1:]})
    within = {one for word in page_words for one in wordpiece.symbols(word)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=len(characters) + len(marked) + 400,
        show_progress=False,
        special_tokens=[*characters, *marked],  # for one order in every run
    )
    texts = (" ".join([word] * count) for word, count in page_words.items())
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    expected = sorted(ids, key=ids.__getitem__)[-400:]
    pieces = wordpiece.train(page_words, len(within) + 400, score="frequency")
    assert pieces[len(within) :] == expected
    assert wordpiece.train(page_words, len(within) + 9)[-9:] != expected[:9]


@pytest.mark.parametrize("score", ["ratio", "frequency"])
def test_encodings_equal_the_library(page_words, held_out_words, score):
    pieces = wordpiece.train(page_words, 500, score=score)
    ids = {piece: number for number, piece in enumerate([*pieces, wordpiece.UNKNOWN_WORD])}
    model = models.WordPiece(ids, unk_token=wordpiece.UNKNOWN_WORD)
    kinds = set()
    for word in [*held_out_words, "\u00fe", "a\u00fe", "\u00fea"]:
        encoded = wordpiece.encode(word, ids)
        assert encoded == [token.value for token in model.tokenize(word)]
        kinds.add(encoded == [wordpiece.UNKNOWN_WORD])
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ({}, {"size": 9}, "There are no words to learn pieces from."),
        ({"ab": 1}, {"size": 1}, "size=1: at least 2 are needed, since each character is a piece."),
        ({"ab": 1}, {"size": 4}, "size=4: the words give only 3 pieces."),
        (WORDS, {"size": 14, "score": "gain"}, "score='gain' does not exist."),
    ],
)
def test_what_cannot_be_learned_ends_with_a_clear_error(words, settings, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        wordpiece.train(words, **settings)
