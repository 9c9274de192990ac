"""Encoder objectives in a pipeline: masks over epochs, resuming, caching, real documents."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.batches import converters
from t5x_like.preprocessing import seqio_objectives, sources
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from tests.word_vocabulary import WordVocabulary

DOCUMENTS = 24
VOCABULARY = WordVocabulary(f"w{number}" for number in range(400))
TEXTS = [
    "\n".join(
        " ".join(f"w{(17 * document + 5 * line + place) % 400}" for place in range(6))
        for line in range(1 + document % 5)
    )
    for document in range(DOCUMENTS)
]


def read(split, shuffle_files, seed=None):
    dataset = tf.data.Dataset.from_tensor_slices({"text": TEXTS})
    return dataset.shuffle(DOCUMENTS, seed=seed) if shuffle_files else dataset


def batches(name, *, length=32, batch_size=8, shards=2, **settings):
    """Endless batches of an objective, in epochs."""
    objective = seqio_objectives.build(name, group=5, **settings)
    sources.add_task(
        "encoder_task",
        source=seqio.FunctionDataSource(read, splits=["train"]),
        vocabulary=VOCABULARY,
        preprocessors=objective.preprocessors,
        features=objective.features,
    )
    return SeqioBatches(
        "encoder_task",
        split="train",
        batch_size=batch_size,
        lengths={"inputs": length, "targets": 5},
        converter=converters.build("encoder", **objective.converter_settings),
        shards=shards,
        shuffle_buffer=20,
    )


def masks_of_rows(name, *, epochs, **settings):
    """{the text of a row: the masks it was seen with}, one for each visit."""
    found = {}
    stream = batches(name, batch_size=DOCUMENTS, shards=1, **settings)
    for _ in range(epochs):
        batch = next(stream)
        for row, weights in zip(
            batch["encoder_target_tokens"], batch["encoder_loss_weights"], strict=True
        ):
            found.setdefault(row.tobytes(), []).append(weights.tobytes())
    return found


def test_dynamic_masks_are_new_in_each_epoch():
    found = masks_of_rows("roberta", epochs=4, format="doc_sentences")
    assert len(found) == DOCUMENTS
    assert {len(masks) for masks in found.values()} == {4}  # each row once an epoch
    longer = [set(masks) for row, masks in found.items() if np.frombuffer(row, np.int32)[18]]
    assert len(longer) > 10
    # Three tokens or more of 18: 816 masks, so that four of them hardly ever meet.
    assert sum(len(masks) == 4 for masks in longer) >= len(longer) - 1


def test_static_masks_are_few_and_come_again():
    found = masks_of_rows("roberta", epochs=8, format="doc_sentences", copies=2)
    assert {len(masks) for masks in found.values()} == {8}
    longer = [set(masks) for row, masks in found.items() if np.frombuffer(row, np.int32)[18]]
    assert all(len(masks) <= 2 for masks in longer)
    # Eight draws are all of one copy in a case of 128.
    assert sum(len(masks) == 2 for masks in longer) >= len(longer) - 2


def test_static_copies_fix_how_documents_are_divided_too():
    found = masks_of_rows("bert", epochs=6, copies=1)
    again = [masks for masks in found.values() if len(masks) >= 4]
    assert len(again) > 5  # real pairs; random ones have another B
    assert all(len(set(masks)) == 1 for masks in found.values())


@pytest.mark.parametrize(
    "name",
    ["roberta", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "spanbert"))],
)
def test_a_position_in_the_middle_is_restored_bit_for_bit(name):
    whole, resumed = batches(name), batches(name)
    for _ in range(7):
        next(whole)
    resumed.restore(whole.state())
    for _ in range(8):
        expected, found = next(whole), next(resumed)
        assert expected.keys() == found.keys()
        for field in expected:
            np.testing.assert_array_equal(expected[field], found[field], field)


def test_a_position_is_not_restored_with_another_setting_of_the_objective():
    state = batches("bert").state()
    with pytest.raises(ValueError, match=r"preprocessors.*have changed"):
        batches("bert", rate=0.2).restore(state)


def test_the_cache_may_stand_after_tokenization():
    objective = seqio_objectives.build("bert")
    tokenize, make_rows = objective.preprocessors
    seqio.TaskRegistry.remove("cached_encoder_task")
    task = seqio.TaskRegistry.add(
        "cached_encoder_task",
        source=seqio.FunctionDataSource(read, splits=["train"]),
        preprocessors=[tokenize, seqio.CacheDatasetPlaceholder(), make_rows],
        output_features={
            name: seqio.Feature(TaskVocabulary(VOCABULARY)) for name in objective.features
        },
    )
    examples = task.get_dataset({"inputs": 32}, "train", shuffle=False).as_numpy_iterator()
    assert {example["label"].shape for example in examples} == {(1,)}


def test_rows_that_pad_have_no_segment():
    batch = batches("bert").blank()
    assert not any(values.any() for values in batch.values())
    assert batch["label"].shape == (8,)
