"""Decoders on a mesh: the gradients of one device, whatever is cut."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.systems import gpt_j, gpt_neox, llama, mixtral, opt, palm

SMALL = {"vocab_size": 64, "layers": 2, "d_model": 16, "d_ff": 64, "heads": 4}
SYSTEMS = {
    "llama": systems.build(
        "llama",
        llama.SIZES["7b"]
        | {"vocab_size": 64, "layers": 2, "d_model": 16, "d_ff": 40}
        | {"heads": 4, "kv_heads": 2, "head_width": 6, "window": 3},
    ),
    "palm": systems.build(
        "palm",
        palm.SIZES["8b"]
        | {"vocab_size": 64, "layers": 2, "d_model": 16, "d_ff": 64, "heads": 4, "head_width": 6},
    ),
    "mixtral": systems.build(
        "mixtral", mixtral.SIZES["8x7b"] | SMALL | {"kv_heads": 2, "head_width": 6, "experts": 4}
    ),
    "opt": systems.build("opt", opt.SIZES["350m"] | SMALL | {"d_embedding": 8}),
    "gpt_j": systems.build("gpt_j", gpt_j.SIZES["6b"] | SMALL | {"rotary_width": 2}),
    "gpt_neox": systems.build("gpt_neox", gpt_neox.SIZES["20b"] | SMALL | {"rotary_share": 0.5}),
}
FAST = ("llama", "palm")


@pytest.mark.parametrize(
    "system",
    [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SYSTEMS if name not in FAST)],
)
def test_gradients_on_a_mesh_are_those_of_one_device(system):
    module = SYSTEMS[system]
    tokens = jax.random.randint(jax.random.key(1), (8, 12), 1, 64)

    def loss(params, tokens):
        logits = module.apply({"params": params}, {"decoder_input_tokens": tokens})
        return jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1) - logits[..., 3]))

    def init():
        return module.init(jax.random.key(0), module.example_batch())["params"]

    params = jax.jit(lambda: nn.unbox(init()))()
    expected = jax.jit(jax.grad(loss))(params, tokens)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    axes = nn.get_partition_spec(jax.eval_shape(init))
    partitioning.check_divisible(mesh, params, axes)
    places = partitioning.shardings(mesh, axes)
    with partitioning.layout(mesh):
        found = jax.jit(jax.grad(loss), out_shardings=places)(
            jax.device_put(params, places),
            jax.device_put(tokens, partitioning.batch_sharding(mesh)),
        )
    for (path, x), y in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        # Float32 sums in another order; a wrong one is off by all of it.
        scale = np.max(np.abs(y))
        name = jax.tree_util.keystr(path)
        if system == "opt" and name.endswith("['key']['bias']"):
            # The same term in the scores of all keys: its gradient is 0 but for rounding.
            assert max(scale, np.max(np.abs(x))) < 1e-12
            continue
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * scale, err_msg=name)
