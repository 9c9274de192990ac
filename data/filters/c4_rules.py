"""The rules of C4 for one page (Raffel et al. 2020, section 2.2), as TensorFlow Datasets has them.

`c4/en:3.1.0` of TensorFlow Datasets, tensorflow_datasets/text/c4.py and c4_utils.py:

1. A line is dropped if a word has more than 1,000 characters, if it does not end in . ? ! or " or
   ends in ..., or if it has fewer than 5 words. Citations ([1], [edit], [citation needed]) are
   removed first.
2. Of the other lines, one with "lorem ipsum" or with a { drops its page. A line with "javascript",
   or with a phrase of privacy policies ("terms of use", "use cookies", ...), is dropped.
3. A page of fewer than 3 sentences is dropped. NLTK's English Punkt model finds the sentences.
4. A page is dropped unless langdetect gives English a probability of 0.99 or more.
5. A page with a word of a list of bad words is dropped.

The paper's version in JMLR has 5 sentences and 3 words; its last version on arXiv has the numbers
above, which made C4.
"""

import collections
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tensorflow as tf

Counts = collections.Counter[str]

MOST_CHARACTERS = 190_000  # of a page
LEAST_WORDS = 5  # of a line
LEAST_SENTENCES = 3  # of a page
MOST_WORD_CHARACTERS = 1000
LEAST_PROBABILITY = 0.99  # of the language

END_MARKS = (".", "?", "!", '"')
POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
ANY_LANGUAGE = "any"

# Names of the counts.
TOO_LONG = "pages of more than 190,000 characters"
LONG_WORD = "lines with a word of more than 1,000 characters"
NO_END_MARK = "lines without an end mark"
SHORT_LINE = "lines of fewer than 5 words"
LOREM_IPSUM = "pages with lorem ipsum"
JAVASCRIPT = "lines with javascript"
BRACE = "pages with {"
POLICY = "lines of policies"
FEW_SENTENCES = "pages of fewer than 3 sentences"
UNCERTAIN_LANGUAGE = "pages of an uncertain language"
OTHER_LANGUAGE = "pages of another language"
BAD_WORDS = "pages with bad words"

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_OF_PAGES = (LOREM_IPSUM, BRACE)
# The rules of `clean`, in their order.
CLEANING = (
    *(LONG_WORD, NO_END_MARK, SHORT_LINE, LOREM_IPSUM, JAVASCRIPT, BRACE, POLICY),
    FEW_SENTENCES,
)


def clean(text: str, counts: Counts) -> str | None:
    """Apply rules 1 to 3 to a page.

    Args:
        text: the page.
        counts: {rule: lines or pages that it dropped}, is added to.

    Returns:
        The lines that remain; None if the page is dropped.
    """
    lines, number = [], 0
    for raw in text.splitlines():
        line = raw.strip()
        long_word = any(len(word) > MOST_WORD_CHARACTERS for word in line.split())
        line = _CITATION.sub("", line)
        if rule := LONG_WORD if long_word else _rule_against(line):
            counts[rule] += 1
            if rule in _OF_PAGES:
                return None
            continue
        number += len(sentences(line))
        lines.append(line)
    if number < LEAST_SENTENCES:
        counts[FEW_SENTENCES] += 1
        return None
    return "\n".join(lines).strip()


def _rule_against(line: str) -> str:
    """Return the first rule that drops a line or its page; empty if none does."""
    lower = line.lower()
    rules = (
        (NO_END_MARK, not line.endswith(END_MARKS) or line.endswith("...")),
        (SHORT_LINE, len(line.split()) < LEAST_WORDS),
        (LOREM_IPSUM, "lorem ipsum" in lower),
        (JAVASCRIPT, "javascript" in lower),
        (BRACE, "{" in line),
        (POLICY, any(policy in lower for policy in POLICIES)),
    )
    return next((name for name, applies in rules if applies), "")


