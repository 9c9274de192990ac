"""Configs: every setting explained, every wrong one named."""

import json

import pytest

from configs import t5
from t5x_like import config, systems
from t5x_like.config import parse, run_settings
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": {"lengths": {"inputs": "x"}}},
            r"data\.lengths\.inputs='x' must be a whole number",
        ),
        ({"data": {"lengths": {"inputs": 1.0}}}, r"data\.lengths\.inputs=1\.0 must be a whole"),
        ({"evaluate": {"averages": {"glue": 3}}}, r"evaluate\.averages\.glue=3 must be a dict"),
        ({"train": {"random_bits": "philox"}}, r"train\.random_bits='philox' does not exist"),
        ({"train": {"on_nonfinite": "skip"}}, r"train\.on_nonfinite='skip' does not exist"),
    ],
)
def test_values_of_another_type_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        run_settings.read(change)


@pytest.mark.parametrize(
    ("system", "change", "message"),
    [
        ("t5", {"embedding_lookup": "x"}, r"model\.embedding_lookup='x' must be 'gather' or 'one_"),
        ("bert", {"head": 1}, r"model\.head=1 must be a string or a dict"),
        ("bert", {"head": {"cola": 1}}, r"model\.head\.cola=1 must be a dict"),
        ("bert", {"token_types": 0}, r"model\.token_types=0 must be an integer, 1 or more"),
        ("bert", {"heads": 5}, r"model\.heads=5 must divide model\.d_model=768"),
        ("deberta", {"relative_span": 0}, r"model\.relative_span=0 must be an integer, 1 or more"),
        ("albert", {"groups": 0}, r"model\.groups=0 must be an integer, 1 or more"),
        ("dpo", {"policy": {"x": 1}}, r"model\.policy lacks 'system'"),
        ("reward_model", {"trunk": {"system": "t5"}}, r"model\.trunk lacks 'vocab_size'"),
        ("distilbert", {"teacher": {"x": 1}}, r"model\.teacher lacks 'system'"),
        ("llama", {"rope_scaling": 2.0}, r"model\.rope_scaling=2\.0 must be a dict"),
        ("llama", {"rope_theta": 0.0}, r"model\.rope_theta=0\.0 must be a number above 0"),
    ],
)
def test_settings_of_a_model_have_their_types(system, change, message):
    size = next(iter(systems.find(system).sizes.values()))
    with pytest.raises(ValueError, match=message):
        systems.build(system, size | change)


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
