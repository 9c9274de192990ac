"""LoRA adapters of PEFT: read, merged, continued, and written as PEFT reads them.

The expected logits are PEFT's, with Hugging Face's models (tests/golden/make_lora.py).
"""

import json
import pathlib

import flax.traverse_util
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like import systems
from t5x_like.nn import lora
from t5x_like.pretrained import from_pretrained, loading, peft
from t5x_like.pretrained.weight_source import open_source
from tests.golden import drawn_weights

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "lora.npz")
RANK, ALPHA = 3, 2


def draw(name, file):
    shapes = json.loads(str(GOLDEN[f"{name}/{file}.json"]))
    return {key: drawn_weights.draw(key, tuple(shape)) for key, shape in shapes.items()}


def write(name, folder, **changes):
    """The folders of a base model and of its adapter, as Hugging Face and PEFT wrote them."""
    for part in ("base", "adapter"):
        (folder / part).mkdir()
    (folder / "base" / "config.json").write_text(str(GOLDEN[f"{name}/config.json"]))
    save_file(draw(name, "tensors"), folder / "base" / "model.safetensors")
    config = json.loads(str(GOLDEN[f"{name}/adapter_config.json"]))
    config |= {"base_model_name_or_path": str(folder / "base"), **changes}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    save_file(draw(name, "adapter"), folder / "adapter" / "adapter_model.safetensors")
    return folder / "adapter"


def check_logits(found, name):
    """Compare logits with PEFT's, outside padding."""
    batch = {key: GOLDEN[f"{name}/inputs/{key}"] for key in inputs(name)}
    logits, expected = np.asarray(found(**batch).logits), GOLDEN[f"{name}/logits"]
    mask = batch.get("decoder_attention_mask", batch["attention_mask"]) == 1
    real = mask if expected.ndim == 3 else slice(None)
    np.testing.assert_allclose(logits[real], expected[real], rtol=1e-5, atol=1e-5)


def inputs(name):
    prefix = f"{name}/inputs/"
    return [key.removeprefix(prefix) for key in GOLDEN.files if key.startswith(prefix)]


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2", "llama"])
def test_an_adapter_is_a_model(name, tmp_path):
    check_logits(from_pretrained(write(name, tmp_path)), name)


def test_the_head_of_an_adapter_may_be_missing_in_its_base(tmp_path):
    folder = write("bert", tmp_path)
    base = tmp_path / "base"
    config = json.loads((base / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    for name in ("id2label", "label2id"):
        config.pop(name, None)
    (base / "config.json").write_text(json.dumps(config))
    tensors = load_file(base / "model.safetensors")
    tensors = {name: x for name, x in tensors.items() if not name.startswith("classifier")}
    tensors["cls.predictions.bias"] = np.zeros(drawn_weights.VOCABULARY, np.float32)
    save_file(tensors, base / "model.safetensors")
    check_logits(from_pretrained(folder), "bert")


def continued(folder, *, targets, scale):
    """The model of an adapter's folder with its matrices apart, and all parameters by path."""
    source, model = open_source(folder), from_pretrained(folder)
    shapes = loading.parameter_shapes(model.module, dtype=np.float32, mesh=None)
    layers = lora.linear_layers(model.module, shapes)
    chosen = {path: layers[path] for path in lora.choose_layers(layers, targets)}
    axes = jax.tree.map(lambda x: (None,) * len(x.shape), shapes)
    wanted, _ = lora.extend(shapes, axes, chosen, rank=RANK)
    wanted = flax.traverse_util.flatten_dict(wanted, sep="/")
    assert source.available(wanted) == wanted.keys()
    params = source.read(wanted, whole=True)
    model.params = lora.scaled(flax.traverse_util.unflatten_dict(params, sep="/"), scale=scale)
    return model, {path: np.asarray(x) for path, x in params.items()}


def write_again(model, params, folder, *, alpha, trained=()):
    matrices = {path: x for path, x in params.items() if lora.is_matrix(path) or path in trained}
    peft.write(
        folder,
        matrices,
        {path: x.shape for path, x in params.items()},
        weights=systems.hugging_face_format(model.system).of(model.config).weights,
        rank=RANK,
        alpha=alpha,
        base="base",
        task=peft.task_of(
            model.config.get("head", ""),
            sides=model.module.sides,
            generates=model.module.generates,
        ),
    )
    config = json.loads((folder / "adapter_config.json").read_text())
    return load_file(folder / "adapter_model.safetensors"), config


@pytest.mark.parametrize(
    ("name", "targets", "alpha", "trained"),
    [
        ("bert", ("query", "value"), ALPHA, ("head/classifier/kernel", "head/classifier/bias")),
        # With use_rslora the product counts alpha / sqrt(rank) times.
        ("t5", ("query", "value", "out", "wi", "wo"), ALPHA * RANK**0.5, ()),
    ],
)
def test_matrices_are_continued_and_written_as_they_were(name, targets, alpha, trained, tmp_path):
    folder = write(name, tmp_path)
    np.testing.assert_allclose(open_source(folder).lora["alpha"], alpha)
    model, params = continued(folder, targets=targets, scale=alpha / RANK)
    check_logits(model, name)
    written, config = write_again(model, params, tmp_path / "again", alpha=alpha, trained=trained)
    theirs = json.loads(str(GOLDEN[f"{name}/adapter_config.json"]))
    assert config["task_type"] == theirs["task_type"]
    expected = draw(name, "adapter")
    assert written.keys() == expected.keys()
    for key, tensor in expected.items():
        np.testing.assert_array_equal(written[key], tensor)
    (tmp_path / "again" / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(tmp_path / "base")})
    )
    check_logits(from_pretrained(tmp_path / "again"), name)


