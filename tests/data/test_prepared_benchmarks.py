"""Benchmarks from what TensorFlow Datasets has prepared: the same rows as from files."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from t5x_like import vocabularies
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import source_rows

DATA = Path(__file__).parents[2] / "data"


def pairs(suite, task, data_dir):
    module = sources.load_module(str(DATA / f"{suite}.py"))
    objective = seqio_objectives.build("text_to_text")
    module.register(vocabularies.load("bytes:0"), objective, data_dir=data_dir)
    found = source_rows(task, split="validation")
    return [(row["inputs"].decode(), row["targets"].decode()) for row in found]


# Rows in the schema of TensorFlow Datasets, as its features encode them.
PREPARED = {
    ("glue", "glue_rte"): (
        "glue/rte/2.0.0",
        {
            "sentence1": tfds.features.Text(),
            "sentence2": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["entailment", "not_entailment"]),
            "idx": np.int32,
        },
        {"sentence1": "A.", "sentence2": "B.", "label": 1, "idx": 0},
        [("rte sentence1: A. sentence2: B.", "not_entailment")],
    ),
    ("race", "race_high"): (
        "race/high/2.0.0",
        {
            "article": tfds.features.Text(),
            "questions": tfds.features.Sequence(tfds.features.Text()),
            "answers": tfds.features.Sequence(tfds.features.Text()),
            "options": tfds.features.Sequence(tfds.features.Sequence(tfds.features.Text())),
            "example_id": tfds.features.Text(),
        },
        {
            "article": "It is.",
            "questions": ["Is it?", "Why?"],
            "answers": ["B", "A"],
            "options": [["No", "Yes"], ["So", "No", "Oh"]],
            "example_id": "1",
        },
        [
            ("Is it? \\n (A) No (B) Yes \\n It is.", "Yes"),
            ("Why? \\n (A) So (B) No (C) Oh \\n It is.", "So"),
        ],
    ),
    ("commonsense", "arc_easy"): (
        "ai2_arc/ARC-Easy/1.0.0",
        {
            "id": tfds.features.Text(),
            "question": tfds.features.Text(),
            "choices": tfds.features.Sequence(
                {
                    "text": tfds.features.Text(),
                    "label": tfds.features.ClassLabel(names=list("ABCDE")),
                }
            ),
            "answerKey": tfds.features.ClassLabel(names=list("ABCDE")),
        },
        {
            "id": "1",
            "question": "Where?",
            "choices": [{"text": "here", "label": "A"}, {"text": "there", "label": "B"}],
            "answerKey": "B",
        },
        [("Where? \\n (A) here (B) there", "there")],
    ),
    ("commonsense", "openbookqa"): (
        "openbookqa/0.1.0",
        {
            "question": {
                name: tfds.features.Text()
                for name in ("stem", "choice_A", "choice_B", "choice_C", "choice_D")
            },
            "answerKey": tfds.features.ClassLabel(names=list("ABCD")),
        },
        {
            "question": {"stem": "It is", **{f"choice_{x}": x * 2 for x in "ABCD"}},
            "answerKey": "C",
        },
        [("It is \\n (A) AA (B) BB (C) CC (D) DD", "CC")],
    ),
    ("commonsense", "boolq"): (
        "bool_q/1.0.0",
        {"question": tfds.features.Text(), "passage": tfds.features.Text(), "answer": np.bool_},
        {"question": "is it", "passage": "It is.", "answer": True},
        [("boolq passage: It is. question: is it", "True")],
    ),
    ("squad", "squad"): (
        "squad/v1.1/3.0.0",
        {
            "id": tfds.features.Text(),
            "context": tfds.features.Text(),
            "question": tfds.features.Text(),
            "answers": tfds.features.Sequence(
                {"text": tfds.features.Text(), "answer_start": np.int32}
            ),
        },
        {
            "id": "1",
            "context": "It is.",
            "question": "Is it?",
            "answers": [{"text": "is", "answer_start": 3}],
        },
        [("question: Is it ? context: It is . ", "is")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("suite", "task"), PREPARED)
def test_prepared_data_gives_the_same_rows(suite, task, tmp_path):
    name, spec, example, expected = PREPARED[suite, task]
    folder = tmp_path / name
    folder.mkdir(parents=True)
    features = tfds.features.FeaturesDict(spec)
    dataset = name.partition("/")[0]
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder, dataset_name=dataset, split="validation", filetype_suffix="tfrecord"
    )
    with tf.io.TFRecordWriter(f"{folder}/{dataset}-validation.tfrecord-00000-of-00001") as writer:
        writer.write(features.serialize_example(features.encode_example(example)))
    split = tfds.core.SplitInfo(
        name="validation", shard_lengths=[1], num_bytes=9, filename_template=template
    )
    tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=[split])
    assert pairs(suite, task, str(tmp_path)) == expected


def test_data_that_is_not_prepared_is_named(tmp_path):
    message = r"glue/cola:2.0.0 is not prepared in data_dir=.*or set data.settings.folder"
    with pytest.raises(ValueError, match=message):
        pairs("glue", "glue_cola", str(tmp_path))
    with pytest.raises(ValueError, match="web_questions is not read from TensorFlow Datasets"):
        pairs("closed_book_qa", "web_questions", str(tmp_path))
