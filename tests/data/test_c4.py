"""C4: registered without its data, one clear line where it is missing, read where it is there."""

from pathlib import Path

import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t5x_like import vocabularies
from t5x_like.preprocessing import objectives, sources

c4 = sources.load_module(str(Path(__file__).parents[2] / "data" / "c4.py"))

FIELDS = ("text", "url", "content-type", "content-length", "timestamp")


def prepare(data_dir: Path, *, name: str, splits: dict[str, list[str]]) -> None:
    """Writes a prepared data set as tfds does, with these texts."""
    folder = data_dir / "c4" / name
    folder.mkdir(parents=True)
    features = tfds.features.FeaturesDict({field: tfds.features.Text() for field in FIELDS})
    infos = []
    for split, texts in splits.items():
        template = tfds.core.ShardedFileTemplate(
            data_dir=folder, dataset_name="c4", split=split, filetype_suffix="tfrecord"
        )
        with tf.io.TFRecordWriter(f"{folder}/c4-{split}.tfrecord-00000-of-00001") as writer:
            for text in texts:
                page = dict.fromkeys(FIELDS, "-") | {"text": text}
                writer.write(features.serialize_example(page))
        infos.append(
            tfds.core.SplitInfo(
                name=split, shard_lengths=[len(texts)], num_bytes=9, filename_template=template
            )
        )
    tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=infos)


def texts(split: str, **settings) -> list[str]:
    return [row["text"].decode() for row in c4.documents(split, **settings).as_numpy_iterator()]


def test_registering_needs_no_data_and_names_the_tasks(tmp_path):
    settings = {"data_dir": str(tmp_path / "nothing")}
    vocabulary, objective = vocabularies.load("bytes"), objectives.build("span_corruption")
    for _ in range(2):
        c4.register(vocabulary, objective, **settings)
        c4.register(
            vocabulary, objective, config="multilingual", languages=("de", "hi-Latn"), **settings
        )
    assert {"c4_en", "mc4_de", "mc4_hi_Latn"} <= set(seqio.TaskRegistry.names())
    mixture = seqio.MixtureRegistry.get("mc4")
    assert sorted(task.name for task in mixture.tasks) == ["mc4_de", "mc4_hi_Latn"]
    with pytest.raises(ValueError, match=r"c4/en:3\.1\.0 is not prepared in .*`tfds build c4/en"):
        seqio.TaskRegistry.get("c4_en").get_dataset({"inputs": 9, "targets": 9})


def test_prepared_data_is_read(tmp_path):
    pages = {"train": [f"Page {n}" for n in range(9)], "validation": ["Held out"]}
    prepare(tmp_path, name="en/3.1.0", splits=pages)
    for split in sources.SPLITS:
        assert texts(split, data_dir=str(tmp_path)) == pages[split]
    with pytest.raises(ValueError, match=r"c4/en:3\.0\.1 is not prepared"):
        texts("train", data_dir=str(tmp_path), version="3.0.1")


def test_another_release_is_read(tmp_path):
    prepare(tmp_path, name="en/3.0.1", splits={"train": ["Old"], "validation": ["Older"]})
    assert texts("train", data_dir=str(tmp_path), version="3.0.1") == ["Old"]


def test_languages_are_mixed(tmp_path):
    splits = {"de": ["eins", "zwei", "drei"], "de-validation": ["vier"], "fr": ["un"]}
    prepare(tmp_path, name="multilingual/3.1.0", splits=splits | {"fr-validation": ["deux"]})
    settings = {"config": "multilingual", "languages": ("de", "fr"), "data_dir": str(tmp_path)}
    assert texts("train", **settings) == ["eins", "un", "zwei", "drei"]
    assert sorted(texts("validation", **settings)) == ["deux", "vier"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"config": "multilingal"}, "config='multilingal' .* Did you mean 'multilingual'"),
        ({"config": "multilingual", "languages": ("dee",)}, "language='dee' .* Did you mean 'de'"),
        ({"languages": ("de",)}, "needs config='multilingual'"),
    ],
)
def test_wrong_settings_are_found_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        c4.register(vocabularies.load("bytes"), objectives.build("prefix_lm"), **settings)
