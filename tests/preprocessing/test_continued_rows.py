"""Rows that continue from batch to batch: no token lost, document starts, resume, errors."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_like.batches.converters import DecoderConverter, EncoderDecoderConverter
from t5x_like.preprocessing import mixtures, seqio_objectives
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.sources import add_document_task
from tests.number_vocabulary import NumberVocabulary

ROWS, LENGTH, START, END = 4, 6, 0, 1
DOCUMENTS = [[2 + (7 * n + i) % 90 for i in range(1 + n % 5)] for n in range(23)]
CONVERTER = DecoderConverter(start=START).continued(end=END)


def documents(split, shuffle_files=False, seed=None):
    texts = [" ".join(map(str, document)) for document in DOCUMENTS]
    return tf.data.Dataset.from_tensor_slices({"text": texts})


@pytest.fixture(autouse=True)
def task():
    add_document_task(
        "numbers",
        source=seqio.FunctionDataSource(documents, splits=["train"]),
        vocabulary=NumberVocabulary(100),
        objective=seqio_objectives.build("language_modeling"),
    )


def batches(task="numbers", **settings):
    defaults = {
        "split": "train",
        "batch_size": ROWS,
        "lengths": {"targets": LENGTH},
        "converter": CONVERTER,
        "shards": ROWS,
        "shuffle": False,
    }
    return SeqioBatches(task, **{**defaults, **settings})


def streams(found, name):
    """The real tokens of each row over batches, one after the other."""
    return [
        np.concatenate([b[name][row][b["decoder_loss_weights"][row] > 0] for b in found]).tolist()
        for row in range(len(found[0][name]))
    ]


def take(source, count):
    return [next(source) for _ in range(count)]


def test_each_row_is_the_text_of_its_documents_epoch_after_epoch():
    found = take(batches(), 12)
    texts, inputs = streams(found, "decoder_target_tokens"), streams(found, "decoder_input_tokens")
    starts = streams(found, "decoder_document_starts")
    for row in range(ROWS):
        epoch = [token for document in DOCUMENTS[row::ROWS] for token in (*document, END)]
        size = len(texts[row])
        assert size > 2 * len(epoch)
        assert texts[row] == (epoch * 9)[:size]
        assert inputs[row] == [START, *texts[row][:-1]]
        assert starts[row] == [int(token in (START, END)) for token in inputs[row]]


def test_padding_is_the_end_of_an_epoch_alone_and_starts_nothing():
    for batch in take(batches(), 12):
        real = batch["decoder_loss_weights"] > 0
        for row in range(ROWS):
            if not real[row].all():
                assert batch["decoder_target_tokens"][row][real[row]][-1] == END
        assert not batch["decoder_document_starts"][~real].any()
        assert not batch["decoder_input_tokens"][~real].any()


@pytest.mark.parametrize("step", [0, 1, 5])
def test_a_position_is_restored_at_any_step(step):
    whole, first, second = batches(), batches(), batches()
    expected = take(whole, step + 4)[step:]
    take(first, step)
    second.restore(first.state())
    for batch, again in zip(expected, take(second, 4), strict=True):
        np.testing.assert_equal(again, batch)


@pytest.mark.parametrize("rows", [([0, 1], [2, 3]), ([0, 3], [1, 2])])
def test_two_processes_have_the_rows_of_one(rows):
    parts = [take(batches(rows=own), 7) for own in rows]
    for batch, *found in zip(take(batches(), 7), *parts, strict=True):
        for name, expected in batch.items():
            for own, part in zip(rows, found, strict=True):
                np.testing.assert_array_equal(part[name], expected[own])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pack": True}, r"continue_rows=True: .* set data\.pack=False"),
        ({"shuffle": True}, r"continue_rows=True: rows are neither packed nor shuffled"),
        ({"shards": 2}, r"data\.batch_size=4 cannot differ from data\.shards=2"),
        ({"batch_size": 8}, r"data\.batch_size=8 cannot differ from data\.shards=4"),
        ({"task": "both"}, r"data\.task='both' is a mixture"),
    ],
)
def test_rows_that_cannot_continue_are_refused(settings, message):
    mixtures.mixture("both", ["numbers"], rate=mixtures.equal())
    with pytest.raises(ValueError, match=message):
        batches(**settings)


def test_examples_of_pairs_do_not_continue():
    with pytest.raises(
        ValueError, match=r"EncoderDecoderConverter makes .*data\.converter='decoder'"
    ):
        EncoderDecoderConverter().continued(end=END)
