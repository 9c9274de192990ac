"""A small Punkt model of NLTK, and the code of TensorFlow Datasets that made C4, which uses it."""

import collections
import contextlib

import nltk
from tensorflow_datasets.text import c4_utils

from data.filters import c4_rules

ABBREVIATIONS = ("dr", "mr", "mrs", "e.g", "i.e", "st", "inc")


@contextlib.contextmanager
def installed(folder, monkeypatch):
    """Writes the model in the format of nltk.downloader, and lets NLTK find only this one."""
    model = folder / "tokenizers" / "punkt_tab" / "english"
    model.mkdir(parents=True)
    (model / "abbrev_types.txt").write_text("\n".join(ABBREVIATIONS))
    (model / "collocations.tab").write_text("st\tlouis")
    (model / "sent_starters.txt").write_text("however\nthis")
    (model / "ortho_context.tab").write_text("the\t46\nlouis\t2")
    monkeypatch.setenv("NLTK_DATA", str(folder))  # of processes that are started
    monkeypatch.setattr(nltk.data, "path", [str(folder)])
    c4_rules._punkt.cache_clear()
    yield
    c4_rules._punkt.cache_clear()


@contextlib.contextmanager
def released_code(monkeypatch):
    """c4_utils with NLTK's model of `installed`; yields what it counts."""
    counts = collections.Counter()

    def increase(name, amount=1):
        counts[name] += amount

    with monkeypatch.context() as patched:
        patched.setattr(c4_utils, "_SENTENCE_TOKENIZER", c4_rules._punkt())
        # Apache Beam's counters.
        patched.setattr(c4_utils, "get_counter_inc_fn", lambda namespace: increase)
        yield counts
