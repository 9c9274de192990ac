r"""Write the labelled rows of a generated language to files, for commands that read files.

    python -m data.generators.language_rows homonyms fields documents=64 around=1 \
        --output=runs/fields

writes train.jsonl and validation.jsonl, which data/labelled_files.py and data/generators/augment.py
read:

    {"text_a": "bada TARE zefu", "label": 3}

Language and task are a file of data/languages/ and one of its tasks (docs/languages.md), followed
by settings of its function `corpora`.
"""

import importlib
import pathlib
import sys
from collections.abc import Sequence

from data.filters import json_lines
from data.languages.language import rows_of
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser
from t5x_like.names import check_settings, choose

_LANGUAGES = pathlib.Path(__file__).parents[1] / "languages"


def write(language: str, task: str, settings: Sequence[str], output: str) -> int:
    """Write the rows of both splits, and return their number.

    Args:
        language, task: a file of data/languages/, and one of its tasks.
        settings: NAME=NUMBER, arguments of the language's `corpora`.
        output: the folder to write.

    Raises:
        ValueError: no such language, task or setting, or a file exists already.
    """
    files = {path.stem: path.stem for path in _LANGUAGES.glob("*.py") if path.stem != "language"}
    module = importlib.import_module(f"data.languages.{choose('language', language, files)}")
    given = dict(map(_setting, settings))
    check_settings("settings", module.corpora, given)
    corpus = choose("task", task, module.corpora(**given))
    names = {split: f"{split}.jsonl" for split in corpus.splits}
    number = 0
    with json_lines.Writer(output, list(names.values())) as writer:
        for split, name in names.items():
            for row in rows_of(corpus.splits[split]):
                writer.write(name, {field: row[field] for field in row if field != "nats"})
                number += 1
    return number


def _setting(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not equals or not number.isdecimal():
        raise ValueError(f"{text!r} must be NAME=NUMBER, such as documents=64")
    return name, int(number)


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = ArgumentParser(__doc__, prog="python -m data.generators.language_rows")
    parser.add_argument("language", help="a file of data/languages/, such as homonyms")
    parser.add_argument("task", help="one of its tasks, such as fields")
    parser.add_argument("settings", nargs="*", metavar="NAME=NUMBER", help="of the language")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    given = parser.parse_args(arguments)
    with one_line_errors():
        number = write(given.language, given.task, given.settings, given.output)
        sys.stdout.write(f"wrote {number:,} rows\n")


if __name__ == "__main__":
    main(sys.argv[1:])
