"""English sentences and their German translations from a small grammar, to learn in minutes.

    --config.data.module=data/tiny_german.py --config.data.task=tiny_german
    --config.data.objective=translation

| task | rows |
|---|---|
| `tiny_german` | {"inputs": English, "targets": German}, for an objective of pairs |
| `tiny_german_en`, `tiny_german_de` | documents of one language, a sentence each |

    today the old king wants to look at a red flower , because the queen knows the bird .
    heute will der alte König eine rote Blume ansehen , weil die Königin den Vogel kennt .

There are some 220 words, and the parts of German grammar that make translation more than a
dictionary lookup: gender and case of articles and adjectives, verbs at the end of subordinate
clauses, after auxiliaries and in two parts, the subject after the verb. Sentences are sampled from
a seed, without repetitions; nothing is downloaded. For validation 2% of the pairs are held out,
chosen by the English text (`sources.held_out`). The English documents are the English sides of the
pairs at even positions, the German documents the German sides at odd ones, so that no document is
the translation of another.
"""

import functools
import random
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from t5x_like.preprocessing import sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.vocabularies import Vocabulary

HELD_OUT = 0.02

_Splits: TypeAlias = "dict[str, list[dict[str, str]]]"

# English, German, gender.
_NOUNS = (
    *(("man", "Mann", "m"), ("dog", "Hund", "m"), ("king", "König", "m"), ("bird", "Vogel", "m")),
    *(("tree", "Baum", "m"), ("table", "Tisch", "m"), ("teacher", "Lehrer", "m")),
    *(("woman", "Frau", "f"), ("cat", "Katze", "f"), ("queen", "Königin", "f")),
    *(("flower", "Blume", "f"), ("city", "Stadt", "f"), ("door", "Tür", "f")),
    *(("child", "Kind", "n"), ("horse", "Pferd", "n"), ("girl", "Mädchen", "n")),
    *(("house", "Haus", "n"), ("book", "Buch", "n"), ("picture", "Bild", "n")),
)
_ADJECTIVES = (
    *(("old", "alt"), ("young", "jung"), ("small", "klein"), ("big", "groß"), ("red", "rot")),
    *(("black", "schwarz"), ("white", "weiß"), ("good", "gut"), ("new", "neu")),
    *(("beautiful", "schön"), ("clever", "klug"), ("tired", "müd"), ("strange", "seltsam")),
)
_PLACES = (("in", "in"), ("under", "unter"), ("behind", "hinter"), ("beside", "neben"))
_TIMES = (("today", "heute"), ("now", "jetzt"), ("often", "oft"), ("perhaps", "vielleicht"))
_CONJUNCTIONS = (("because", "weil"), ("although", "obwohl"), ("when", "wenn"))


class _Verb(NamedTuple):
    """A verb: third person, participle and infinitive of both languages, and the German prefix.

    In a main clause the prefix is separated from the third person.
    """

    sees: str
    seen: str
    see: str
    sieht: str
    gesehen: str
    sehen: str
    prefix: str = ""


_VERBS = (
    _Verb("sees", "seen", "see", "sieht", "gesehen", "sehen"),
    _Verb("loves", "loved", "love", "liebt", "geliebt", "lieben"),
    _Verb("knows", "known", "know", "kennt", "gekannt", "kennen"),
    _Verb("finds", "found", "find", "findet", "gefunden", "finden"),
    _Verb("seeks", "sought", "seek", "sucht", "gesucht", "suchen"),
    _Verb("paints", "painted", "paint", "malt", "gemalt", "malen"),
    _Verb("hears", "heard", "hear", "hört", "gehört", "hören"),
    _Verb("visits", "visited", "visit", "besucht", "besucht", "besuchen"),
    _Verb("looks at", "looked at", "look at", "sieht", "angesehen", "ansehen", "an"),
    _Verb("takes along", "taken along", "take along", "nimmt", "mitgenommen", "mitnehmen", "mit"),
    _Verb("lifts", "lifted", "lift", "hebt", "aufgehoben", "aufheben", "auf"),
)
# For both articles, by case and gender: the German article, and an adjective's ending after it.
_DECLENSION = {
    ("the", "nominative"): {"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e")},
    ("the", "accusative"): {"m": ("den", "en"), "f": ("die", "e"), "n": ("das", "e")},
    ("the", "dative"): {"m": ("dem", "en"), "f": ("der", "en"), "n": ("dem", "en")},
    ("a", "nominative"): {"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es")},
    ("a", "accusative"): {"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")},
    ("a", "dative"): {"m": ("einem", "en"), "f": ("einer", "en"), "n": ("einem", "en")},
}


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    sentences: int = 30_000,
    training_pairs: int | None = None,
    seed: int = 0,
    name: str = "tiny_german",
) -> None:
    """Add the task `name` of pairs, or the tasks `name`_en and `name`_de of documents.

    All have the splits "train" and "validation".

    Args:
        vocabulary: the vocabulary of both languages.
        objective: an objective of pairs, such as `translation`, or of documents.
        sentences: the number of pairs that are sampled.
        training_pairs: the number of pairs to train on, the first ones; None for all that are not
            held out. The documents are always of all pairs.
        seed: seed for sampling the sentences.
        name: name of the task.

    Raises:
        ValueError: `training_pairs` is below 1, or there are fewer.
    """
    rows = _splits(sentences=sentences, seed=seed)
    if training_pairs is not None and not 1 <= training_pairs <= len(rows["train"]):
        raise ValueError(
            f"data.settings.training_pairs={training_pairs} must be from 1 to the "
            f"{len(rows['train'])} pairs that are not held out of sentences={sentences}"
        )
    of_task: dict[str, Any] = {"vocabulary": vocabulary, "objective": objective}
    if objective.name in sources.OF_PAIRS:
        source = sources.row_source(rows | {"train": rows["train"][:training_pairs]})
        sources.add_pair_task(name, source=source, **of_task)
        return
    for language, texts in _texts(rows).items():
        source = sources.row_source(texts)
        sources.add_document_task(f"{name}_{language}", source=source, **of_task)


