"""References over a long distance (for sparse attention, memory between segments, long inputs).

    bamo is red . the end of the day . kelu is gold . ... what is bamo ? red .

A document begins with definitions: each name has one color. Filler follows, whose words are equally
likely and carry nothing. Then come questions about the names, in any order. An answer is certain to
a model that can look back over the filler, and 1 of 8 colors to one that cannot: what it loses is
log 8 a question.
"""

import functools

from data.languages.language import Draw, Row, corpus, invented, several, show
from t5x_like.grain_pipeline.corpus import Corpus

COLORS = ("red", "blue", "green", "white", "black", "brown", "gold", "gray")
FILLER = ("the", "day", "of", "rain", "and", "wind", "was", "long", "then", "came", "night", "snow")


def corpora(
    *,
    documents: int = 20_000,
    validation: int = 2000,
    seed: int = 0,
    names: int = 4,
    distance: int = 100,
    asked: int = 4,
) -> dict[str, Corpus]:
    """Return the corpus "references".

    Args:
        documents, validation, seed: see `language.corpus`.
        names: definitions of a document.
        distance: words of filler between definitions and questions.
        asked: questions of a document.
    """
    made = functools.partial(document, names=names, distance=distance, asked=asked)
    name = f"references {names} {distance} {asked}"
    found = corpus(made, name, documents=documents, validation=validation, seed=seed)
    return {"references": found}


def document(draw: Draw, *, names: int, distance: int, asked: int) -> Row:
    """Return definitions, filler and questions."""
    known = {name: draw.one(COLORS) for name in several(draw, _names(), names)}
    words = [word for name, color in known.items() for word in (name, "is", color, ".")]
    words += [draw.one(FILLER) for _ in range(distance)]
    for _ in range(asked):
        name = draw.one([*known])
        words += ["what", "is", name, "?", known[name], "."]
    return {"text": " ".join(words)}


@functools.cache
def _names() -> list[str]:
    return invented(32)


if __name__ == "__main__":
    show(corpora())
