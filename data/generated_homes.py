r"""Generated questions in WikiHop's schema, whose answers follow only from their documents.

    python -m data.generated_homes --output=runs/generated_homes

writes FOLDER/wiki_hop/train.jsonl and validation.jsonl, which data/reading_qa.py reads:

    question     home_of ann
    candidates   spain, norway, chile, japan
    supports     the home of ben is chile.    the home of ann is norway.    ...
    answer       norway

A row has four persons with a country each, drawn without replacement for each row, and a document
for each person, in random order. The four countries are the candidates, and each occurs in one
document, so that only the document of the person tells which is right: a guess is right for one of
four questions, and a reader of the documents for all.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, writing

_PERSONS = (
    *("ann", "ben", "cleo", "dan", "eva", "finn", "gus", "hana", "ivo", "june", "kim", "leo"),
    *("mia", "nils", "olga", "paul"),
)
_COUNTRIES = (
    *("norway", "peru", "japan", "italy", "chile", "india", "egypt", "ghana", "spain", "kenya"),
    *("nepal", "cuba", "malta", "qatar", "samoa", "tonga"),
)
_AT_ONCE = 4  # persons of a row, and so candidates
_ROWS = {"train": 60_000, "validation": 500}


def rows(split: str, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split."""
    draw = random.Random(f"{seed} {split}")
    for number in range(_ROWS[split]):
        persons, countries = (draw.sample(names, _AT_ONCE) for names in (_PERSONS, _COUNTRIES))
        homes = [*zip(persons, countries, strict=True)]
        supports = [f"the home of {person} is {country}." for person, country in homes]
        yield {
            "id": f"{split}_{number}",
            "question": f"home_of {persons[0]}",
            "answer": countries[0],
            "candidates": draw.sample(countries, _AT_ONCE),
            "supports": draw.sample(supports, _AT_ONCE),
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
