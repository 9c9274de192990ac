"""Random pages with everything that C4's rules drop, and WET files as Common Crawl writes them."""

import gzip
import json

LINES = (
    "The river {n} rises in the hills and flows past two old mills.",
    "However, nobody in the village of number {n} had seen the water so high!",
    "Dr. Miller asked whether the bridge {n} would hold. It did. The mill did not.",
    '"We walked {n} miles home in the rain," she said, "and it was fine."',
    "Is there a better way to count {n} birds in a field of wheat?",
    "The well was deep.[{n}] Its water was cold and clear all year.[citation needed]",
    "[edit] The history of the mill {n} begins with a flood.[2]",
    "Home | About | Contact {n}",
    "Only four words here.",
    "These words trail off into nothing at number {n}...",
    "You must enable JavaScript to see page {n} of this site.",
    "By reading page {n} you accept our Terms of Use.",
    "Our site uses cookies to count {n} visitors each day.",
    "  The baker sold {n} loaves of bread before noon.\t",
    "A stick of {n} " + "x" * 1001 + " ends this line of words.",
    "The scunthorpe line of number {n} is never late in winter.",
    "a shared line that many pages have at their end.",
    "A shared LINE that many pages have at their end. ",
    "\u201cCurly quotes do not count as an end {n} of a line.\u201d",
    "A line\u2028with a separator inside it has {n} words before it ends.",
)
OF_PAGES = (
    "Lorem ipsum dolor sit amet and {n} more words follow.",
    "A function f(x) {{ return {n}; }} is not a sentence of text.",
    "It was a scunthorpe of number {n}, said the darn farmer.",
    "Der Fluss {n} entspringt in den Bergen und er ist im Winter sehr kalt und klar.",
)
BAD_WORDS = ("darn", "c++ coder", "")


def text(random):
    """A page of lines: one in four has a line that may drop it, one in four a line twice."""
    numbers = random.integers(0, 400, size=40)
    size = int(random.integers(1, 9))
    lines = [str(random.choice(LINES)).format(n=n) for n in numbers[:size]]
    if random.random() < 0.25:
        lines.insert(int(random.integers(size + 1)), str(random.choice(OF_PAGES)).format(n=1))
    if random.random() < 0.25:
        lines.append(lines[0].upper())
    return "\n".join(lines)


def pages(random, number, *, prefix=""):
    """Rows with url, text and timestamp; some addresses occur twice, at different times."""
    schemes = ("http://", "https://www.", "https://")
    return [
        {
            "url": f"{random.choice(schemes)}{prefix}site.org/{random.integers(number)}"
            + str(random.choice(["", "/", "?utm_source=mail"])),
            "text": text(random),
            # Different for all pages: of two pages of one time either may stay.
            "timestamp": f"2019-04-{10 + index % 19}T{index // 3600:02}:{index // 60 % 60:02}:"
            f"{index % 60:02}Z",
        }
        for index in range(number)
    ]


KINDS = {"response": "application/http; msgtype=response", "resource": "text/html"}


def record(page, *, kind="conversion", more=()):
    """A record as Common Crawl writes it: CRLF after header lines, two after the record.

    A page's `text` may be bytes, and `more` are header lines.
    """
    content = page["text"] if isinstance(page["text"], bytes) else page["text"].encode()
    header = (
        "WARC/1.0",
        f"WARC-Type: {kind}",
        *([f"WARC-Target-URI: {page['url']}"] if page.get("url") else []),
        f"WARC-Date: {page.get('timestamp', '')}",
        "WARC-Record-ID: <urn:uuid:23d84b81-bffc-4ed9-90ae-55a429dbf541>",
        f"Content-Type: {KINDS.get(kind, 'text/plain')}",
        *more,
        f"Content-Length: {len(content)}",
    )
    return "\r\n".join(header).encode() + b"\r\n\r\n" + content + b"\r\n\r\n"


INFO = {
    "text": "Software-Info: ia-web-commons.1.1.9\r\nisPartOf: CC-MAIN-2019-18\r\n\r\n",
    "timestamp": "2019-04-26T19:04:32Z",
}


def write_wet(path, rows):
    """Writes a WET file; each record of a .gz is a member of its own, as in Common Crawl."""
    records = [record(INFO, kind="warcinfo"), *map(record, rows)]
    packed = map(gzip.compress, records) if path.suffix == ".gz" else records
    path.write_bytes(b"".join(packed))
    return str(path)


def write_rows(path, rows):
    """Writes JSON Lines, compressed if the name ends in .gz."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def read_rows(path):
    """The rows of a file of JSON Lines."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in content.decode().split("\n")[:-1]]
