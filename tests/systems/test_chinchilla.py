"""Chinchilla: its sizes, and what its table of fifty networks counts as parameters."""

import math

import flax.linen as nn
import jax
import pytest

from configs import chinchilla as config
from t5x_like import systems
from t5x_like.experiment.run import of_config
from t5x_like.systems import chinchilla, gopher

# Table A9, in millions: rows that differ in which vectors are counted, as d_model and
# heads * head_width differ, or as the count is near a half.
TABLE_A9 = {
    552: (24, 1280, 10, 128),
    2_980: (34, 2560, 20, 128),
    3_530: (36, 2688, 22, 128),
    13_735: (47, 4864, 32, 128),
    14_940: (49, 4992, 32, 128),
    16_183: (47, 5120, 40, 128),
}
PUBLISHED = {  # table A9, and section 4 for the largest
    "74m": "74M",
    "306m": "306M",
    "552m": "552M",
    "1.1b": "1143M",
    "1.6b": "1593M",
    "6.8b": "6796M",
    "70b": "70B",
}


def count(settings):
    """Parameters by shape, without the gains of norms."""
    module = systems.build("chinchilla", settings)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return sum(
        math.prod(leaf.shape)
        for path, leaf in jax.tree.leaves_with_path(nn.unbox(boxed)["params"])
        if "scale" not in jax.tree_util.keystr(path)
    )


@pytest.mark.parametrize("millions", TABLE_A9)
def test_counts_of_table_a9_are_met_to_the_million(millions):
    layers, d_model, heads, head_width = TABLE_A9[millions]
    found = count(gopher.size(layers, d_model, heads=heads, head_width=head_width))
    assert round(found / 1e6) == millions


@pytest.mark.parametrize("size", chinchilla.SIZES)
def test_parameters_as_published(size):
    found = count(chinchilla.SIZES[size])
    published = PUBLISHED[size]
    assert published in (f"{found / 1e6:.0f}M", f"{found / 1e9:.0f}B")
    assert config.parameters(chinchilla.SIZES[size]) == found


def test_the_largest_is_trained_on_1_4_trillion_tokens_half_of_them_in_larger_batches():
    settings = config.get_config("70b")
    tokens = [
        phase.data.batch_size * 2048 * (phase.last - phase.first)
        for phase in (of_config(settings).phases)
    ]
    assert sum(tokens) == pytest.approx(1.4e12, rel=0.01)
    assert tokens[0] == pytest.approx(tokens[1], rel=1e-5)
    assert settings.optimizer.decay_steps == settings.train.steps


# Table 3: FLOPs, parameters, tokens.
@pytest.mark.parametrize(
    ("flops", "parameters", "tokens"),
    [
        (1.92e19, 400e6, 8.0e9),
        (1.23e22, 10e9, 205.1e9),
        (5.76e23, 67e9, 1.5e12),
        (9.90e24, 280e9, 5.9e12),
        (1.30e28, 10e12, 216.2e12),
    ],
)
def test_twenty_tokens_a_parameter_are_nearly_table_3(flops, parameters, tokens):
    assert config.compute_optimal(flops) == pytest.approx((parameters, tokens), rel=0.1)
