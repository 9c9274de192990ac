"""Text from outside: every reader gives the same rows of a file, or an error with file and line.

The files are bytes as people have them: Windows' line ends and byte-order mark, members of pigz,
files of the commands gzip, bzip2, xz and zstd, GLUE's tables with quotes, an export in Latin-1. The
expected rows are those of `zcat`, `grep` and `cut`, as each case tells.
"""

import bz2
import gzip
import json
import lzma
import subprocess
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from data.filters import json_lines
from t5x_like import infer, reading
from t5x_like.batches import knowledge_graph
from t5x_like.batches.data_modules import load
from t5x_like.reading import lines
from tests.programs import in_process
from tests.programs.text_readers import (
    DATA,
    OF_OBJECTS,
    of_filters,
    of_grain,
    of_infer,
    of_labelled,
    of_seqio,
    of_vocabulary,
    row,
)

E_ACUTE = "é".encode()


TEXTS = ["one", "two café", "three"]
# grep and Python's open(newline="\n") do not end a line at these, and RFC 8259
# allows them in a JSON string. U+001C to U+001F, which str.splitlines splits too, JSON escapes.
ODD = ["a\u2028b", "a\u2029b", "a\u0085b", "a\u00a0b"]
JSON_ROWS = {
    "LF": (b"".join(row(text) + b"\n" for text in TEXTS), TEXTS),
    "CRLF": (b"".join(row(text) + b"\r\n" for text in TEXTS), TEXTS),
    "no end": (b"\n".join(map(row, TEXTS)), TEXTS),
    "byte-order mark": (b"\xef\xbb\xbf" + b"\n".join(map(row, TEXTS)) + b"\n", TEXTS),
    "mark, CRLF": (b"\xef\xbb\xbf" + b"\r\n".join(map(row, TEXTS)) + b"\r\n", TEXTS),
    "blank lines": (b"\n" + b"\n \t\r\n\n".join(map(row, TEXTS)) + b"\n\n", TEXTS),
    "separators": (b"".join(row(text) + b"\n" for text in ODD), ODD),
    "escaped separators": (
        b"".join(json.dumps(json.loads(row(text))).encode() + b"\n" for text in ODD),
        ODD,
    ),
    "CR between values": (row("one").replace(b", ", b",\r") + b"\n" + row("two"), ["one", "two"]),
}


@pytest.mark.parametrize("reader", OF_OBJECTS)
def test_json_lines_have_the_same_rows_by_every_reader(reader, tmp_path):
    for number, (content, expected) in enumerate(JSON_ROWS.values()):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content)
        if reader == "vocabulary":  # its texts are cleaned, where a separator becomes LF
            expected = [re_line(text) for text in expected]
        assert OF_OBJECTS[reader](path) == expected, path


def re_line(text: str) -> str:
    for separator in "\u2028\u2029\u0085":
        text = text.replace(separator, "\n")
    return text.replace("\u00a0", " ")


GOOD = row("good")
BAD_LINES = {
    "latin": (b'{"text": "caf\xe9"}', "it is not UTF-8"),
    "NUL": (b'{"text": "a\0b"}', "it has a NUL"),
    "zeros after a power cut": (b"\0" * 64, "it has a NUL"),
    "cut": (b'{"text": "Docum', "it is not JSON"),
    "list": (b'["text"]', "it is not a JSON object"),
    "number": (b"3", "it is not a JSON object"),
    "null": (b"null", "it is not a JSON object"),
    "two objects": (GOOD + GOOD, "it is not JSON"),
    "deep": (b'{"text": ' * 20_000, "it is not JSON"),
}


@pytest.mark.parametrize("reader", OF_OBJECTS)
def test_a_bad_line_is_an_error_with_file_and_line_by_every_reader(reader, tmp_path):
    for number, (line, problem) in enumerate(BAD_LINES.values()):
        path = tmp_path / f"bad_{number}.jsonl"
        path.write_bytes(GOOD + b"\n\n" + line + b"\n" + GOOD + b"\n")
        with pytest.raises(ValueError, match=problem) as error:
            OF_OBJECTS[reader](path)
        assert f"{path}:3: " in str(error.value)
        assert "\n" not in str(error.value)


# `prompted` needs answers, and `preferences` a response: their own tests have their wrong types.
@pytest.mark.parametrize("reader", OF_OBJECTS)
@pytest.mark.parametrize("value", [b"3", b"null", b'["a"]', b'{"a": 1}', b"NaN", b"true", None])
def test_a_field_of_another_type_is_an_error_with_file_and_line(reader, value, tmp_path):
    path = tmp_path / "types.jsonl"
    line = b'{"other": 1}' if value is None else row("X").replace(b'"X"', value)
    path.write_bytes(GOOD + b"\n" + line + b"\n")
    if reader == "predictor":  # the model's prediction names the field that it needs
        return
    with pytest.raises(ValueError, match=r"types\.jsonl:2[: ]") as error:
        OF_OBJECTS[reader](path)
    assert "\n" not in str(error.value)


