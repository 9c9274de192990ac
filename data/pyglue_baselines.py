"""Measure a constant, a bag of words and a rule on the test rows of PyGLUE.

    python -m data.pyglue_baselines                         all tasks, as a table in Markdown
    python -m data.pyglue_baselines --tasks=topic,span

The constant gives every row the same answer, the most frequent in training. The bag of words is a
linear model of scikit-learn over TF-IDF, fitted to the training rows: logistic regression for
classes and choices, ridge regression for numbers; for pairs the features are what both texts share
and what only one has. `span` and `summary` have nothing to fit: their prediction is the sentence
with the most similar words. The rule is what a person would write in a few lines after reading
twenty rows (`RULES`). A threshold in a rule is the best value on the training rows.
"""

import collections
import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from data.pyglue_tasks import overlap
from t5x_like.config import one_line_errors
from t5x_like.evaluation.metrics import METRICS
from t5x_like.experiment import command_line, startup
from t5x_like.names import choose

Row = dict[str, Any]
Rows = list[Row]
# (training rows, test rows) -> a prediction for each test row; for choices, a score per choice.
Baseline = Callable[[Rows, Rows], list[Any]]

# The metrics of the labelled form; for `span` and `summary`, of the text form.
METRICS_OF = {
    "acceptability": ("matthews",),
    "topic": ("accuracy",),
    "similarity": ("pearson", "spearman"),
    "paraphrase": ("accuracy", "f1_binary"),
    "entailment": ("accuracy",),
    "span": ("exact_match", "f1"),
    "continuation": ("rank_accuracy",),
    "ranking": ("rank_accuracy", "mean_reciprocal_rank"),
    "summary": ("rouge_1", "rouge_l"),
}
_POSITIVE = {"paraphrase": "paraphrase"}
_SENTENCE_END = re.compile(r"(?<=[.!?:)])\s+")
_STOP = {
    "a",
    "an",
    "and",
    "are",
    "as",
    "at",
    "be",
    "by",
    "for",
    "from",
    "has",
    "if",
    "in",
    "is",
    "it",
}
_STOP |= {"not", "of", "on", "or", "that", "the", "this", "to", "will", "with", "when"}


def target(row: Row) -> Any:
    """Return the right answer of a row."""
    if "answers" in row:
        return row["answers"][0]["text"]
    return next(row[name] for name in ("label", "value", "answer", "targets") if name in row)


def constant(train: Rows, test: Rows) -> list[Any]:
    """Predict the most frequent answer in training; the mean of numbers, the first of choices."""
    right = [target(row) for row in train]
    if "choices" in train[0]:
        return [[-number for number in range(len(row["choices"]))] for row in test]
    best: Any = collections.Counter(right).most_common(1)[0][0]
    return [float(np.mean(right)) if isinstance(best, float) else best] * len(test)


def bag_of_words(train: Rows, test: Rows) -> list[Any]:
    """Predict with a linear model over TF-IDF; see the top of this file."""
    if "context" in train[0] or "inputs" in train[0]:
        return _similar_sentences(train, test)
    from sklearn import linear_model

    if "choices" in train[0]:
        pairs = [pair for row in train for pair in _pairs(row)]
        right = [n == row["answer"] for row in train for n in range(len(row["choices"]))]
        features = _features(pairs)
        model = linear_model.LogisticRegression(max_iter=300).fit(features(pairs), right)
        return [model.decision_function(features(_pairs(row))).tolist() for row in test]
    pairs = [_texts(row) for row in train]
    features, right = _features(pairs), [target(row) for row in train]
    is_number = isinstance(right[0], float)
    model = linear_model.Ridge() if is_number else linear_model.LogisticRegression(max_iter=300)
    return (
        model.fit(features(pairs), right).predict(features([_texts(row) for row in test])).tolist()
    )


def _texts(row: Row) -> tuple[str, str]:
    return row["text_a"], row.get("text_b", "")


def _pairs(row: Row) -> list[tuple[str, str]]:
    return [(row["text_a"], choice) for choice in row["choices"]]


