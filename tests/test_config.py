"""Configs: every setting explained, every wrong one named."""

import json

import pytest

from configs import t5
from t5x_like import config
from t5x_like.config import parse
from t5x_like.experiment.run import of_config
from t5x_like.systems.t5 import SIZES


def test_defaults_are_complete_and_valid():
    settings = config.defaults()
    of_config(settings)
    for key in config.SETTINGS:
        node = settings
        for part in key.split("."):
            node = node[part]


def test_a_key_that_nothing_reads_is_named_with_the_nearest():
    settings = config.defaults()
    settings.train.step = 5
    with pytest.raises(ValueError, match=r"'train\.step'.*Did you mean 'train\.steps'"):
        of_config(settings)


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
        of_config(settings)


def test_a_config_survives_being_written(tmp_path):
    settings = t5.get_config("base")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict(parse(settings))))
    assert json.loads(path.read_text())["model"]["d_model"] == 768


OTHERS = ("demo", "fine_tuning", "adapters", "gradual_unfreezing", "multi_task", "glue")


@pytest.mark.parametrize("size", [*OTHERS, *SIZES])
def test_the_configs_of_t5_are_valid(size):
    of_config(t5.get_config(size))


def test_a_size_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match=r"no size 'huge'.*demo"):
        t5.get_config("huge")
