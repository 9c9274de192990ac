"""WordPiece in plain Python: merges by likelihood, then the longest match first.

Schuster and Nakajima 2012 (section 4) merge the two pieces that increase the likelihood of the
training text the most. Google's program was not published. Of its encoding there is code: BERT's
(Devlin et al. 2019).
"""

import collections
import math
from collections.abc import Callable, Collection, Mapping

from t5x_like.names import choose
from t5x_like.vocabularies.algorithms import bpe
from t5x_like.vocabularies.algorithms.bpe import SegmentedWords, SymbolPair

CONTINUATION = "##"
UNKNOWN_WORD = "[UNK]"


def train(
    words: Mapping[str, int], size: int, *, score: str = "ratio", ties: str = "oldest"
) -> list[str]:
    """Learn pieces; those that continue a word begin with `CONTINUATION`, as in BERT.

    The loop is the same as in BPE, with another score. The oldest pieces are the characters that
    begin words, then come the characters that continue words.

    Args:
        words: how often each word occurs.
        size: the number of pieces to reach, with characters.
        score: the score of a pair, a name in `SCORES`.
        ties: which of the pairs with equal scores is merged, as in BPE.

    Returns:
        The pieces: characters, then merged pieces in the order in which they were made.

    Raises:
        ValueError: there are no words, or the size is below the number of characters, or above
            what the words give, or `score` or `ties` does not exist.
    """
    bpe.check_words(words)
    pieces, _ = bpe.learn(
        SegmentedWords({word: symbols(word) for word in words}, words),
        size,
        score=choose("score", score, SCORES),
        ties=ties,
        marked=lambda piece: piece.startswith(CONTINUATION),
        join=lambda left, right: left + right.removeprefix(CONTINUATION),
    )
    return pieces


def encode(word: str, pieces: Collection[str]) -> list[str]:
    """Return the pieces of a word: the longest that begins it, then the longest for the rest.

    A word is unknown as a whole if the rest has no piece (BERT's `WordpieceTokenizer`, whose limit
    on the length of words is left out).

    Args:
        pieces: the vocabulary, a set for speed.
    """
    word_pieces: list[str] = []
    start = 0
    while start < len(word):
        mark = CONTINUATION if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if mark + word[start:end] in pieces), None)
        if end is None:
            return [UNKNOWN_WORD]
        word_pieces.append(mark + word[start:end])
        start = end
    return word_pieces


def symbols(word: str) -> list[str]:
    """Split a word into characters, and mark all but the first."""
    return [word[0], *(CONTINUATION + character for character in word[1:])]


def ratio(words: SegmentedWords, pair: SymbolPair) -> float:
    """Return count(ab) / (count(a) count(b)).

    Times the number of pieces in the text it is p(ab) / (p(a) p(b)): the factor by which the
    likelihood grows for each occurrence that is merged. Rare pairs have the highest, since the
    number of occurrences does not matter.
    """
    left, right = pair
    return words.pairs[pair] / (words.counts[left] * words.counts[right])


def likelihood(words: SegmentedWords, pair: SymbolPair) -> float:
    """Return by how much the log-likelihood of the text grows, in nats, if the pair is merged.

    Pieces are independent, and have their relative frequencies as probabilities: the
    log-likelihood is the sum of n log n over the counts n of all pieces, minus N log N for N
    pieces in all. If the pair occurs n times, the counts of its parts and N fall by n. It is
    exact except for pairs that overlap ("aaa").
    """
    both = words.pairs[pair]
    gain = _n_log_n(both) - _n_log_n(words.total - both) + _n_log_n(words.total)
    for piece, times in collections.Counter(pair).items():
        count = words.counts[piece]
        gain += _n_log_n(count - times * both) - _n_log_n(count)
    return gain


def _n_log_n(number: int) -> float:
    return number * math.log(number) if number > 0 else 0.0


# Not likelihood, but what `WordPieceTrainer` of the library `tokenizers` does: BPE with marks.
SCORES: Mapping[str, Callable[[SegmentedWords, SymbolPair], float]] = {
    "ratio": ratio,
    "likelihood": likelihood,
    "frequency": bpe.frequency,
}
