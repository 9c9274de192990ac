"""C4: registered without its data, one clear line where it is missing, read where it is there."""

from pathlib import Path

import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t5x_like import vocabularies
from t5x_like.batches import tokenized_folder
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.offline_caching import TextOfTasks
from t5x_like.preprocessing.pipeline import RegisteredTasks

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
    vocabulary, objective = vocabularies.load("bytes"), seqio_objectives.build("span_corruption")
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


def test_a_mixture_of_languages_is_tokenized_once(tmp_path):
    splits = {split: [f"{split} {n} " * 9 for n in range(30)] for split in ("de", "fr")}
    splits |= {f"{split}-validation": texts[:5] for split, texts in splits.items()}
    prepare(tmp_path / "a", name="multilingual/3.1.0", splits=splits)
    settings = {"config": "multilingual", "languages": ("de", "fr"), "data_dir": f"{tmp_path}/a"}
    made = TextOfTasks(c4.__file__, settings, "bytes", ("mc4",), "span_corruption", {})
    out = str(tmp_path / "out")
    assert list(tokenized_folder.write(made, out, processes=1))[-1] == (4, 4)

    def read(tokenized, split, **changes):
        tasks = RegisteredTasks(
            c4,
            settings | changes,
            vocabulary=vocabularies.load("bytes"),
            objective="span_corruption",
            objective_settings={},
            tokenized=tokenized,
        )
        lengths = {"inputs": 24, "targets": 12}
        batches = tasks.batches("mc4", split=split, batch_size=4, lengths=lengths)
        return [next(batches) for _ in range(10)]

    for split in sources.SPLITS:
        for found, expected in zip(read(out, split), read("", split), strict=True):
            assert {name: rows.tobytes() for name, rows in found.items()} == {
                name: rows.tobytes() for name, rows in expected.items()
            }
    splits["fr"][0] = "changed"
    prepare(tmp_path / "b", name="multilingual/3.1.0", splits=splits)
    with pytest.raises(ValueError, match="the files of mc4_fr/train have changed"):
        read(out, "train", data_dir=f"{tmp_path}/b")
    prepare(tmp_path / "c", name="multilingual/3.0.1", splits=splits)
    with pytest.raises(ValueError, match=r"source of .* is 'c4/multilingual:3.0.1', and was"):
        read(out, "train", data_dir=f"{tmp_path}/c", version="3.0.1")


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
        c4.register(vocabularies.load("bytes"), seqio_objectives.build("prefix_lm"), **settings)
