"""The corpus of documentation strings: what is a document, the cache, the splits, the task."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import seqio

from t5x_like import paths, vocabularies
from t5x_like.preprocessing import seqio_objectives, sources

DATA = Path(__file__).parents[2] / "data"
pydocs = sources.load_module(str(DATA / "pydocs.py"))

LONG = "It does one thing, and this sentence is here to be long enough for a document."
SOURCE = f'''
"""The module. {LONG}"""

class Thing:
    """The class. {LONG}

    A line.
        An indented line.
    """

    def method(self):
        """The method. {LONG}"""

if True:
    try:
        async def inside():
            """In a branch. {LONG}"""
    except ImportError:
        def other():
            """In a handler. {LONG}"""

def short():
    """Too short."""

def copied():
    """The method. {LONG}"""

def surrogate():
    """Half a pair: \\ud800. {LONG}"""

text = """No documentation. {LONG}"""
'''
FOUND = {
    f"The module. {LONG}",
    f"The class. {LONG}\n\nA line.\n    An indented line.",
    f"The method. {LONG}",
    f"In a branch. {LONG}",
    f"In a handler. {LONG}",
    f"Half a pair: ?. {LONG}",
}


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """An importable package `documented`, and an empty cache."""
    folder = tmp_path / "installed" / "documented"
    (folder / "deep").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "deep" / "good.py").write_text(SOURCE)
    (folder / "syntax.py").write_text(f'"""{LONG}"""\ndef broken(:\n')
    (folder / "latin.py").write_bytes(f'"""caf\xe9 {LONG}"""'.encode("latin-1"))
    (folder / "null.py").write_bytes(f'"""{LONG}"""\0'.encode())
    (folder / "deepest.py").write_text("(" * 5000 + ")" * 5000)
    (folder / "tests" / "test_it.py").write_text(f'"""A test. {LONG}"""')
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "cache"))
    return folder


def texts(split: str, **settings) -> list[str]:
    rows = pydocs.documents(split, **settings).as_numpy_iterator()
    return [row["text"].decode() for row in rows]


def both_splits() -> list[str]:
    return [text for split in sources.SPLITS for text in texts(split, packages="documented")]


def test_documents_are_the_docstrings_and_bad_files_do_not_stop_it():
    found = both_splits()
    assert set(found) == FOUND
    assert len(found) == len(FOUND)  # each once


def test_the_worker_runs_alone_and_never_fails(package):
    script = [sys.executable, "-I", "-S", str(DATA / "docstrings.py")]
    done = subprocess.run(script, input='["/no/such/file.py"]', capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[[]]")


def test_the_splits_are_disjoint_and_follow_the_rule(package):
    many = "\n".join(f'def f{n}():\n    """Function {n}. {LONG}"""' for n in range(1000))
    (package / "many.py").write_text(many)
    train, validation = (texts(split, packages="documented") for split in sources.SPLITS)
    assert not set(train) & set(validation)
    assert len(train) + len(validation) == 1000 + len(FOUND)
    assert 0 < len(validation) < 60
    assert sources.held_out(validation, fraction=pydocs.HELD_OUT).numpy().all()


DESCRIBED = '''
"""Return the sum of the elements over an axis.

It keeps `dtype` and :class:`Order` of the whole array. Not a sentence without an end
See x = y for more of that.

Args:
  axis: The axis along which the elements are added, which may
    be negative. Wrong if axis is [0].
  text (str, optional): A text that says nothing at all about the sum.

Returns
-------
out : ndarray
    The sum of the elements over the axis that was given.

