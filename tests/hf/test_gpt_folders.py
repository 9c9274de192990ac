"""Folders of GPT as they were published: other names of tensors, constants, and what is refused."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like.pretrained import from_pretrained

GOLDEN = dict(np.load(Path(__file__).resolve().parents[1] / "golden" / "gpt.npz"))
WEIGHTS = {
    name.removeprefix("weights/"): array
    for name, array in GOLDEN.items()
    if name.startswith("weights/")
}
CONFIG = json.loads(str(GOLDEN["config.json"]))


def write(folder, weights, **changes):
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def test_names_without_a_prefix_copies_and_constants_are_read(tmp_path):
    first = from_pretrained(write(tmp_path / "first", WEIGHTS))
    old = {name.removeprefix("transformer."): array for name, array in WEIGHTS.items()}
    old |= {f"h.{n}.attn.bias": np.ones((1, 1, 40, 40), np.float32) for n in range(2)}
    old["lm_head.weight"] = WEIGHTS["transformer.tokens_embed.weight"].copy()
    folder = write(tmp_path / "old", old, architectures=["OpenAIGPTModel"])
    jax.tree.map(np.testing.assert_array_equal, from_pretrained(folder).params, first.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["OpenAIGPTForSequenceClassification"]}, "OpenAIGPTLMHeadModel"),
        ({"afn": "relu"}, "config.json has afn='relu'; allowed: 'gelu'"),
        ({"n_layer": 3}, "transformer.h.2"),
    ],
)
def test_another_model_is_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(write(tmp_path / "other", WEIGHTS, **changes))
