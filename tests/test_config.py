"""Configs: every setting explained, every wrong one named."""

import json

import pytest

from configs import t5
from t5x_like import config
from t5x_like.systems.t5 import SIZES


def test_defaults_are_complete_and_valid():
    settings = config.defaults()
    config.check(settings)
    for key in config.SETTINGS:
        node = settings
        for part in key.split("."):
            node = node[part]


def test_a_key_that_nothing_reads_is_named_with_the_nearest():
    settings = config.defaults()
    settings.train.step = 5
    with pytest.raises(ValueError, match=r"'train\.step'.*Did you mean 'train\.steps'"):
        config.check(settings)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps", 0, r"train\.steps=0 must be 1 or more"),
        ("microbatches", 3, r"microbatches=3 does not divide data\.batch_size=128"),
    ],
)
def test_values_are_checked(key, value, message):
    settings = config.defaults()
    settings.train[key] = value
    with pytest.raises(ValueError, match=message):
        config.check(settings)


def test_a_config_survives_being_written(tmp_path):
    settings = t5.get_config("base")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict(settings)))
    assert json.loads(path.read_text())["model"]["d_model"] == 768


@pytest.mark.parametrize("size", ["demo", *SIZES])
def test_the_configs_of_t5_are_valid(size):
    config.check(t5.get_config(size))


def test_a_size_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match=r"no size 'huge'.*demo"):
        t5.get_config("huge")


# Of ml_collections, which loads a config so.
@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
def test_settings_that_a_config_lacks_are_told_apart_from_those_it_has():
    line = ["train", "--config=configs/t5.py:small"]
    own = ["--config.train.steps=7", "--config.model.dropout=0.1", "--config.trian.steps=3"]
    new = ["--config.data.settings.files=corpus/*.gz", "--config.optimizer.b1=0.8"]
    rest, additions = config.split_additions([*line, *own, *new])
    assert rest == [*line, *own]
    assert additions == {"data.settings.files": "corpus/*.gz", "optimizer.b1": 0.8}


@pytest.mark.parametrize("file", ["configs/t6.py", "configs/t5.py:smal", "setup.cfg"])
def test_a_config_that_cannot_be_read_is_left_to_its_flag(file):
    line = ["train", f"--config={file}", "--config.data.settings.files=a.txt"]
    assert config.split_additions(line) == (line, {})
