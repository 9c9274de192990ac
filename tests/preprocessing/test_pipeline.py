"""Batches: the same on any number of processes, resumed anywhere bit for bit, nothing lost."""

import collections
import gc
import logging

import numpy as np
import pytest
import seqio
import tensorflow as tf
from flax import serialization

from t5x_like.preprocessing import mixtures
from t5x_like.preprocessing.pipeline import SeqioBatches
from t5x_like.preprocessing.streams import Reading, TaskReader

EXAMPLES = 37
# The rows of two processes: halves, each a shard; and as a ring of devices has them, some of each.
HALVES = {"halves": [[0, 1, 2, 3], [4, 5, 6, 7]], "ring": [[0, 1, 6, 7], [2, 3, 4, 5]]}
LENGTHS = {"inputs": 8, "targets": 3}
SETTINGS = {
    "split": "train",
    "lengths": LENGTHS,
    "batch_size": 8,
    "shards": 2,
    "shuffle_buffer": 40,
}
READING = Reading(
    split="train",
    lengths=LENGTHS,
    seed=0,
    shuffle=True,
    repeat=True,
    shuffle_buffer=40,
    shards=2,
)


@seqio.map_over_dataset(num_seeds=1)
def add_noise(example, seed):
    """Targets of two random tokens; the inputs stay as they are."""
    noise = tf.random.stateless_uniform([2], seed, 3, 10_000, dtype=tf.int32)
    return {"inputs": example["inputs"], "targets": noise}


def inputs_of(number):
    """An example's tokens: its number, repeated 1 to 4 times."""
    return np.full(1 + number % 4, number + 3, np.int32)


def from_tensors(split, shuffle_files, seed=None):
    size = {"train": EXAMPLES, "tiny": 2}[split]
    numbers = tf.data.Dataset.range(size)
    if shuffle_files:
        numbers = numbers.shuffle(size, seed=seed)
    return numbers.map(
        lambda n: {"inputs": tf.repeat(tf.cast(n, tf.int32) + 3, tf.cast(1 + n % 4, tf.int32))}
    )


def from_generator(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_generator(
        lambda: ({"inputs": inputs_of(number)} for number in range(EXAMPLES)),
        output_signature={"inputs": tf.TensorSpec([None], tf.int32)},
    )


@pytest.fixture(scope="module", autouse=True)
def tasks():
    """One task that tf.data can save, one that it cannot, and a mixture of both."""
    for name, read in {"pipeline_task": from_tensors, "pipeline_python": from_generator}.items():
        seqio.TaskRegistry.remove(name)
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(read, splits=["train", "tiny"]),
            preprocessors=[add_noise],
            output_features={
                feature: seqio.Feature(seqio.PassThroughVocabulary(10_000)) for feature in LENGTHS
            },
        )
    rates = {"pipeline_task": 2, "pipeline_python": 1}
    mixtures.mixture("pipeline_mixture", list(rates), rate=rates)


def batches_of(task="pipeline_task", **settings):
    return SeqioBatches(task, **{**SETTINGS, **settings})


def take(batches, count):
    return [next(batches) for _ in range(count)]


def assert_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for field in one:
            np.testing.assert_array_equal(one[field], other[field], field)


def numbers_in(batches):
    """Which examples are in the batches, in order; each is one segment or one row."""
    found = []
    for batch in batches:
        tokens = batch["encoder_input_tokens"]
        first = batch.get("encoder_positions", np.arange(tokens.shape[1])[None]) == 0
        found += (tokens[(tokens > 0) & first] - 3).tolist()
    return found


@pytest.mark.parametrize("pack", [False, True])
def test_one_pass_has_every_example_once_and_pads_the_rest(pack):
    batches = list(batches_of(repeat=False, pack=pack))
    assert sorted(numbers_in(batches)) == list(range(EXAMPLES))
    assert all(batch["encoder_input_tokens"].shape == (8, 8) for batch in batches)
    weights = sum(batch["decoder_loss_weights"].sum() for batch in batches)
    assert weights == 2 * EXAMPLES
    empty = ~np.concatenate([batch["encoder_input_tokens"].any(axis=1) for batch in batches])
    for field in batches[0]:
        assert not np.concatenate([batch[field] for batch in batches])[empty].any()