def _features(pairs: Sequence[tuple[str, str]]) -> Callable[[Sequence[tuple[str, str]]], Any]:
    """Return a function to features of text pairs: first, second, product and difference."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    known = TfidfVectorizer(min_df=2, sublinear_tf=True, token_pattern=r"[^\W_]+")
    known.fit([text for pair in pairs for text in pair])

    def features(pairs: Sequence[tuple[str, str]]) -> Any:
        first, second = (known.transform(texts) for texts in zip(*pairs, strict=True))
        if not any(text for _, text in pairs):
            return first
        both = first.multiply(second)
        return sparse.hstack([first, second, both, abs(first - second), both.sum(axis=1)]).tocsr()

    return features


def _similar_sentences(train: Rows, test: Rows) -> list[str]:
    """Return the sentence of a text that is most similar to the question, or to the whole text."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    field = "context" if "context" in train[0] else "inputs"
    known = TfidfVectorizer(sublinear_tf=True).fit([row[field] for row in train])
    found = []
    for row in test:
        sentences = _SENTENCE_END.split(row[field])
        like = known.transform([row.get("question", row[field])])
        scores = (known.transform(sentences) @ like.T).toarray()[:, 0]
        found.append(sentences[int(scores.argmax())])
    return found


def _rule_acceptability(train: Rows, test: Rows) -> list[str]:
    """Call a sentence unacceptable if too many of its bigrams occur in no acceptable sentence."""
    known = collections.Counter(
        pair for row in train if row["label"] == "acceptable" for pair in _bigrams(row["text_a"])
    )

    def unknown(row: Row, *, own: int) -> float:
        pairs = _bigrams(row["text_a"])
        return float(np.mean([known[pair] <= own for pair in pairs]))

    scores = [unknown(row, own=row["label"] == "acceptable") for row in train]
    bar = _threshold(scores, [row["label"] == "unacceptable" for row in train])
    names = ("acceptable", "unacceptable")
    return [names[unknown(row, own=0) >= bar] for row in test]


def _bigrams(text: str) -> list[tuple[str, str]]:
    words = text.lower().split()
    return list(itertools.pairwise(words))


# Words that a person expects in the documentation of each package.
_KEYWORDS = {
    "stdlib": "file string thread socket message module process command path stream url codec",
    "jax": "jit trace traced sharding device vmap pytree primitive jaxpr gradient compilation",
    "matplotlib": "axes figure plot color line artist legend canvas patch marker axis label",
    "numpy": "array arrays dtype element elements shape polynomial chebyshev broadcast masked",
    "pandas": "dataframe series index column columns frame groupby row rows timestamp",
    "scipy": "distribution sparse optimization signal filter integral statistics matrix bessel",
    "sklearn": "estimator fit samples classifier features training cross-validation cluster score",
    "sympy": "expression expressions symbolic polynomial symbol simplify integer equation",
    "tensorflow": "graph layer op variable dataset session shape strategy keras batch operation",
}


def _rule_topic(train: Rows, test: Rows) -> list[str]:
    """Predict the package with the most keywords in the text."""
    del train
    words = {package: set(text.split()) for package, text in _KEYWORDS.items()}

    def most(row: Row) -> str:
        own = set(re.findall(r"[\w-]+", row["text_a"].lower()))
        return max(words, key=lambda package: len(words[package] & own))

    return [most(row) for row in test]


def _rule_similarity(train: Rows, test: Rows) -> list[float]:
    """Predict the share of common words."""
    del train
    return [overlap(row["text_a"], row["text_b"]) for row in test]


def _rule_paraphrase(train: Rows, test: Rows) -> list[str]:
    """Call two descriptions paraphrases (of namesakes) if they share enough words."""
    scores = [overlap(*_texts(row)) for row in train]
    bar = _threshold(scores, [row["label"] == "paraphrase" for row in train])
    names = ("not_paraphrase", "paraphrase")
    return [names[overlap(*_texts(row)) >= bar] for row in test]


def _rule_entailment(train: Rows, test: Rows) -> list[str]:
    """Call it entailment if a parameter name begins with a word of the description, or reverse."""
    del train

    def fits(row: Row) -> bool:
        names = [one for one in re.findall(r"[a-z]+", row["text_a"].lower()) if len(one) > 2]
        words = [one for one in re.findall(r"[a-z]+", row["text_b"].lower()) if one not in _STOP]
        return any(w.startswith(n) or n.startswith(w) for w in words if len(w) > 2 for n in names)

    return [("not_entailment", "entailment")[fits(row)] for row in test]


