"""Documents with a topic and an order of events (for objectives about sentences).

    the bada gosi again .
    the bada zefu slowly .
    the bada tomi again .

A topic has a script: events in a fixed order, each told in one of several ways. A document tells
some of the events of its topic, in order. So the next sentence shares the topic with this one (next
sentence prediction is a question of topic: 1 in `topics` random sentences shares it), and of two
sentences of a document it is certain which comes first (sentence order). A model that joins
sentences of several documents in a row sees where one ends by the topic. The tasks `order` and
`topics` ask for both of two sentences by themselves.

| task | rows |
|---|---|
| `events` | documents of sentences |
| `order` | {"text_a", "text_b": events of a topic, "label"}: 1 if the second comes first |
| `topics` | {"text_a", "text_b": events, "label"}: 1 if they are of two topics |
"""

import functools
from typing import Any

import numpy as np

from data.languages.language import Draw, Row, corpus, invented, several, show
from t5x_like.grain_pipeline.corpus import Corpus

MANNERS = ("slowly", "again", "today", "early", "alone", "twice")


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    topics: int = 16,
    events: int = 8,
    ways: int = 3,
    chosen: int = 5,
) -> dict[str, Corpus]:
    """Return the corpora "events", "order" and "topics".

    Args:
        documents, validation, seed: see `language.corpus`.
        topics: the number of scripts.
        events: events of a script.
        ways: ways to tell an event.
        chosen: events that a document tells, in the order of the script.

    Raises:
        ValueError: a document would tell more events than a script has, or a number is too large.
    """
    most = {"topics": (topics, 200), "events": (events, 200), "ways": (ways, len(MANNERS))}
    for name, (number, limit) in most.items():
        if not 1 <= number <= limit:
            raise ValueError(f"{name}={number} must be from 1 to {limit}")
    if not 1 <= chosen <= events:
        raise ValueError(f"chosen={chosen} must be from 1 to events={events}")
    sizes: dict[str, Any] = {"topics": topics, "events": events, "ways": ways}
    of: dict[str, Any] = {"documents": documents, "validation": validation, "seed": seed}
    name = f"events {sizes} {chosen}"
    pairs = {"order": functools.partial(order, **sizes), "topics": functools.partial(same, **sizes)}
    fields = ("text_a", "text_b", "label")
    return {
        "events": corpus(functools.partial(document, chosen=chosen, **sizes), name, **of),
        **{task: corpus(made, name, fields=fields, **of) for task, made in pairs.items()},
    }


def labels(objective: str, *, task: str = "", **settings: object) -> tuple[str, ...]:
    """Return the names of the classes of "order" and "topics"."""
    del objective, settings
    return {"order": ("before", "after"), "topics": ("same", "other")}.get(task, ())


def document(draw: Draw, *, topics: int, events: int, ways: int, chosen: int) -> Row:
    """Return the sentences of some events of a topic, one a line."""
    topic = draw.one(range(topics))
    sentences = [
        _drawn_sentence(draw, topic, number, events=events, ways=ways)
        for number in in_order(draw, events, chosen)
    ]
    return {"text": "\n".join(sentences)}


def order(draw: Draw, *, topics: int, events: int, ways: int) -> Row:
    """Return two events of a topic, and 0 if the first comes before the second, 1 if after."""
    topic = draw.one(range(topics))
    numbers = several(draw, range(events), 2)
    texts = [_drawn_sentence(draw, topic, number, events=events, ways=ways) for number in numbers]
    draw.given()
    return {"text_a": texts[0], "text_b": texts[1], "label": int(numbers[0] > numbers[1])}


def same(draw: Draw, *, topics: int, events: int, ways: int) -> Row:
    """Return two events, and 0 if they are of the same topic, 1 if of two topics."""
    label = draw.one((0, 1))
    first = draw.one(range(topics))
    second = draw.one([topic for topic in range(topics) if topic != first]) if label else first
    texts = [
        _drawn_sentence(draw, topic, draw.one(range(events)), events=events, ways=ways)
        for topic in (first, second)
    ]
    draw.given()
    return {"text_a": texts[0], "text_b": texts[1], "label": label}


def _drawn_sentence(draw: Draw, topic: int, number: int, *, events: int, ways: int) -> str:
    return " ".join([*sentence(topic, number, draw.one(range(ways)), events=events), "."])


def in_order(draw: Draw, events: int, chosen: int) -> list[int]:
    """Choose `chosen` of the events, all choices equally likely, and return them in order."""
    picked: list[int] = []
    for number in range(events):
        wanted, left = chosen - len(picked), events - number
        if wanted and (wanted == left or draw.one((True, False), (wanted, left - wanted))):
            picked.append(number)
    return picked


def sentence(topic: int, number: int, way: int, *, events: int) -> list[str]:
    """Return the words of a sentence: of its topic, of its event, and of the way to tell it.

    Only topic and event word together decide which event it is: all topics share the event words.
    """
    subjects, acts = _words()
    return ["the", subjects[topic], acts[script(topic, events=events)[number]], MANNERS[way]]


@functools.cache
def script(topic: int, *, events: int) -> list[int]:
    """Return the events of a topic in their order."""
    return np.random.default_rng([13, topic]).permutation(events).tolist()


@functools.cache
def _words() -> tuple[list[str], list[str]]:
    words = invented(400)
    return words[:200], words[200:]


if __name__ == "__main__":
    show(corpora())
