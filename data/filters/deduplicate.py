r"""Remove near copies of documents by MinHash, as GPT-3 did (Brown et al. 2020, appendix A).

    python -m data.filters.deduplicate --input "crawl/*.jsonl.gz" --output deduplicated \
        --against "webtext/*.jsonl.gz"

A document is dropped if its set of words is too similar to the set of an earlier document, or of a
document in --against (these are not written): if their Jaccard similarity, the size of the
intersection divided by the size of the union, is --threshold or more. Candidate pairs are found by
locality-sensitive hashing with --hashes MinHash values (datasketch), whose bands are chosen for the
threshold, and compared exactly.

The paper used 10 hashes of Spark's MinHashLSH, on the words that its quality filter counts
(data/filters/quality_filter.py), and gives no threshold. With 10 hashes some near copies are
missed: one in six of the pairs with a similarity of 0.9, nearly half of the pairs with 0.8. More
hashes miss fewer and take longer; with --words_per_feature=5 the features are 5-grams of words, as
in Lee et al. 2022.

The first of several copies in the order of files and lines is kept, so that the result depends only
on that order. Documents are streamed; the hashes and the set of features of each kept document are
in memory, about 2 KB plus 8 bytes for each different word: a million web pages take about 4 GB.
Divide larger corpora, for instance by a hash of the host.
"""

import hashlib
import sys
from collections.abc import Sequence

import numpy as np

from data.filters import json_lines
from t5x_like.config import one_line_errors


class Index:
    """The documents so far, to find near copies among them.

    Args:
        threshold: the Jaccard similarity of near copies, above 0 and up to 1.
        hashes: MinHash values of a document.
        words_per_feature: the length of the word n-grams that are compared.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, *, threshold: float = 0.8, hashes: int = 10, words_per_feature: int = 1):
        from datasketch import MinHashLSH

        if not 0 < threshold <= 1:
            raise ValueError(f"--threshold={threshold} must be above 0, and 1 or less")
        for name, value, least in (
            ("hashes", hashes, 2),
            ("words_per_feature", words_per_feature, 1),
        ):
            if value < least:
                raise ValueError(f"--{name}={value} must be {least} or more")
        self._threshold, self._hashes, self._run = threshold, hashes, words_per_feature
        self._lsh = MinHashLSH(threshold=threshold, num_perm=hashes)
        self._features: list[np.ndarray] = []

    def add(self, text: str) -> bool:
        """Add a document unless it is a near copy; return whether it was added.

        A text without words is a copy of any other such text.
        """
        from datasketch import MinHash

        features = self._of(text)
        sketch = MinHash(num_perm=self._hashes, hashfunc=_low)
        sketch.update_batch(features)
        if any(self._similarity(features, n) >= self._threshold for n in self._lsh.query(sketch)):
            return False
        self._lsh.insert(len(self._features), sketch)
        self._features.append(features)
        return True

    def _of(self, text: str) -> np.ndarray:
        """Return the hashes of the different features of a text, sorted."""
        words = text.lower().split()
        last = max(len(words) - self._run, 0) + 1
        runs = {" ".join(words[first : first + self._run]) for first in range(last)}
        digests = (
            hashlib.blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            for run in runs
        )
        return np.unique(np.frombuffer(b"".join(digests), "<u8"))

    def _similarity(self, features: np.ndarray, number: int) -> float:
        common = len(np.intersect1d(features, self._features[number], assume_unique=True))
        return common / (len(features) + len(self._features[number]) - common)


def _low(feature: int) -> int:
    """Return the 32 bits that datasketch permutes."""
    return int(feature) & 0xFFFF_FFFF


def deduplicate(
    files: Sequence[str],
    output: str,
    *,
    against: Sequence[str] = (),
    text: str = "text",
    index: Index | None = None,
) -> dict[str, int]:
    """Write the documents of files, except near copies, into a folder.

    Args:
        files: the files of the documents.
        output: the folder.
        against: files of documents whose near copies are also dropped.
        text: the field with the text, in all files.
        index: an index of earlier documents; None for an empty index.

    Returns:
        Counts of documents `read` and `kept`.

    Raises:
        ValueError: a row is bad.
    """
    index = index or Index()
    counts = {"read": 0, "kept": 0}
    with json_lines.Writer(output, files) as writer:
        for document in json_lines.documents(against, text=text):
            index.add(document.text)
        for document in json_lines.documents(files, text=text):
            counts["read"] += 1
            if index.add(document.text):
                counts["kept"] += 1
                writer.write(document.path, document.row)
    return counts


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = json_lines.parser("data.filters.deduplicate", __doc__)
    parser.add_argument("--against", nargs="+", default=[], metavar="FILES")
    parser.add_argument("--threshold", type=float, default=0.8, help="Jaccard similarity (0.8)")
    parser.add_argument("--hashes", type=int, default=10, help="MinHash values (10)")
    parser.add_argument("--words_per_feature", type=int, default=1, metavar="N")
    given = parser.parse_args(arguments)
    with one_line_errors():
        index = Index(
            threshold=given.threshold,
            hashes=given.hashes,
            words_per_feature=given.words_per_feature,
        )
        found = deduplicate(
            json_lines.find("--input", given.input),
            given.output,
            against=json_lines.find("--against", given.against),
            text=given.text,
            index=index,
        )
        sys.stdout.write(f"kept {found['kept']:,} of {found['read']:,} documents\n")


if __name__ == "__main__":
    main(sys.argv[1:])
