"""BigBird-RoBERTa: both sides start from one BigBird, as Hugging Face's EncoderDecoderModel."""

import functools
import math
from pathlib import Path

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from configs import bigbird_roberta as configs
from t5x_like import systems
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.systems import bigbird_roberta

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bigbird_roberta.npz"
# Float32 sums of two frameworks differ in their order, by 1e-6 of logits near 1; a wrong weight or
# epsilon moves them by 1e-2 and more.
TOLERANCE = 1e-4
TINY = {
    "vocab_size": 74,
    "positions": 40,
    "layers": 3,
    "d_model": 24,
    "d_ff": 28,
    "heads": 3,
    "block": 2,
    "random": 2,
    "random_blocks": "first",
    "dropout": 0.0,
}


@functools.cache
def arrays():
    return dict(np.load(GOLDEN))


def group(name):
    prefix = f"{name}/"
    return {k.removeprefix(prefix): v for k, v in arrays().items() if k.startswith(prefix)}


def cross(params):
    """Hugging Face's cross-attention, which the folder of the BigBird lacks, in our layers."""
    given = group("cross")
    for n in range(TINY["layers"]):
        at, own = f"bert.encoder.layer.{n}.crossattention", {}
        for ours, theirs in (("query", "query"), ("key", "key"), ("value", "value")):
            own[ours] = {
                "kernel": given[f"{at}.self.{theirs}.weight"].T.reshape(24, 3, 8),
                "bias": given[f"{at}.self.{theirs}.bias"].reshape(3, 8),
            }
        own["out"] = {
            "kernel": given[f"{at}.output.dense.weight"].T.reshape(3, 8, 24),
            "bias": given[f"{at}.output.dense.bias"],
        }
        norm = f"{at}.output.LayerNorm"
        layer = params["decoder"]["layers"][f"layer_{n}"]
        layer["cross_attention"] = own
        layer["cross_attention_norm"] = {
            "scale": given[f"{norm}.weight"],
            "bias": given[f"{norm}.bias"],
        }
    return params


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The model of a run that starts from the folder, and its parameters."""
    folder = tmp_path_factory.mktemp("bigbird")
    save_file(group("weights"), folder / "model.safetensors")
    (folder / "config.json").write_text(str(arrays()["config.json"]))
    made = configs.get_config("base")
    made.initialize = str(folder)
    made.workdir = str(folder / "run")
    made.model.update({**TINY, "loop": "unroll"})
    made.data.vocabulary = ""
    model = model_side.build(of_config(made))
    return model, jax.tree.map(np.asarray, model.initial_state().params)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_logits_and_beams_of_a_warm_start_are_pytorch_s(started, kind):
    model, params = started
    pretrained = model.pretrained(cross(params))
    given = group(kind)
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    logits = pretrained(**{name: given[name] for name in names}).logits
    np.testing.assert_allclose(logits, given["logits"], atol=TOLERANCE, rtol=0)
    found = pretrained.generate(
        *(given[name] for name in names[:2]),
        max_new_tokens=9,
        num_beams=2,
        no_repeat_ngram_size=1,
        eos_token_id=None,
    )
    np.testing.assert_array_equal(found, given["generated"])


def test_only_cross_attention_is_new(started):
    """Its parameters are drawn like BERT's; all others are the BigBird's, on both sides."""
    _, params = started
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    for path, own in flat.items():
        if path.startswith("decoder/") and "cross_attention" not in path:
            np.testing.assert_array_equal(own, flat[path.replace("decoder/", "encoder/", 1)])


def test_parameters_of_the_base_model():
    """BigBird base with its output layer, a second stack with its tables, and cross-attention."""
    module = systems.build("bigbird_roberta", bigbird_roberta.SIZES["base"])
    shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), module.example_batch()))
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]))
    bigbird = 128_111_286  # Hugging Face's count of BigBirdForMaskedLM
    table, attention = 50_358 * 768, 4 * (768 * 768 + 768) + 2 * 768
    pooler = 768 * 768 + 768
    head = 768 * 768 + 768 + 2 * 768 + 50_358
    encoder = bigbird - table - pooler - head
    assert count == table + head + 2 * encoder + 12 * attention


def test_a_bigbird_without_an_output_layer_is_refused(started, tmp_path):
    del started
    weights = {k: v for k, v in group("weights").items() if k.startswith("bert.")}
    save_file(weights, tmp_path / "model.safetensors")
    config = str(arrays()["config.json"]).replace("BigBirdForMaskedLM", "BigBirdModel")
    (tmp_path / "config.json").write_text(config)
    made = configs.get_config("base")
    made.initialize, made.workdir = str(tmp_path), str(tmp_path / "run")
    made.model.update(TINY)
    made.data.vocabulary = ""
    with pytest.raises(ValueError, match=r"lm_head|cls\.predictions"):
        model_side.build(of_config(made)).initial_state()
