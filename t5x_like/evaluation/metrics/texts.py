"""Metrics of texts: exact match and F1 of words, ROUGE, BLEU, NIST, METEOR, distinct n-grams.

If there are several right texts, the best counts, or in BLEU and NIST all of them. Texts in any
script are split into words.
"""

import collections
import functools
import itertools
import math
import operator
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import logging

from t5x_like.evaluation.metrics import classes
from t5x_like.evaluation.metrics.metric import Statistics, means

# Prefixes of the Unicode names of characters in scripts without spaces between words.
_UNSPACED = (
    *("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "KATAKANA", "BOPOMOFO ", "YI SYLLABLE"),
    *("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ", "JAVANESE "),
)
_NONE, _WORD, _MARK, _CHARACTER, _INVISIBLE = range(5)
_ZERO_WIDTH_SPACE = "\u200b"


@functools.cache
def _kind(character: str) -> int:
    category = unicodedata.category(character)
    if category[0] == "M":
        return _MARK
    if category[0] in "LN":
        unspaced = unicodedata.name(character, "").startswith(_UNSPACED)
        return _CHARACTER if unspaced else _WORD
    # Invisible joiners occur within words of Persian and Hindi.
    is_invisible = category == "Cf" and character != _ZERO_WIDTH_SPACE
    return _INVISIBLE if is_invisible else _NONE


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between words."""
    return _kind(character) == _CHARACTER


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, after NFKC normalization."""
    split: list[str] = []
    before = _NONE
    for character in unicodedata.normalize("NFKC", text).lower():
        kind = _kind(character)
        if kind == _INVISIBLE:
            continue
        if kind == _CHARACTER or (kind == _WORD and before != _WORD):
            split.append(character)
        elif kind == _WORD or (kind == _MARK and before != _NONE):
            split[-1] += character
        if kind != _MARK:
            before = kind
    return split


class RougeWords:
    """The tokenizer of rouge-score's `RougeScorer`, for texts in any script."""

    def __init__(self) -> None:
        from nltk.stem import porter

        self._stem = porter.PorterStemmer().stem

    def tokenize(self, text: str) -> list[Any]:
        """Return the words of a text; ASCII words of more than 3 letters are stemmed."""
        return [
            self._stem(word) if word.isascii() and len(word) > 3 else word for word in words(text)
        ]


Texts = str | Sequence[str]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SQUAD = str.maketrans("", "", string.punctuation)
_TRIVIA_QA = str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4`_", " "))
_END_OF_SENTENCE = re.compile(r"(?<=[.!?\u0964\u061f\u06d4])\s+|(?<=[\u3002\uff01\uff1f])\s*(?!$)")
_SEGMENTED = ("zh", "char", "ja-mecab", "ko-mecab", "flores101", "flores200", "none")
_ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL", "rouge_lsum": "rougeLsum"}


def references(target: Texts) -> list[str]:
    """Return the right texts of a target."""
    return [target] if isinstance(target, str) else list(target)


def _check_references(targets: Sequence[Texts], *, metric: str) -> None:
    """Check that each prediction can be compared with a right text.

    Raises:
        ValueError: a target is an empty list.
    """
    for number, target in enumerate(targets):
        if not references(target):
            raise ValueError(f"{metric}: the list of right texts of example {number} is empty")


def normalize(text: str, *, punctuation: dict[int, Any] = _SQUAD) -> list[str]:
    """Return the words of a text in lower case, without punctuation and articles.

    Args:
        punctuation: a table of `str.translate`. SQuAD removes punctuation, so that "it's" is one
            word; TriviaQA replaces it with a space, so that "it's" is two.
    """
    return _ARTICLES.sub(" ", text.lower().translate(punctuation)).split()


def exact_match(predicted: str, answers: Sequence[str], **settings: Any) -> float:
    """Return 1.0 if a text has exactly the words of an answer; without answers, no words."""
    predicted_words = normalize(predicted, **settings)
    return float(
        any(predicted_words == normalize(answer, **settings) for answer in answers or [""])
    )


def f1(predicted: str, answers: Sequence[str], **settings: Any) -> float:
    """Return the F1 of words (of precision and recall), the largest over the answers."""
    predicted_words = _by_character(normalize(predicted, **settings))
    return max(
        _f1(predicted_words, _by_character(normalize(answer, **settings)))
        for answer in answers or [""]
    )


def _by_character(texts: Sequence[str]) -> list[str]:
    """Split words of scripts without spaces into characters; keep all other words."""
    parts: list[str] = []
    for text in texts:
        if text.isascii():
            parts.append(text)
            continue
        spaced = "".join(
            f" {character} " if is_unspaced(character) else character for character in text
        )
        parts += spaced.split()
    return parts


def _f1(predicted: Sequence[str], answer: Sequence[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    common = (collections.Counter(predicted) & collections.Counter(answer)).total()
    return 2 * common / (len(predicted) + len(answer))


def mean_over_texts(
    targets: Sequence[Texts],
    predictions: Sequence[str],
    *,
    name: str,
    measure: Callable[[str, Sequence[str]], float],
) -> Statistics:
    """The mean of `measure` over the predictions, each compared with its right texts."""
    pairs = zip(predictions, targets, strict=True)
    values = [measure(predicted, references(target)) for predicted, target in pairs]
    return Statistics(np.array(values, float)[:, None], means(name))


def rouge(targets: Sequence[Texts], predictions: Sequence[str], *, name: str) -> Statistics:
    """ROUGE F-measures (Lin 2004) by rouge-score, with stemming, of the best reference.

    rouge-score's own bootstrap is not used, since it draws from NumPy's global random state.

    Args:
        targets, predictions: the texts.
        name: "rouge_1" and "rouge_2", of words and pairs of words; "rouge_l", of the longest common
            subsequence; "rouge_lsum", the same per sentence. Sentences are lines or, in a text with
            a single line, end with ".", "!" or "?", or their equivalents in other scripts.

    Raises:
        ValueError: an example has no right text.
    """
    from rouge_score import rouge_scorer

    _check_references(targets, metric=name)
    kind = _ROUGE[name]
    scorer = rouge_scorer.RougeScorer([kind], tokenizer=RougeWords())
    split = _as_lines if name == "rouge_lsum" else str

    def measure(predicted: str, right: Sequence[str]) -> float:
        scores = scorer.score_multi([split(reference) for reference in right], split(predicted))
        return scores[kind].fmeasure

    return mean_over_texts(targets, predictions, name=name, measure=measure)


def _as_lines(text: str) -> str:
    return text if "\n" in text.strip() else _END_OF_SENTENCE.sub("\n", text)


def bleu(
    targets: Sequence[Texts], predictions: Sequence[str], *, tokenizer: str = "13a"
) -> Statistics:
    """Case-sensitive corpus BLEU, from 0 to 100, by sacreBLEU (Post 2018).

    Args:
        targets, predictions: the texts.
        tokenizer: sacreBLEU's name of a tokenizer.

    Returns:
        Statistics of `bleu`, its `brevity_penalty`, and `length_ratio` in words.

    Raises:
        ValueError: an example has no right text.
    """
    from sacrebleu.metrics import BLEU

    _check_references(targets, metric="bleu")
    if tokenizer not in _SEGMENTED and _mostly_unspaced(targets):
        logging.warning(
            "bleu: most letters of the references are of a script without spaces between words, "
            "which the tokenizer %r does not split: take zh (Chinese) or char",
            tokenizer,
        )
    # `force` silences warnings about tokenized punctuation.
    metric = BLEU(tokenize=tokenizer, force=True)
    rows = []
    for predicted, target in zip(predictions, targets, strict=True):
        score = metric.corpus_score([predicted], [[text] for text in references(target)])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])

    def reduce(rows: np.ndarray) -> dict[str, float]:
        sums = rows.sum(axis=0).astype(int).tolist()
        order = (len(sums) - 2) // 2
        correct, total, (system, reference) = sums[:order], sums[order:-2], sums[-2:]
        score = BLEU.compute_bleu(correct, total, system, reference, smooth_method="exp")
        ratio = score.sys_len / score.ref_len if score.ref_len else np.nan
        return {"bleu": score.score, "brevity_penalty": score.bp, "length_ratio": ratio}

    return Statistics(np.array(rows, float), reduce)


def _mostly_unspaced(targets: Sequence[Texts]) -> bool:
    letters = [character for target in targets for text in references(target) for character in text]
    letters = [character for character in letters if character.isalpha()]
    return 2 * sum(map(is_unspaced, letters)) > len(letters)


def tokens(text: str) -> list[str]:
    """Return the words and punctuation marks of a text in lower case, like NIST's mteval-v13a."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return _by_character(Tokenizer13a()(text).lower().split())


def _ngrams(words: Sequence[str], orders: Sequence[int]) -> collections.Counter[tuple[str, ...]]:
    return collections.Counter(
        tuple(words[start : start + n]) for n in orders for start in range(len(words) - n + 1)
    )


class _NoSynonyms:
    """Stands for WordNet, which would have to be downloaded."""

    def synsets(self, word: str) -> tuple[()]:
        return ()


def meteor(targets: Sequence[Texts], predictions: Sequence[str]) -> Statistics:
    """The mean METEOR (Banerjee and Lavie 2005) of texts by NLTK, with exact and stemmed matches.

    Words match if they or their Porter stems are equal. The paper's third stage, synonyms of
    WordNet, is left out, so that values are at most the values with synonyms. Of several right
    texts the best counts. NLTK matches repeated words from the end, not with the fewest crossings.

    Raises:
        ValueError: an example has no right text.
    """
    from nltk.translate import meteor_score

    _check_references(targets, metric="meteor")

    def measure(predicted: str, right: Sequence[str]) -> float:
        right_words = [tokens(text) for text in right]
        return meteor_score.meteor_score(right_words, tokens(predicted), wordnet=_NoSynonyms())

    return mean_over_texts(targets, predictions, name="meteor", measure=measure)


_NIST_ORDERS = range(1, 6)
# The brevity penalty is 0.5 if the text has 2/3 of the words of its references.
_NIST_BETA = math.log(0.5) / math.log(1.5) ** 2


def nist(targets: Sequence[Texts], predictions: Sequence[str]) -> Statistics:
    """Corpus NIST (Doddington 2002) of up to 5-grams, 0 or larger, like mteval-v13a.

    An n-gram that a right text has counts with its information, log2 of the count of its first
    n - 1 words divided by its own, which are counted in all right texts. In the resamples of a
    bootstrap the information stays the same. A count is at most the largest in one of the right
    texts. The length is compared with the mean length of the right texts.

    Raises:
        ValueError: an example has no right text.
    """
    _check_references(targets, metric="nist")
    right = [[tokens(text) for text in references(target)] for target in targets]
    counted = [[_ngrams(words, _NIST_ORDERS) for words in texts] for texts in right]
    totals: collections.Counter[tuple[str, ...]] = collections.Counter()
    for counts in itertools.chain.from_iterable(counted):
        totals.update(counts)
    totals[()] = sum(len(words) for texts in right for words in texts)
    rows = []
    for predicted, texts, others in zip(predictions, right, counted, strict=True):
        words, gains = tokens(predicted), np.zeros(len(_NIST_ORDERS))
        common = _ngrams(words, _NIST_ORDERS) & functools.reduce(operator.or_, others)
        for ngram, count in common.items():
            gains[len(ngram) - 1] += count * math.log2(totals[ngram[:-1]] / totals[ngram])
        sizes = [max(len(words) - n + 1, 0) for n in _NIST_ORDERS]
        rows.append([*gains, *sizes, np.mean([len(reference) for reference in texts])])
    return Statistics(np.array(rows, float), _nist)


def _nist(rows: np.ndarray) -> dict[str, float]:
    *sums, length = rows.sum(axis=0)
    gains, sizes = np.split(np.array(sums), 2)
    if not sizes[0] or not length:
        return {"nist": 0.0}
    brevity = math.exp(_NIST_BETA * math.log(min(sizes[0] / length, 1.0)) ** 2)
    return {"nist": float((gains / np.maximum(sizes, 1)).sum() * brevity)}


def distinct(targets: Sequence[Texts], predictions: Sequence[str], *, n: int) -> Statistics:
    """The number of different n-grams of all predictions, divided by their number of words.

    It is distinct-n of Li et al. 2016; some later code divides by the number of
    n-grams. The targets are not read. An n-gram that occurs k times counts 1/k at each, also in the
    resamples of a bootstrap, whose repeated texts would otherwise have fewer different n-grams.
    """
    del targets
    texts = [tokens(predicted) for predicted in predictions]
    counted = [_ngrams(words, [n]) for words in texts]
    totals: collections.Counter[tuple[str, ...]] = collections.Counter()
    for counts in counted:
        totals.update(counts)
    rows = [
        [sum(count / totals[ngram] for ngram, count in counts.items()), len(words)]
        for counts, words in zip(counted, texts, strict=True)
    ]

    def reduce(rows: np.ndarray) -> dict[str, float]:
        different, words = rows.sum(axis=0)
        return {f"distinct_{n}": different / words if words else 0.0}

    return Statistics(np.array(rows, float), reduce)


def _of_words(
    measure: Callable[..., float], *, name: str, **settings: Any
) -> Callable[[Sequence[Texts], Sequence[str]], Statistics]:
    measured = functools.partial(measure, **settings)
    return functools.partial(mean_over_texts, name=name, measure=measured)


squad_exact_match = _of_words(exact_match, name="exact_match")
squad_f1 = _of_words(f1, name="f1")
trivia_qa_exact_match = _of_words(exact_match, name="trivia_qa_exact_match", punctuation=_TRIVIA_QA)
trivia_qa_f1 = _of_words(f1, name="trivia_qa_f1", punctuation=_TRIVIA_QA)


def constants(targets: Sequence[Texts], **settings: Any) -> list[list[Any]]:
    """Return constant predictions of the two answers that are right most often."""
    each = ([answers] if isinstance(answers, str) else answers for answers in targets)
    return classes.constants(
        [
            [" ".join(normalize(answer, **settings)) for answer in answers or [""]]
            for answers in each
        ]
    )


trivia_qa_constants = functools.partial(constants, punctuation=_TRIVIA_QA)
