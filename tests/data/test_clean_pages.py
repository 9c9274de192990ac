"""C4 from raw pages: WET files, copies, resumption, and the released code's pages and counts."""

import collections
import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorflow_datasets.text import c4_utils

from data.filters import c4_rules, clean_pages, sorted_copies, web_archives
from tests.programs import sentence_model, web_texts

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_model(tmp_path, monkeypatch):
    with sentence_model.installed(tmp_path / "nltk", monkeypatch):
        yield


@pytest.fixture
def crawl(tmp_path):
    """Files of all formats, which share addresses and lines."""
    random = np.random.default_rng(0)
    rows = web_texts.pages(random, 500)
    rows[3]["text"] = "This page is long enough to be dropped for it. " * 5000
    rows[4] = {"url": "", "text": "no address", "timestamp": "2019-04-18T10:38:25Z"}
    rows[5]["text"] = " \n"
    folder = tmp_path / "crawl"
    folder.mkdir()
    more = [row | {"score": n} for n, row in enumerate(rows[300:400])]
    return [
        web_texts.write_wet(folder / "a.warc.wet.gz", rows[:200]),
        web_texts.write_wet(folder / "b.warc.wet", rows[200:300]),
        web_texts.write_rows(folder / "c.jsonl.gz", more),
        web_texts.write_rows(folder / "d.json", rows[400:]),
    ]


def released(files, monkeypatch):
    """The pages that the released code keeps, by address, and what it counts.

    Its functions in the order of c4.py, with Python's instead of Beam's grouping.
    """
    kept = {}
    with sentence_model.released_code(monkeypatch) as counts:
        pages = [page for file in files for page in _released_pages(file)]
        pages = filter(c4_utils.is_valid_length, pages)
        of_url = collections.defaultdict(list)
        for page in pages:
            of_url[page.normalized_url].append(page)
        pages = map(c4_utils.select_newest_page, of_url.values())
        clean = c4_utils.get_clean_page_fn()
        pages = [cleaned for page in pages for cleaned in clean(page)]
        urls = collections.defaultdict(list)
        for page in pages:
            for line, url in c4_utils._emit_url_to_lines(page):
                urls[line].append(url)
        lines = collections.defaultdict(list)
        for line, of_line in urls.items():
            lines[min(of_line, key=c4_utils._hash_text)].append(line)
        keeps = c4_utils.get_badwords_filter_fn({"en": web_texts.BAD_WORDS[:2]})
        for page in pages:
            joined = {"pages": [page], "lines": lines[page.url]}
            increase = c4_utils.get_counter_inc_fn("")
            for left in c4_utils._remove_lines_from_text((page.url, joined), increase, 3):
                kept.update((p.url, p.text) for p in c4_utils.detect_english(left) if keeps(p))
        return kept, dict(counts)


def _released_pages(file):
    if ".wet" in file:
        compressed = Path(file).with_suffix(".released.gz")
        content = Path(file).read_bytes()
        # It reads only compressed files.
        compressed.write_bytes(content if file.endswith(".gz") else gzip.compress(content))
        yield from c4_utils.split_wet_file(str(compressed))
        return
    for row in web_texts.read_rows(Path(file)):
        if not row["text"].strip():  # as split_wet_file drops them
            continue
        url = c4_utils.normalize_url(row["url"])
        fields = {name: row[name] for name in ("url", "text", "timestamp")}
        yield c4_utils.PageFeatures(normalized_url=url, **fields)


