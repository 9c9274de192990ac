"""The text of HTML pages, as HTTP responses in WARC files have them.

Resiliparse (https://resiliparse.chatnoir.eu, Apache 2.0) parses a page as browsers do and lays its
text out: a block begins a line, scripts and styles are left out. It was written for web archives;
DataComp-LM's corpus was extracted by it. Like Common Crawl's WET files, the whole page is extracted
and not what seems to be its main content: C4's rules drop menus.

The charset of a page is the one of its byte-order mark, of its HTTP header, or of its <meta>; if it
names none, or is not in it, the one that Resiliparse detects.
"""

import codecs
import email.parser
import re
import zlib
from email.message import Message

NOT_OK = "responses without status 200"
NOT_HTML = "responses that are not HTML"
BAD_CODING = "responses whose content coding is unknown or damaged"
BAD_CHARSET = "responses that are not in their charset"
PROBLEMS = (NOT_OK, NOT_HTML, BAD_CODING, BAD_CHARSET)

_HTML = ("text/html", "application/xhtml+xml")
_HEADER_END = re.compile(rb"\r?\n\r?\n|\Z")
_CHUNK = re.compile(rb"\s*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class UnreadableError(ValueError):
    """A response has no text that can be read; the message is one of `PROBLEMS`."""


def of_response(content: bytes, *, truncated: bool = False) -> str:
    """Return the text of an HTTP response, see `of_html`.

    Args:
        content: the status line, header and body.
        truncated: whether the crawler cut the body off.

    Raises:
        UnreadableError: it has another status than 200, is not HTML, or cannot be decoded.
    """
    end = _HEADER_END.search(content)
    assert end  # for the type checker
    status, _, lines = content[: end.start()].partition(b"\n")
    if not re.match(rb"HTTP/\d(\.\d)? +200\b", status):
        raise UnreadableError(NOT_OK)
    header = email.parser.BytesHeaderParser().parsebytes(lines)
    body = _decoded(header, content[end.end() :], truncated=truncated)
    return of_html(header, body, truncated=truncated)


def of_html(header: Message, body: bytes, *, truncated: bool = False) -> str:
    """Return the text of an HTML page, a block on each line.

    Args:
        header: has Content-Type.
        body: the page.
        truncated: whether the page is cut off.

    Raises:
        UnreadableError: see `of_response`.
    """
    from resiliparse.extract.html2text import extract_plain_text

    if header.get_content_type() not in _HTML:
        raise UnreadableError(NOT_HTML)
    html = _characters(header.get_content_charset(), body, truncated=truncated)
    return extract_plain_text(html, list_bullets=False, alt_texts=False)


def _decoded(header: Message, body: bytes, *, truncated: bool) -> bytes:
    """Undo the codings of a body; some crawlers did so already, and left the header as it was."""
    codings = [
        coding.strip().lower()
        for name in ("Content-Encoding", "Transfer-Encoding")
        for value in header.get_all(name, [])
        for coding in str(value).split(",")  # a Header, if it is not ASCII
    ]
    try:
        for coding in reversed(codings):
            body = _without(coding, body, truncated=truncated)
    except (zlib.error, EOFError) as error:
        raise UnreadableError(BAD_CODING) from error
    return body


def _without(coding: str, body: bytes, *, truncated: bool) -> bytes:
    """Undo a coding.

    Raises:
        zlib.error, EOFError: the body is damaged.
        UnreadableError: the coding is unknown.
    """
    match coding:
        case "" | "identity":
            return body
        case "chunked":
            return _without_chunks(body)
        case "gzip" | "x-gzip":
            return _inflated(body, 31, truncated) if body.startswith(b"\x1f\x8b") else body
        case "deflate":  # zlib's format, or what some servers send: the data without its header
            zlib_header = len(body) > 1 and body[0] & 15 == 8 and not int.from_bytes(body[:2]) % 31
            return _inflated(body, 15 if zlib_header else -15, truncated)
        case "br":
            import brotli

            try:
                return brotli.decompress(body)
            except brotli.error as error:
                raise EOFError from error
    raise UnreadableError(BAD_CODING)


def _inflated(body: bytes, window: int, truncated: bool) -> bytes:
    pieces = []
    while body:
        member = zlib.decompressobj(window)
        pieces.append(member.decompress(body))
        if not member.eof and not truncated:
            raise EOFError
        body = member.unused_data
        if window != 31 or not body.startswith(b"\x1f\x8b"):
            break
    return b"".join(pieces)


def _without_chunks(body: bytes) -> bytes:
    """Join the chunks of a body; a body that does not begin with a chunk stays as it is."""
    pieces, at = [], 0
    while (size := _CHUNK.match(body, at)) and int(size[1], 16):
        at = size.end() + int(size[1], 16)
        pieces.append(body[size.end() : at])
    return b"".join(pieces) if pieces or size else body


def _characters(charset: str | None, body: bytes, *, truncated: bool) -> str:
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    marked = next((name for mark, name in _MARKS.items() if body.startswith(mark)), None)
    named = map_encoding_to_html5(charset, False) if charset else None
    declared = marked or named or detect_encoding(body, from_html_meta=True)
    for encoding in (declared, detect_encoding(body)):
        try:
            decoder = codecs.getincrementaldecoder(encoding or "utf-8")()
            return decoder.decode(body, not truncated)
        except (UnicodeDecodeError, LookupError):  # not in it, or Python does not have it
            continue
    raise UnreadableError(BAD_CHARSET)
