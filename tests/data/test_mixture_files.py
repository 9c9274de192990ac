"""Weighted corpora: their shares, how often each is read, also after a resume, bad settings."""

import json
from pathlib import Path

import pytest

from t5x_like import vocabularies
from t5x_like.batches import converters
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches

mixture_files = sources.load_module(str(Path(__file__).parents[2] / "data" / "mixture_files.py"))

VOCABULARY = vocabularies.load("bytes:0")
LENGTH, ROWS = 16, 4


@pytest.fixture
def corpora(tmp_path):
    """100 lines of 9 bytes, and 800 rows of 10: with the end of each 1,000 and 8,800 tokens."""
    (tmp_path / "few.txt").write_text("".join(f"line {n:04}\n" for n in range(100)))
    rows = (json.dumps({"body": f"row {n:06}"}) + "\n" for n in range(800))
    (tmp_path / "many.jsonl").write_text("".join(rows))
    return {
        "few": {"files": str(tmp_path / "few.txt"), "weight": 3},
        "many": {"files": str(tmp_path / "many.jsonl"), "weight": 1, "text": "body"},
    }


def batches(corpora, **settings):
    objective = seqio_objectives.build("language_modeling")
    mixture_files.register(VOCABULARY, objective, corpora=corpora, held_out=0)
    return SeqioBatches(
        "mixture_files",
        split="train",
        batch_size=ROWS,
        lengths={"targets": LENGTH},
        converter=converters.build("decoder"),
        **settings,
    )


def test_the_tokens_of_a_corpus_are_counted_or_set(corpora):
    few, many = "mixture_files_few", "mixture_files_many"
    assert batches(corpora).sizes() == {few: 1000, many: 8800}
    corpora["many"]["tokens"] = 99
    assert batches(corpora).sizes() == {few: 1000, many: 99}


def test_the_tokens_of_a_corpus_may_stay_unknown(corpora):
    corpora["many"]["tokens"] = None
    assert batches(corpora).sizes() == {"mixture_files_few": 1000}


def test_a_corpus_gives_its_share_of_what_is_read_however_small(corpora):
    made = batches(corpora, seed=3)
    for _ in range(100):
        next(made)
    [read] = made.tokens(batches=100).values()  # of the only shard
    assert sum(read.values()) == pytest.approx(100 * ROWS * LENGTH, rel=0.01)  # short last rows
    few, many = (
        read[f"mixture_files_{name}"] / size for name, size in (("few", 1000), ("many", 8800))
    )
    assert few == pytest.approx(0.75 * 6.4, rel=0.1)  # several epochs of one,
    assert many == pytest.approx(0.25 * 6.4 / 8.8, rel=0.2)  # and none of the other


def test_what_was_read_goes_on_exactly_after_a_resume(corpora):
    whole = batches(corpora, shards=2)
    for number in range(1, 7):
        next(whole)
        if number == 4:
            state, there = whole.state(), whole.tokens(batches=4)
    resumed = batches(corpora, shards=2)
    resumed.restore(state)
    assert resumed.tokens(batches=0) == there
    next(resumed)
    next(resumed)
    assert resumed.tokens(batches=2) == whole.tokens(batches=6)
    # One may have been read ahead.
    assert resumed.tokens(batches=1) == whole.tokens(batches=5)


def test_documents_are_sampled_by_the_weights(corpora):
    found = mixture_files.documents("train", corpora=corpora, held_out=0)
    texts = [row["text"].decode() for row in found.take(100).as_numpy_iterator()]
    assert sum(text.startswith("line") for text in texts) == pytest.approx(75, abs=12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wight": 1}, r"data.settings.corpora.few='wight'.*Did you mean 'weight'"),
        ({"weight": 0}, r"data.settings.corpora.few.weight=0 must be above 0"),
        ({"tokens": -1}, r"data.settings.corpora.few.tokens=-1 must be 0 or more"),
        ({"files": "nothing.txt"}, r"nothing.txt"),
    ],
)
def test_a_setting_that_is_wrong_is_named(corpora, changes, message):
    corpora["few"] |= changes
    with pytest.raises(ValueError, match=message):
        batches(corpora)
    with pytest.raises(ValueError, match=r"data.settings.corpora is empty"):
        batches({})
