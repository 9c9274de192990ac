"""WARC files of HTML pages: codings, charsets, what cannot be read, and the same C4 as from WET."""

import gzip
import html
import zlib

import brotli
import numpy as np
import pytest
from fastwarc.warc import ArchiveIterator

from data.filters import clean_pages, html_pages, web_archives
from tests.programs import sentence_model, web_texts

TEXT = "Größe und Maß sind für Bäcker überall gleich."
PAGE = f"<html><body><p>{TEXT}</p></body></html>"


def response(body, *headers, status="200 OK"):
    lines = (f"HTTP/1.1 {status}", *headers)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def html_response(body, *headers, kind="text/html; charset=utf-8"):
    return response(body, f"Content-Type: {kind}", *headers)


def chunked(body):
    cut = [body[n : n + 10] for n in range(0, len(body), 10)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in cut) + b"0\r\n\r\n"


def raw_deflate(body):
    packed = zlib.compressobj(wbits=-15)
    return packed.compress(body) + packed.flush()


def write_warc(path, content, *, more=()):
    page = {"text": content, "url": "http://site.org/0", "timestamp": "2019-04-18T10:38:25Z"}
    path.write_bytes(gzip.compress(web_texts.record(page, kind="response", more=more)))
    return str(path)


CODINGS = {
    "none": (PAGE.encode(), ()),
    "gzip": (gzip.compress(PAGE.encode()), ("Content-Encoding: gzip",)),
    "members": (
        gzip.compress(PAGE.encode()[:20]) + gzip.compress(PAGE.encode()[20:]),
        ("content-encoding: x-gzip",),
    ),
    "deflate": (zlib.compress(PAGE.encode()), ("Content-Encoding: deflate",)),
    "raw deflate": (raw_deflate(PAGE.encode()), ("Content-Encoding: deflate",)),
    "brotli": (brotli.compress(PAGE.encode()), ("Content-Encoding: br",)),
    "chunks": (chunked(PAGE.encode()), ("Transfer-Encoding: chunked",)),
    "both": (
        chunked(gzip.compress(PAGE.encode())),
        ("Content-Encoding: gzip", "Transfer-Encoding: chunked"),
    ),
    "undone": (PAGE.encode(), ("Content-Encoding: gzip", "Transfer-Encoding: chunked")),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_codings_are_undone_as_by_fastwarc(coding, tmp_path):
    body, headers = CODINGS[coding]
    path = write_warc(tmp_path / "x.warc.gz", html_response(body, *headers))
    page = next(web_archives.pages(path))
    assert (page.text, page.problem) == (TEXT, "")
    assert page.row["url"] == "http://site.org/0"
    if coding not in ("raw deflate", "members", "undone"):  # which FastWARC does not read
        with open(path, "rb") as file:
            record = next(iter(ArchiveIterator(file, parse_http=True, auto_decode="all")))
            assert record.reader.read() == PAGE.encode()


CYRILLIC = "Москва является столицей России, и в ней живёт много людей. "
JAPANESE = "東京は日本の首都であり、世界で最も人口の多い都市の一つです。"


@pytest.mark.parametrize(
    ("text", "encoding", "kind", "meta"),
    [
        (CYRILLIC, "cp1251", "text/html; charset=windows-1251", ""),
        (CYRILLIC, "cp1251", "text/html", "<meta charset=windows-1251>"),
        (CYRILLIC, "koi8-r", "text/html; charset=KOI8-R", ""),
        (CYRILLIC, "cp1251", "text/html; charset=utf-8", ""),  # a wrong header
        (CYRILLIC, "utf-8", "text/html", ""),
        (CYRILLIC, "utf-8", "text/html; charset=unknown", "<meta charset=utf-8>"),
        (CYRILLIC, "utf-16", "text/html; charset=windows-1251", ""),  # its mark decides
        (JAPANESE, "shift_jis", "text/html", "<meta charset=Shift_JIS>"),
        (JAPANESE, "euc_jp", "application/xhtml+xml; charset=EUC-JP", ""),
        # In HTML the label iso-8859-1 means windows-1252.
        ("It costs 5 \u20ac, \u201cperhaps\u201d.", "cp1252", "text/html; charset=iso-8859-1", ""),
    ],
)
def test_charsets(text, encoding, kind, meta):
    page = f"<html><head>{meta}</head><body><p>{text * 5}</p></body></html>"
    found = html_pages.of_response(html_response(page.encode(encoding), kind=kind))
    assert found == (text * 5).strip()


def test_a_page_is_laid_out_in_lines(tmp_path):
    page = """<!doctype html><html><head><title>Title</title><style>p {color: red}</style>
        <script>if (a < b) { document.write("javascript"); }</script></head><body>
        <ul><li><a href="/">Home</a></li><li>About</li></ul><noscript>Enable JavaScript</noscript>
        <h1>Bread &amp; butter</h1><p>A paragraph with <b>bold</b>
        words.<br>After a break.</p><div>Outer<div>inner.</div></div><img alt="An image">
        <table><tr><td>one</td><td>two</td></tr></table><!-- a comment --></body></html>"""
    path = write_warc(tmp_path / "x.warc.gz", html_response(page.encode()))
    assert next(web_archives.pages(path)).text.split("\n") == [
        *("Home", "About", "Bread & butter"),
        *("A paragraph with bold words.", "After a break.", "Outer", "inner.", "one\t\ttwo"),
    ]


def test_a_resource_has_no_http_header(tmp_path):
    record = {"text": PAGE, "url": "<file:///a.html>"}  # as wget writes it
    content = web_texts.record(record, kind="resource")
    (tmp_path / "x.warc").write_bytes(content)
    pages = web_archives.pages(str(tmp_path / "x.warc"))
    assert [(page.url, page.text) for page in pages] == [("file:///a.html", TEXT)]


CUT = gzip.compress(PAGE.encode() * 9)[:-20]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (response(PAGE.encode(), "Content-Type: text/html", status="404 Not Found"), "NOT_OK"),
        (response(b"", "Location: http://site.org/2", status="301 Moved"), "NOT_OK"),
        (b"20190418103800\nsite.org. 60 IN A 1.2.3.4", "NOT_OK"),  # of the name server
        (b"", "NOT_OK"),
        (html_response(b"%PDF-1.4", kind="application/pdf"), "NOT_HTML"),
        (response(PAGE.encode()), "NOT_HTML"),
        (html_response(CUT, "Content-Encoding: gzip"), "BAD_CODING"),
        (html_response(b"\x1f\x8bxxxxxxxxxxxxx", "Content-Encoding: gzip"), "BAD_CODING"),
        (html_response(PAGE.encode(), "Content-Encoding: br"), "BAD_CODING"),
        (html_response(PAGE.encode(), "Content-Encoding: compress"), "BAD_CODING"),
        (html_response(PAGE.encode(), "Content-Encoding: gzíp"), "BAD_CODING"),
        (html_response(b"\xef\xbb\xbf<p>\xff\xfe\xfd\xc3 \xc3", kind="text/html"), "BAD_CHARSET"),
    ],
)
def test_what_cannot_be_read_is_counted(content, problem, tmp_path):
    problem = getattr(html_pages, problem)
    path = write_warc(tmp_path / "x.warc.gz", content)
    assert [page.problem for page in web_archives.pages(path)] == [problem]
    counts = clean_pages.find_addresses(plan([path], tmp_path), 0)
    assert counts == {problem: 1, clean_pages.READ: 1}


