"""The unigram language model in plain Python (Kudo 2018, section 3.2): many pieces, then fewer.

A segmentation has the product of its pieces' probabilities. These are learned by
expectation-maximization from words whose segmentation is not known, and the pieces that the
likelihood needs the least are removed.
"""

import collections
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from t5x_like.vocabularies.algorithms.bpe import check_size, check_words

BEGIN = "\u2581"  # SentencePiece's mark of a word's beginning
# SentencePiece's log-probability of an unknown character, below the least of all pieces.
_UNKNOWN_PENALTY = 10.0
# The least expected count: characters stay even where longer pieces have taken all of it.
_LEAST_COUNT = 1e-6
_NEARLY_SURE = 1 - 1e-6


def train(
    words: Mapping[str, int],
    size: int,
    *,
    longest: int = 8,
    keep: float = 0.8,
    iterations: int = 2,
) -> dict[str, float]:
    """Learn pieces and their log-probabilities.

    Args:
        words: how often each word occurs; `BEGIN` is put before each.
        size: the number of pieces to reach, with all characters, which are never removed.
        longest: the length of the longest piece, in characters with `BEGIN`.
        keep: the share of pieces that stays in each round (the paper's eta).
        iterations: steps of expectation-maximization in each round.

    Returns:
        The log-probability of each piece, the most probable first.

    Raises:
        ValueError: there are no words, or the size is below the number of characters, or above
            the number of substrings, or `keep` or `iterations` is out of range.
    """
    check_words(words)
    if not 0 < keep < 1 or iterations < 1:
        raise ValueError(f"keep={keep}, iterations={iterations}: between 0 and 1; at least 1.")
    marked = {BEGIN + word: count for word, count in words.items()}
    characters = set().union(*marked)
    check_size(size, characters)
    scores = seeds(marked, longest=longest)
    if len(scores) < size:
        raise ValueError(f"size={size}: the words give only {len(scores)} pieces.")
    while True:
        for _ in range(iterations):
            scores = maximize(expected_counts(marked, scores))
        if len(scores) == size:
            return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))
        lost = losses(marked, scores)
        ranked = sorted(scores.keys() - characters, key=lambda piece: (-lost[piece], piece))
        number = max(size, int(keep * len(scores))) - len(characters)
        remaining = characters.union(ranked[:number])
        scores = {piece: score for piece, score in scores.items() if piece in remaining}


def encode(word: str, scores: Mapping[str, float]) -> list[str]:
    """Return the most probable segmentation of `BEGIN` and a word (Viterbi, section 3.2).

    Characters without a piece are pieces, far less probable than all others.
    """
    word = BEGIN + word
    missing = {character for character in word if character not in scores}
    unknown = min(scores.values()) - _UNKNOWN_PENALTY if missing else 0.0
    best = [0.0]  # of the first characters of the word: the score of the best segmentation,
    previous = [0]  # and where its last piece begins
    for end in range(1, len(word) + 1):
        ways = [(best[start] + scores[piece], start) for start, piece in _ending(word, end, scores)]
        if word[end - 1] in missing:
            ways.append((best[-1] + unknown, end - 1))
        score, start = max(ways, key=lambda way: way[0])
        best.append(score)
        previous.append(start)
    pieces: list[str] = []
    end = len(word)
    while end:
        pieces.insert(0, word[previous[end] : end])
        end = previous[end]
    return pieces


def seeds(words: Mapping[str, int], *, longest: int) -> dict[str, float]:
    """Return the characters and all substrings that occur twice, by their relative frequencies."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(start + longest, len(word)) + 1):
                counts[word[start:end]] += count
    return maximize({piece: n for piece, n in counts.items() if n > 1 or len(piece) == 1})


def maximize(counts: Mapping[str, float]) -> dict[str, float]:
    """Return log-probabilities in proportion to (expected) counts: the M step."""
    log_total = math.log(sum(counts.values()))
    return {piece: math.log(max(n, _LEAST_COUNT)) - log_total for piece, n in counts.items()}


def expected_counts(words: Mapping[str, int], scores: Mapping[str, float]) -> dict[str, float]:
    """Return how often each piece is used, over all segmentations of each word: the E step."""
    expected = dict.fromkeys(scores, 0.0)
    for word, count in words.items():
        for piece, probability in posteriors(word, scores):
            expected[piece] += count * probability
    return expected


def posteriors(word: str, scores: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Return each piece at each position in a word, and how probable it is that it is used there.

    The probability of a piece x from `start` to `end` is
    alpha(start) p(x) beta(end) / alpha(length).
    """
    alpha, beta = forward(word, scores), backward(word, scores)
    for end in range(1, len(word) + 1):
        for start, piece in _ending(word, end, scores):
            yield piece, math.exp(alpha[start] + scores[piece] + beta[end] - alpha[-1])


def losses(words: Mapping[str, int], scores: Mapping[str, float]) -> dict[str, float]:
    """Return by how much the log-likelihood of the words falls without each piece.

    The other pieces keep their probabilities. Without a piece that is used with the probability q
    a word has 1 - q of its own; this is inexact near 1, and for a piece that can be used twice the
    word's probability is computed anew. Characters have no loss here: they always stay.
    """
    lost = dict.fromkeys(scores, 0.0)
    for word, count in words.items():
        used = collections.defaultdict(list)
        for piece, probability in posteriors(word, scores):
            used[piece].append(probability)
        for piece, probabilities in used.items():
            if len(piece) == 1:
                continue
            if len(probabilities) == 1 and probabilities[0] < _NEARLY_SURE:
                lost[piece] -= count * math.log1p(-probabilities[0])
            else:
                rest = forward(word, scores, without=piece)[-1]
                lost[piece] += count * (forward(word, scores)[-1] - rest)
    return lost


def forward(word: str, scores: Mapping[str, float], *, without: str = "") -> list[float]:
    """Return log alpha: the log-probability of the first n characters, for n from 0.

    alpha(end) is the sum over all pieces x that end there of alpha(start) p(x).

    Args:
        without: a piece that is not used.
    """
    alpha = [0.0]
    for end in range(1, len(word) + 1):
        pieces = _ending(word, end, scores)
        alpha.append(
            _log_sum([alpha[start] + scores[piece] for start, piece in pieces if piece != without])
        )
    return alpha


def backward(word: str, scores: Mapping[str, float]) -> list[float]:
    """Return log beta: the log-probability of the characters from n on, for n from 0."""
    beta = [0.0] * (len(word) + 1)
    for start in reversed(range(len(word))):
        ends = range(start + 1, len(word) + 1)
        terms = [(word[start:end], end) for end in ends]
        beta[start] = _log_sum(
            [scores[piece] + beta[end] for piece, end in terms if piece in scores]
        )
    return beta


def _ending(word: str, end: int, pieces: Collection[str]) -> Iterator[tuple[int, str]]:
    """Return where pieces begin that end at a position, and these pieces; the longest first."""
    for start in range(end):
        if (piece := word[start:end]) in pieces:
            yield start, piece


def _log_sum(logs: Sequence[float]) -> float:
    """Return log(sum(exp(logs))), and minus infinity for no terms."""
    largest = max(logs, default=-math.inf)
    if largest == -math.inf:
        return largest
    return largest + math.log(sum(math.exp(log - largest) for log in logs))
