"""The setting `tasks`: what each task of a run changes, and errors that name what is wrong."""

import json

import pytest

from t5x_like.config import defaults, load, parse, to_dict
from t5x_like.experiment import completion
from t5x_like.experiment.run import choose_part, of_config
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


def test_each_task_has_settings_of_its_own():
    topics, words = of_config(settings()).parts
    assert (topics.name, topics.share, words.name, words.share) == ("topics", 1.0, "words", 3.0)
    assert topics.model["labels"] == 5
    assert topics.model["head"] == "classification"
    assert topics.data.lengths == {"inputs": 24}  # in place of the run's
    assert topics.data.batch_size == defaults().data.batch_size
    assert topics.evaluate.batches == 7
    assert topics.loss == {}
    assert words.data.batch_size == 16
    assert words.model["labels"] == 2


def test_a_run_of_one_task_has_the_settings_of_the_config():
    alone = settings()
    alone.tasks = {}
    [task] = of_config(alone).parts
    assert (task.name, task.share) == ("", 1.0)
    assert (task.data, task.evaluate) == (parse(alone).data, parse(alone).evaluate)
    assert task.model == parse(alone).model


def test_the_network_gets_the_heads_of_all_tasks():
    expected = {
        "words": {"head": "masked_lm", "labels": 2},
        "topics": {"head": "classification", "labels": 5},
    }
    assert of_config(settings()).heads == expected
    done = completion.complete(of_config(settings()))
    assert done.settings.model["head"] == expected
    assert completion.complete(done).settings.model["head"] == expected
    assert done.parts[0].model["head"] == "classification"


def test_a_config_from_before_there_were_tasks_has_one(tmp_path):
    old = to_dict(parse(defaults()))
    for section, key in ((old, "tasks"), (old["data"], "continue_rows")):
        del section[key]
    (tmp_path / "config.json").write_text(json.dumps(old))
    read = load(tmp_path / "config.json")
    assert [task.name for task in of_config(read).parts] == [""]
    assert read.data.continue_rows is False


def test_the_flag_task_chooses_one_of_several():
    assert choose_part(of_config(settings()).parts, name="words").model["head"] == "masked_lm"
    one = settings()
    one.tasks = {}
    assert choose_part(of_config(one).parts, name=None).name == ""
    for config, name, message in (
        (settings(), None, "--task is not set, and this run has several tasks: choose one of topi"),
        (settings(), "word", r"--task='word' does not exist. Did you mean 'words'\?"),
        (one, "words", "--task='words': this run has only one task: omit --task"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_part(of_config(config).parts, name=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks.words.shares": 2}, r"tasks.words='shares'.*Did you mean 'share'\?"),
        ({"tasks.words.share": 0}, r"tasks.words.share=0 must be a number above 0"),
        ({"tasks.words.model.layers": 2}, r"tasks.words.model='layers' does not exist"),
        ({"tasks.words.data.batchsize": 2}, r"tasks.words.data='batchsize'.*'batch_size'"),
        ({"tasks.words.data.vocabulary": "x"}, r"tasks.words.data='vocabulary' does not"),
        ({"tasks.topics.data.batch_size": "x"}, r"data.batch_size='x' must be a whole number"),
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
        of_config(made)
