"""Make word vectors from counts: positive mutual information of neighbouring words, and its SVD.

The method of Levy and Goldberg 2014 (and Levy et al. 2015, section 3): the cell of two words is
log(P(a, b) / (P(a) P(b))), or 0 if that is negative, and a vector is a row of U sqrt(S) of the
table's truncated singular value decomposition. Pairs of words up to five apart are counted, each
weighted by one over its distance, as in GloVe (Pennington et al. 2014).
"""

import collections
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.sparse
from jaxtyping import Float

_WORD = re.compile(r"[^\W\d_]+")
_WINDOW = 5  # words to each side


class WordVectors:
    """Words with vectors of length 1.

    Args:
        words: in the order of their vectors.
        vectors: one vector per word.
    """

    def __init__(self, words: Sequence[str], vectors: Float[np.ndarray, "V D"]):
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(words)}
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._vectors = vectors / np.where(lengths > 0, lengths, 1)

    def nearest(self, word: str, *, most: int) -> list[str]:
        """Return the words with the largest cosines above 0; empty if the word is unknown."""
        number = self._ids.get(word.lower())
        if number is None:
            return []
        cosines = self._vectors @ self._vectors[number]
        cosines[number] = 0
        order = np.argsort(-cosines, kind="stable")[:most]
        return [self.words[other] for other in order if cosines[other] > 0]


def train(
    texts: Iterable[str], *, dimensions: int = 100, words: int = 20_000, least: int = 3
) -> WordVectors:
    """Count the words of texts, and make their vectors; the same texts give the same vectors.

    Args:
        dimensions: dimensions of a vector; at most one fewer than there are words.
        words: the number of most frequent words that get a vector.
        least: the minimum occurrences of a word that gets a vector.

    Raises:
        ValueError: `dimensions` is below 1, or fewer than three words have a vector.
    """
    from sklearn.decomposition import TruncatedSVD

    if dimensions < 1:
        raise ValueError(f"--dimensions={dimensions} must be 1 or more")
    split = [_WORD.findall(text.lower()) for text in texts]
    counts = collections.Counter(itertools.chain.from_iterable(split))
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:words]
    known = [word for word, count in order if count >= least]
    if len(known) < 3:
        raise ValueError(
            f"only {len(known)} words occur {least} times or more: word vectors need a larger "
            "--corpus"
        )
    table = _information(_neighbours(split, known))
    if not table.sum():  # no two words are near each other
        return WordVectors(known, np.zeros((len(known), 1)))
    # The algorithm starts at random; the seed makes the result reproducible.
    svd = TruncatedSVD(min(dimensions, len(known) - 1), random_state=0)
    rows = svd.fit_transform(table)
    return WordVectors(known, rows / np.sqrt(np.maximum(svd.singular_values_, 1e-12)))


def _neighbours(texts: Iterable[Sequence[str]], known: Sequence[str]) -> scipy.sparse.csr_array:
    """Count how often two known words are near each other, weighted by one over their distance."""
    ids = {word: number for number, word in enumerate(known)}
    gap = [-1] * _WINDOW  # so that no pair spans two texts
    row = np.array([n for text in texts for n in (*(ids.get(word, -1) for word in text), *gap)])
    parts = []
    for distance in range(1, _WINDOW + 1):
        first, second = row[:-distance], row[distance:]
        both = (first >= 0) & (second >= 0)
        weights = np.full(int(both.sum()), 1 / distance)
        parts.append((weights, first[both], second[both]))
    weights, first, second = (np.concatenate(part) for part in zip(*parts, strict=True))
    shape = (len(known), len(known))
    one_way = scipy.sparse.coo_array((weights, (first, second)), shape=shape).tocsr()
    return (one_way + one_way.T).tocsr()


def _information(counts: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Return the positive mutual information of each pair."""
    cells = counts.tocoo()
    sums = np.asarray(counts.sum(axis=1)).ravel()
    first, second = cells.row, cells.col
    ratio = cells.data * sums.sum() / (sums[first] * sums[second])
    positive = np.maximum(np.log(ratio), 0)
    return scipy.sparse.csr_array((positive, (first, second)), shape=counts.shape)
