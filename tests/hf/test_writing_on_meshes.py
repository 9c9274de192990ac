"""What writes on several devices: the same tokens, and a cache that is cut as the model is."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.pretrained.model import Pretrained

LLAMA = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 4, "kv_heads": 2, "head_width": 4}
PALM = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 4, "head_width": 4}
T5 = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 4, "d_kv": 4}
# Of the keys and values, [B, G, S, K]: rows over data and fsdp, heads over model.
BY_HEADS, BY_ROWS = {None, "model"}, {None}
TINY = {"llama": (LLAMA, BY_HEADS), "palm": (PALM, BY_ROWS), "t5": (T5, BY_HEADS)}
MESH = {"data": 2, "fsdp": 2, "model": 2}


@pytest.fixture(params=TINY)
def models(request):
    """One on a device, one on eight."""
    system = request.param
    sizes = next(iter(systems.find(system).sizes.values()))
    config = sizes | TINY[system][0] | {"vocab_size": 48}
    module = systems.build(system, config)
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch()))
    params = jax.jit(lambda: nn.unbox(module.init(jax.random.key(0), module.example_batch())))()
    # Large enough that what is written depends on every layer.
    params = jax.tree.map(lambda x: 2 * x, params["params"])
    mesh = partitioning.make_mesh(MESH)
    axes = nn.get_partition_spec(boxed)["params"]
    spread = jax.device_put(params, partitioning.shardings(mesh, axes))
    one = Pretrained(module, params, system=system, config=config)
    return one, Pretrained(module, spread, system=system, config=config, mesh=mesh)


def prompts():
    tokens = np.random.default_rng(0).integers(2, 48, (4, 6))
    mask = np.ones_like(tokens)
    mask[1, :3] = mask[2, :1] = 0
    return tokens, mask


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"num_beams": 2}, id="beams", marks=pytest.mark.slow),
    ],
)
def test_eight_devices_write_what_one_does(models, settings):
    settings = {"max_new_tokens": 5, "eos_token_id": None, **settings}
    one, eight = (model.generate(*prompts(), **settings) for model in models)
    np.testing.assert_array_equal(eight, one)
    assert len(np.unique(one[:, -5:])) > 2


def test_a_cache_is_cut_as_the_model_is(models):
    _, model = models
    tokens, mask = prompts()
    arguments = {"decoder_input_tokens": tokens, "decoder_mask": mask != 0}
    if hasattr(model.module, "encode"):
        arguments = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens[:, :1]}
    with partitioning.layout(model.mesh):
        _, cache = model.generator.prefill(arguments, cache_length=10)
    for x in jax.tree.leaves([dataclasses.asdict(layer)["own"] for layer in cache.layers]):
        rows, heads, *_ = (*x.sharding.spec, None, None, None)[:4]
        assert set(rows) == {"data", "fsdp"}
        assert heads in TINY[model.system][1]
