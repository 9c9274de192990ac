"""OPT: its published sizes, old folders, and what is refused."""

import json
import math
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import systems
from t5x_like.pretrained import from_pretrained
from t5x_like.systems import opt
from t5x_like.systems.opt import HUGGING_FACE

# Of the released checkpoints; the largest two have no more than the name's digits.
PUBLISHED = {
    "125m": 125_239_296,
    "350m": 331_196_416,
    "1_3b": 1_315_758_080,
    "2_7b": 2_651_596_800,
    "6_7b": 6_658_473_984,
    "13b": 12_853_473_280,
    "30b": 29_974_540_288,
}
GOLDEN = dict(np.load(Path(__file__).resolve().parents[1] / "golden" / "opt.npz"))
CONFIG = json.loads(str(GOLDEN["config.json"]))


def parameters(config):
    module = systems.build("opt", config)
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)["params"]))


def counted(config):
    d, e = config["d_model"], config["d_embedding"]
    tables = config["vocab_size"] * e + (config["positions"] + 2) * d
    layers = config["layers"] * (4 * d * (d + 1) + 2 * d * config["d_ff"] + config["d_ff"] + 5 * d)
    return tables + layers + (2 * e * d if e != d else 2 * d)


def test_parameters_as_published():
    assert parameters(opt.SIZES["125m"]) == PUBLISHED["125m"]
    assert parameters(opt.SIZES["350m"]) == PUBLISHED["350m"]
    found = {size: counted(config) for size, config in opt.SIZES.items()}
    assert {size: found[size] for size in PUBLISHED} == PUBLISHED
    assert [round(found[size] / 1e9) for size in ("66b", "175b")] == [66, 175]


def test_a_headless_folder_without_a_prefix_is_read(tmp_path):
    weights = {
        name.removeprefix("weights/model."): array
        for name, array in GOLDEN.items()
        if name.startswith("weights/")
    }
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["OPTModel"]}))
    table = from_pretrained(tmp_path).params["token_embedder"]["embedding"]
    np.testing.assert_array_equal(table, weights["decoder.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "gelu"}, "activation_function='gelu'; allowed: 'relu'"),
        ({"enable_bias": False}, "enable_bias=False; allowed: True"),
        ({"word_embed_proj_dim": 18}, "with word_embed_proj_dim=18; allowed: 24"),
        ({"num_attention_heads": 5}, "a multiple of num_attention_heads, which is 5"),
    ],
)
def test_what_this_opt_does_not_have(changes, message):
    with pytest.raises(ValueError, match=message):
        HUGGING_FACE.from_config(CONFIG | changes, names=())


def test_narrow_embeddings_need_norms_after_sublayers():
    with pytest.raises(ValueError, match=r"model.d_embedding=512 must be model.d_model=1024"):
        systems.build("opt", opt.SIZES["350m"] | {"post_norm": False})
