r"""Make documents of Wikipedia's dumps, as BERT was trained on (Devlin et al. 2018, 3.1).

    pip install -e '.[wikipedia]'
    python -m data.filters.wikipedia --input "dumps/enwiki-*-pages-articles[0-9]*.xml*.bz2" \
        --output wikipedia --processes 8

The input is files of https://dumps.wikimedia.org in the export format (XML, compressed or not): of
`pages-articles`, which have one revision of each page, in one file or in parts. Each file gives a
file of JSON Lines with the fields `title`, `text` and `url`, which data/text_files.py and
data/mixture_files.py read; a process reads a file, so that parts are faster.

Only passages of text stay, as in the paper: headings, lists, tables, templates (also infoboxes),
references, formulas, source code, galleries, images and links to categories and other languages are
left out, and so are redirects and pages outside the namespace of articles. A line of `text` is a
paragraph. Links keep their text, and addresses without a text are left out. The names of namespaces
are read from the dump, so that Wikipedias in all languages can be read. Templates are not expanded:
their text, as in `{{convert|5|km}}`, is missing in the sentence.

The markup is read by mwparserfromhell. If the command is interrupted, the same command continues
with the files that are missing; until its end OUTPUT/unfinished has what it counted.
"""

import functools
import io
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.filters import json_lines
from t5x_like import paths, reading
from t5x_like.batches import worker_processes
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser, writing

READ = "pages read"
OTHER = "pages that are not articles"
REDIRECT = "redirects"
NO_TEXT = "articles without a passage of text"
KEPT = "articles kept"
COUNTED = (READ, OTHER, REDIRECT, NO_TEXT, KEPT)

# The name of a part ends with the ids of its pages: .xml-p1p41242.bz2.
SUFFIXES = (*reading.with_endings((".xml",)), ".bz2")
_ENDING = re.compile(r"(?:\.xml)?(-p\d+p\d+)?(?:\.\w+)?$")

_LEFT_OUT = (
    *("ref", "references", "table", "gallery", "math", "chem", "score", "timeline", "imagemap"),
    *("source", "syntaxhighlight", "pre", "code", "graph", "hiero"),
)
_LISTS = ("li", "dd", "dt")  # also of lines that begin with * # : ;
_ITEM = "\ue000"  # a private character: the line is an item of a list
_WITHOUT_TEXT = ("-2", "6", "14")  # the namespaces Media, File and Category
# A file, also under a name of the namespace File that a dump does not list, such as German Bild:.
_MEDIA = re.compile(
    r"\s*[^:]+:.*\.(djvu|flac|gif|jpe?g|mid|mp3|og[agv]|pdf|png|svg|tiff?|wav|webm|webp)\s*$",
    re.IGNORECASE,
)
_SWITCHES = re.compile(r"__[A-Z]+__")  # such as __NOTOC__
# Dumps from before 2013 have the pages in other languages on lines of their own.
_LANGUAGES = re.compile(r"^\[\[[a-z]{2,3}(-[a-z-]+)?:[^]|]*\]\]\s*$", re.MULTILINE)
_EMPTY = re.compile(r"\((?:[\s,;:]|\u2013)*\)")  # brackets that held templates only
_BLANKS = re.compile(r"[ \t\xa0]+")
_BEFORE_MARK = re.compile(r" +([,.;:!?)])")


class Page(NamedTuple):
    """A page of a dump.

    Attributes:
        title, markup: its title, and the wikitext of its revision.
        namespace: the number of its namespace; 0 for articles.
        redirects: whether it only leads to another page.
    """

    title: str
    markup: str
    namespace: int
    redirects: bool


class Site(NamedTuple):
    """The site of a dump.

    Attributes:
        address: of a page, without its title.
        invisible: the names, in lower case, of the namespaces whose links show no text: files and
            categories.
    """

    address: str
    invisible: frozenset[str]


