"""GPT-NeoX: its published sizes, Hugging Face's settings, and what is refused."""

import math

import flax.linen as nn
import jax
import pytest

from t5x_like import systems
from t5x_like.systems import gpt_neox
from t5x_like.systems.gpt_neox import HUGGING_FACE

# Of the released checkpoints.
PUBLISHED = {
    "20b": 20_554_567_680,
    "pythia_70m": 70_426_624,
    "pythia_160m": 162_322_944,
    "pythia_410m": 405_334_016,
    "pythia_1b": 1_011_781_632,
    "pythia_1_4b": 1_414_647_808,
    "pythia_2_8b": 2_775_208_960,
    "pythia_6_9b": 6_857_302_016,
    "pythia_12b": 11_846_072_320,
}
TINY = gpt_neox.SIZES["pythia_70m"] | {"layers": 2, "d_model": 24, "d_ff": 28, "heads": 3}


def counted(config):
    d, f = config["d_model"], config["d_ff"]
    layers = config["layers"] * (4 * d * (d + 1) + 2 * d * f + f + 5 * d)
    return 2 * config["vocab_size"] * d + layers + 2 * d


def test_parameters_as_published():
    module = systems.build("gpt_neox", gpt_neox.SIZES["pythia_70m"])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    leaves = jax.tree.leaves(nn.unbox(boxed)["params"])
    assert sum(math.prod(leaf.shape) for leaf in leaves) == PUBLISHED["pythia_70m"]
    assert {size: counted(config) for size, config in gpt_neox.SIZES.items()} == PUBLISHED


def test_settings_come_back_from_those_of_hugging_face():
    for changes in ({}, {"rotary_share": 1.0, "rope_theta": 500.0}, {"parallel": False}):
        config = HUGGING_FACE.to_config(TINY | changes)
        assert HUGGING_FACE.from_config(config, names=()) == TINY | changes
        del config["rope_parameters"]  # as before version 5 of transformers
        assert HUGGING_FACE.from_config(config, names=()) == TINY | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": False}, "attention_bias=False; allowed: True"),
        ({"hidden_dropout": 0.1}, r"hidden_dropout=0.1; allowed: 0.0"),
        ({"hidden_act": "relu"}, "hidden_act='relu'; allowed: 'gelu', 'gelu_fast'"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_type='linear'; allowed: 'default'",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 2}},
            "partial_rotary_factor=2; allowed: a number from 0 to 1",
        ),
    ],
)
def test_what_this_gpt_neox_does_not_have(changes, message):
    with pytest.raises(ValueError, match=message):
        HUGGING_FACE.from_config(HUGGING_FACE.to_config(TINY) | changes, names=())


@pytest.mark.parametrize("share", [0.05, 0.4, 1.5])
def test_a_share_has_whole_pairs(share):
    with pytest.raises(ValueError, match="must be even, and from 2 to 8"):
        systems.build("gpt_neox", TINY | {"rotary_share": share})