def test_a_page_that_the_crawler_cut_off_is_read(tmp_path):
    cut = html_response(CUT, "Content-Encoding: gzip")
    path = write_warc(tmp_path / "x.warc.gz", cut, more=["WARC-Truncated: length"])
    page = next(web_archives.pages(path))
    assert page.text.startswith(f"{TEXT}\n")
    inside = PAGE.encode()[: PAGE.encode().index("ß".encode()) + 1]  # within a character
    assert html_pages.of_response(html_response(inside), truncated=True) == "Grö"


def plan(files, folder):
    (folder / "out" / "unfinished" / "00000").mkdir(parents=True, exist_ok=True)
    return clean_pages.Plan(files=files, output=folder / "out", language="any")


def test_html_gives_the_same_pages_as_their_text(tmp_path, monkeypatch):
    rows = web_texts.pages(np.random.default_rng(0), 200)
    for row in rows:  # HTML has no white space around lines, and other separators are kept
        row["text"] = "\n".join(" ".join(line.split()) for line in row["text"].split("\n"))
    records = []
    for row in rows:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in row["text"].split("\n"))
        text = html_response(f"<html><body>{lines}</body></html>".encode())
        records.append(web_texts.record({**row, "text": text}, kind="response"))
    request = web_texts.record({"text": "GET / HTTP/1.1\r\n\r\n", "url": "u"}, kind="request")
    (tmp_path / "x.warc.gz").write_bytes(b"".join(map(gzip.compress, [request, *records])))
    wet = web_texts.write_wet(tmp_path / "y.warc.wet.gz", rows)
    found, counted = {}, {}
    with sentence_model.installed(tmp_path / "nltk", monkeypatch):
        for name, path in {"x": str(tmp_path / "x.warc.gz"), "y": wet}.items():
            own = clean_pages.Plan(files=[path], output=tmp_path / name)
            counted[name] = clean_pages.clean_pages(own)
            found[name] = web_texts.read_rows(tmp_path / name / f"{name}.jsonl.gz")
    assert found["x"] == found["y"]
    assert counted["x"] == counted["y"]
    assert len(found["x"]) > 20
