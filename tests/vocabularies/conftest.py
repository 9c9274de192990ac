"""Words of this repository's pages with their counts, and words that only other pages have."""

import collections
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def count(*pages):
    counts = collections.Counter()
    for page in pages:
        counts.update(re.findall(r"\w+|[^\w\s]", page.read_text("utf-8").lower()))
    return counts


@pytest.fixture(scope="session")
def page_words():
    counts = count(ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    return {word: number for word, number in counts.items() if number > 2}


@pytest.fixture(scope="session")
def frequent_words(page_words):
    ranked = sorted(page_words, key=page_words.__getitem__, reverse=True)
    return {word: page_words[word] for word in ranked[:150]}


@pytest.fixture(scope="session")
def held_out_words(page_words):
    """Words of the pages of systems, of characters that the other pages have."""
    known = set().union(*page_words)
    words = count(*sorted((ROOT / "docs" / "systems").glob("*.md"))).keys() - page_words.keys()
    words = sorted(word for word in words if set(word) <= known)
    assert len(words) > 500
    return words
