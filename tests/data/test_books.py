"""Books: a document a file, in the schema of the hosted books, and as text_files reads them."""

import gzip
from pathlib import Path

import pytest

from data.filters import books
from t5x_like.preprocessing import sources
from tests.programs import in_process, web_texts

text_files = sources.load_module(str(Path(__file__).parents[2] / "data" / "text_files.py"))

# Of bookcorpusopen at Hugging Face: the beginning of its first row.
ZONE = '"\n\nzONE\n\n## The end and the beginning\n\nby\n\nPhilip F. Blood\n\n'


def test_a_file_is_a_document(tmp_path):
    (tmp_path / "zone-the-end-and-the-beginning.epub.txt").write_text(ZONE)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\ufeffOne\r\ntwo.\n".encode()))
    (tmp_path / "blank.txt").write_text(" \n\n")
    done = in_process.run(
        "data.filters.books", "--input", f"{tmp_path}/*.txt*", f"--output={tmp_path / 'out'}"
    )
    assert done.out.split("\n") == ["3 files read", "1 files without text", "2 books", ""]
    [file] = (tmp_path / "out").iterdir()
    rows = web_texts.read_rows(file)
    assert rows == [
        {"title": "b.txt.gz", "text": "One\r\ntwo.\n"},
        {"title": "zone-the-end-and-the-beginning.epub.txt", "text": ZONE},
    ]
    documents = text_files.documents("train", files=str(file), held_out=0.0)
    texts = [row["text"].decode() for row in documents.as_numpy_iterator()]
    assert texts == [row["text"] for row in rows]


def test_many_books_are_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(books, "_BOOKS", 2)
    files = [tmp_path / f"{n}.txt" for n in range(5)]
    for file in files:
        file.write_text(f"Book {file.stem}.")
    books.convert([str(file) for file in files], str(tmp_path / "out"))
    outputs = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in outputs] == [f"books-{n:05}-of-00003.jsonl.gz" for n in range(3)]
    titles = [[row["title"] for row in web_texts.read_rows(path)] for path in outputs]
    assert titles == [["0.txt", "1.txt"], ["2.txt", "3.txt"], ["4.txt"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9\n", "a.txt:1: it is not UTF-8"),
        (b"a\0b", "it has a NUL"),
        (b" \n", "none of the 1 files of --input has text"),
    ],
)
def test_a_damaged_book_is_an_error_and_leaves_nothing(content, message, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        books.convert([str(tmp_path / "a.txt")], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
