"""The setting `tasks`: what each task of a run changes, and errors that name what is wrong."""

import json

import pytest

from t5x_like.config import defaults, load, to_dict
from t5x_like.experiment import completion
from t5x_like.experiment.tasks import choose_task, heads, run_tasks
from t5x_like.systems import bert

TASKS = {
    "words": {"model": {"head": "masked_lm"}, "share": 3, "data": {"batch_size": 16}},
    "topics": {
        "model": {"head": "classification", "labels": 5},
        "data": {"objective": "classification", "lengths": {"inputs": 24}},
        "evaluate": {"batches": 7},
    },
}


def settings(**changes):
    made = defaults()
    made.system = "bert"
    made.model = dict(bert.SIZES["base"])
    made.loss = {"predicted": 0.2}
    made.tasks = TASKS
    with made.unlocked():
        made.update_from_flattened_dict(changes)
    return made


def test_each_task_sees_the_config_as_if_it_were_alone():
    topics, words = run_tasks(settings())
    assert (topics.name, topics.share, words.name, words.share) == ("topics", 1.0, "words", 3.0)
    assert topics.settings.model.labels == 5
    assert topics.settings.model.head == "classification"
    assert topics.settings.data.lengths.to_dict() == {"inputs": 24}  # in place of the run's
    assert topics.settings.data.batch_size == defaults().data.batch_size
    assert topics.settings.evaluate.batches == 7
    assert topics.settings.loss.to_dict() == {}
    assert words.settings.data.batch_size == 16
    assert words.settings.model.labels == 2
    assert words.settings.tasks.to_dict() == {}


def test_a_run_of_one_task_is_its_config():
    alone = settings()
    alone.tasks = {}
    [task] = run_tasks(alone)
    assert (task.name, task.share) == ("", 1.0)
    assert task.settings is alone


def test_the_network_gets_the_heads_of_all_tasks():
    expected = {
        "words": {"head": "masked_lm", "labels": 2},
        "topics": {"head": "classification", "labels": 5},
    }
    assert heads(settings()) == expected
    done = completion.complete(settings())
    assert done.model.head.to_dict() == expected
    assert completion.complete(done).model.head.to_dict() == expected
    assert run_tasks(done)[0].settings.model.head == "classification"


def test_a_config_from_before_there_were_tasks_has_one(tmp_path):
    old = to_dict(defaults())
    for section, key in ((old, "tasks"), (old["data"], "continue_rows")):
        del section[key]
    (tmp_path / "config.json").write_text(json.dumps(old))
    read = load(tmp_path / "config.json")
    assert [task.name for task in run_tasks(read)] == [""]
    assert read.data.continue_rows is False


def test_the_flag_task_chooses_one_of_several():
    assert choose_task(settings(), name="words").settings.model.head == "masked_lm"
    one = settings()
    one.tasks = {}
    assert choose_task(one, name=None).settings is one
    for config, name, message in (
        (settings(), None, "--task is not set, and this run has several tasks: choose one of topi"),
        (settings(), "word", r"--task='word' does not exist. Did you mean 'words'\?"),
        (one, "words", "--task='words': this run has only one task: omit --task"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_task(config, name=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks.words.shares": 2}, r"tasks.words='shares'.*Did you mean 'share'\?"),
        ({"tasks.words.share": 0}, r"tasks.words.share=0 must be a number above 0"),
        ({"tasks.words.model.layers": 2}, r"tasks.words.model='layers' does not exist"),
        ({"tasks.words.data.batchsize": 2}, r"tasks.words.data='batchsize'.*'batch_size'"),
        ({"tasks.words.data.vocabulary": "x"}, r"tasks.words.data='vocabulary' does not"),
        ({"tasks.topics.data.batch_size": "x"}, r"tasks.topics.data: .*batch_size"),
        ({"tasks.words.data.batch_size": 9, "train.microbatches": 2}, r"tasks.words: .*=9 must"),
        ({"tasks": {"words": {"model": {"head": "x"}}, "b": {}}}, r"tasks.b.model.head is not"),
        ({"tasks": {"a/b": {}}}, r"tasks has the name 'a/b'"),
    ],
)
def test_wrong_tasks_are_named(changes, message):
    made = settings()
    with made.unlocked():
        for key, value in changes.items():
            if key == "tasks":
                made.tasks = value
            else:
                made.update_from_flattened_dict({key: value})
    with pytest.raises(ValueError, match=message):
        run_tasks(made)
