"""The rules of C4 for a page, beside the code of TensorFlow Datasets that made C4."""

import re
import sys

import nltk
import numpy as np
import pytest
import seqio
import tensorflow as tf
from tensorflow_datasets.text import c4_utils

from data.filters import c4_rules
from tests.programs import sentence_model, web_texts


@pytest.fixture(autouse=True)
def small_model(tmp_path, monkeypatch):
    with sentence_model.installed(tmp_path / "nltk", monkeypatch):
        yield


RELEASED_COUNTS = {
    "line-filtered:too_long_word": c4_rules.LONG_WORD,
    "line-filtered:no_endmark": c4_rules.NO_END_MARK,
    "line-filtered:too_short": c4_rules.SHORT_LINE,
    "line-filtered:javascript": c4_rules.JAVASCRIPT,
    "line-filtered:policy": c4_rules.POLICY,
    "filtered:loremipsum": c4_rules.LOREM_IPSUM,
    "filtered:squigglybracket": c4_rules.BRACE,
    "filtered:too_few_sentences": c4_rules.FEW_SENTENCES,
}

# What c4_utils_test.py shows: the lines of a page, what is left of them, and the counts.
CASES = {
    "lines": (
        [
            "This is a full line of text, Mrs. Brown!",
            "Archive | Articles | Institutions | All Open Access Papers",
            '"We open. We write. We publish all of it."',
            "Networks\u2122/ Behavioral and Social Science...",
            "Two words.",
            "Please enable javascript in the browser so that you see this page.",
            "Because your JavaScript is off you cannot see this page.",
            "Anna has a cookie policy: eat all of them.",
            "Bob has a privacy policy: say nothing to anybody.",
            "Everybody should follow our terms of use!",
        ],
        [0, 2],
        {
            c4_rules.SHORT_LINE: 1,
            c4_rules.NO_END_MARK: 2,
            c4_rules.JAVASCRIPT: 2,
            c4_rules.POLICY: 3,
        },
    ),
    "sentences": (
        ["The first line is a sentence.", "It seems to be three...but here is only 1."],
        None,
        {c4_rules.FEW_SENTENCES: 1},
    ),
    "code": (
        [
            "The page begins with plain text.",
            "So far all of these are sentences.",
            "But now a block of code follows here, suddenly.",
            "fn add(a) { b = a + 1; }.",
        ],
        None,
        {c4_rules.BRACE: 1},
    ),
    "lorem ipsum": (
        ["Lorem ipsum dolor sit amet, consectetur.", "Ut enim ad minim veniam, quis."],
        None,
        {c4_rules.LOREM_IPSUM: 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pages_are_cleaned_as_the_tests_of_the_released_code_show(name):
    lines, left, expected = CASES[name]
    counts = c4_rules.Counts()
    found = c4_rules.clean("\n".join(lines), counts)
    assert found == (None if left is None else "\n".join(lines[n] for n in left))
    assert counts == expected


def test_citations_disappear_before_the_rules_are_applied():
    text = "\n".join(
        [
            "This is a page of text.",
            "A line without an end mark",
            "But this line ends in a citation.[3]",
            "Others ask for citations[citation needed]. Or they can be edited.[edit]",
        ]
    )
    assert c4_rules.clean(text, c4_rules.Counts()) == (
        "This is a page of text.\nBut this line ends in a citation.\n"
        "Others ask for citations. Or they can be edited."
    )


def test_random_pages_are_cleaned_and_counted_as_by_the_released_code(monkeypatch):
    random = np.random.default_rng(0)
    counts = c4_rules.Counts()
    texts = [web_texts.text(random) for _ in range(400)]
    found = [c4_rules.clean(text, counts) for text in texts]
    with sentence_model.released_code(monkeypatch) as released:
        clean = c4_utils.get_clean_page_fn()
        expected = [
            next((page.text for page in clean(c4_utils.PageFeatures(text=text))), None)
            for text in texts
        ]
    assert found == expected
    assert 100 < sum(text is not None for text in found) < 300
    assert dict(counts) == {ours: released[theirs] for theirs, ours in RELEASED_COUNTS.items()}
    assert min(counts.values()) > 5


BAD = ["ass", "c++ coder", "A.B"]


@pytest.mark.parametrize(
    "text",
    [
        "My assistant polished the cutlass with great care.",
        "The saddle was put on an ass for the journey.",
        "Ass: a small animal like a horse.",
        'Another word for a donkey is "ass".',
        "an ass",
        "An ass_tute c++ coder, they say.",
        "The word axb is not a bad word.",
        "",
    ],
)
def test_bad_words_are_found_where_the_released_code_finds_them(text, monkeypatch):
    pattern = c4_rules.bad_words_pattern(BAD)
    with sentence_model.released_code(monkeypatch):
        keeps = c4_utils.get_badwords_filter_fn({"en": [word.lower() for word in BAD]})
        expected = keeps(c4_utils.PageFeatures(text=text, language="en"))
    found = c4_rules.page_rule(text, language="any", bad_words=pattern)
    assert found == ("" if expected else c4_rules.BAD_WORDS)


def test_a_list_without_words_drops_nothing():
    assert c4_rules.bad_words_pattern(["", " "]) is None
    assert c4_rules.page_rule("darn", language="any", bad_words=None) == ""


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The baker sold all of his bread, and then he went home to sleep.", ""),
        (
            "Der Bäcker hat das ganze Brot verkauft, und dann ging er nach Hause.",
            c4_rules.OTHER_LANGUAGE,
        ),
        ("1 2 3.", c4_rules.UNCERTAIN_LANGUAGE),
        ("taxi hotel menu", None),
    ],
)
def test_languages_are_detected_as_by_the_released_code(text, rule, monkeypatch):
    found = c4_rules.language_rule(text, "en")
    with sentence_model.released_code(monkeypatch):
        expected = [*c4_utils.detect_english(c4_utils.PageFeatures(text=text))]
    assert bool(found) == (not expected)
    assert rule in (None, found)
    assert found == c4_rules.language_rule(text, "en"), "it does not depend on chance"


@pytest.mark.parametrize(
    "url",
    [
        "http://www.site.org/",
        "https://site.org/a/?utm_source=mail&x=1",
        "https://site.org/a?reference=1",
        "https://site.org/a?x=1&feed=2//",
        "ftp://site.org/http://www.other.org/?feed",
    ],
)
def test_addresses_are_normalized_as_by_the_released_code(url):
    assert c4_rules.normalized_url(url) == c4_utils.normalize_url(url)
    assert c4_rules.hashed(url) == int(c4_utils._hash_text(url)[:16], 16)


def test_parts_of_pages_are_lines_or_spans_of_three_sentences():
    text = "One was here. Two  was there.\nThree came. Four went."
    lines = [*c4_rules.line_parts(text)]
    assert [part.text for part in lines] == [line.lower() for line in text.split("\n")]
    spans = [*c4_rules.span_parts(text)]
    assert [part.text for part in spans] == [
        "one was here. two was there. three came.",
        "two was there. three came. four went.",
    ]
    assert c4_rules.without(text, lines[:1]) == "Three came. Four went."
    assert c4_rules.without(text, spans[:1]) == "Four went."
    assert c4_rules.without(text, spans[1:]) == "One was here."
    assert c4_rules.without(text, spans) == ""
    assert c4_rules.without(text, []) == text


def test_the_rules_are_a_preprocessor_of_seqio():
    random = np.random.default_rng(1)
    texts = [web_texts.text(random) for _ in range(60)]
    texts += ["A line of this page is long. " * 8000]
    pattern = c4_rules.bad_words_pattern(web_texts.BAD_WORDS)
    expected = [
        text
        for text in (c4_rules.clean(text, c4_rules.Counts()) for text in texts[:-1])
        if text and not c4_rules.page_rule(text, language="en", bad_words=pattern)
    ]
    assert 5 < len(expected) < 55

    def rows(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensor_slices({"text": texts, "number": [*range(len(texts))]})

    def clean(dataset):
        return c4_rules.clean_pages(dataset, bad_words=web_texts.BAD_WORDS)

    task = seqio.Task(
        "c4_rules_test",
        source=seqio.FunctionDataSource(rows, splits=["train"]),
        preprocessors=[clean],
        output_features={
            "text": seqio.Feature(seqio.PassThroughVocabulary(1), dtype=tf.string, rank=0)
        },
    )
    found = task.get_dataset(None, "train", shuffle=False)
    assert [row["text"].decode() for row in found.as_numpy_iterator()] == expected


def test_what_is_not_installed_is_one_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "langdetect", None)
    c4_rules._langdetect.cache_clear()
    with pytest.raises(ValueError, match=re.escape("pip install -e '.[c4]'")):
        c4_rules.check_models("en")
    c4_rules.check_models("any")
    monkeypatch.undo()
    c4_rules._langdetect.cache_clear()
    with pytest.raises(ValueError, match=r"--language='english' must be any, or one of .*en, "):
        c4_rules.check_models("english")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "empty")])
    c4_rules._punkt.cache_clear()
    with pytest.raises(ValueError, match=r"python -m nltk.downloader punkt_tab"):
        c4_rules.check_models("any")
