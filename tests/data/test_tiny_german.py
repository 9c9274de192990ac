"""The small grammar: each sentence once, one translation each, and German as it should be."""

from pathlib import Path

import pytest

from t5x_like import vocabularies
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches, source_rows

german = sources.load_module(str(Path(__file__).parents[2] / "data" / "tiny_german.py"))


@pytest.fixture(scope="module")
def pairs():
    return dict(german.pairs(sentences=3000, seed=1))


def test_a_seed_gives_as_many_sentences_as_are_asked_for_each_once(pairs):
    assert len(pairs) == 3000
    assert dict(german.pairs(sentences=500, seed=1)).items() <= pairs.items()
    assert dict(german.pairs(sentences=500, seed=2)).items() != pairs.items()


def find(pairs, *, english, german):
    """The pairs that have a phrase, and that all of their translations have another."""
    found = {e: g for e, g in pairs.items() if f" {english} " in f" {e} "}
    assert found
    assert [g for g in found.values() if f" {german} " not in f" {g} "] == []


@pytest.mark.parametrize(
    ("english", "translation"),
    [
        ("sees a dog", "einen Hund"),
        ("under the table", "unter dem Tisch"),
        ("beside the old woman", "neben der alten Frau"),
        ("because a cat", "weil eine Katze"),
        ("can see a girl .", "ein Mädchen sehen"),
    ],
)
def test_articles_have_their_case_and_gender(english, translation):
    find(dict(german.pairs(sentences=30_000, seed=0)), english=english, german=translation)


def test_verbs_stand_where_german_has_them(pairs):
    for english, translated in pairs.items():
        main, _, clause = translated.rstrip(" .").partition(" , ")
        first, _, second = english.rstrip(" .").partition(" , ")
        assert bool(clause) == bool(second)
        if " can " in first:
            assert "kann" in main.split()
            assert main.split()[-1].endswith("en")
        if " has " in second:
            assert clause.split()[-1] == "hat"
        if first.endswith("looks at"):
            assert main.split()[-1] == "an"
    parts = [g for e, g in pairs.items() if "lifts" in e.partition(" , ")[0]]
    assert parts
    assert all(g.partition(" , ")[0].rstrip(" .").endswith(" auf") for g in parts)


def test_a_batch_is_translated_and_held_out_sentences_are_others():
    vocabulary = vocabularies.load("bytes:0")
    german.register(vocabulary, seqio_objectives.build("translation"), sentences=600)
    held_out, trained = (
        {row["inputs"] for row in source_rows("tiny_german", split=split)}
        for split in ("validation", "train")
    )
    assert len(held_out) + len(trained) == 600
    assert not held_out & trained
    lengths = {"inputs": 160, "targets": 160}
    batch = next(SeqioBatches("tiny_german", split="train", batch_size=2, lengths=lengths))
    read = vocabulary.decode(batch["encoder_input_tokens"][0].tolist())
    written = vocabulary.decode(batch["decoder_target_tokens"][0].tolist())
    assert dict(german.pairs(sentences=600, seed=0))[read] == written
