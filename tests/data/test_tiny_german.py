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


def test_documents_of_one_language_are_neither_held_out_nor_translations_of_the_others():
    vocabulary = vocabularies.load("bytes:0")
    german.register(vocabulary, seqio_objectives.build("language_modeling"), sentences=3000)
    german.register(vocabulary, seqio_objectives.build("translation"), sentences=3000)

    def texts(task, split, field="text"):
        return {row[field].decode() for row in source_rows(task, split=split)}

    english, translated = (texts(f"tiny_german_{one}", "train") for one in ("en", "de"))
    held_out = {side: texts("tiny_german", "validation", side) for side in ("inputs", "targets")}
    trained = {side: texts("tiny_german", "train", side) for side in ("inputs", "targets")}
    assert len(english) + len(translated) == len(trained["inputs"]) > 2900
    assert english < trained["inputs"]
    assert translated < trained["targets"]
    assert not english & held_out["inputs"]
    assert not translated & held_out["targets"]
    translations = dict(german.pairs(sentences=3000, seed=0))
    assert not {translations[one] for one in english} & translated
    assert texts("tiny_german_en", "validation") < held_out["inputs"]
    assert texts("tiny_german_de", "validation") < held_out["targets"]


def test_fewer_pairs_are_the_first_and_the_held_out_pairs_remain():
    vocabulary = vocabularies.load("bytes:0")
    read = {}
    for number in (None, 20):
        objective = seqio_objectives.build("translation")
        german.register(vocabulary, objective, sentences=600, training_pairs=number)
        splits = ("train", "validation")
        read[number] = {split: list(source_rows("tiny_german", split=split)) for split in splits}
    assert read[20] == {**read[None], "train": read[None]["train"][:20]}


@pytest.mark.parametrize("number", [0, 600])
def test_a_number_of_pairs_that_there_is_not_is_refused(number):
    objective = seqio_objectives.build("translation")
    with pytest.raises(ValueError, match=rf"training_pairs={number} must be from 1 to the 5\d\d "):
        german.register(
            vocabularies.load("bytes:0"), objective, sentences=600, training_pairs=number
        )
