"""Read the pages of a web crawl: Common Crawl's WET or WARC files, or JSON Lines of pages.

A WARC file (ISO 28500) has records: HTTP responses of pages in HTML, whose text is read by
data/filters/html_pages.py. A WET file is a WARC file whose records of type "conversion" have the
text of a page. Records are read by their Content-Length. TensorFlow Datasets instead takes every
line of a WET file that begins with "WARC" or "Content-" for a header, and so loses such lines of
pages.
"""

import email.message
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from data.filters import html_pages
from t5x_like import reading

WET_SUFFIXES = reading.with_endings((".wet", ".warc"))

_LINE_END = re.compile(r"\r\n|\r|\n")
_PAGES = ("conversion", "response", "resource")  # other records are about them


class Page(NamedTuple):
    """A page of a crawl.

    Attributes:
        url, text: the address and the text; either may be empty.
        timestamp: the date in ISO 8601, such as "2019-04-24T09:23:58Z"; may be empty.
        row: all fields as JSON Lines have them.
        problem: why the text could not be read, one of `html_pages.PROBLEMS`; else empty.
    """

    url: str
    text: str
    timestamp: str
    row: Mapping[str, Any]
    problem: str = ""


def pages(path: str, *, text: str = "text") -> Iterator[Page]:
    """Yield the pages of a file.

    Args:
        path: a WET or WARC file, or JSON Lines with the string `url` and optionally `timestamp`.
        text: the field of JSON Lines with the text.

    Raises:
        ValueError: the file is damaged, or a field is missing; the message begins with the file and
            the line or record.
    """
    return archived(path) if path.endswith(WET_SUFFIXES) else _rows(path, text=text)


def archived(path: str) -> Iterator[Page]:
    """Yield the pages of a WET or WARC file: lines without blank lines and white space around them.

    Raises:
        ValueError: see `pages`.
    """
    for number, (header, content) in enumerate(_records(path), 1):
        if header.get("warc-type") not in _PAGES:
            continue
        # wget writes <http://...>, as the first edition of the standard has it.
        url = header.get("warc-target-uri", "").removeprefix("<").removesuffix(">")
        timestamp = header.get("warc-date", "")
        text = problem = ""
        try:
            text = _text(header, content)
        except html_pages.UnreadableError as error:
            problem = str(error)
        except UnicodeDecodeError as error:
            raise reading.FileError(
                f"{path}: record {number}, {url}: it is not UTF-8: {error.reason}; leave this file "
                "out"
            ) from error
        lines = (line.strip() for line in _LINE_END.split(text))
        own = "\n".join(line for line in lines if line)
        row = {"text": own, "timestamp": timestamp, "url": url}
        yield Page(url, own, timestamp, row, problem)


def _text(header: Mapping[str, str], content: bytes) -> str:
    """Return the text of a record.

    Raises:
        UnreadableError: see html_pages.
        UnicodeDecodeError: a text is not UTF-8.
    """
    truncated = "warc-truncated" in header
    match header["warc-type"]:
        case "conversion":
            return content.decode("utf-8")
        case "response":
            return html_pages.of_response(content, truncated=truncated)
    message = email.message.Message()  # of a resource, such as a local file
    message["Content-Type"] = header.get("content-type", "")
    return html_pages.of_html(message, content, truncated=truncated)


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
