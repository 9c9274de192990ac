r"""Generated questions in WikiHop's schema, whose answers follow only from their documents.

    python -m data.generated_homes --output=runs/generated_homes

writes FOLDER/wiki_hop/train.jsonl and validation.jsonl, which data/reading_qa.py reads:

    question     home_of ann
    candidates   spain, norway, chile, japan
    supports     the home of ben is chile.    the home of ann is norway.
    answer       norway

A row has two persons with a country each, drawn without replacement for each row, and a document
for each person, in random order. These countries and two more are the candidates, so that only the
document of the person tells which is right: a guess is right for one of four questions, a guess
among the countries of the documents for one of two, and a reader of the documents for all.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, writing

_PERSONS = ("ann", "ben", "cleo", "dan", "eva", "finn", "gus", "hana")
_COUNTRIES = ("norway", "peru", "japan", "italy", "chile", "india", "egypt", "ghana")
_DOCUMENTS, _CANDIDATES = 2, 4  # of a row
_ROWS = {"train": 60_000, "validation": 500}


def rows(split: str, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split."""
    draw = random.Random(f"{seed} {split}")
    for number in range(_ROWS[split]):
        persons = draw.sample(_PERSONS, _DOCUMENTS)
        countries = draw.sample(_COUNTRIES, _CANDIDATES)
        homes = [*zip(persons, countries, strict=False)]
        supports = [f"the home of {person} is {country}." for person, country in homes]
        yield {
            "id": f"{split}_{number}",
            "question": f"home_of {persons[0]}",
            "answer": countries[0],
            "candidates": draw.sample(countries, _CANDIDATES),
            "supports": draw.sample(supports, _DOCUMENTS),
        }


def main(arguments: Sequence[str]) -> None:
    """Write both splits."""
    parser = ArgumentParser(__doc__, prog="python -m data.generated_homes")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with one_line_errors(), writing(given.output):
        folder = Path(given.output).expanduser() / "wiki_hop"
        folder.mkdir(parents=True, exist_ok=True)
        for split in _ROWS:
            lines = (json.dumps(row) + "\n" for row in rows(split, seed=given.seed))
            (folder / f"{split}.jsonl").write_text("".join(lines))
    sizes = ", ".join(f"{split}.jsonl ({number})" for split, number in _ROWS.items())
    sys.stdout.write(f"{folder}: {sizes}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