>>> Total = 1
"""

def copy():
    """{LONG}

    It keeps dtype and Order of the whole array.
    """
'''
PROSE = {
    "It keeps dtype and Order of the whole array.",
    "Return the sum of the elements over an axis.",
    "The axis along which the elements are added, which may be negative.",
    "A text that says nothing at all about the sum.",
    "The sum of the elements over the axis that was given.",
}


def test_prose_is_the_sentences_each_in_one_document(package):
    (package / "deep" / "good.py").write_text(DESCRIBED.replace("{LONG}", LONG))
    found = [text for s in sources.SPLITS for text in texts(s, packages="documented", prose=True)]
    assert sorted(line for text in found for line in text.split("\n")) == sorted({*PROSE, LONG})
    assert all(len(text) >= pydocs.MIN_CHARACTERS for text in found)


PLAIN = '''
def first():
    """The sum of all the values of an array. The np.sum of all the values. A sum of all (an array).

    The values of the array of the sum. A sum of all the 3 values.
    """

def second():
    """The sum of all the values of an array. A rare sum of all the values. All values, or a sum."""
'''


def test_common_words_keep_plain_sentences_of_them_each_once(package):
    (package / "deep" / "good.py").write_text(PLAIN)
    words = {"common_words": 8, "prose": True, "packages": "documented"}
    found = [text for split in sources.SPLITS for text in texts(split, **words)]
    assert found == [
        "The sum of all the values of an array.\nA sum of all (an array).\n"
        "The values of the array of the sum."
    ]


@pytest.mark.parametrize("settings", [{"common_words": 5}, {"prose": True, "common_words": -1}])
def test_common_words_that_do_not_fit_are_refused(settings):
    with pytest.raises(ValueError, match="must be 0, for all words, or a number of words together"):
        pydocs.documents("train", packages="documented", **settings)


def test_the_order_follows_from_the_texts_alone(package):
    before = both_splits()
    (package / "deep" / "good.py").rename(package / "a.py")
    pydocs._corpus.cache_clear()
    assert both_splits() == before


def test_a_change_of_the_sources_is_another_corpus(package):
    before = both_splits()
    (package / "more.py").write_text(f'"""One more module. {LONG}"""')
    pydocs._corpus.cache_clear()
    assert set(both_splits()) - set(before) == {f"One more module. {LONG}"}


def test_the_sources_are_parsed_once_whoever_asks(monkeypatch):
    calls = []
    extract = pydocs._extract
    monkeypatch.setattr(pydocs, "_extract", lambda *a, **b: calls.append(1) or extract(*a, **b))
    folders, cache = pydocs.folders("documented"), paths.cache("pydocs")
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: pydocs._corpus.__wrapped__(folders, cache), range(4)))
    assert (len(found), len(calls)) == (1, 1)


def test_a_corpus_half_written_is_not_taken(monkeypatch, tmp_path):
    def stop(texts, folder):
        folder.mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pydocs, "_write", stop)
        with pytest.raises(KeyboardInterrupt):
            both_splits()
    assert [file.name for file in (tmp_path / "cache" / "pydocs").iterdir()] == ["lock"]
    assert set(both_splits()) == FOUND


def test_a_cache_that_cannot_be_made_names_the_setting(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="T5X_LIKE_CACHE"):
        both_splits()


def test_a_package_that_is_not_there_names_the_nearest():
    with pytest.raises(ValueError, match=r"'numpi' is not installed.* Did you mean 'numpy'"):
        pydocs.documents("train", packages=("stdlib", "numpi"))


def test_registering_twice_replaces_the_task():
    vocabulary = vocabularies.load("bytes")
    for objective in ("prefix_lm", "span_corruption"):
        pydocs.register(vocabulary, seqio_objectives.build(objective), packages="documented")
    task = seqio.TaskRegistry.get("pydocs")
    assert sum(task.num_input_examples(split) for split in task.splits) == len(FOUND)
    lengths = {"inputs": 64, "targets": 32}
    rows = list(task.get_dataset(lengths, split="train", seed=0).as_numpy_iterator())
    assert rows
    assert all(row["targets"][-1] == vocabulary.eos_id for row in rows)
    assert any(row["inputs"].max() == vocabulary.vocab_size - 1 for row in rows)


@pytest.mark.slow
def test_the_standard_library_has_two_megabytes():
    sizes = {split: sum(map(len, texts(split, packages="stdlib"))) for split in sources.SPLITS}
    assert 1.4e6 < sizes["train"] < 3e6
    assert 0.01 < sizes["validation"] / sizes["train"] < 0.04
