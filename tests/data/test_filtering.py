"""The filters of web text: quality, near copies, parts of test sets; and what they refuse."""

import gzip
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from data.filters import decontaminate, deduplicate, json_lines, quality_filter

ROOT = pathlib.Path(__file__).parents[2]
GOOD = ["the", "committee", "considered", "evidence", "from", "several", "historians", "before"]
BAD = ["click", "here", "buy", "now", "cheap", "offer", "free", "win", "subscribe", "login"]


def text_of(random, words, *, size=30):
    return " ".join(random.choice(words, size))


def write(path, texts, **fields):
    rows = [{"text": text, "number": n, **fields} for n, text in enumerate(texts)]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content)
    return str(path)


def read(path):
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in content.splitlines()]


@pytest.fixture
def crawl(tmp_path):
    """Files of raw text, a fifth of which is like the curated text, and the curated file."""
    random = np.random.default_rng(0)
    raw = [text_of(random, GOOD if n % 5 == 0 else BAD) for n in range(300)]
    files = [
        write(tmp_path / "a.jsonl.gz", raw[:200], url="a"),
        write(tmp_path / "b.jsonl", raw[200:], url="b"),
    ]
    curated = [text_of(random, GOOD) for _ in range(60)]
    return files, [write(tmp_path / "curated.jsonl", curated)]


def test_curated_looking_text_is_kept_and_little_of_the_other(crawl, tmp_path):
    files, curated = crawl
    out = tmp_path / "out"
    found = quality_filter.filter_files(files, str(out), curated=curated)
    assert sorted(path.name for path in out.iterdir()) == ["a.jsonl.gz", "b.jsonl"]
    rows = read(out / "a.jsonl.gz") + read(out / "b.jsonl")
    assert found["read"] == 300
    assert found["kept"] == len(rows)
    good = [row for row in rows if row["text"].split()[0] in GOOD]
    # The classes overlap where raw text is like curated text: such a score is near a half.
    assert len(good) / 60 > 5 * (len(rows) - len(good)) / 240
    assert all(row.keys() == {"text", "number", "url"} for row in rows)


def test_the_result_is_the_same_however_files_are_divided(crawl, tmp_path):
    files, curated = crawl
    both = write(tmp_path / "all.jsonl", [row["text"] for row in map(dict, _rows(files))])
    quality_filter.filter_files(files, str(tmp_path / "x"), curated=curated, seed=3)
    quality_filter.filter_files([both], str(tmp_path / "y"), curated=curated, seed=3)
    parts = read(tmp_path / "x/a.jsonl.gz") + read(tmp_path / "x/b.jsonl")
    assert [row["text"] for row in parts] == [row["text"] for row in read(tmp_path / "y/all.jsonl")]


def _rows(files):
    return (one.row for one in json_lines.rows(files))


@pytest.mark.parametrize("score", [0.0, 0.5, 0.9, 1.0])
def test_the_share_that_is_kept_is_that_of_a_pareto_distribution(score):
    kept = np.mean([quality_filter.keeps(str(n), score, alpha=9.0, seed=0) for n in range(20_000)])
    expected = (2 - score) ** -9.0
    error = np.sqrt(expected * (1 - expected) / 20_000)
    assert abs(kept - expected) <= 4 * error


def test_the_documents_to_train_on_are_a_fair_sample():
    documents = [json_lines.Document("", {}, str(n)) for n in range(100)]
    counts = np.zeros(100)
    for seed in range(400):
        for text in quality_filter.sample(documents, size=10, seed=seed):
            counts[int(text)] += 1
    # Of 400 samples of a tenth: 40, with a standard deviation of 6.
    assert counts.sum() == 4000
    assert counts.min() > 15
    assert counts.max() < 70


def near_copies(random, *, words, common):
    """Two texts whose sets of words have the Jaccard similarity common / (2 words - common)."""
    first = [f"w{n}" for n in random.choice(10**6, 2 * words - common, replace=False)]
    return " ".join(first[:words]), " ".join(first[words - common :])


