"""Names whose single words mean nothing (for masks of words, spans and n-grams).

    bezoda lafada FABU ZOMI TEVE PUKA nisebu pisoda .

A sentence has ordinary words, each equally likely, and names of two to four parts. The parts of a
name always stand together in one order, and a part occurs in several names. If a single part is
masked, the others give it away (an easy prediction, from which little is learned); if the whole
name is masked, only its frequency helps. So a mask of single tokens mostly asks what follows from
the neighbours, and a mask of whole names asks what the text is about: a name has a topic, and the
sentence repeats words of its topic. The task `topics` asks for the topic of a name without a
sentence around it: of a name in none of the labelled rows it is known only from the text.

| task | rows |
|---|---|
| `names` | documents of sentences |
| `topics` | {"text_a": a name, "label": 0 to 11}: its topic |
"""

import functools
from typing import Any

from data.languages.language import Draw, Row, corpus, invented, show
from t5x_like.grain_pipeline.corpus import Corpus

TOPICS, WORDS, PARTS = 12, 10, 40


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    names: int = 96,
    sentences: int = 3,
    around: int = 4,
) -> dict[str, Corpus]:
    """Return the corpora "names" and "topics".

    Args:
        documents, validation, seed: see `language.corpus`.
        names: the number of names, of all topics together.
        sentences: sentences of a document, each with a name.
        around: words of the topic beside a name.

    Raises:
        ValueError: there are more names than can be made of the parts.
    """
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    made = functools.partial(document, names=names, sentences=sentences, around=around)
    all_names(names)
    name = f"names {names} {sentences} {around}"
    return {
        "names": corpus(made, name, **of),
        "topics": corpus(
            functools.partial(topic, names=names), name, fields=("text_a", "label"), **of
        ),
    }


def labels(objective: str, *, task: str = "", **settings: object) -> tuple[str, ...]:
    """Return the names of the classes of "topics"."""
    del objective, settings
    return tuple(f"topic {number}" for number in range(TOPICS)) if task == "topics" else ()


def document(draw: Draw, *, names: int, sentences: int, around: int) -> Row:
    """Return some sentences."""
    made, text = all_names(names), []
    words = invented(TOPICS * WORDS, syllables=3)
    for _ in range(sentences):
        number = draw.one(range(names))
        own = words[number % TOPICS * WORDS :][:WORDS]
        before = draw.one(range(around + 1))
        context = [draw.one(own) for _ in range(around)]
        text += [*context[:before], *made[number], *context[before:], "."]
    return {"text": " ".join(text)}


def topic(draw: Draw, *, names: int) -> Row:
    """Return a name and its topic."""
    number = draw.one(range(names))
    draw.given()
    return {"text_a": " ".join(all_names(names)[number]), "label": number % TOPICS}


@functools.cache
def all_names(number: int) -> list[tuple[str, ...]]:
    """Return different names of two, three and four parts by turns.

    Raises:
        ValueError: there are not enough parts.
    """
    if number > PARTS * 4:
        raise ValueError(f"names={number}: at most {PARTS * 4} can be made of the parts")
    parts = invented(PARTS)
    found: list[tuple[str, ...]] = []
    for index in range(number):
        size, first, step = 2 + index % 3, index % PARTS, 1 + index // PARTS
        found.append(tuple(parts[(first + step * place) % PARTS] for place in range(size)))
    return found


if __name__ == "__main__":
    show(corpora())