def pages(path: str) -> Iterator[tuple[Site, Page]]:
    """Yield the pages of a file, with their site.

    Raises:
        ValueError: the file is not XML of the export format, or a page has several revisions; the
            message begins with the file.
    """
    site = None
    with reading.open_bytes(path) as file:
        events = ET.iterparse(file, events=("start", "end"))
        try:
            _, root = next(events)
            if _name(root) != "mediawiki":
                raise reading.FileError(f"{path}: its root is <{_name(root)}>, not <mediawiki>")
            for event, element in events:
                if event == "end" and _name(element) == "siteinfo":
                    site = _site(element)
                elif event == "end" and _name(element) == "page":
                    if site is None:
                        raise reading.FileError(f"{path}: there is no <siteinfo> before a page")
                    yield site, _page(element, path)
                    root.clear()  # else all pages stay in memory
        except (ET.ParseError, StopIteration) as error:
            raise reading.FileError(f"{path}: it is not whole XML: {error}") from error


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _child(element: ET.Element, name: str) -> ET.Element | None:
    return next((one for one in element if _name(one) == name), None)


def _text(element: ET.Element, name: str) -> str:
    found = _child(element, name)
    return "" if found is None else found.text or ""


def _site(element: ET.Element) -> Site:
    # The English names are known to all Wikipedias.
    names = {"media", "file", "image", "category"}
    spaces = _child(element, "namespaces")
    for space in () if spaces is None else spaces:
        if space.get("key") in _WITHOUT_TEXT:
            names.add((space.text or "").lower())
    return Site(_text(element, "base").rpartition("/")[0] + "/", frozenset(names - {""}))


def _page(element: ET.Element, path: str) -> Page:
    revisions = [one for one in element if _name(one) == "revision"]
    title = _text(element, "title")
    if len(revisions) != 1:
        raise reading.FileError(
            f"{path}: the page {title!r} has {len(revisions)} revisions: give the files of "
            "pages-articles, which have one"
        )
    redirects = _child(element, "redirect") is not None
    namespace = _text(element, "ns") or "0"
    if not namespace.removeprefix("-").isdecimal():
        raise reading.FileError(f"{path}: the page {title!r} has the namespace {namespace!r}")
    return Page(title, _text(revisions[0], "text"), int(namespace), redirects)


def passages(markup: str, invisible: frozenset[str]) -> str:
    """Return the passages of text of a page, a line for each paragraph.

    Args:
        markup: the wikitext.
        invisible: see `Site`.
    """
    import mwparserfromhell

    markup = _LANGUAGES.sub("", _SWITCHES.sub("", markup.replace(_ITEM, "")))
    lines = _seen(mwparserfromhell.parse(markup), invisible).split("\n")
    cleaned = (_clean(line) for line in lines if _ITEM not in line)
    return "\n".join(line for line in cleaned if line)


def _seen(code: Any, invisible: frozenset[str]) -> str:
    """Return what a reader sees of parsed markup, with `_ITEM` on lines that are left out."""
    return "" if code is None else "".join(_seen_node(node, invisible) for node in code.nodes)


def _seen_node(node: Any, invisible: frozenset[str]) -> str:
    from mwparserfromhell import nodes

    match node:
        case nodes.Text():
            return node.value
        case nodes.HTMLEntity():
            return node.normalize()
        case nodes.ExternalLink():
            return _seen(node.title, invisible)
        case nodes.Heading():
            return _ITEM
        case nodes.Wikilink():
            space = str(node.title).partition(":")[0].strip().lower()
            if space in invisible or _MEDIA.match(str(node.title)):
                return ""
            return _seen(node.title if node.text is None else node.text, invisible).lstrip(":")
        case nodes.Tag():
            return _seen_tag(node, invisible)
    return ""  # templates, their arguments, comments


def _seen_tag(node: Any, invisible: frozenset[str]) -> str:
    tag = str(node.tag).strip().lower()
    if tag in _LISTS:
        return _ITEM
    if tag in _LEFT_OUT:
        return ""
    return " " if tag == "br" else _seen(node.contents, invisible)


def _clean(line: str) -> str:
    line = _EMPTY.sub("", line)
    return _BEFORE_MARK.sub(r"\1", _BLANKS.sub(" ", line)).strip()


def output_name(path: str) -> str:
    """Return the name of the output: for the part a1.xml-p1p9.bz2, a1-p1p9.jsonl.gz."""
    return _ENDING.sub(r"\1.jsonl.gz", Path(path).name, count=1)