@functools.cache
def _punkt() -> Any:
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        return PunktTokenizer("english")
    except LookupError:
        raise ValueError(
            "NLTK's sentence model is not on this machine: python -m nltk.downloader punkt_tab"
        ) from None


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, as NLTK's English Punkt model divides it.

    Raises:
        ValueError: the model is not on this machine.
    """
    return _punkt().tokenize(text)


def check_models(language: str) -> None:
    """Check that what the rules need is on this machine.

    Raises:
        ValueError: NLTK's model or langdetect is not, or langdetect does not know the language.
    """
    sentences("")
    if language == ANY_LANGUAGE:
        return
    known = _langdetect().detector_factory
    known.init_factory()
    if language not in (languages := known._factory.get_lang_list()):
        raise ValueError(
            f"--language={language!r} must be {ANY_LANGUAGE}, or one of {', '.join(languages)}"
        )


@functools.cache
def _langdetect() -> Any:
    try:
        import langdetect
    except ImportError:
        raise ValueError(
            "the language of pages needs langdetect: pip install -e '.[c4]', or set "
            f"--language={ANY_LANGUAGE}"
        ) from None
    langdetect.DetectorFactory.seed = 0  # it samples, and would otherwise differ from run to run
    return langdetect


def language_rule(text: str, language: str) -> str:
    """Return the rule by which a page is dropped for its language; empty if it is kept.

    Args:
        text: the page.
        language: a code of langdetect, such as "en"; "any" keeps every page.
    """
    if language == ANY_LANGUAGE:
        return ""
    langdetect = _langdetect()
    try:
        best = langdetect.detect_langs(text)[0]
    except langdetect.lang_detect_exception.LangDetectException:  # it has no letters
        return UNCERTAIN_LANGUAGE
    if best.prob < LEAST_PROBABILITY:
        return UNCERTAIN_LANGUAGE
    return "" if best.lang == language else OTHER_LANGUAGE


def bad_words_pattern(words: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds bad words in lower-case text; None if there are no words.

    A word is found between characters that are neither letters, digits nor underscores.
    """
    escaped = [re.escape(word) for line in words if (word := line.strip().lower())]
    return re.compile(rf"(?:\W|^)({'|'.join(escaped)})(?:\W|$)") if escaped else None


def page_rule(text: str, *, language: str, bad_words: re.Pattern[str] | None) -> str:
    """Return the one of rules 4 and 5 by which a cleaned page is dropped; empty if it is kept."""
    if rule := language_rule(text, language):
        return rule
    return BAD_WORDS if bad_words and bad_words.search(text.lower()) else ""


def normalized_url(url: str) -> str:
    """Return an address without its scheme, www., tracking parameters and last slashes."""
    url = re.sub(r"https?://(www\.)?", "", url)
    return re.sub(r"\?(utm_|ref|feed).*", "", url).rstrip("/")


def hashed(text: str) -> int:
    """Return the first 64 bits of a text's MD5."""
    return int.from_bytes(hashlib.md5(text.encode()).digest()[:8], "big")


class Part(NamedTuple):
    """A part of a page that may occur again elsewhere.

    Attributes:
        start, end: the offsets of its first character and its end.
        text: what is compared.
    """

    start: int
    end: int
    text: str


def line_parts(text: str) -> Iterator[Part]:
    """Yield the lines of a page, which the released code compares."""
    start = 0
    for line in text.split("\n"):
        yield Part(start, start + len(line), line.strip().lower())
        start += len(line) + 1


def span_parts(text: str) -> Iterator[Part]:
    """Yield all spans of three consecutive sentences, which the paper compares."""
    spans = [
        (line.start + start, line.start + end)
        for line in line_parts(text)
        for start, end in _punkt().span_tokenize(text[line.start : line.end])
    ]
    for (start, _), (_, end) in zip(spans, spans[2:], strict=False):
        yield Part(start, end, " ".join(text[start:end].lower().split()))


PARTS = {"lines": line_parts, "spans": span_parts}


def without(text: str, removed: Iterable[Part]) -> str:
    """Remove parts from a page; a line of which nothing is left disappears."""
    stays = bytearray(b"\1" * len(text))
    for part in removed:
        stays[part.start : part.end] = bytes(part.end - part.start)
    lines = []
    for line in line_parts(text):
        own, left = text[line.start : line.end], stays[line.start : line.end]
        if all(left):
            lines.append(own)
        elif rest := "".join(itertools.compress(own, left)).strip():
            lines.append(rest)
    return "\n".join(lines)


def clean_pages(
    dataset: "tf.data.Dataset", *, language: str = "en", bad_words: Sequence[str] = ()
) -> "tf.data.Dataset":
    """Apply the rules to pages; a seqio preprocessor.

    Copies are not removed: that needs all pages, see data/filters/clean_pages.py.

    Args:
        dataset: a dataset of {"text": scalar string, ...}.
        language: see `language_rule`.
        bad_words: the list of bad words.

    Returns:
        The pages that are kept, with their cleaned text.

    Raises:
        ValueError: see `check_models`.
    """
    import tensorflow as tf

    check_models(language)
    pattern = bad_words_pattern(bad_words)

    def cleaned(content: bytes) -> bytes:
        text = content.decode("utf-8", "replace")
        page = clean(text, Counts()) if len(text) <= MOST_CHARACTERS else None
        if page is None or page_rule(page, language=language, bad_words=pattern):
            return b""
        return page.encode()

    def clean_text(example: dict[str, Any]) -> dict[str, Any]:
        text = tf.numpy_function(cleaned, [example["text"]], tf.string, stateful=False)
        return {**example, "text": tf.ensure_shape(text, [])}

    return dataset.map(clean_text, num_parallel_calls=tf.data.AUTOTUNE).filter(
        lambda example: tf.strings.length(example["text"]) > 0
    )
