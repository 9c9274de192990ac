"""Mixtral: Hugging Face's settings, and what is refused."""

import pytest

from t5x_like import systems
from t5x_like.systems import mixtral
from t5x_like.systems.mixtral import HUGGING_FACE

TINY = mixtral.SIZES["8x7b"] | {"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2}
TINY |= {"head_width": 6, "d_ff": 40, "experts": 5}


def test_settings_come_back_from_those_of_hugging_face():
    for changes in ({}, {"window": 5}, {"chosen": 3}, {"rope_theta": 5e5}):
        config = HUGGING_FACE.to_config(TINY | changes)
        assert config["architectures"] == ["MixtralForCausalLM"]
        assert HUGGING_FACE.from_config(config, names=()) == TINY | changes


def test_settings_of_a_folder_without_them_are_those_of_hugging_face_s_class():
    config = HUGGING_FACE.to_config(TINY | {"experts": 8, "kv_heads": 8})
    for name in ("rope_parameters", "rope_theta", "num_key_value_heads", "num_local_experts"):
        del config[name]
    found = HUGGING_FACE.from_config(config, names=())
    assert (found["rope_theta"], found["kv_heads"], found["experts"]) == (1e6, 8, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router_jitter_noise": 0.1}, "router_jitter_noise=0.1; allowed: 0.0"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'; allowed: 'silu'"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok=0; allowed: an integer from 1"),
        ({"num_experts": 4}, "num_experts, another name of num_local_experts,=4; allowed: 5"),
    ],
)
def test_what_this_mixtral_does_not_have(changes, message):
    with pytest.raises(ValueError, match=message):
        HUGGING_FACE.from_config(HUGGING_FACE.to_config(TINY) | changes, names=())


def test_more_choices_than_experts_and_dropped_tokens_are_refused():
    with pytest.raises(ValueError, match=r"model.chosen=6 must be from 1 to model.experts=5"):
        systems.build("mixtral", TINY | {"chosen": 6})
    with pytest.raises(ValueError, match=r"model.dispatch='capacity': Hugging Face's class"):
        HUGGING_FACE.to_config(TINY | {"dispatch": "capacity"})