def test_near_copies_are_dropped_and_the_first_stays(tmp_path):
    random = np.random.default_rng(0)
    pairs = [near_copies(random, words=100, common=99) for _ in range(40)]
    texts = [text for pair in pairs for text in pair]
    path = write(tmp_path / "x.jsonl", [*texts, texts[0], texts[0].upper(), "", "  "])
    index = deduplicate.Index(hashes=64)
    found = deduplicate.deduplicate([path], str(tmp_path / "out"), index=index)
    rows = [row["number"] for row in read(tmp_path / "out" / "x.jsonl")]
    assert found == {"read": 84, "kept": len(rows)}
    assert rows == [*range(0, 80, 2), 82]  # of each pair the first, and the first empty text


def test_texts_that_are_less_alike_stay():
    random = np.random.default_rng(0)
    index = deduplicate.Index(threshold=0.8, hashes=64)
    for _ in range(50):
        assert all(map(index.add, near_copies(random, words=100, common=80)))  # similarity 2/3


def test_ten_hashes_find_as_many_near_copies_as_their_bands_promise():
    random = np.random.default_rng(0)
    index, missed = deduplicate.Index(), 0
    for _ in range(200):
        first, second = near_copies(random, words=95, common=90)  # similarity 0.9
        assert index.add(first)
        missed += index.add(second)
    # Two bands of five hashes miss (1 - 0.9^5)^2 = 17%: 34 of 200, with a standard deviation of 5.
    assert 16 <= missed <= 54


def test_documents_of_another_corpus_are_removed_too(tmp_path):
    words = " ".join(f"w{n}" for n in range(50))
    crawl = write(tmp_path / "crawl.jsonl", [words, "another text"])
    known = write(tmp_path / "known.jsonl", [f"{words} more"])
    index = deduplicate.Index(hashes=64)
    out = str(tmp_path / "out")
    assert deduplicate.deduplicate([crawl], out, against=[known], index=index)["kept"] == 1
    assert [row["text"] for row in read(tmp_path / "out/crawl.jsonl")] == ["another text"]


def test_features_may_be_runs_of_words():
    index = deduplicate.Index(hashes=64, words_per_feature=3)
    words = [f"w{n}" for n in range(60)]
    assert index.add(" ".join(words))
    assert index.add(" ".join(words[::-1]))  # the same words, and no run of three
    assert not index.add(" ".join(words))


QUESTION = " ".join(f"q{n}" for n in range(13))


def filler(size, *, mark):
    return (f"{mark}{n} " for n in range(size))


def long_text(mark, size=120):
    return "".join(filler(size, mark=mark)).strip()


def test_a_match_is_removed_with_what_is_near_it():
    before, after = long_text("a"), long_text("b")
    text = f'{before} "{QUESTION.upper()}!" {after}'
    [first, second] = decontaminate.pieces(text, {QUESTION})
    assert first == text[: text.index("Q0") - decontaminate.WINDOW - 1]  # the quote is of the word
    assert second == after[-len(second) :]
    assert len(after) - len(second) == decontaminate.WINDOW - 1
    assert decontaminate.pieces(before, {QUESTION}) is None
    assert decontaminate.pieces(QUESTION, {QUESTION}) == []
    short = f"{long_text('a', 20)} {QUESTION} {after}"
    assert decontaminate.pieces(short, {QUESTION}) == [second]


@pytest.mark.parametrize(("matches", "left"), [(9, 10), (10, 0)])
def test_a_document_of_more_than_ten_pieces_is_dropped(matches, left):
    parts = [long_text(f"p{n}x", 200) for n in range(matches + 1)]
    assert len(decontaminate.pieces(f" {QUESTION} ".join(parts), {QUESTION})) == left


