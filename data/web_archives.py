"""Read the pages of a web crawl: Common Crawl's WET files, or JSON Lines of pages.

A WET file is a WARC file (ISO 28500) whose records of type "conversion" have the text of a page.
Records are read by their Content-Length. TensorFlow Datasets instead takes every line of a WET file
that begins with "WARC" or "Content-" for a header, and so loses such lines of pages.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from t5x_like import reading

WET_SUFFIXES = reading.with_endings((".wet", ".warc"))

_LINE_END = re.compile(r"\r\n|\r|\n")
_WITHOUT_TEXT = ("response", "resource")


class Page(NamedTuple):
    """A page of a crawl.

    Attributes:
        url, text: the address and the text; either may be empty.
        timestamp: the date in ISO 8601, such as "2019-04-24T09:23:58Z"; may be empty.
        row: all fields as JSON Lines have them.
    """

    url: str
    text: str
    timestamp: str
    row: Mapping[str, Any]


def pages(path: str, *, text: str = "text") -> Iterator[Page]:
    """Yield the pages of a file.

    Args:
        path: a WET file, or JSON Lines with the string `url` and optionally `timestamp`.
        text: the field of JSON Lines with the text.

    Raises:
        ValueError: the file is damaged, has HTML and no text, or a field is missing; the message
            begins with the file and the line or record.
    """
    return wet_pages(path) if path.endswith(WET_SUFFIXES) else _rows(path, text=text)


def wet_pages(path: str) -> Iterator[Page]:
    """Yield the pages of a WET file: lines without white space around them, without blank lines.

    Raises:
        ValueError: see `pages`.
    """
    for number, (header, content) in enumerate(_records(path), 1):
        kind = header.get("warc-type", "")
        where = f"{path}: record {number}"
        if kind in _WITHOUT_TEXT:
            raise ValueError(
                f"{where} has the type {kind!r}, a page in HTML: give the crawl's WET files "
                "(.warc.wet.gz), which have the text of its pages"
            )
        if kind != "conversion":
            continue
        url, timestamp = header.get("warc-target-uri", ""), header.get("warc-date", "")
        try:
            decoded = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise reading.FileError(
                f"{where}, {url}: it is not UTF-8: {error.reason}; leave this file out"
            ) from error
        lines = (line.strip() for line in _LINE_END.split(decoded))
        own = "\n".join(line for line in lines if line)
        yield Page(url, own, timestamp, {"text": own, "timestamp": timestamp, "url": url})


def _records(path: str) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield the header, with names in lower case, and the content of each record of a WARC file."""
    number = 0
    with reading.open_bytes(path) as file:
        while line := file.readline():
            if not line.strip():  # two line ends follow a record
                continue
            number += 1
            if not line.startswith(b"WARC/"):
                raise reading.FileError(f"{path}: record {number} does not begin with WARC/")
            header = {}
            while line := file.readline().strip():
                name, _, value = line.decode("utf-8", "replace").partition(":")
                header[name.lower()] = value.strip()
            length = header.get("content-length", "")
            if not length.isdecimal():
                raise reading.FileError(f"{path}: record {number} has no Content-Length")
            content = file.read(int(length))
            if len(content) < int(length):
                raise reading.FileError(f"{path}: the file ends within record {number}")
            yield header, content


def _rows(path: str, *, text: str) -> Iterator[Page]:
    for where, row in reading.json_lines(path):
        try:
            timestamp = reading.field_text({"timestamp": "", **row}, "timestamp")
            url, own = (reading.field_text(row, field) for field in ("url", text))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        yield Page(url, own, timestamp, row)
