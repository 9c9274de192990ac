r"""Make documents of books: each file of text is one document.

    python -m data.filters.books --input "books1/epubtxt/*.epub.txt" --output corpora/books

For data/text_files.py and data/mixture_files.py a line of a .txt file is a document. This command
instead makes a row of each file (.txt, compressed or not), in the schema of the books that Hugging
Face hosts as `bookcorpusopen`: `title`, the name of the file, and `text`, unchanged. OUTPUT has
files of JSON Lines of 256 books each, and the number of books is printed. Files with white space
only are left out.

Of the books that others host, `bookcorpusopen` has one book in each row, and is read as it is. The
rows of `bookcorpus` are sentences in the order of the books, without the places where books begin:
no documents can be made of them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from data.filters import json_lines
from t5x_like import reading
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser

SUFFIXES = reading.with_endings((".txt",))
READ = "files read"
EMPTY = "files without text"
KEPT = "books"

_BOOKS = 256  # in a file of the output: about 100 MB of text


def convert(files: Sequence[str], output: str) -> dict[str, int]:
    """Write the books.

    Args:
        files: a file of text for each book.
        output: the folder.

    Returns:
        {what is counted: number}.

    Raises:
        ValueError: a file is not UTF-8 or is damaged, no file has text, or the folder has books
            already.
        OSError: the folder cannot be written.
    """
    number = -(-len(files) // _BOOKS)
    names = [f"books-{n:05}-of-{number:05}.jsonl.gz" for n in range(number)]
    counts = dict.fromkeys((READ, EMPTY, KEPT), 0)
    with json_lines.Writer(output, names) as writer:
        for index, path in enumerate(files):
            counts[READ] += 1
            text = reading.text(path)
            if text.strip():
                writer.write(names[index // _BOOKS], {"title": Path(path).name, "text": text})
                counts[KEPT] += 1
            else:
                counts[EMPTY] += 1
        if not counts[KEPT]:
            raise ValueError(f"none of the {len(files)} files of --input has text")
    return counts


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = ArgumentParser(__doc__, prog="python -m data.filters.books")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILES", help="or patterns")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    given = parser.parse_args(arguments)
    with one_line_errors():
        files = json_lines.find("--input", given.input, suffixes=SUFFIXES)
        counts = convert(files, given.output)
        sys.stdout.writelines(f"{count:,} {name}\n" for name, count in counts.items())


if __name__ == "__main__":
    main(sys.argv[1:])
