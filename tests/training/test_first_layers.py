"""The first layers of one tree of parameters and the others of another, however layers are held."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.nn.stack import logical_axes
from t5x_like.systems import bert, gpt3, t5
from t5x_like.training.layer_rates import by_path, first_layers

TINY = {"vocab_size": 31, "d_model": 8, "d_ff": 12, "heads": 2, "layers": 4}
ALSO = {"positions": 9, "head_width": 4, "d_kv": 4, "encoder_layers": 3, "decoder_layers": 3}


def read(system, sizes, *, loop, layers):
    """The paths that are read of ones, and the share of each array, where the others are zeros."""
    own = {name: value for name, value in (TINY | ALSO).items() if name in sizes}
    module = systems.build(system, sizes | own | {"loop": loop})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    axes, shapes = logical_axes(boxed), nn.unbox(boxed)
    one, zero = (jax.tree.map(lambda x, v=v: np.full(x.shape, v), shapes) for v in (1.0, 0.0))
    return by_path(first_layers(one, zero, axes=axes, layers=layers))


@pytest.mark.parametrize("layers", [0, 1, 4])
def test_scanned_layers(layers):
    for path, x in read("bert", bert.SIZES["base"], loop="scan", layers=layers).items():
        if "/layers/" in path:
            assert [row.mean() for row in x] == [1.0] * layers + [0.0] * (4 - layers)
        else:
            assert x.mean() == 1.0


def test_unrolled_layers():
    for path, x in read("bert", bert.SIZES["base"], loop="unroll", layers=2).items():
        assert x.mean() == (0.0 if "layer_2" in path or "layer_3" in path else 1.0)


def test_layers_in_groups():
    """Of two groups of two layers, three layers are read: the second layer of the second is not."""
    for path, x in read("gpt3", gpt3.SIZES["small"], loop="scan", layers=3).items():
        if "/layers/" in path:
            assert [row.mean() for row in x] == [1.0, 0.0 if "block_1" in path else 1.0]


def test_both_sides_of_an_encoder_decoder():
    for path, x in read("t5", t5.SIZES["small"], loop="scan", layers=1).items():
        if "/layers/" in path:
            assert [row.mean() for row in x] == [1.0, 0.0, 0.0]
