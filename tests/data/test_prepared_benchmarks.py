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
    ("entailment", "snli"): (
        "snli/1.1.0",
        {
            "premise": tfds.features.Text(),
            "hypothesis": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["entailment", "neutral", "contradiction"]),
        },
        {"premise": "P.", "hypothesis": "H.", "label": 1},
        [("snli hypothesis: H. premise: P.", "neutral")],
    ),
    ("entailment", "scitail"): (
        "sci_tail/1.0.0",
        {
            "premise": tfds.features.Text(),
            "hypothesis": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["entails", "neutral"]),
        },
        {"premise": "P.", "hypothesis": "H.", "label": "entails"},
        [("scitail hypothesis: H. premise: P.", "entails")],
    ),
    ("sentiment", "imdb"): (
        "imdb_reviews/plain_text/1.0.0",
        {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=["neg", "pos"])},
        {"text": "Fine.", "label": "pos"},
        [("imdb sentence: Fine.", "positive")],
    ),
    ("commonsense", "story_cloze"): (
        "story_cloze/2016/1.0.0",
        {
            "context": tfds.features.Text(),
            "endings": tfds.features.Sequence(tfds.features.Text()),
            "label": np.int32,
        },
        {"context": "1. 2. 3. 4.", "endings": ["Yes.", "No."], "label": 2},
        [("1. 2. 3. 4. \\n (A) Yes. (B) No.", "No.")],
    ),
    ("summarization", "gigaword"): (
        "gigaword/1.2.0",
        {"document": tfds.features.Text(), "summary": tfds.features.Text()},
        {"document": "a text .", "summary": "text"},
        [("summarize: a text .", "text")],
    ),
    ("summarization", "arxiv"): (
        "scientific_papers/arxiv/1.1.1",
        {name: tfds.features.Text() for name in ("article", "abstract", "section_names")},
        {"article": "A text.", "abstract": "Text.", "section_names": "A"},
        [("summarize: A text.", "Text.")],
    ),
    ("summarization", "big_patent"): (
        "big_patent/all/2.1.2",
        {"description": tfds.features.Text(), "abstract": tfds.features.Text()},
        {"description": "A text.", "abstract": "Text."},
        [("summarize: A text.", "Text.")],
    ),
    ("reading_qa", "trivia_qa_reading"): (
        "trivia_qa/rc/1.1.0",
        {
            "question": tfds.features.Text(),
            "answer": {
                "value": tfds.features.Text(),
                "aliases": tfds.features.Sequence(tfds.features.Text()),
            },
            "entity_pages": tfds.features.Sequence({"wiki_context": tfds.features.Text()}),
            "search_results": tfds.features.Sequence({"search_context": tfds.features.Text()}),
        },
        {
            "question": "Who came?",
            "answer": {"value": "Ann", "aliases": ["A.", "Ann"]},
            "entity_pages": [],
            "search_results": [{"search_context": "Ann came."}],
        },
        [("Who came? \\n Ann came.", "Ann")],
    ),
}  # fmt: skip


HELD_OUT = {"imdb": "test", "story_cloze": "test"}  # the split that validates, if it is another


@pytest.mark.parametrize(("suite", "task"), PREPARED)
def test_prepared_data_gives_the_same_rows(suite, task, tmp_path):
    name, spec, example, expected = PREPARED[suite, task]
    folder = tmp_path / name
    folder.mkdir(parents=True)
    features = tfds.features.FeaturesDict(spec)
    dataset, validation = name.partition("/")[0], HELD_OUT.get(task, "validation")
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder, dataset_name=dataset, split=validation, filetype_suffix="tfrecord"
    )
    with tf.io.TFRecordWriter(f"{folder}/{dataset}-{validation}.tfrecord-00000-of-00001") as writer:
        writer.write(features.serialize_example(features.encode_example(example)))
    split = tfds.core.SplitInfo(
        name=validation, shard_lengths=[1], num_bytes=9, filename_template=template
    )
    tfds.folder_dataset.write_metadata(data_dir=folder, features=features, split_infos=[split])
    assert pairs(suite, task, str(tmp_path)) == expected


@pytest.mark.parametrize(("suite", "task"), PREPARED)
def test_tensorflow_datasets_has_these_versions_and_fields(suite, task, tmp_path):
    name, spec, _, _ = PREPARED[suite, task]
    builder = tfds.builder(":".join(name.rsplit("/", 1)), data_dir=str(tmp_path))
    known = builder.info.features
    assert spec.keys() <= known.keys()
    for field, feature in spec.items():
        if isinstance(feature, tfds.features.ClassLabel):
            assert feature.names == known[field].names


def test_data_that_is_not_prepared_is_named(tmp_path):
    message = r"glue/cola:2.0.0 is not prepared in data_dir=.*or set data.settings.folder"
    with pytest.raises(ValueError, match=message):
        pairs("glue", "glue_cola", str(tmp_path))
    with pytest.raises(ValueError, match="web_questions is not read from TensorFlow Datasets"):
        pairs("closed_book_qa", "web_questions", str(tmp_path))