def convert_file(output: Path, path: str) -> None:
    """Write the articles of a file, and then what was counted."""
    counts = dict.fromkeys(COUNTED, 0)
    name = output_name(path)
    part = output / "unfinished" / name
    with writing(output), io.TextIOWrapper(reading.create(str(part)), encoding="utf-8") as file:
        for site, page in pages(path):
            counts[READ] += 1
            row = _row(site, page)
            counts[row if isinstance(row, str) else KEPT] += 1
            if not isinstance(row, str):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    with writing(output):
        paths.write_whole(_counts_file(output, path), json.dumps(counts))
        part.replace(output / name)


def _row(site: Site, page: Page) -> dict[str, str] | str:
    """Return the row of a page, or why it has none."""
    if page.namespace != 0:
        return OTHER
    if page.redirects:
        return REDIRECT
    text = passages(page.markup, site.invisible)
    if not text:
        return NO_TEXT
    address = site.address + urllib.parse.quote(page.title.replace(" ", "_"))
    return {"title": page.title, "text": text, "url": address}


def _counts_file(output: Path, path: str) -> Path:
    return output / "unfinished" / f"{output_name(path)}.json"


def convert(
    files: Sequence[str],
    output: Path,
    *,
    processes: int = 1,
    report: Callable[[str], Any] = lambda line: None,
) -> dict[str, int]:
    """Convert files, or continue with it.

    Args:
        files: the dump's files.
        output: the folder.
        processes: the number of processes.
        report: called with lines about the progress.

    Returns:
        {what is counted: number of pages}.

    Raises:
        ValueError: a file is damaged or of another kind, no file has an article, an output
            exists, or the folder has unfinished work of other files.
        OSError: the folder cannot be written, or a process was killed.
    """
    missing = _missing(files, output, processes)
    with writing(output):
        (output / "unfinished").mkdir(parents=True, exist_ok=True)
    with worker_processes.pool(processes) as results:
        done = len(files) - len(missing)
        for number, _ in enumerate(results(functools.partial(convert_file, output), missing), 1):
            report(f"{done + number:,} of {len(files):,} files\n")
    counts = dict.fromkeys(COUNTED, 0)
    with writing(output):
        for path in files:
            file = _counts_file(output, path)
            for name, number in json.loads(file.read_text()).items():
                counts[name] += number
        for path in files:
            _counts_file(output, path).unlink()
            if not counts[KEPT]:
                (output / output_name(path)).unlink()
        (output / "unfinished").rmdir()
    if not counts[KEPT]:
        raise ValueError(f"none of the {len(files)} files of --input has an article")
    return counts


def _missing(files: Sequence[str], output: Path, processes: int) -> list[str]:
    """Check the settings, and return the files that an interrupted command has not finished."""
    if processes < 1:
        raise ValueError(f"--processes={processes} must be 1 or more")
    try:
        import mwparserfromhell  # noqa: F401 - whether it is installed
    except ImportError as error:
        raise ValueError("mwparserfromhell is missing: pip install -e '.[wikipedia]'") from error
    names = [output_name(path) for path in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two files would be written to {twice}: convert them into two folders")
    continued = {*names, *(_counts_file(output, path).name for path in files)}
    present = {path.name for path in (output / "unfinished").glob("*")}
    if others := sorted(present - continued):
        raise ValueError(
            f"{output / 'unfinished' / others[0]} is not of these --input files: give the files of "
            "the interrupted command, delete it, or give another --output"
        )
    missing = []
    for path, name in zip(files, names, strict=True):
        counted = _counts_file(output, path).exists()
        if (output / name).exists() and not counted:
            raise ValueError(f"{output / name} exists already: give another --output")
        if not (output / name).exists():
            missing.append(path)
    return missing


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = ArgumentParser(__doc__, prog="python -m data.filters.wikipedia")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILES", help="or patterns")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    given = parser.parse_args(arguments)
    with one_line_errors():
        output = Path(given.output).expanduser()
        files = json_lines.find("--input", given.input, suffixes=SUFFIXES)
        counts = convert(files, output, processes=given.processes, report=sys.stdout.write)
        width = len(f"{max(counts.values()):,}")
        sys.stdout.writelines(f"{count:{width},} {name}\n" for name, count in counts.items())


if __name__ == "__main__":
    main(sys.argv[1:])