MARKS = {"utf-16": "UTF-16", "utf-16-be": "UTF-16", "utf-32": "UTF-32"}


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("reader", OF_OBJECTS)
def test_another_encoding_is_named(reader, encoding, tmp_path):
    path = tmp_path / "wide.jsonl"
    content = (GOOD.decode() + "\n").encode(encoding)
    path.write_bytes((b"\xfe\xff" if encoding == "utf-16-be" else b"") + content)
    with pytest.raises(ValueError, match=rf"wide\.jsonl:1: it is {MARKS[encoding]}"):
        OF_OBJECTS[reader](path)


def zstd(content: bytes) -> bytes:
    """As the command zstd writes it, of several frames with a checksum each."""
    half = len(content) // 2
    made = [pyarrow.BufferOutputStream() for _ in range(2)]
    for buffer, part in zip(made, (content[:half], content[half:]), strict=True):
        with pyarrow.CompressedOutputStream(buffer, "zstd") as stream:
            stream.write(part)
    return b"".join(buffer.getvalue().to_pybytes() for buffer in made)


def members(compress, content: bytes) -> bytes:
    """Three members one after the other, as pigz, bgzip, pbzip2 or `cat a.gz b.gz` give."""
    third = len(content) // 3
    parts = (content[:third], content[third : 2 * third], content[2 * third :])
    return b"".join(map(compress, parts))


