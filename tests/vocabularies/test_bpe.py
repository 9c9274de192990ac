"""BPE: the worked example by hand, merges and encodings of the library `tokenizers`."""

import json
import re

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from t5x_like.vocabularies.algorithms import bpe
from t5x_like.vocabularies.algorithms.bpe import END

# The example of the program in Sennrich et al. 2016, algorithm 1.
WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
CHARACTERS = 11  # l o w e r n s t i d and the mark


def merges_of(*lines):
    return [tuple(line.split()) for line in lines]


def test_the_merges_of_the_papers_example():
    assert bpe.train(WORDS, CHARACTERS + 10, ties="first") == merges_of(
        "e s",  # 6 newest and 3 widest; (s, t) and (t, </w>) come later in a word
        "es t",
        "est </w>",
        "l o",  # 5 low and 2 lower
        "lo w",
        "n e",  # 6 newest, as (e, w) and (w, est</w>)
        "ne w",
        "new est</w>",
        "low </w>",  # 5 low
        "w i",  # 3 widest
    )


def test_of_equal_counts_the_pair_with_the_oldest_pieces_is_merged():
    # d e i l n o r s t w </w>: t is older than es, and e older than n.
    expected = merges_of("e s", "t </w>", "es t</w>", "l o", "lo w", "e w", "n ew")
    assert bpe.train(WORDS, CHARACTERS + 7) == expected


def test_the_mark_can_be_a_part_of_the_last_character():
    expected = merges_of("e s", "es t</w>", "l o", "e w", "n ew", "new est</w>")
    assert bpe.train(WORDS, 11 + 6, attached=True) == expected  # t</w> and no t
    assert bpe.encode("lowest", expected, attached=True) == ["lo", "w", "est</w>"]


def test_an_unseen_word_is_of_the_papers_pieces():
    figure_1 = [("r", END), ("l", "o"), ("lo", "w"), ("e", f"r{END}")]
    assert bpe.encode("lower", figure_1) == ["low", "er</w>"]
    assert bpe.encode("xé", figure_1) == ["x", "é", END]


def test_a_run_of_one_character_is_merged_from_the_left():
    assert bpe.merge(list("aaabaa"), ("a", "a"), "aa") == ["aa", "a", "b", "aa"]
    assert bpe.train({"aaaa": 1}, 5) == merges_of("a a", "aa </w>", "aa aa</w>")


def library(words, *, size, special_tokens=(), suffix=None):
    """The library's tokenizer after training, and its merges."""
    mark = {"end_of_word_suffix": suffix} if suffix else {}
    tokenizer = tokenizers.Tokenizer(models.BPE(**mark))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=list(special_tokens),
        **mark,
    )
    texts = (" ".join([word] * count) for word, count in words.items())
    tokenizer.train_from_iterator(texts, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tokenizer, [tuple(pair) for pair in merges]


MERGES = 500
MARK = "\U0010fffd"  # a character after all others, as the library has no mark of its own


def values(tokenizer, word):
    return [token.value for token in tokenizer.model.tokenize(word)]


def test_merges_and_encodings_equal_the_library(page_words, held_out_words):
    characters = len(set().union(*page_words)) + 1
    merges = bpe.train(page_words, characters + MERGES)
    marked = {word + MARK: count for word, count in page_words.items()}
    tokenizer, expected = library(marked, size=characters + MERGES)
    assert merges == [tuple(one.replace(MARK, END) for one in pair) for pair in expected]
    assert len(merges) == MERGES
    for word in held_out_words:
        pieces = [one.replace(MARK, END) for one in values(tokenizer, word + MARK)]
        assert bpe.encode(word, merges) == pieces


def test_merges_and_encodings_equal_the_library_with_the_mark_attached(page_words, held_out_words):
    # The library orders marked characters at random, unless they are special tokens.
    characters = sorted(set().union(*page_words))
    characters += sorted({word[-1] + END for word in page_words})
    size = len(characters) + MERGES
    within = {one for word in page_words for one in bpe.symbols(word, attached=True)}
    merges = bpe.train(page_words, len(within) + MERGES, attached=True)
    tokenizer, expected = library(page_words, size=size, special_tokens=characters, suffix=END)
    assert merges == expected
    for word in held_out_words:
        if within.issuperset(bpe.symbols(word, attached=True)):
            assert bpe.encode(word, merges, attached=True) == values(tokenizer, word)


@pytest.mark.parametrize(
    ("words", "size", "message"),
    [
        ({}, 10, "There are no words to learn pieces from."),
        ({"a": 0}, 10, "words['a']=0: words have characters, and counts from 1."),
        ({"": 1}, 10, "words['']=1: words have characters, and counts from 1."),
        ({"ab": 1}, 2, "size=2: at least 3 are needed, since each character is a piece."),
        ({"ab": 1}, 6, "size=6: the words give only 5 pieces."),
    ],
)
def test_what_cannot_be_learned_is_one_clear_error(words, size, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        bpe.train(words, size)


def test_a_wrong_order_of_ties_is_named():
    with pytest.raises(ValueError, match=r"ties='last' does not exist.*first, oldest"):
        bpe.train(WORDS, 20, ties="last")
