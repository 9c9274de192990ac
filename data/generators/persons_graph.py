"""Write the facts of the language `persons` as triples, which K-BERT reads.

    python -m data.generators.persons_graph --output=runs/persons/graph.tsv

The facts are those of data/languages/persons.py with its default settings.
"""

import pathlib
import sys
from collections.abc import Sequence

from data.languages import persons
from t5x_like.batches.knowledge_graph import COLUMNS
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, count, writing


def write(path: pathlib.Path, *, number: int, world: int) -> int:
    """Write the triples of a world, and return their number.

    Args:
        path: a .tsv file.
        number, world: `persons` and `world` of `persons.corpora`.
    """
    triples = persons.triples(number, world=world)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join("\t".join(row) + "\n" for row in (COLUMNS, *triples)))
    return len(triples)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = ArgumentParser(__doc__, prog="python -m data.generators.persons_graph")
    parser.add_argument("--output", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--persons", type=count, default=2000, help="the number of persons (2000)")
    parser.add_argument("--world", type=int, default=0, help="the seed of the facts (0)")
    given = parser.parse_args(arguments)
    with one_line_errors():
        number = write(given.output, number=given.persons, world=given.world)
        sys.stdout.write(f"wrote {number:,} triples\n")


if __name__ == "__main__":
    main(sys.argv[1:])
