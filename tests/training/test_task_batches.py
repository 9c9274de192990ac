"""Batches of several tasks: which task a step has, and positions that are saved and restored."""

import collections

import pytest

from t5x_like.training.several_tasks import TaskBatches, shuffled_task_at, task_at

SHARES = {"a": 3.0, "b": 1.0}


class Counting:
    """Batches 1, 2, ...; the position of both shards is the number read."""

    def __init__(self, read=0):
        self.read = read

    def __next__(self):
        self.read += 1
        return self.read

    def state(self):
        return {shard: str(self.read).encode() for shard in (0, 1)}

    def restore(self, state):
        self.read = int(state[0])


def make(*, step=0, seed=0, tasks=("a", "b")):
    return TaskBatches(
        {task: Counting() for task in tasks},
        choose=lambda at: task_at(at, shares={task: SHARES[task] for task in tasks}, seed=seed),
        step=step,
    )


def test_tasks_come_by_their_shares_and_follow_from_seed_and_step():
    tasks = [task_at(step, shares=SHARES, seed=0) for step in range(4000)]
    # Four standard deviations of a mean of 4000.
    assert collections.Counter(tasks)["a"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert tasks[:50] == [task_at(step, shares=SHARES, seed=0) for step in range(50)]
    assert tasks[:50] != [task_at(step, shares=SHARES, seed=1) for step in range(50)]
    halved = {task: share / 2 for task, share in SHARES.items()}
    assert tasks[:50] == [task_at(step, shares=halved, seed=0) for step in range(50)]


def test_an_epoch_has_all_batches_of_all_tasks_in_an_order_of_its_own():
    batches = {"a": 5, "b": 2, "c": 1}
    tasks = [shuffled_task_at(step, batches=batches, seed=0) for step in range(8 * 200)]
    epochs = [tuple(tasks[first : first + 8]) for first in range(0, len(tasks), 8)]
    assert all(collections.Counter(epoch) == batches for epoch in epochs)
    # Of the 168 orders 200 draws are expected to find 117, with a standard deviation of 5.
    assert 95 < len(set(epochs)) < 139
    firsts = collections.Counter(epoch[0] for epoch in epochs)
    assert firsts["a"] / 200 == pytest.approx(5 / 8, abs=0.14)  # four standard deviations
    assert tasks[:40] != [shuffled_task_at(step, batches=batches, seed=1) for step in range(40)]


def test_batches_are_of_the_task_of_their_step_and_go_on_from_a_position():
    batches = make()
    first = [next(batches) for _ in range(20)]
    assert [task for task, _ in first] == [task_at(s, shares=SHARES, seed=0) for s in range(20)]
    again = make(step=20)
    again.restore(batches.state())
    assert [next(again) for _ in range(20)] == [next(batches) for _ in range(20)]


def test_counts_leave_out_a_batch_that_was_read_ahead():
    batches = make(step=5)
    tasks = [next(batches)[0] for _ in range(6)]
    for step, of_step in ((11, tasks), (10, tasks[:-1])):
        counts = collections.Counter(of_step)
        assert batches.counts(step=step) == {task: counts[task] for task in SHARES}


def test_the_position_of_one_task_is_that_of_its_data():
    batches = TaskBatches({"": Counting(7)}, choose=lambda _: "", step=7)
    assert batches.state() == Counting(7).state()
    batches.restore({0: b"3", 1: b"3"})
    assert next(batches) == ("", 4)


def test_a_task_without_a_saved_position_is_named():
    with pytest.raises(ValueError, match=r"task with a saved position='b' does not exist.*a"):
        make().restore(make(tasks=("a",)).state())