def documents(split: str, *, sentences: int = 30_000, seed: int = 0) -> tf.data.Dataset:
    """Return both sides of the pairs of a split, one after the other, {"text": scalar string}."""
    rows = _splits(sentences=sentences, seed=seed)
    return sources.both_sides(sources.row_source(rows), split)


@functools.cache
def pairs(*, sentences: int, seed: int) -> tuple[tuple[str, str], ...]:
    """Sample pairs of an English sentence and its translation, without repetitions."""
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < sentences:
        english, german = _sentence(rng)
        found[english] = german
    return tuple(found.items())


def _splits(*, sentences: int, seed: int) -> _Splits:
    """Return the pairs of each split."""
    sampled = pairs(sentences=sentences, seed=seed)
    texts = tf.constant([english for english, _ in sampled])
    is_held_out = sources.held_out(texts, fraction=HELD_OUT).numpy()
    rows = [{"inputs": english, "targets": german} for english, german in sampled]
    return {
        split: [row for row, held in zip(rows, is_held_out, strict=True) if held == wanted]
        for split, wanted in (("train", False), ("validation", True))
    }


def _texts(rows: _Splits) -> dict[str, _Splits]:
    """Return the documents of each language, of every second pair."""
    return {
        language: {
            split: [{"text": pair[side]} for pair in of_split[first::2]]
            for split, of_split in rows.items()
        }
        for first, (language, side) in enumerate((("en", "inputs"), ("de", "targets")))
    }


def _sentence(rng: random.Random) -> tuple[str, str]:
    english, german = _main_clause(rng)
    if rng.random() < 0.4:
        conjunction = rng.choice(_CONJUNCTIONS)
        clause = _subordinate_clause(rng)
        english += f" , {conjunction[0]} {clause[0]}"
        german += f" , {conjunction[1]} {clause[1]}"
    return f"{english} .", f"{german} ."


def _main_clause(rng: random.Random) -> tuple[str, str]:
    """Sample a main clause: in German the finite verb is second, and the rest of the verb last."""
    subject, between = _noun_phrase(rng, "nominative"), _object_and_place(rng)
    english, finite, last = _predicate(rng, apart=True)
    words = [subject[0], english, between[0]]
    german = [subject[1], finite, between[1], last]
    if rng.random() < 0.4:
        time = rng.choice(_TIMES)
        words, german = [time[0], *words], [time[1], finite, subject[1], between[1], last]
    return " ".join(words), " ".join(filter(None, german))


def _subordinate_clause(rng: random.Random) -> tuple[str, str]:
    """Sample a subordinate clause: in German the verb is last, ending with its finite part."""
    subject, between = _noun_phrase(rng, "nominative"), _object_and_place(rng)
    english, finite, last = _predicate(rng, apart=False)
    german = [subject[1], between[1], last, finite]
    return f"{subject[0]} {english} {between[0]}", " ".join(filter(None, german))


def _predicate(rng: random.Random, *, apart: bool) -> tuple[str, str, str]:
    """Sample a verb; return it in English, the German finite verb, and the rest at the end."""
    verb, form = rng.choice(_VERBS), rng.choice(("plain", "perfect", "modal", "wish"))
    if form == "perfect":
        return f"has {verb.seen}", "hat", verb.gesehen
    if form == "modal":
        return f"can {verb.see}", "kann", verb.sehen
    if form == "wish":
        return f"wants to {verb.see}", "will", verb.sehen
    return (
        (verb.sees, verb.sieht, verb.prefix) if apart else (verb.sees, verb.prefix + verb.sieht, "")
    )


def _object_and_place(rng: random.Random) -> tuple[str, str]:
    english, german = _noun_phrase(rng, "accusative")
    if rng.random() < 0.3:
        place, where = rng.choice(_PLACES), _noun_phrase(rng, "dative")
        english, german = f"{english} {place[0]} {where[0]}", f"{german} {place[1]} {where[1]}"
    return english, german


def _noun_phrase(rng: random.Random, case: str) -> tuple[str, str]:
    noun, nomen, gender = rng.choice(_NOUNS)
    article = rng.choice(("the", "a"))
    german, ending = _DECLENSION[article, case][gender]
    words, german_words = [article], [german]
    if rng.random() < 0.5:
        adjective, stem = rng.choice(_ADJECTIVES)
        # "a" before a vowel is "an" in English.
        words = ["an" if article == "a" and adjective[0] in "aeiou" else article, adjective]
        german_words.append(stem + ending)
    return " ".join([*words, noun]), " ".join([*german_words, nomen])
