r"""Find documents that contain parts of test sets, and remove these parts, as GPT-3 did.

    python -m data.filters.decontaminate --input "crawl/*.jsonl.gz" --output clean \
        --tests squad.jsonl lambada.jsonl --report report.json

Brown et al. 2020, appendix C. A match is a 13-gram of words (in lower case, without punctuation,
separated by whitespace) that a document shares with an example of a test set. The match and the 200
characters before and after it are removed. Of the remaining pieces, those under 200 characters are
dropped; a document that splits into more than 10 pieces is dropped entirely. 13-grams that occur in
more than 10 documents are ignored: most are common phrases, legal text and the like.

Each piece becomes a row with the other fields of its document. Without --output nothing is removed,
and the command only checks: --report gives, for each test set, the number of its examples, and
which examples have a match.

The examples of a test set are the rows of a JSON Lines file, with all strings of a row joined. An
example of fewer than 13 words has no 13-gram and is never found.

Documents are streamed, in two passes; the 13-grams of the test sets are in memory, about 150 bytes
per word of the test sets.
"""

import collections
import re
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data.filters import json_lines
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import check_file, write_json

RUN = 13  # words
WINDOW = 200  # characters removed on each side of a match
SHORTEST = 200  # characters of a piece
MOST_PIECES = 10
COMMON = 10  # documents

_WORD = re.compile(r"\S+")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

Place = tuple[int, int]  # the index of a test set, and of an example in it


def runs(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the 13-grams of a text, each with the offsets of its first character and its end."""
    words = [
        (normal, found.start(), found.end())
        for found in _WORD.finditer(text)
        if (normal := found[0].lower().translate(_PUNCTUATION))
    ]
    for first in range(len(words) - RUN + 1):
        own = words[first : first + RUN]
        yield " ".join(word for word, _, _ in own), own[0][1], own[-1][2]


def test_runs(paths: Sequence[str]) -> tuple[dict[str, set[Place]], list[int]]:
    """Return {13-gram: test examples that contain it}, and the number of examples in each test set.

    Raises:
        ValueError: a line is not a JSON object.
    """
    found: dict[str, set[Place]] = {}
    sizes = []
    for number, path in enumerate(paths):
        size = 0
        for row in json_lines.rows([path]):
            for run, _, _ in runs(" ".join(_strings(row.row))):
                found.setdefault(run, set()).add((number, size))
            size += 1
        sizes.append(size)
    return found, sizes


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for own in value.values():
            yield from _strings(own)
    elif isinstance(value, list):
        for own in value:
            yield from _strings(own)


def pieces(text: str, contaminated: Mapping[str, Any] | set[str]) -> list[str] | None:
    """Return the pieces of a text that remain without its matches; None for a text without matches.

    Args:
        contaminated: the 13-grams that are matches.

    Returns:
        The pieces of `SHORTEST` characters or more; empty if there are more than `MOST_PIECES`.
    """
    cut: list[list[int]] = []  # start and end of each removed part, without overlaps
    for run, first, last in runs(text):
        if run in contaminated:
            first, last = max(first - WINDOW, 0), min(last + WINDOW, len(text))
            if cut and first <= cut[-1][1]:
                cut[-1][1] = last
            else:
                cut.append([first, last])
    if not cut:
        return None
    starts, ends = [0, *(last for _, last in cut)], [*(first for first, _ in cut), len(text)]
    left = [text[start:end] for start, end in zip(starts, ends, strict=True) if start < end]
    if len(left) > MOST_PIECES:
        return []
    return [piece for piece in left if len(piece) >= SHORTEST]


def decontaminate(
    files: Sequence[str], output: str | None, *, tests: Sequence[str], text: str = "text"
) -> dict[str, Any]:
    """Remove parts that occur in test sets from documents.

    Args:
        files: the files of the documents.
        output: the folder to write to; None to check only.
        tests: one file for each test set.
        text: the field with the text of a document.

    Returns:
        The number of documents `read`, `contaminated` and `dropped` (nothing remains), the number
        of 13-grams `ignored` because they are common, and `tests`: for each file the number of its
        `examples`, and the indices of the `contaminated` examples.

    Raises:
        ValueError: a row is bad, or no test set has a 13-gram.
    """
    known, sizes = test_runs(tests)
    if not known:
        raise ValueError(f"--tests: no example has {RUN} words or more")
    counts: collections.Counter[str] = collections.Counter()
    found: dict[str, Any] = {"read": 0, "contaminated": 0, "dropped": 0}
    # Opened first: if the folder is not writable, fail before the first pass.
    with json_lines.Writer(output, files) as writer:
        for document in json_lines.documents(files, text=text):
            counts.update({run for run, _, _ in runs(document.text)} & known.keys())
        matches = {run for run, number in counts.items() if number <= COMMON}
        found["ignored"] = len(counts) - len(matches)
        for document in json_lines.documents(files, text=text):
            left = pieces(document.text, matches)
            found["read"] += 1
            found["contaminated"] += left is not None
            found["dropped"] += left == []
            for piece in [document.text] if left is None else left:
                writer.write(document.path, {**document.row, text: piece})
    places = {place for run in matches for place in known[run]}
    found["tests"] = {
        path: {
            "examples": sizes[number],
            "contaminated": sorted(example for own, example in places if own == number),
        }
        for number, path in enumerate(tests)
    }
    return found


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = json_lines.parser("data.filters.decontaminate", __doc__, output_required=False)
    parser.add_argument("--tests", nargs="+", required=True, metavar="FILES")
    parser.add_argument("--report", metavar="FILE", help="JSON file for what was found")
    given = parser.parse_args(arguments)
    with one_line_errors():
        if not given.output and not given.report:
            raise ValueError("neither --output nor --report is set: give one of them, or both")
        if given.report:
            check_file("--report", given.report)
        tests = json_lines.find("--tests", given.tests)
        files = json_lines.find("--input", given.input)
        found = decontaminate(files, given.output, tests=tests, text=given.text)
        if given.report:
            write_json(given.report, found)
        lines = [
            f"{found['contaminated']:,} of {found['read']:,} documents have parts of test sets; "
            f"{found['dropped']:,} of these have nothing left",
            *(
                f"{path}: {len(own['contaminated']):,} of {own['examples']:,} examples found"
                for path, own in found["tests"].items()
            ),
        ]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
