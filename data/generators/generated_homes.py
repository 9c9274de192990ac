r"""Generated questions of WikiHop and HotpotQA, whose answers follow only from their documents.

    python -m data.generators.generated_homes --output=runs/generated_homes

writes FOLDER/TASK/train.jsonl and validation.jsonl for two tasks of data/reading_qa.py, in the
schemas of their files. A row of `wiki_hop`:

    question     home_of ann
    candidates   spain, norway, chile, japan
    supports     the home of ben is chile.    the home of ann is norway.
    answer       norway

A row has two persons with a country each, drawn without replacement for each row, and a document
for each person, in random order. These countries and two more are the candidates, so that only the
document of the person tells which is right: a guess is right for one of four questions, a guess
among the countries of the documents for one of two, and a reader of the documents for all.

A row of `hotpot_qa`, as paragraphs with a title and two sentences each, in random order:

    question     home of ann        home of ann peru
    context      ben: drinks tea. lives in chile.    ann: lives in norway. drinks milk.
    answer       norway             no
    facts        ann 0              ann 0

It has two persons with a country and a drink each, different in each row, and asks for either of
one person: half of the questions ask which it is, and the others whether it is the country or drink
that they name, which is right for half of them and otherwise in no document. The sentence with the
country or drink is the only fact. Who knows what is asked for, but not about whom, is right about
the facts of one of two questions, and about the answer of one of two, whether the person's, or yes
or no; a reader of the documents is right about all.
"""

import itertools
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
_DRINKS = ("tea", "milk", "water", "juice", "cocoa", "coffee", "cider", "soda")
_DOCUMENTS, _CANDIDATES = 2, 4  # of a row
_ROWS = {"train": 60_000, "validation": 500}


def candidate_rows(split: str, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split of `wiki_hop`."""
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


def evidence_rows(split: str, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split of `hotpot_qa`."""
    draw = random.Random(f"{seed} {split}")
    for number in range(_ROWS[split]):
        persons = draw.sample(_PERSONS, _DOCUMENTS)
        known = {
            "home": draw.sample(_COUNTRIES, _DOCUMENTS + 1),
            "drink": draw.sample(_DRINKS, _DOCUMENTS + 1),
        }
        sentences = []
        for country, drink in zip(known["home"], known["drink"], strict=True):
            both = {"home": f"lives in {country}.", "drink": f"drinks {drink}."}
            sentences.append(draw.sample([*both.items()], 2))
        asked = draw.choice([*known])
        right, *_, wrong = known[asked]
        named, answer = draw.choice([("", right), ("", right), (right, "yes"), (wrong, "no")])
        order = draw.sample(range(_DOCUMENTS), _DOCUMENTS)
        yield {
            "id": f"{split}_{number}",
            "question": f"{asked} of {persons[0]} {named}".strip(),
            "answer": answer,
            "type": "bridge",
            "level": "easy",
            "supporting_facts": {
                "title": persons[:1],
                "sent_id": [[name for name, _ in sentences[0]].index(asked)],
            },
            "context": {
                "title": [persons[one] for one in order],
                "sentences": [[text for _, text in sentences[one]] for one in order],
            },
        }


_TASKS = {"wiki_hop": candidate_rows, "hotpot_qa": evidence_rows}


def main(arguments: Sequence[str]) -> None:
    """Write both splits of both tasks."""
    parser = ArgumentParser(__doc__, prog="python -m data.generators.generated_homes")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with one_line_errors(), writing(given.output):
        folder = Path(given.output).expanduser()
        for (task, rows), split in itertools.product(_TASKS.items(), _ROWS):
            (folder / task).mkdir(parents=True, exist_ok=True)
            lines = (json.dumps(row) + "\n" for row in rows(split, seed=given.seed))
            (folder / task / f"{split}.jsonl").write_text("".join(lines))
    sizes = ", ".join(f"{split}.jsonl ({number})" for split, number in _ROWS.items())
    sys.stdout.write(f"{folder}: {sizes} of {', '.join(_TASKS)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