def _rule_span(train: Rows, test: Rows) -> list[str]:
    """Return the parentheses after a parameter's name, or the sentence after its colon."""
    del train
    found = []
    for row in test:
        kind = re.fullmatch(r".* type of (.*)\?", row["question"])
        name = re.escape(kind[1] if kind else row["question"][len("What does ") : -len(" do?")])
        pattern = rf"{name} \((.*?)\): " if kind else rf"{name}(?: \(.*?\))?: (.*?\.)(?: |$)"
        there = re.search(pattern, row["context"])
        found.append(there[1] if there else row["context"])
    return found


def _rule_choices(train: Rows, test: Rows) -> list[list[float]]:
    """Score a choice by its words that occur in the text, over the root of its number of words."""
    del train

    def score(text: str, choice: str) -> float:
        one, other = (
            {word for word in re.findall(r"\w+", part.lower()) if word not in _STOP}
            for part in (text, choice)
        )
        return len(one & other) / max(len(other), 1) ** 0.5

    return [[score(*pair) for pair in _pairs(row)] for row in test]


def _rule_summary(train: Rows, test: Rows) -> list[str]:
    """Return the first sentence of the text."""
    del train
    return [_SENTENCE_END.split(row["inputs"])[0] for row in test]


def _threshold(scores: Sequence[float], is_positive: Sequence[bool]) -> float:
    """Return the threshold that best separates positive (at or above it) from negative rows."""
    bars = np.unique(scores)
    right = np.array(is_positive)
    found = [np.mean((np.array(scores) >= bar) == right) for bar in bars]
    return float(bars[int(np.argmax(found))])


RULES: dict[str, Baseline] = {
    "acceptability": _rule_acceptability,
    "topic": _rule_topic,
    "similarity": _rule_similarity,
    "paraphrase": _rule_paraphrase,
    "entailment": _rule_entailment,
    "span": _rule_span,
    "continuation": _rule_choices,
    "ranking": _rule_choices,
    "summary": _rule_summary,
}


def measure(
    task: str, baseline: Baseline, *, packages: Sequence[str] | None = None
) -> dict[str, float]:
    """Return the metrics of a baseline on the test rows of a task, by name."""
    from data import pyglue_rows  # imports TensorFlow, whose messages `main` silences

    train, test = (pyglue_rows.rows(task, split, packages=packages) for split in ("train", "test"))
    predicted, right = baseline(train, test), [target(row) for row in test]
    found: dict[str, float] = {}
    for name in METRICS_OF[task]:
        metric = METRICS[name]
        if metric.positive is not None:
            metric = dataclasses.replace(metric, positive=_POSITIVE[task])
        found |= metric(right, predicted)
    return found


def table(tasks: Sequence[str]) -> list[str]:
    """Return the lines of a table in Markdown: sizes, and each metric of each baseline."""
    from data import pyglue_rows

    lines = [
        "| task | train, validation, test | metric | constant | bag of words | rule |",
        "|---|---|---|---|---|---|",
    ]
    for task in tasks:
        sizes = ", ".join(f"{len(pyglue_rows.rows(task, split)):,}" for split in pyglue_rows.SPLITS)
        found = [measure(task, one) for one in (constant, bag_of_words, RULES[task])]
        for number, name in enumerate(METRICS_OF[task]):
            values = " | ".join("-" if np.isnan(own[name]) else f"{own[name]:.3f}" for own in found)
            first = f"{task} | {sizes}" if not number else " | "
            lines.append(f"| {first} | {name} | {values} |")
    return lines


def main(arguments: Sequence[str]) -> None:
    """Print the table of some tasks, or of all."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m data.pyglue_baselines")
    parser.add_argument("--tasks", default="", metavar="A,B", help="names (all)")
    tasks = parser.parse_args(arguments).tasks
    startup.silence_tensorflow()
    names = tasks.split(",") if tasks else list(RULES)
    with one_line_errors():
        lines = table([choose("--tasks", name, {one: one for one in RULES}) for name in names])
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
