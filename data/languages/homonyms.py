"""Words with two meanings, which their context tells apart (for contextual embeddings).

    bada gosi kelu TARE zefu tomi bada .   nuvi pora sefa TARE nuvi duli pora .

Each ambiguous word belongs to two fields, and a field has words that only it uses. A sentence has a
field, one of its ambiguous words, and context words of the field before and after it. The task
`senses` asks for the field of the ambiguous word: an embedding of only the word is right in half of
the sentences, one context word is enough to be always right. The task `fields` asks for the field
of a sentence: the words of a field are learned from labels, or from the text.

| task | rows |
|---|---|
| `homonyms` | documents of sentences |
| `senses` | {"text_a": a sentence, "label": 0 or 1}: which of the two meanings the word has |
| `fields` | {"text_a": a sentence, "label": 0 to 7}: its field |
| `named` | {"inputs": a sentence, "targets": a word}: the first word of its field, as its name |
| `tags` | {"words", "tags"}: 1 or 2 at the ambiguous word by its meaning, 0 at other words |

With `tag="field"` the tag of the ambiguous word is its field, 1 to 8. With `name="other"` the task
`named` asks for the name of the field that the ambiguous word has in its other meaning, and its
sentences begin with a period.
"""

import functools
from typing import Any

from data.languages.language import Draw, Row, corpus, invented, show
from t5x_like.grain_pipeline.corpus import Corpus
from t5x_like.names import choose

FIELDS, WORDS, AMBIGUOUS = 8, 12, 16
TAGS = ("meaning", "field")
NAMES = ("meant", "other")


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    sentences: int = 3,
    around: int = 3,
    before: int | None = None,
    tag: str = "meaning",
    name: str = "meant",
) -> dict[str, Corpus]:
    """Return the corpora "homonyms", "senses", "fields", "named" and "tags".

    Args:
        documents, validation, seed: see `language.corpus`.
        sentences: sentences of a document.
        around: context words on each side of an ambiguous word.
        before: context words before it, if not as many as after it. With 0 a model that reads from
            left to right cannot know the meaning at the word.
        tag: of the ambiguous word, its "meaning" or its "field".
        name: the name that the task `named` asks for, of the field that is "meant" or of the
            "other" field of the ambiguous word.

    Raises:
        ValueError: the tag or name is unknown.
    """
    choose("data.settings.tag", tag, dict.fromkeys(TAGS))
    choose("data.settings.name", name, dict.fromkeys(NAMES))
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    texts = f"homonyms {sentences} {around}" + ("" if before is None else f" {before}")
    context: dict[str, Any] = {"around": around, "before": around if before is None else before}
    write = functools.partial(document, sentences=sentences, **context)
    return {
        "homonyms": corpus(write, texts, **of),
        "senses": corpus(
            functools.partial(sense, **context), texts, fields=("text_a", "label"), **of
        ),
        "fields": corpus(
            functools.partial(field, **context), texts, fields=("text_a", "label"), **of
        ),
        "named": corpus(
            functools.partial(named, name=name, **context),
            texts if name == "meant" else f"{texts} {name}",
            fields=("inputs", "targets"),
            **of,
        ),
        "tags": corpus(
            functools.partial(tags, tag=tag, **context),
            texts if tag == "meaning" else f"{texts} {tag}",
            fields=("words", "tags"),
            **of,
        ),
    }


def labels(
    objective: str, *, task: str = "", tag: str = "meaning", **settings: object
) -> tuple[str, ...]:
    """Return the names of the classes, or of the tags."""
    del objective, settings
    of_fields = tuple(f"field {number}" for number in range(FIELDS))
    of_meanings = ("first", "second")
    if task == "tags":
        return ("other", *(of_fields if tag == "field" else of_meanings))
    return {"fields": of_fields, "senses": of_meanings}.get(task, ())


def document(draw: Draw, *, sentences: int, around: int, before: int) -> Row:
    """Return some sentences."""
    words = [word for _ in range(sentences) for word in (*_sentence(draw, around, before)[0], ".")]
    return {"text": " ".join(words)}


def sense(draw: Draw, *, around: int, before: int) -> Row:
    """Return a sentence and which meaning its ambiguous word has."""
    words, _, meaning = _sentence(draw, around, before)
    draw.given()
    return {"text_a": " ".join(words), "label": meaning}


def field(draw: Draw, *, around: int, before: int) -> Row:
    """Return a sentence and its field."""
    words, place, meaning = _sentence(draw, around, before)
    draw.given()
    return {"text_a": " ".join(words), "label": _field_of(words[place], meaning)}


def named(draw: Draw, *, around: int, before: int, name: str) -> Row:
    """Return a sentence and the name of its field, or of its ambiguous word's other field."""
    words, place, meaning = _sentence(draw, around, before)
    draw.given()
    other = name == "other"
    asked = _field_of(words[place], 1 - meaning if other else meaning)
    inputs = [".", *words] if other else words
    first = invented(FIELDS * WORDS + AMBIGUOUS)[asked * WORDS]
    return {"inputs": " ".join(inputs), "targets": first}


def tags(draw: Draw, *, around: int, before: int, tag: str) -> Row:
    """Return the words of a sentence and their tags."""
    words, place, meaning = _sentence(draw, around, before)
    draw.given()
    number = 1 + (_field_of(words[place], meaning) if tag == "field" else meaning)
    return {"words": words, "tags": [number if at == place else 0 for at in range(len(words))]}


def _field_of(word: str, meaning: int) -> int:
    index = invented(FIELDS * WORDS + AMBIGUOUS).index(word)
    return fields_of(index - FIELDS * WORDS)[meaning]


def fields_of(word: int) -> tuple[int, int]:
    """Return the two fields that an ambiguous word belongs to, its first meaning first."""
    first = word % FIELDS
    return first, (first + 1 + word // FIELDS) % FIELDS


def _sentence(draw: Draw, around: int, before: int) -> tuple[list[str], int, int]:
    """Return the words of a sentence, the position of the ambiguous word, and its meaning."""
    words = invented(FIELDS * WORDS + AMBIGUOUS)
    ambiguous, meaning = draw.one(range(AMBIGUOUS)), draw.one((0, 1))
    field = fields_of(ambiguous)[meaning]
    own = words[field * WORDS : (field + 1) * WORDS]
    context = [draw.one(own) for _ in range(before + around)]
    word = words[FIELDS * WORDS + ambiguous]
    return [*context[:before], word, *context[before:]], before, meaning


if __name__ == "__main__":
    show(corpora())