def test_files_are_cleaned_and_the_report_names_the_examples(tmp_path):
    common = " ".join(f"c{n}" for n in range(13))
    parts = [f"{long_text('a')} {QUESTION} {long_text('b')}", long_text("c"), QUESTION]
    files = [write(tmp_path / "x.jsonl", [*parts, *[f"{common} {n}" for n in range(11)]])]
    tests = tmp_path / "tests.jsonl"
    rows = [{"question": "short"}, {"q": QUESTION, "a": ["x"]}, {"q": common}]
    tests.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = decontaminate.decontaminate(files, str(tmp_path / "out"), tests=[str(tests)])
    assert found == {
        "read": 14,
        "contaminated": 2,
        "dropped": 1,
        "ignored": 1,
        "tests": {str(tests): {"examples": 3, "contaminated": [1]}},
    }
    numbers = [row["number"] for row in read(tmp_path / "out" / "x.jsonl")]
    assert numbers == [0, 0, 1, *range(3, 14)]
    report = tmp_path / "report.json"
    decontaminate.main(["--input", *files, "--tests", str(tests), "--report", str(report)])
    assert json.loads(report.read_text()) == found


def quality(folder, **changes):
    given = {"input": "x.jsonl", "output": "out", "curated": "good.jsonl"} | changes
    return quality_filter.main(_flags(folder, given))


def dedup(folder, **changes):
    return deduplicate.main(_flags(folder, {"input": "x.jsonl", "output": "out"} | changes))


def clean(folder, **changes):
    given = {"input": "x.jsonl", "output": "out", "tests": "good.jsonl"} | changes
    return decontaminate.main(_flags(folder, given))


def _flags(folder, given):
    paths = ("input", "output", "curated", "tests", "against")
    return [
        f"--{name}={folder / str(value) if name in paths else value}"
        for name, value in given.items()
        if value is not None
    ]


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        (quality, {"input": "y.jsonl"}, "y.jsonl' matches no file. Did you mean 'x.jsonl'"),
        (quality, {"input": "x.txt"}, "x.txt has none of the suffixes .jsonl, .json"),
        (quality, {"text": "txt"}, "good.jsonl:1: there is no string 'txt'. Did you mean 'text'"),
        (quality, {"alpha": 0}, "--alpha=0.0 must be above 0"),
        (quality, {"alpha": "x"}, "argument --alpha: invalid float value: 'x'"),
        (quality, {"train_documents": 1}, "--train_documents=1 must be 2 or more"),
        (quality, {"curated": "one.jsonl"}, "there are 1 curated documents and 2 of the input"),
        (quality, {"curated": None}, "the following arguments are required: --curated"),
        (dedup, {"threshold": 1.5}, "--threshold=1.5 must be above 0, and 1 or less"),
        (dedup, {"hashes": 1}, "--hashes=1 must be 2 or more"),
        (dedup, {"words_per_feature": 0}, "--words_per_feature=0 must be 1 or more"),
        (dedup, {"output": "there"}, "x.jsonl exists already: give another --output"),
        (dedup, {"input": "bad.jsonl"}, "bad.jsonl:2: it is not JSON"),
        (dedup, {"input": "list.jsonl"}, "list.jsonl:1: it is not a JSON object"),
        (
            dedup,
            {"input": "bad.jsonl.gz"},
            "bad.jsonl.gz: it does not begin as a file compressed by gzip",
        ),
        (dedup, {"hash": 3}, "the flag '--hash' does not exist. Did you mean '--hashes'"),
        (clean, {"tests": "one.jsonl"}, "--tests: no example has 13 words or more"),
        (clean, {"output": None}, "neither --output nor --report is set"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_file(command, changes, message, tmp_path, capsys):
    write(tmp_path / "x.jsonl", ["a b", "c d"])
    write(tmp_path / "good.jsonl", [QUESTION, QUESTION])
    write(tmp_path / "one.jsonl", ["a"])
    (tmp_path / "x.txt").write_text("a\n")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "there").mkdir()
    write(tmp_path / "there" / "x.jsonl", [])
    with pytest.raises(SystemExit) as error:
        command(tmp_path, **changes)
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert message in said
    assert not list((tmp_path / "out").glob("*"))


def test_two_files_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"two files are named x\.jsonl"):
        json_lines.Writer(str(tmp_path), ["a/x.jsonl", "b/x.jsonl"])


def test_an_old_name_of_a_command_is_answered_with_the_new_one():
    command = [sys.executable, "-m", "data.deduplicate", "--input", "x", "--output", "y"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "error: python -m data.deduplicate is now python -m data.filters.deduplicate\n"
    )
