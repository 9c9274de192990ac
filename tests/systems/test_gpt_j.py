"""GPT-J: its published size, old folders, and what is refused."""

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
from t5x_like.systems import gpt_j
from t5x_like.systems.gpt_j import HUGGING_FACE

GOLDEN = dict(np.load(Path(__file__).resolve().parents[1] / "golden" / "gptj.npz"))
CONFIG = json.loads(str(GOLDEN["config.json"]))


def test_parameters_as_published():
    module = systems.build("gpt_j", gpt_j.SIZES["6b"])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    leaves = jax.tree.leaves(nn.unbox(boxed)["params"])
    assert sum(math.prod(leaf.shape) for leaf in leaves) == 6_050_882_784


def test_a_folder_with_constants_is_read(tmp_path):
    weights = {
        name.removeprefix("weights/"): array
        for name, array in GOLDEN.items()
        if name.startswith("weights/")
    }
    for layer in range(2):
        own = f"transformer.h.{layer}.attn"
        weights |= {f"{own}.bias": np.ones((1, 1, 40, 40)), f"{own}.masked_bias": np.ones(())}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"n_inner": 28}))
    found = from_pretrained(tmp_path).params["lm_head"]["bias"]
    np.testing.assert_array_equal(found, weights["lm_head.bias"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "relu"}, "activation_function='relu'; allowed: 'gelu_new'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True; allowed: False"),
        ({"attn_pdrop": 0.1}, "attn_pdrop=0.1; allowed: 0.0"),
        ({"rotary_dim": None}, "rotary_dim=None; allowed: an integer from 1"),
    ],
)
def test_what_this_gpt_j_does_not_have(changes, message):
    with pytest.raises(ValueError, match=message):
        HUGGING_FACE.from_config(CONFIG | changes, names=())


@pytest.mark.parametrize("width", [3, 12])
def test_a_rotated_width_has_whole_pairs_within_a_head(width):
    with pytest.raises(ValueError, match=f"model.rotary_width={width} must be even, and from 2"):
        systems.build("gpt_j", HUGGING_FACE.from_config(CONFIG, names=()) | {"rotary_width": width})