PACKED = {
    ".gz": lambda content: members(gzip.compress, content),
    ".bz2": lambda content: members(bz2.compress, content),
    ".xz": lambda content: members(lzma.compress, content),
    ".zst": zstd,
}
MANY = [f"Document {n} {n * n}." for n in range(300)]
LINES = b"".join(row(text) + b"\n" for text in MANY)


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("reader", OF_OBJECTS)
def test_a_compressed_file_is_read_whole_or_is_an_error(reader, ending, tmp_path):
    read = OF_OBJECTS[reader]
    path = tmp_path / f"rows.jsonl{ending}"
    packed = PACKED[ending](LINES)
    path.write_bytes(packed)
    assert read(path) == MANY
    for name, content in {
        "cut in the last member": packed[: len(packed) - len(packed) // 8],
        "cut at the last byte": packed[:-1],
        "cut in the first member": packed[: len(packed) // 8],
        "followed by other bytes": packed + b"no member",
        "empty": b"",
        "not compressed": LINES,
    }.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"rows\.jsonl") as error:
            read(path)
        assert str(path) in str(error.value), name
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("command", ["gzip", "bzip2", "xz", "zstd"])
def test_files_of_the_commands_are_read_and_their_errors_are_errors(command, tmp_path):
    """The commands of a Debian; what they refuse to decompress is refused."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES)
    done = subprocess.run([command, "-k", "-q", path], check=False)
    assert done.returncode == 0
    packed = next(one for one in tmp_path.iterdir() if one != path)
    assert [json.loads(line)["text"] for line in reading.lines(packed)] == MANY
    whole = packed.read_bytes()
    for place in range(20, len(whole), max(1, len(whole) // 40)):
        packed.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        accepted = not subprocess.run([command, "-t", "-q", packed], capture_output=True).returncode
        if not accepted:
            with pytest.raises(reading.FileError, match=packed.name):
                list(reading.lines(packed))
        else:
            assert [json.loads(line)["text"] for line in reading.lines(packed)] == MANY


def test_a_compressed_file_under_another_name_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(LINES))
    for read in OF_OBJECTS.values():
        with pytest.raises(ValueError, match=r"compressed by gzip: its name must end in \.gz"):
            read(path)


def test_zeros_after_the_last_member_are_padding(tmp_path):
    path = tmp_path / "tape.jsonl.gz"
    path.write_bytes(gzip.compress(LINES) + b"\0" * 512)  # zcat reads it without an error
    assert of_filters(path) == MANY


# Lines of .txt, with what str.splitlines, the module csv or universal newlines would split.
ODD_LINES = [
    "one\x0cpage",
    "two\x1c\x1d\x1e",
    "x\u2028y",
    "x\x85y",
    "x\x0by",
    "foo\rbar baz",
    "",
    "end",
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_only_lf_and_crlf_end_a_line(mark, end, tmp_path):
    path, other = tmp_path / "odd.txt", tmp_path / "other.txt"
    path.write_bytes((mark + end.join(ODD_LINES) + end).encode())
    other.write_bytes(end.join(ODD_LINES).encode())
    assert list(reading.lines(path)) == ODD_LINES
    assert of_infer(path) == ODD_LINES
    assert of_seqio(path) == ODD_LINES
    assert of_grain(path) == of_grain(other) == ODD_LINES
    assert reading.count_lines(path) == reading.count_lines(other) == len(ODD_LINES)
    parallel = load(str(DATA / "parallel_text.py"))
    source = parallel.source_of_pairs(source=str(path), target=str(other), held_out=0.0)
    rows = [*source.get_dataset("train", shuffle=False).as_numpy_iterator()]
    assert [one["inputs"].decode() for one in rows] == ODD_LINES
    assert [one["targets"].decode() for one in rows] == ODD_LINES
    assert [text for _, text in reading.numbered(path)] == [line for line in ODD_LINES if line]


def test_standard_input_has_the_same_lines(monkeypatch):
    monkeypatch.setattr("sys.stdin", in_process.standard_input("\ufeff" + "\r\n".join(ODD_LINES)))
    assert list(infer._read("-", as_prompt=dict)) == ODD_LINES


def test_a_single_cr_is_white_space_to_a_vocabulary(tmp_path):
    path = tmp_path / "return.txt"
    path.write_bytes(b"foo\rbar baz\r\nnext line\n")
    assert [text.split() for text in of_vocabulary(path)] == [
        ["foo", "bar", "baz"],
        ["next", "line"],
    ]


# GLUE's tables have quotes that do not close; what is right is `cut -f`.
TSV = b'text_a\tlabel\n" b c\tgood\nplain \xc2\x85 line\tbad\n\nhe said "no\tgood\n\tempty\n'


@pytest.mark.parametrize(
    "change", [lambda c: c, lambda c: b"\xef\xbb\xbf" + c.replace(b"\n", b"\r\n")]
)
def test_quotes_of_a_tsv_are_characters(change, tmp_path):
    path = tmp_path / "quotes.tsv"
    path.write_bytes(change(TSV))
    assert of_labelled(path) == ['" b c', "plain \x85 line", 'he said "no', ""]
    path.write_bytes(change(TSV + b"one\ttwo\tthree\n"))
    with pytest.raises(ValueError, match=r"quotes\.tsv:7: it has 3 cells, and the first line 2"):
        of_labelled(path)


def test_a_csv_follows_the_module_csv(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(
        b'\xef\xbb\xbftext_a,label\r\n"a, ""b""\r\nc",good\r\n\r\nx\xe2\x80\xa8y,bad\r\n'
    )
    assert of_labelled(path) == ['a, "b"\nc', "x\u2028y"]
    path.write_bytes(b'text_a,label\n"never closed,good\n')
    with pytest.raises(ValueError, match=r"table\.csv:\d: it is not a row of CSV"):
        of_labelled(path)


@pytest.mark.parametrize("name", ["graph.spo", "graph.tsv", "graph.jsonl"])
def test_a_graph_has_the_same_rules(name, tmp_path):
    triples = [("a\u2028b", 'is "x', "c\x0cd"), ("e", "f", "g")]
    lines = ["\t".join(triple) for triple in triples]
    if name.endswith(".tsv"):
        lines = ["subject\trelation\tobject", *lines]
    if name.endswith(".jsonl"):
        lines = [
            json.dumps(dict(zip(knowledge_graph.COLUMNS, one, strict=True))) for one in triples
        ]
    path = tmp_path / name
    path.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    assert knowledge_graph.read(path) == triples
    packed = tmp_path / f"{name}.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert knowledge_graph.read(packed) == triples
    path.write_bytes("\n".join(lines).encode("latin-1", "replace") + b"\nca\xe9\tb\tc\n")
    with pytest.raises(ValueError, match=rf"{name}:{len(lines) + 1}: it is not UTF-8"):
        knowledge_graph.read(path)


@pytest.mark.parametrize("ending", ["", *PACKED])
def test_blocks_have_all_lines_in_any_order(ending, tmp_path):
    expected_lines = [b"x" * (n * n % 97) + E_ACUTE for n in range(400)] + [b"y" * 5000, b""]
    content = b"\xef\xbb\xbf" + b"\r\n".join(expected_lines) + b"\r\n"
    path = tmp_path / f"lines.txt{ending}"
    path.write_bytes(PACKED[ending](content) if ending else content)
    file = reading.Blocks(path, size=256)
    made: list[lines.Block] = []
    while (block := file.read(len(made))) is not None:
        made.append(block)
    assert [line for block in made for line in block.lines] == expected_lines
    places = [start for block in made for start in block.starts]
    assert all(
        content.startswith(line, place) for place, line in zip(places, expected_lines, strict=True)
    )
    for number in (7, 3, 3, len(made) - 1, 0, len(made) + 5, 1):
        found = file.read(number)
        expected = made[number].lines if number < len(made) else None
        assert (found and found.lines) == expected
    file.close()


def test_filters_write_what_they_read_in_the_same_compression(tmp_path):
    paths = [str(tmp_path / f"rows.jsonl{ending}") for ending in ("", *PACKED)]
    for path in paths:
        with reading.create(path) as file:
            file.write(LINES)
    with json_lines.Writer(str(tmp_path / "out"), paths) as writer:
        for document in json_lines.documents(paths, text="text"):
            writer.write(document.path, document.row)
    for path in paths:
        assert of_filters(tmp_path / "out" / Path(path).name) == MANY
