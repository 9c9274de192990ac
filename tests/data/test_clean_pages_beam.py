"""C4's rules on a runner of Apache Beam: pages and counts equal to the command's without Beam."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from data.filters import clean_pages, html_pages
from tests.programs import sentence_model, web_texts

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "beam" / "bin" / "python"

pytestmark = pytest.mark.beam


@pytest.fixture(autouse=True)
def small_model(tmp_path, monkeypatch):
    with sentence_model.installed(tmp_path / "nltk", monkeypatch):
        yield


def command(*arguments):
    # FnApiRunner is the runner on this machine that downloads nothing.
    options = "--beam_pipeline_options=runner=FnApiRunner"
    return subprocess.run(
        [PYTHON, "-m", "data.filters.clean_pages_beam", options, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )


def crawl(folder):
    """Files of all formats; among their lines are spans of three sentences that occur twice."""
    folder.mkdir()
    rows = web_texts.pages(np.random.default_rng(0), 300)
    rows[4] = {"url": "", "text": "no address", "timestamp": "2019-04-18T10:38:25Z"}
    three = "The first of three came home. The second came too. The third came home at last."
    for row in rows[50:60]:
        row["text"] += f"\n{three} A sentence of {row['url']} follows."
    web_texts.write_wet(folder / "a.warc.wet.gz", rows[:100])
    web_texts.write_wet(folder / "b.warc.wet", rows[100:200])
    web_texts.write_rows(folder / "c.jsonl.gz", rows[200:])
    lines = "".join(f"<p>The bread of baker {n} is good and fresh.</p>" for n in range(4))
    answers = ("200 OK", lines), ("404 Not Found", "<p>Nothing is here.</p>")
    for number, (status, body) in enumerate(answers):
        content = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n\r\n{body}"
        page = {"url": f"http://bakers.org/{number}", "text": content}
        with (folder / "d.warc").open("ab") as file:
            file.write(web_texts.record(page, kind="response"))
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("duplicates", ["lines", "spans"])
def test_pages_and_counts_equal_those_without_beam(duplicates, tmp_path):
    files = crawl(tmp_path / "crawl")
    words = tmp_path / "words"
    words.write_text("\n".join(web_texts.BAD_WORDS))
    plan = clean_pages.Plan(
        files=files,
        output=tmp_path / "alone",
        bad_words=web_texts.BAD_WORDS,
        duplicates=duplicates,
    )
    counts = clean_pages.clean_pages(plan)
    patterns = [f"{tmp_path}/crawl/*.{ending}" for ending in ("gz", "wet", "warc")]
    done = command(
        *("--input", *patterns, f"--output={tmp_path / 'beam'}"),
        *(f"--bad_words={words}", f"--duplicates={duplicates}"),
    )
    assert done.returncode == 0, done.stderr
    expected = [row for file in plan.output.iterdir() for row in web_texts.read_rows(file)]
    outputs = (tmp_path / "beam").glob("pages-*.jsonl.gz")
    found = [row for file in outputs for row in web_texts.read_rows(file)]
    by_address = [sorted(rows, key=lambda row: row["url"]) for rows in (found, expected)]
    assert by_address[0] == by_address[1]
    of_beam = json.loads((tmp_path / "beam" / "counts.json").read_text())
    assert {rule: of_beam.get(rule, 0) for rule in counts} == counts
    assert counts[clean_pages.COPIED.format(duplicates)] > 0
    assert counts[clean_pages.KEPT] > 20
    assert counts[html_pages.NOT_OK] == 1
    assert "http://bakers.org/0" in {row["url"] for row in found}
    assert done.stdout.splitlines()[-1].split() == [str(len(found)), "pages", "kept"]


def test_a_mistake_is_one_line(tmp_path):
    file = web_texts.write_rows(tmp_path / "x.jsonl", [{"url": "u", "txt": "x"}])
    output = f"--output={tmp_path / 'out'}"
    for arguments, message in [
        (["--input", file], "x.jsonl:1: there is no string 'text'. Did you mean 'txt'"),
        (["--input", f"{tmp_path}/y*.jsonl"], "y*.jsonl' matches no file"),
        (
            ["--input", file, "--beam_pipeline_options=runer=x"],
            "--beam_pipeline_options: there is no 'runer'. Did you mean 'runner'",
        ),
    ]:
        done = command(*arguments, output)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert message in done.stderr.splitlines()[-1]


def test_pages_of_another_run_are_refused_before_work(tmp_path):
    """A run that was killed leaves pages without counts, which no later run should stay beside."""
    file = web_texts.write_rows(tmp_path / "x.jsonl", web_texts.pages(np.random.default_rng(0), 3))
    for name in ("pages-00000-of-00007.jsonl.gz", "counts.json"):
        output = tmp_path / name.partition(".")[0]
        output.mkdir()
        (output / name).write_bytes(b"")
        done = command("--input", file, f"--output={output}")
        assert done.returncode == 2
        message = f"error: {output / name} exists already: give another --output"
        assert done.stderr.splitlines()[-1] == message
        assert [path.name for path in output.iterdir()] == [name]
    done = command("--input", file, f"--output={file}")
    assert done.stderr.splitlines()[-1] == f"error: --output={file!r} is a file: give a folder"