def test_one_pass_without_shuffling_keeps_the_order_of_the_source():
    batches = batches_of(repeat=False, shuffle=False, shards=1)
    assert numbers_in(batches) == list(range(EXAMPLES))


def test_each_epoch_has_every_example_once_in_another_order_with_other_noise():
    batches = batches_of(shards=1, batch_size=EXAMPLES)
    epochs = take(batches, 3)
    orders = [numbers_in([epoch]) for epoch in epochs]
    assert all(sorted(order) == list(range(EXAMPLES)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    noise = [set(epoch["decoder_target_tokens"][:, 0].tolist()) for epoch in epochs]
    # 37 draws out of 10,000 meet by chance at times; the same noise again would meet 37 times.
    assert max(len(noise[0] & noise[1]), len(noise[1] & noise[2])) < 5
    assert batches.counts() == {"pipeline_task": 3 * EXAMPLES}


def test_from_start_is_the_first_batch_again_and_leaves_the_first_iterator_where_it_is():
    batches = batches_of(repeat=False)
    first, second = take(batches, 2)
    again = batches.from_start()
    assert_equal([first, second], take(again, 2))
    assert_equal(list(batches), list(again))


def test_epochs_of_shards_are_whole_too():
    found = numbers_in(take(batches_of(), 12))
    # A batch has four rows of each shard, and the first of them has one example more.
    own = [
        [found[8 * batch + 4 * shard + i] for batch in range(12) for i in range(4)]
        for shard in (0, 1)
    ]
    for start in (0, 1):
        epoch = own[0][19 * start :][:19] + own[1][18 * start :][:18]
        assert sorted(epoch) == list(range(EXAMPLES))


def test_shards_do_not_share_noise():
    batch = next(batches_of())
    assert len(np.unique(batch["decoder_target_tokens"][:, 0])) >= 7  # of 8 draws from 10,000


def test_the_seed_decides():
    first, again, other = (take(batches_of(seed=seed), 4) for seed in (0, 0, 1))
    assert_equal(first, again)
    assert numbers_in(first) != numbers_in(other)


def joined(parts, rows):
    """The batches of which two processes have these rows."""
    order = np.argsort(np.concatenate(rows))
    return [
        {field: np.concatenate([one[field], other[field]])[order] for field in one}
        for one, other in zip(*parts, strict=True)
    ]


@pytest.mark.parametrize("rows", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("pack", [False, True])
def test_two_processes_make_up_the_batch_of_one(pack, rows):
    whole = take(batches_of(pack=pack), 6)
    parts = [take(batches_of(pack=pack, rows=own), 6) for own in rows]
    assert_equal(joined(parts, rows), whole)


@pytest.mark.parametrize(
    ("task", "pack"),
    [
        pytest.param("pipeline_task", False, marks=pytest.mark.slow),
        ("pipeline_mixture", True),
        pytest.param("pipeline_task", True, marks=pytest.mark.slow),
        pytest.param("pipeline_mixture", False, marks=pytest.mark.slow),
        pytest.param("pipeline_python", True, marks=pytest.mark.slow),
        pytest.param("pipeline_python", False, marks=pytest.mark.slow),
    ],
)
def test_resuming_anywhere_is_exact(task, pack):
    settings = {"task": task, "pack": pack}
    batches, positions, expected = batches_of(**settings), {}, []
    for number in range(11):  # more than two epochs
        if number in (0, 3, 6):
            positions[number] = batches.state()
            gc.collect()  # nothing that tf.data needs of Python may be lost
        expected.append(next(batches))
    for number, position in positions.items():
        resumed = batches_of(**settings)
        resumed.restore(position)
        assert_equal(take(resumed, 5), expected[number : number + 5])


def of_version_1(position, files=None):
    """The position as an earlier version wrote it, whose graph had other operations."""
    content = serialization.msgpack_restore(position)
    for stream in content["position"]["streams"]:
        stream.pop("version", None)
        source, _, _ = stream["fingerprint"].rpartition("-")
        stream["fingerprint"] = f"{source if files is None else files}-0badf00d"
        stream["iterator"] = b"the state of another graph"
    return serialization.msgpack_serialize(content)


@pytest.mark.parametrize("read", [2, 5])
def test_a_position_of_an_earlier_version_is_read_up_to_again(read, caplog):
    batches = batches_of()
    take(batches, read)
    older = {number: of_version_1(one) for number, one in batches.state().items()}
    expected = take(batches, 3)
    resumed = batches_of()
    resumed.restore(older)
    assert_equal(take(resumed, 3), expected)
    assert "is of an earlier version: epoch" in caplog.text
    others = {number: of_version_1(one, files="99") for number, one in older.items()}
    with pytest.raises(ValueError, match="cannot be restored: the number of files"):
        batches_of().restore(others)


def test_resuming_a_finite_pass_is_exact():
    expected = list(batches_of(repeat=False))
    batches = batches_of(repeat=False)
    take(batches, 2)
    resumed = batches_of(repeat=False)
    resumed.restore(batches.state())
    assert_equal(list(resumed), expected[2:])
    at_the_end = batches_of(repeat=False)
    at_the_end.restore(resumed.state())
    assert list(at_the_end) == []


@pytest.mark.parametrize("rows", HALVES.values(), ids=HALVES)
def test_positions_of_one_process_go_on_in_two_and_back(rows):
    one = batches_of(pack=True)
    take(one, 3)
    halves = [batches_of(pack=True, rows=own) for own in rows]
    for half in halves:
        half.restore(one.state())
    expected = take(one, 3)
    parts = [take(half, 3) for half in halves]
    assert_equal(joined(parts, rows), expected)
    back = batches_of(pack=True)
    back.restore({**halves[0].state(), **halves[1].state()})
    assert_equal(take(back, 2), take(one, 2))


def test_a_restored_position_may_change_the_batch_size():
    batches = batches_of(shards=1)
    next(batches)
    larger = batches_of(shards=1, batch_size=16)
    larger.restore(batches.state())
    assert numbers_in([next(larger)]) == numbers_in(take(batches, 2))


def test_state_is_bytes_by_shard_and_changes_nothing():
    batches, undisturbed = batches_of(), batches_of()
    for _ in range(6):
        state = batches.state()
        assert list(state) == [0, 1]
        assert all(isinstance(position, bytes) for position in state.values())
        assert_equal([next(batches)], [next(undisturbed)])


def test_a_pipeline_that_cannot_be_saved_is_reported(caplog):
    batches = batches_of("pipeline_python", seed=5)
    next(batches)
    with caplog.at_level(logging.WARNING):
        batches.state()
    logged = "".join(record.getMessage() for record in caplog.records)
    assert not logged or "reading its epoch again" in logged  # once a process


def test_a_finite_pass_goes_through_all_tasks_of_a_mixture():
    found = collections.Counter(numbers_in(batches_of("pipeline_mixture", repeat=False)))
    assert found == dict.fromkeys(range(EXAMPLES), 2)


def test_processes_end_a_finite_pass_together():
    agreed = iter([True] * 9 + [False])
    batches = list(batches_of(repeat=False, any_process=lambda more: next(agreed)))
    assert len(batches) == 9
    assert sorted(numbers_in(batches)) == list(range(EXAMPLES))
    assert_equal(batches[-1:], [batches_of().blank()])


def test_long_features_are_cut_to_their_lengths():
    batch = next(batches_of(lengths={"inputs": 2, "targets": 1}))
    assert batch["encoder_input_tokens"].shape == (8, 2)
    assert batch["decoder_target_tokens"].all()


def test_a_shard_without_examples_is_an_error_only_if_it_is_repeated():
    settings = {"split": "tiny", "shuffle": False, "shards": 4}
    assert sorted(numbers_in(batches_of(**settings, repeat=False))) == [0, 1]
    with pytest.raises(ValueError, match=r"shard 2 of 4 .*'tiny'.* no example.*fewer data.shards"):
        next(batches_of(**settings))


def test_restoring_under_other_settings_is_refused():
    state = batches_of().state()
    with pytest.raises(ValueError, match=r"saved with seed=0 .* with seed=1"):
        batches_of(seed=1).restore(state)
    with pytest.raises(ValueError, match=r"saved with shards=2 .* with shards=1"):
        batches_of(shards=1).restore(state)
    with pytest.raises(ValueError, match=r"no shard 1.*data.shards"):
        batches_of().restore({0: state[0]})


def test_restoring_a_task_that_changed_is_refused():
    batches = batches_of()
    next(batches)
    state = batches.state()
    task = seqio.TaskRegistry.get("pipeline_task")
    seqio.TaskRegistry.remove("pipeline_task")
    changed = task.replace(preprocessors=[add_noise, lambda ds: ds.filter(lambda example: True)])
    seqio.TaskRegistry.add_provider("pipeline_task", changed)
    try:
        with pytest.raises(ValueError, match="'pipeline_task' cannot be restored"):
            batches_of().restore(state)
    finally:
        seqio.TaskRegistry.remove("pipeline_task")
        seqio.TaskRegistry.add_provider("pipeline_task", task)


def test_a_stream_deleted_while_another_is_traced_leaves_it_as_it_is():
    """The garbage collector may delete a stream at any time."""
    others = []

    def delete_others(dataset):
        others.clear()
        gc.collect()
        return dataset

    task = seqio.TaskRegistry.get("pipeline_task")
    task = task.replace(preprocessors=[delete_others, *task.preprocessors])
    before = TaskReader(task, reading=READING, features=tuple(LENGTHS)).fingerprint
    others.append(batches_of())
    next(others[0])
    assert TaskReader(task, reading=READING, features=tuple(LENGTHS)).fingerprint == before


def test_preprocessors_may_have_python_conditions():
    def double_long_ones(example):
        inputs = 2 * example["inputs"] if tf.size(example["inputs"]) > 2 else example["inputs"]
        return {"inputs": inputs, "targets": inputs}

    task = seqio.TaskRegistry.get("pipeline_task")
    seqio.TaskRegistry.remove("pipeline_conditions")
    seqio.TaskRegistry.add_provider(
        "pipeline_conditions",
        task.replace(
            name="pipeline_conditions", preprocessors=[lambda ds: ds.map(double_long_ones)]
        ),
    )
    batches = list(batches_of("pipeline_conditions", repeat=False))
    doubled = [2 * n + 3 if n % 4 > 1 else n for n in range(EXAMPLES)]
    assert sorted(numbers_in(batches)) == sorted(doubled)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "pipeline_tsk"}, "mean 'pipeline_task'"),
        ({"split": "trian"}, "mean 'train'. Allowed: tiny, train"),
        ({"converter": "encoder_decodr"}, "mean 'encoder_decoder'"),
        ({"converter": "decoder"}, "read these: encoder_decoder, prefix_lm, encoder"),
        ({"lengths": {"inputs": 8}}, "lengths.targets=None"),
        ({"batch_size": 9}, "shards=2 does not divide data.batch_size=9.*1, 3, 9"),
        ({"rows": [7, 8]}, r"rows=\[7, 8\] must be some of the 8 of a batch"),
        ({"seed": -1}, "data.seed=-1 must be 0 or more"),
        ({"shuffle_buffer": 0}, "data.shuffle_buffer=0 must be 1 or more"),
    ],
)
def test_errors_name_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        batches_of(**settings)
