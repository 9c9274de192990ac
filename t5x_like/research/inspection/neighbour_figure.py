"""A figure of the neighbours of a word: the texts that have it, and their cosines."""

import io
from collections.abc import Sequence

from t5x_like.research.inspection.word_neighbours import Neighbour, Occurrence

_CHARACTERS = 40  # that are shown before and after the word


def draw(query: Occurrence, neighbours: Sequence[Neighbour], *, top: int) -> bytes:
    """Draw a bar for each of the nearest neighbours, and return the content of a PNG file.

    A dashed line is the mean of all cosines.

    Args:
        query: the word whose neighbours these are.
        neighbours: all neighbours, the most similar first.
        top: the number of bars at most.
    """
    import matplotlib.figure  # takes a second that errors need not wait for

    nearest = neighbours[:top]
    size = (10, 1.5 + 0.3 * len(nearest))
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    bars = range(len(nearest))
    axes.barh(bars, [neighbour.cosine for neighbour in nearest])
    # A text may have dollar signs, which else would begin a formula.
    labels = [_short(neighbour.occurrence) for neighbour in nearest]
    axes.set_yticks(bars, labels, parse_math=False, fontsize="small")
    axes.invert_yaxis()
    mean = sum(neighbour.cosine for neighbour in neighbours) / len(neighbours)
    axes.axvline(mean, linestyle="--", color="black", label=f"mean of all {len(neighbours)}")
    axes.set_xlabel("cosine")
    axes.set_title(_short(query), parse_math=False, fontsize="medium")
    figure.legend(loc="outside lower left", fontsize="small")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _short(occurrence: Occurrence) -> str:
    """Return the word in brackets, with the text near it."""
    start = max(0, occurrence.start - _CHARACTERS)
    end = occurrence.end + _CHARACTERS
    near = Occurrence(
        where=occurrence.where,
        text=occurrence.text[start:end],
        start=occurrence.start - start,
        end=occurrence.end - start,
    )
    before, after = start > 0, end < len(occurrence.text)
    return "\u2026" * before + near.marked() + "\u2026" * after
