"""The data side of a config: which converter an objective gets, and what a batch of it is."""

import json
import re

import jax
import ml_collections
import numpy as np
import pytest

from t5x_like import config, partitioning
from t5x_like.batches.sharded_batches import ShardedBatches
from t5x_like.experiment import data_side
from t5x_like.experiment.run import of_config
from t5x_like.partitioning import BatchSlice
from t5x_like.vocabularies.trainers import train

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@pytest.fixture
def bert(tmp_path) -> ml_collections.ConfigDict:
    """Data of BERT's objective: documents of two lines, a vocabulary of whole words."""
    lines = [" ".join(WORDS[(n + i) % 10] for i in range(7)) + f". {n}" for n in range(200)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, *map(str, range(200))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    found = config.defaults()
    found.model.vocab_size = len(pieces)
    found.data.module, found.data.task = "data/text_files.py", "text_files"
    found.data.settings = {"files": str(tmp_path / "text.txt"), "held_out": 0.2}
    found.data.vocabulary = str(tmp_path / "vocab.txt")
    found.data.objective, found.data.converter = "bert", "encoder"
    found.data.lengths = {"inputs": 16, "targets": 114}  # the second is the default, not read here
    found.data.batch_size, found.data.shards, found.data.shuffle_buffer = 8, 1, 20
    return found


@pytest.fixture
def mesh():
    return partitioning.make_mesh({"data": 1}, devices=jax.devices()[:1])


def test_an_objective_sets_its_converter(bert, mesh):
    batch = next(data_side.build(of_config(bert).parts[0], mesh).train_batches)
    aligned = ("input_tokens", "target_tokens", "loss_weights", "token_types", "segment_ids")
    assert {name: values.shape for name, values in batch.items()} == {
        **{f"encoder_{name}": (8, 16) for name in aligned},
        "label": (8,),
    }
    assert (batch["encoder_input_tokens"][:, 0] == 2).all()
    counted = batch["encoder_loss_weights"] > 0
    assert counted.any()
    assert not np.isin(batch["encoder_target_tokens"][counted], range(5)).any()


def test_a_config_sets_the_converter_otherwise(bert, mesh):
    bert.data.converter_settings = {"loss_on": "all"}
    batch = next(data_side.build(of_config(bert).parts[0], mesh).train_batches)
    np.testing.assert_array_equal(batch["encoder_loss_weights"], batch["encoder_segment_ids"])


def test_a_language_model_begins_with_the_token_that_ends_a_text_and_learns_token_0(
    bert, mesh, tmp_path
):
    texts = (tmp_path / "text.txt").read_text().splitlines()
    train(texts, vocab_size=270, output=tmp_path / "gpt2", kind="gpt2_bpe")
    bert.data.vocabulary = str(tmp_path / "gpt2")
    bert.data.objective, bert.data.converter = "language_modeling", "decoder"
    bert.data.lengths = {"targets": 16}
    bert.model.vocab_size = 270
    batch = next(data_side.build(of_config(bert).parts[0], mesh).train_batches)
    inputs, targets = batch["decoder_input_tokens"], batch["decoder_target_tokens"]
    assert (inputs[:, 0] == 269).all()
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert (batch["decoder_loss_weights"] == 1).all()
    assert (targets == 269).any()


def test_rows_continue_from_batch_to_batch_where_the_config_asks_for_it(bert, mesh):
    bert.data.objective, bert.data.converter = "language_modeling", "decoder"
    bert.data.lengths, bert.data.shards = {"targets": 16}, 0
    bert.data.continue_rows = True
    data = data_side.build(of_config(bert).parts[0], mesh)
    assert data.shards == bert.data.batch_size
    first, second = next(data.train_batches), next(data.train_batches)
    last = first["decoder_target_tokens"][:, -1]
    np.testing.assert_array_equal(second["decoder_input_tokens"][:, 0], last)
    starts = first["decoder_input_tokens"] == data.part.text.vocabulary.eos_id
    np.testing.assert_array_equal(first["decoder_document_starts"], starts)


@pytest.mark.parametrize("shards", [0, 4, 8])
def test_evaluation_reads_the_same_rows_whatever_the_processes(bert, mesh, monkeypatch, shards):
    bert.data.shards = shards
    bert.evaluate.batches = 2

    def read(index, number, *blocks):
        own = BatchSlice(index, number, blocks)
        monkeypatch.setattr(partitioning, "batch_slice", lambda mesh: own)
        monkeypatch.setattr(partitioning, "batch_parts", lambda shape: number * len(blocks))
        monkeypatch.setattr(data_side, "_any_process", lambda flag: True if flag else flag)
        data = data_side.build(of_config(bert).parts[0], mesh)
        return own.rows(8), list(data.eval_batches("text_files"))

    _, whole = read(0, 1, 0)
    assert len(whole) == 2
    # As a ring of devices has them: two blocks of rows a process, in no order.
    for number, blocks in enumerate(((0, 7), (1, 6), (2, 3), (4, 5))):
        rows, found = read(number, 4, *blocks)
        for batch, own in zip(whole, found, strict=True):
            for name, values in batch.items():
                np.testing.assert_array_equal(own[name], values[rows])


@pytest.mark.parametrize(
    ("batches", "bytes_kept", "reads"), [(0, 2**20, 1), (0, 10, 2), (2, 10, 1)]
)
def test_held_out_batches_are_read_once_if_memory_holds_them(
    bert, mesh, monkeypatch, batches, bytes_kept, reads
):
    bert.evaluate.batches = batches
    monkeypatch.setattr(data_side, "_MOST_KEPT", bytes_kept)
    data = data_side.build(of_config(bert).parts[0], mesh)
    data.check_held_out()
    passes = []
    start = ShardedBatches.from_start
    monkeypatch.setattr(ShardedBatches, "from_start", lambda self: passes.append(1) or start(self))
    first, second = ([*data.eval_batches("text_files")] for _ in range(2))
    assert len(passes) == reads
    assert len(first) == len(second) > 1
    for one, other in zip(first, second, strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(other[name], values)


def test_a_pass_that_was_not_finished_keeps_nothing(bert, mesh):
    data = data_side.build(of_config(bert).parts[0], mesh)
    next(iter(data.eval_batches("text_files")))
    expected = len([*data_side.build(of_config(bert).parts[0], mesh).eval_batches("text_files")])
    assert len([*data.eval_batches("text_files")]) == expected > 1


def test_processes_read_training_batches_without_waiting_for_each_other(bert, mesh, monkeypatch):
    monkeypatch.setattr(partitioning, "batch_slice", lambda mesh: BatchSlice(1, 2, (1,)))
    bert.data.shards = 2
    inputs = data_side.build(of_config(bert).parts[0], mesh)
    monkeypatch.setattr(data_side, "_any_process", lambda flag: pytest.fail("a collective"))
    assert len(next(inputs.train_batches)["label"]) == 4


def test_the_data_has_a_shard_for_each_device_with_rows_that_later_processes_may_share(bert):
    bert.data.shards = 0
    mesh = partitioning.make_mesh({"data": 4, "model": 2})
    assert partitioning.batch_slice(mesh).number == 1  # one process, and later perhaps four
    assert data_side.build(of_config(bert).parts[0], mesh).shards == 4


def test_special_tokens_that_a_model_writes_are_those_of_its_vocabulary(bert, mesh):
    bert.model.mask_id = 4
    data_side.build(of_config(bert).parts[0], mesh)
    bert.model.sep_id = 102
    with pytest.raises(ValueError, match=r"model.sep_id=102, and data.vocabulary=.* has 3"):
        data_side.build(of_config(bert).parts[0], mesh)


def test_a_converter_that_does_not_suit_the_objective_is_refused(bert, mesh):
    bert.data.converter = "encoder_decoder"
    with pytest.raises(ValueError, match=r"encoder_decoder reads inputs, targets, but .*label"):
        data_side.build(of_config(bert).parts[0], mesh)


def test_rows_that_only_pad_are_left_out_whatever_the_examples_have():
    tokens = np.zeros([3, 4], np.int32)
    segments = np.array([[1, 1, 0, 0], [0] * 4, [1, 1, 1, 1]])
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": segments, "label": np.arange(3)}
    assert [row["label"] for row in data_side.rows([batch])] == [0, 2]


def notes(made, mesh):
    return data_side.build(of_config(made).parts[0], mesh).notes()


def test_documents_of_one_sentence_have_one_class_of_pairs(bert, mesh, tmp_path):
    assert notes(bert, mesh) == []
    text = tmp_path / "text.txt"
    text.write_text(text.read_text().replace(". ", " "))
    [line] = notes(bert, mesh)
    assert re.search(
        r"'bert': the first \d\d held-out examples of 'text_files' all have label 1, so .* need "
        "documents of several sentences",
        line,
    )
    bert.data.objective_settings = {"next_sentence": False}
    assert notes(bert, mesh) == []


def test_a_class_without_another_is_named(bert, mesh, tmp_path):
    rows = [{"text": f"one {number}", "label": "yes"} for number in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bert.data.module, bert.data.task = "data/labelled_files.py", "labelled_files"
    bert.data.settings = {"train": str(tmp_path / "rows.jsonl"), "held_out": 0.2, "text_a": "text"}
    bert.data.objective, bert.data.objective_settings = "classification", {}
    bert.model.head, bert.model.labels = "classification", 1
    assert notes(bert, mesh) == [
        "data.objective='classification': the data has one class, 'yes', so there is nothing to "
        "learn"
    ]


@pytest.mark.parametrize(("unused", "printed"), [(127, False), (128, True)])
def test_embeddings_that_no_id_uses_are_counted(bert, mesh, unused, printed):
    bert.data.objective_settings = {"next_sentence": False}
    bert.model.vocab_size += unused
    assert notes(bert, mesh) == printed * [
        f"data.vocabulary={bert.data.vocabulary!r} has {216} ids, and "
        f"model.vocab_size={216 + unused}: {unused} rows of the embeddings are never used"
    ]