def plan(files, output, **changes):
    return clean_pages.Plan(
        files=files, output=output, **{"bad_words": web_texts.BAD_WORDS, **changes}
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_pages_and_counts_equal_the_released_codes(crawl, tmp_path, monkeypatch):
    counts = clean_pages.clean_pages(plan(crawl, tmp_path / "out"))
    names = ["a.jsonl.gz", "b.jsonl", "c.jsonl.gz", "d.json"]
    files = [tmp_path / "out" / name for name in names]
    assert sorted((tmp_path / "out").iterdir()) == files
    rows = [row for file in files for row in web_texts.read_rows(file)]
    expected, others = released(crawl, monkeypatch)
    assert {row["url"]: row["text"] for row in rows} == expected
    assert len(rows) == counts[clean_pages.KEPT] == len(expected) > 50
    assert {row["score"] for row in web_texts.read_rows(files[2])} <= {*range(100)}
    assert counts[clean_pages.READ] == 500
    assert counts[clean_pages.EMPTY] == 2
    assert counts[c4_rules.TOO_LONG] == 1
    assert counts[c4_rules.POLICY] == others["line-filtered:policy"]
    assert counts[c4_rules.LOREM_IPSUM] == others["filtered:loremipsum"]
    repeated = ("line-filtered:global_duplicate", "line-filtered:local_duplicate")
    assert counts["lines that occur elsewhere"] == sum(others[name] for name in repeated)
    assert counts["pages of such lines only"] == others["filtered:empty"]
    few = ("pages of fewer than 3 sentences", "pages of fewer than 3 sentences without them")
    assert sum(counts[name] for name in few) == others["filtered:too_few_sentences"]
    assert counts[c4_rules.OTHER_LANGUAGE] == others.get("filtered:ignored_language", 0)
    assert min(counts[name] for name in (clean_pages.OLD, c4_rules.BAD_WORDS, *few)) > 0


def test_processes_and_sizes_of_parts_do_not_matter(crawl, tmp_path, monkeypatch):
    counts = clean_pages.clean_pages(plan(crawl, tmp_path / "x"))
    assert clean_pages.clean_pages(plan(crawl, tmp_path / "y"), processes=2) == counts
    monkeypatch.setattr(sorted_copies, "_RUN_ITEMS", 7)
    monkeypatch.setattr(sorted_copies, "_RANGE_ITEMS", 50)
    assert clean_pages.clean_pages(plan(crawl, tmp_path / "z")) == counts
    assert contents(tmp_path / "x") == contents(tmp_path / "y") == contents(tmp_path / "z")


def test_a_line_stays_on_the_page_whose_address_has_the_lowest_hash(tmp_path):
    # The addresses of c4_utils_test.py, where the pages 1 and 3 stay.
    once = "Nothing like this line of page {n} is elsewhere."
    pages = {
        "url/1-0": [
            "All four pages have this line.",
            once.format(n=1),
            "Twice on one page, and the second goes.",
            "Between the two copies is a line.",
            "Twice on one page, and the second goes.",
            "twice ON one page, AND the second goes.",
        ],
        "url/2-1": [once.format(n=2), "All four pages have THIS line."],
        "url/3-4": [
            once.format(n=3),
            "All four pages have this line.",
            "One line more. So there are three sentences. They stay.",
        ],
        "url/4-4": [once.format(n=4), "All four pages have this line.", "Only two are left here."],
    }
    rows = [{"url": url, "text": "\n".join(lines)} for url, lines in pages.items()]
    for row in rows:  # three sentences before the copies go
        row["text"] += "\nall four pages have this line." * 2
    for name, order in (("x", rows), ("y", rows[::-1])):
        file = web_texts.write_rows(tmp_path / f"{name}.jsonl", order)
        clean_pages.clean_pages(plan([file], tmp_path / name, language="any"))
    found = web_texts.read_rows(tmp_path / "x" / "x.jsonl")
    first, third = pages["url/1-0"], pages["url/3-4"]
    assert found == [
        {"url": "url/1-0", "text": "\n".join(first[:4])},
        {"url": "url/3-4", "text": "\n".join([third[0], third[2]])},
    ]
    assert web_texts.read_rows(tmp_path / "y" / "y.jsonl") == found[::-1]


def test_spans_of_three_sentences_go_and_shorter_repetitions_stay(tmp_path):
    three = "The first of three came home. The second came too.\nThe third came home at last."
    two = "Only two sentences are here twice. This is the second of them."

    def page(url, *middle):
        first = f"Page {url} has a line. The line of {url} has a sentence. {url} has a third one."
        return {"url": url, "text": "\n".join([first, *middle, f"The end of page {url} is here."])}

    rows = [page("url/1-0", three, two), page("url/3-4", two, three), page("url/5", two)]
    file = web_texts.write_rows(tmp_path / "x.jsonl", rows)
    spans = plan([file], tmp_path / "out", language="any", duplicates="spans")
    counts = clean_pages.clean_pages(spans)
    assert web_texts.read_rows(tmp_path / "out" / "x.jsonl") == [
        rows[0],
        page("url/3-4", two),
        rows[2],
    ]
    assert counts["spans that occur elsewhere"] == 1


def test_the_newest_page_of_an_address_stays(tmp_path):
    rows = [
        {"url": url, "text": f"It is {date} at {url}. " * 3 + "Over.", "timestamp": date}
        for url, date in (
            ("http://a.org/x", "2019-04-18T10:38:25Z"),
            ("https://www.a.org/x/", "2019-04-18T10:38:26Z"),
            ("https://a.org/x?utm_source=y", "2018-12-31T23:59:59Z"),
            ("https://a.org/y", ""),
        )
    ]
    file = web_texts.write_rows(tmp_path / "x.jsonl", rows)
    clean_pages.clean_pages(plan([file], tmp_path / "out", language="any"))
    assert web_texts.read_rows(tmp_path / "out" / "x.jsonl") == [rows[1], rows[3]]


class Interrupt(KeyboardInterrupt):
    """The run ends here."""


@pytest.mark.parametrize(
    ("place", "function", "number"),
    [
        (web_archives, "pages", 2),
        (sorted_copies, "write_copies", 2),
        (c4_rules, "clean", 90),
        (sorted_copies, "copies_of", 7),
        (c4_rules, "page_rule", 100),
        (Path, "replace", 15),
        (clean_pages.shutil, "rmtree", 2),
    ],
)
def test_an_interrupted_run_continues_to_equal_files(
    place, function, number, crawl, tmp_path, monkeypatch
):
    monkeypatch.setattr(sorted_copies, "_RANGE_ITEMS", 400)
    counts = clean_pages.clean_pages(plan(crawl, tmp_path / "straight"))
    output = tmp_path / "interrupted"
    own, calls = getattr(place, function), iter(range(1, 10**6))

    def interrupted(*arguments, **named):
        if next(calls) == number:
            raise Interrupt
        return own(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(place, function, interrupted)
        with pytest.raises(Interrupt):
            clean_pages.clean_pages(plan(crawl, output))
    assert (output / "unfinished" / "plan.json").exists()
    with pytest.raises(ValueError, match="is of other files or settings: continue with them"):
        clean_pages.clean_pages(plan(crawl, output, language="any"))
    assert clean_pages.clean_pages(plan(crawl, output)) == counts
    assert contents(output) == contents(tmp_path / "straight")


@pytest.mark.slow
def test_a_killed_command_continues(tmp_path):
    random = np.random.default_rng(0)
    files = [
        web_texts.write_wet(tmp_path / f"{n}.warc.wet.gz", web_texts.pages(random, 300))
        for n in range(12)
    ]
    words = tmp_path / "bad_words"
    words.write_text("darn\n")
    command = [
        sys.executable,
        "-m",
        "data.filters.clean_pages",
        f"--bad_words={words}",
        "--processes=2",
    ]
    command += ["--input", *files, f"--output={tmp_path / 'killed'}"]
    killed = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    work = tmp_path / "killed" / "unfinished"
    while killed.poll() is None and not list(work.glob("*/parts.json")):
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    time.sleep(2)  # its processes end with it
    assert 0 < len(list(work.glob("*/parts.json"))) < 12
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    own = plan(files, tmp_path / "straight", bad_words=["darn"])
    counts = clean_pages.clean_pages(own)
    assert done.stdout.endswith(f" {counts[clean_pages.KEPT]:,} pages kept\n")
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")


def test_the_command_prints_its_counts(crawl, tmp_path, capsys):
    (tmp_path / "words").write_text("darn\n")
    arguments = ["--input", *crawl, f"--output={tmp_path / 'out'}"]
    clean_pages.main([*arguments, f"--bad_words={tmp_path / 'words'}"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["addresses: 1 of 4 files", "addresses: 2 of 4 files"]
    assert lines[12] == "500 pages read"
    assert len(lines) == 12 + len(clean_pages.rules("lines"))
    rows = [row for file in (tmp_path / "out").iterdir() for row in web_texts.read_rows(file)]
    assert lines[-1].split() == [str(len(rows)), "pages", "kept"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (web_texts.record({"text": "x", "url": "u"})[:-5], "the file ends within record 1"),
        (b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\nx", "record 1 has no Content-Length"),
        (web_texts.record({"text": "x", "url": "u"})[5:], "record 1 does not begin with WARC/"),
        (
            web_texts.record({"text": "??", "url": "u"}).replace(b"??", b"\xe9x"),
            "record 1, u: it is not UTF-8",
        ),
    ],
)
def test_a_damaged_wet_file_is_an_error(content, message, tmp_path):
    file = tmp_path / "x.warc.wet.gz"
    file.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=f"x.warc.wet.gz: {message}"):
        clean_pages.clean_pages(plan([str(file)], tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_lines_of_pages_that_look_like_headers_stay(tmp_path):
    page = {
        "url": "u",
        "text": "\ufeffWARC/1.0\r\n\r\n Content-Length: 3 \rWARC files have pages of a crawl.",
        "timestamp": "2019-04-18T10:38:25Z",
    }
    file = web_texts.write_wet(tmp_path / "x.wet.gz", [page, page])
    lines = "\ufeffWARC/1.0\nContent-Length: 3\nWARC files have pages of a crawl."
    assert [found.text for found in web_archives.pages(file)] == [lines, lines]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, "x.jsonl:1: there is no string 'url'"),
        ({"url": "u", "txt": "x"}, "x.jsonl:1: there is no string 'text'. Did you mean 'txt'"),
        ({"url": "u", "text": "x", "timestamp": 3}, "there is no string 'timestamp': it is 3"),
    ],
)
def test_a_bad_row_is_an_error_and_leaves_nothing(row, message, tmp_path):
    file = web_texts.write_rows(tmp_path / "x.jsonl", [row])
    with pytest.raises(ValueError, match=message.replace("?", ".")):
        clean_pages.clean_pages(plan([file], tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_files_that_change_meanwhile_are_an_error(crawl, tmp_path, monkeypatch):
    own = clean_pages._merge

    def changed(*arguments):
        with Path(crawl[3]).open("a") as file:
            file.write(json.dumps({"url": "new", "text": "new"}) + "\n")
        own(*arguments)

    monkeypatch.setattr(clean_pages, "_merge", changed)
    with pytest.raises(ValueError, match="the files of --input were changed meanwhile"):
        clean_pages.clean_pages(plan(crawl, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_files_left_by_another_run_are_not_used(crawl, tmp_path):
    left = tmp_path / "out" / "unfinished" / "00000"
    left.mkdir(parents=True)
    (left / "addresses.json").write_text('{"pages read": 77}')
    assert clean_pages.clean_pages(plan(crawl[1:2], tmp_path / "out"))[clean_pages.READ] == 100


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/x.warc.wet.gz", "x.jsonl.gz"),
        ("x.wet", "x.jsonl"),
        ("x.warc.zst", "x.jsonl.zst"),
        ("x.warc.y.wet", "x.warc.y.jsonl"),
        ("x.warc.jsonl.gz", "x.warc.jsonl.gz"),
    ],
)
def test_outputs_have_the_names_of_inputs(path, name):
    assert clean_pages.output_name(path) == name


def test_outputs_are_never_overwritten(crawl, tmp_path):
    done = plan(crawl[3:], tmp_path / "out")
    clean_pages.clean_pages(done)
    with pytest.raises(ValueError, match=r"d.json exists already: give another --output"):
        clean_pages.clean_pages(done)
    with pytest.raises(ValueError, match=r"two files would be written to x.jsonl"):
        clean_pages.clean_pages(plan(["a/x.warc.wet", "b/x.jsonl"], tmp_path / "new"))
