"""Parquet, ArrayRecord and TFRecord files: what is wrong in them is one line with the file.

The files are those of pyarrow, array_record and TensorFlow, with bytes overwritten or cut off.
"""

import datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from array_record.python.array_record_module import ArrayRecordWriter

from t5x_like import reading
from t5x_like.preprocessing import line_datasets
from t5x_like.reading import labelled_text
from tests.programs.text_readers import (
    of_grain,
    of_infer,
    of_predictor,
    of_seqio,
    of_vocabulary,
    row,
)

MANY = [f"Document {n} {n * n}." for n in range(300)]


def test_columns_of_parquet_must_be_strings(tmp_path):
    path = str(tmp_path / "rows.parquet")
    numbers = pyarrow.array([1, 2])
    for column, type_ in {
        "int64": numbers,
        "binary": pyarrow.array([b"a", b"b"]),
        "list<": pyarrow.array([["a"], ["b"]]),
    }.items():
        pyarrow.parquet.write_table(pyarrow.table({"text": type_}), path)
        for read in (of_seqio, of_grain, of_vocabulary):
            with pytest.raises(
                ValueError, match=rf"rows\.parquet has no .* strings.*type is {column}"
            ):
                read(path)
    names = pyarrow.array(["a", None]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": names, "n": numbers}), path)
    assert of_seqio(path) == of_grain(path) == ["a", ""]
    coded = pyarrow.array([1, 2]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": coded}), path)
    for read in (of_seqio, of_grain):
        with pytest.raises(ValueError, match="no such column of strings"):
            read(path)


def of_labels(path):
    return labelled_text.read(str(path), kind="classification", names={"text_a": "text_a"})


def test_rows_of_parquet_have_values_of_json(tmp_path):
    path = tmp_path / "rows.parquet"
    more = {"text": ["a"], "n": [{"x": [1.5, None]}], "is": [True]}
    pyarrow.parquet.write_table(pyarrow.table(more), path)
    [(_, found)] = reading.TABLES[".parquet"](path)
    assert found == {"text": "a", "n": {"x": [1.5, None]}, "is": True}
    assert of_infer(path) == ["a"]
    for value in (b"a", [{"bytes": b"a"}], datetime.datetime(2026, 1, 1)):
        pyarrow.parquet.write_table(pyarrow.table({"text_a": ["a"], "odd": [value]}), path)
        for read in (of_infer, of_predictor, of_labels):
            with pytest.raises(ValueError, match=r"rows\.parquet: the column 'odd' has the type"):
                read(path)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": MANY}), path, compression="gzip")
    whole = path.read_bytes()
    damaged = {
        "cut": whole[:-7],
        "in a page": whole[:60] + b"\xff" * 200 + whole[260:],
        "text": b"a",
    }
    for content in damaged.values():
        path.write_bytes(content)
        for read in (of_seqio, of_grain, of_vocabulary, of_infer, of_predictor, of_labels):
            with pytest.raises(ValueError, match=r"rows\.parquet: ") as error:
                read(path)
            assert "\n" not in str(error.value)


def test_a_damaged_array_record_file_is_named(tmp_path):
    path = tmp_path / "rows.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for text in MANY:
        writer.write(row(text))
    writer.close()
    assert of_grain(path) == MANY
    whole = path.read_bytes()
    middle = len(whole) // 3
    for content in (whole[:-9], whole[:middle] + b"\xff" * 200 + whole[middle + 200 :]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"rows\.array_record: ") as error:
            of_grain(path)
        assert "\n" not in str(error.value)


def test_a_damaged_tfrecord_file_is_found(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.tfrecord", "b.tfrecord")]
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for text in MANY:
                writer.write(text.encode())
    content = bytearray(Path(paths[1]).read_bytes())
    content[500] ^= 0xFF
    Path(paths[1]).write_bytes(content)
    dataset = tf.data.TFRecordDataset(paths)
    with pytest.raises(reading.FileError, match=r"b\.tfrecord: it is damaged after 1?\d records"):
        list(line_datasets.named(dataset, paths))


def test_a_missing_file_of_a_dataset_is_one_line(tmp_path):
    dataset = tf.data.TextLineDataset(str(tmp_path / "no.tsv"))
    with pytest.raises(reading.FileError) as caught:
        list(line_datasets.named(dataset))
    assert str(caught.value) == (
        f"a file of the data cannot be read: {tmp_path / 'no.tsv'}; No such file or directory"
    )
