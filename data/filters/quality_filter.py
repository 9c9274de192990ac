r"""Filter web text by similarity to curated text, as GPT-3 did (Brown et al. 2020, appendix A).

    python -m data.filters.quality_filter --input "crawl/*.jsonl.gz" --output filtered \
        --curated "webtext/*.jsonl.gz" "wikipedia/*.jsonl.gz"

A logistic regression learns to distinguish curated documents (the paper: WebText, Wikipedia and
books) from the documents of the input. Its features are the counts of the words of a document, in
lower case and separated by whitespace, hashed into 2^18 buckets, as Spark's Tokenizer and HashingTF
compute them. A document with the score s, the probability of being curated, is kept if

    np.random.pareto(9) > 1 - s

so that nearly all documents that look curated are kept, and a few of the others: with the
probability (2 - s)^-9, one in 512 at a score of 0.

The random number of a document depends only on its text and --seed: the result does not depend on
the order of the documents or on how they are divided into files, and copies are kept or dropped
together. The paper reports neither the number of documents it trained on nor any regularization;
here it is scikit-learn's default, on up to --train_documents of each kind, sampled from all.

Documents are streamed; the training documents are in memory (a few KB each). Rows keep all their
fields.
"""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from data.filters import json_lines
from t5x_like.config import one_line_errors

BUCKETS = 2**18
_BATCH = 256  # documents that are scored together
_HELD_OUT = 10  # one in this many of the training documents tests the classifier


class Classifier:
    """The probability that a document is curated.

    Attributes:
        accuracy: the accuracy on `tested` documents.
        constant: the accuracy of always answering with the more frequent kind, on these documents.
        tested: "a held-out tenth", or "all" if there are too few documents to hold any out.

    Args:
        curated, raw: texts of both kinds.

    Raises:
        ValueError: there are fewer than two texts of a kind.
    """

    def __init__(self, curated: Sequence[str], raw: Sequence[str]):
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.linear_model import LogisticRegression

        if min(len(curated), len(raw)) < 2:
            raise ValueError(
                f"there are {len(curated)} curated documents and {len(raw)} of the input; two of "
                "each are needed to train the classifier"
            )
        self._vectorizer = HashingVectorizer(
            n_features=BUCKETS, token_pattern=r"\S+", alternate_sign=False, norm=None
        )
        self._model = LogisticRegression(solver="liblinear", max_iter=1000)
        features = self._features([*curated, *raw])
        labels = np.repeat([1, 0], [len(curated), len(raw)])
        held_out = np.arange(len(labels)) % _HELD_OUT == 0
        if held_out.sum() * 2 > len(labels) or len(set(labels[~held_out])) < 2:
            held_out[:] = False
        self._model.fit(features[~held_out], labels[~held_out])
        tested = held_out if held_out.any() else ~held_out
        self.tested = "a held-out tenth" if held_out.any() else "all"
        self.accuracy = float(self._model.score(features[tested], labels[tested]))
        self.constant = float(max(labels[tested].mean(), 1 - labels[tested].mean()))

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Return the probabilities [N], from 0 for raw to 1 for curated."""
        return self._model.predict_proba(self._features(texts))[:, 1]

    def _features(self, texts: Sequence[str]) -> sparse.csr_matrix:
        return self._vectorizer.transform(texts)


def keeps(text: str, score: float, *, alpha: float, seed: int) -> bool:
    """Return whether a document with this score is kept: `pareto(alpha) > 1 - score`."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    random = np.random.default_rng([seed, int.from_bytes(digest, "little")])
    return bool(random.pareto(alpha) > 1 - score)


def sample(documents: Iterable[json_lines.Document], *, size: int, seed: int) -> list[str]:
    """Sample `size` texts in one pass, all equally likely, or return all if there are fewer."""
    random = np.random.default_rng(seed)
    kept: list[str] = []
    for number, document in enumerate(documents):
        if number < size:
            kept.append(document.text)
        elif (place := int(random.integers(number + 1))) < size:
            kept[place] = document.text
    return kept


def filter_files(
    files: Sequence[str],
    output: str,
    *,
    curated: Sequence[str],
    text: str = "text",
    alpha: float = 9.0,
    seed: int = 0,
    train_documents: int = 100_000,
) -> dict[str, Any]:
    """Filter files into a folder.

    Args:
        files: the files of the documents.
        output: the folder.
        curated: files of curated documents.
        text: the field with the text, in all files.
        alpha: parameter of the Pareto distribution; a larger value keeps fewer low scores.
        seed: seed of the random choice, and of the sampling of training documents.
        train_documents: the most training documents of each kind.

    Returns:
        Counts of documents `read` and `kept`, and the classifier's `accuracy`, `constant` and
        `tested`, see `Classifier`.

    Raises:
        ValueError: a setting is out of range, a row is bad, or there are too few documents.
    """
    if alpha <= 0:
        raise ValueError(f"--alpha={alpha} must be above 0")
    if train_documents < 2:
        raise ValueError(f"--train_documents={train_documents} must be 2 or more")
    writer = json_lines.Writer(output, files)
    with writer:
        texts = [
            sample(json_lines.documents(paths, text=text), size=train_documents, seed=seed)
            for paths in (curated, files)
        ]
        classifier = Classifier(*texts)
        counts = {"read": 0, "kept": 0}
        for batch in _batches(json_lines.documents(files, text=text)):
            scores = classifier.scores([one.text for one in batch])
            for document, score in zip(batch, scores, strict=True):
                counts["read"] += 1
                if keeps(document.text, float(score), alpha=alpha, seed=seed):
                    counts["kept"] += 1
                    writer.write(document.path, document.row)
    return {
        **counts,
        "accuracy": classifier.accuracy,
        "constant": classifier.constant,
        "tested": classifier.tested,
    }


def _batches(documents: Iterable[json_lines.Document]) -> Iterable[list[json_lines.Document]]:
    batch: list[json_lines.Document] = []
    for document in documents:
        batch.append(document)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = json_lines.parser("data.filters.quality_filter", __doc__)
    parser.add_argument("--curated", nargs="+", required=True, metavar="FILES")
    parser.add_argument("--alpha", type=float, default=9.0, help="of the Pareto distribution (9)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train_documents", type=int, default=100_000, metavar="N")
    given = parser.parse_args(arguments)
    with one_line_errors():
        found = filter_files(
            json_lines.find("--input", given.input),
            given.output,
            curated=json_lines.find("--curated", given.curated),
            text=given.text,
            alpha=given.alpha,
            seed=given.seed,
            train_documents=given.train_documents,
        )
        sys.stdout.write(
            f"kept {found['kept']:,} of {found['read']:,} documents; the classifier is right about "
            f"{found['accuracy']:.1%} of {found['tested']} of its documents, and a constant about "
            f"{found['constant']:.1%}\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