def test_layers_that_are_one_module_share_its_first_matrix(tmp_path):
    model, params = continued(
        write("gpt2", tmp_path), targets=("self_attention", "wo"), scale=ALPHA / RANK
    )
    check_logits(model, "gpt2")
    layer = "decoder/layers/block/self_attention"
    np.testing.assert_array_equal(params[f"{layer}/query/lora_a"], params[f"{layer}/key/lora_a"])


def test_gpt2_s_query_key_and_value_get_a_block_each(tmp_path):
    write("gpt2", tmp_path)
    model = from_pretrained(tmp_path / "base")
    flat = flax.traverse_util.flatten_dict(jax.device_get(model.params), sep="/")
    width, heads = 24, 3
    for name in ("query", "key", "value"):
        path = f"decoder/layers/block/self_attention/{name}"
        a = [drawn_weights.draw(f"{n}/{name}/a", (RANK, width)).T for n in range(2)]
        b = [drawn_weights.draw(f"{n}/{name}/b", (width, RANK)).T for n in range(2)]
        flat[f"{path}/lora_a"] = np.stack(a)
        flat[f"{path}/lora_b"] = np.stack(b).reshape(2, RANK, heads, width // heads)
    params = flax.traverse_util.unflatten_dict(flat, sep="/")
    model.params = lora.scaled(params, scale=ALPHA / RANK)
    check_logits(model, "gpt2_blocks")
    written, config = write_again(model, flat, tmp_path / "again", alpha=ALPHA)
    expected = json.loads(str(GOLDEN["gpt2_blocks/adapter_config.json"]))
    expected["target_modules"] = sorted(expected["target_modules"])
    assert config == {key: expected[key] for key in config} | {"base_model_name_or_path": "base"}
    for layer in range(2):
        module = f"transformer.h.{layer}.attn.c_attn"
        assert module in config["target_modules"]
        a, b = (written[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        for n, name in enumerate(("query", "key", "value")):
            block = slice(n * RANK, (n + 1) * RANK)
            np.testing.assert_array_equal(
                a[block], drawn_weights.draw(f"{layer}/{name}/a", (RANK, width))
            )
            np.testing.assert_array_equal(
                b[n * width : (n + 1) * width, block],
                drawn_weights.draw(f"{layer}/{name}/b", (width, RANK)),
            )
            assert np.count_nonzero(b[:, block]) == width * RANK


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3' is not supported; 'LORA' is"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' is not supported: it changes"),
        ({"base_model_name_or_path": "bert"}, "base_model_name_or_path='bert', which is not a"),
        ({"r": 4}, r"has matrices of shapes \[3, 24\] and \[24, 3\]; .* implies the rank 4"),
    ],
)
def test_an_adapter_that_is_not_supported_is_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_source(write("bert", tmp_path, **changes))
