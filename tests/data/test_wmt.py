"""WMT: registered without its data, one clear line where it is missing, read in both directions."""

from pathlib import Path

import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t5x_like import vocabularies
from t5x_like.preprocessing import seqio_objectives, sources

wmt = sources.load_module(str(Path(__file__).parents[2] / "data" / "wmt.py"))

PAIRS = {
    "train": [("one", "eins"), ("two", "zwei"), ("three", "drei")],
    "validation": [("four", "vier")],
    "test": [("five", "fünf")],
}


@pytest.fixture
def prepared(tmp_path):
    """A prepared data set as tfds writes it."""
    folder = tmp_path / "wmt14_translate" / "de-en" / "1.0.0"
    folder.mkdir(parents=True)
    features = tfds.features.FeaturesDict({name: tfds.features.Text() for name in ("de", "en")})
    infos = []
    for split, pairs in PAIRS.items():
        template = tfds.core.ShardedFileTemplate(
            data_dir=folder, dataset_name="wmt14_translate", split=split, filetype_suffix="tfrecord"
        )
        path = f"{folder}/wmt14_translate-{split}.tfrecord-00000-of-00001"
        with tf.io.TFRecordWriter(path) as writer:
            for english, german in pairs:
                writer.write(features.serialize_example({"en": english, "de": german}))
        infos.append(
            tfds.core.SplitInfo(
                name=split, shard_lengths=[len(pairs)], num_bytes=9, filename_template=template
            )
        )
    tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=infos)
    return str(tmp_path)


def register(**settings):
    wmt.register(vocabularies.load("bytes:0"), seqio_objectives.build("translation"), **settings)


def texts(task, split):
    task = seqio.TaskRegistry.get(task)
    rows = task.get_dataset({"inputs": 16, "targets": 16}, split=split, shuffle=False)
    decode = task.output_features["inputs"].vocabulary.decode
    return [
        (decode(row["inputs"].tolist()), decode(row["targets"].tolist()))
        for row in rows.as_numpy_iterator()
    ]


def test_registering_needs_no_data_and_names_the_tasks(tmp_path):
    for _ in range(2):
        register(data_dir=str(tmp_path / "nothing"))
        register(data_dir=str(tmp_path / "nothing"), year=16, source="ro", target="en")
    names = {"wmt14_en_de", "wmt14_en_de_test", "wmt16_ro_en", "wmt16_ro_en_test"}
    assert names <= set(seqio.TaskRegistry.names())
    message = (
        r"wmt14_translate/de-en:1\.0\.0 is not prepared in .*`tfds build wmt14_translate/de-en"
    )
    with pytest.raises(ValueError, match=message):
        texts("wmt14_en_de", "train")


def test_prepared_pairs_are_read_in_both_directions_and_the_test_set_apart(prepared):
    register(data_dir=prepared)
    register(data_dir=prepared, source="de", target="en")
    assert texts("wmt14_en_de", "train") == PAIRS["train"]
    assert texts("wmt14_en_de", "validation") == PAIRS["validation"]
    assert texts("wmt14_en_de_test", "validation") == PAIRS["test"]
    assert texts("wmt14_de_en", "train") == [(de, en) for en, de in PAIRS["train"]]


def test_documents_are_both_sides(prepared):
    rows = wmt.documents("train", data_dir=prepared).as_numpy_iterator()
    assert [row["text"].decode() for row in rows] == ["one", "eins", "two", "zwei", "three", "drei"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"year": 2014}, "year='2014' does not exist. Did you mean '14'"),
        ({"target": "ed"}, "source-target='en-ed' does not exist. Did you mean 'en-de'"),
        ({"source": "fr", "target": "de"}, "source-target='fr-de'"),
    ],
)
def test_wrong_settings_are_found_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        register(**settings)
