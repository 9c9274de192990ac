"""umT5 in Hugging Face's format: logits, generated tokens, and the way back."""

import json

import flax.serialization
import flax.traverse_util
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from t5x_like import convert
from t5x_like.hf.folder import read_json
from t5x_like.nn.stack import unstack_layers
from t5x_like.pretrained import from_pretrained
from tests.hf.conftest import Golden

# As for T5's folders; with the bias of another layer the logits move by 0.1 and more.
TOLERANCE = 1e-4
BIAS = "{}.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return Golden("umt5", tmp_path_factory.mktemp("umt5"))


@pytest.fixture(scope="module")
def model(golden):
    return from_pretrained(golden.folder)


def test_the_logits_are_those_of_pytorch(golden, model):
    assert model.system == "umt5"
    assert golden.error(model(**golden.batch).logits) < TOLERANCE


def test_each_layer_has_its_own_bias(golden, model):
    for tower in ("encoder", "decoder"):
        attention = model.params[tower]["layers"]["block"]["self_attention"]
        found = attention["relative_position_bias"]["embedding"]
        for layer, table in enumerate(found):
            np.testing.assert_array_equal(table, golden.weights[BIAS.format(tower, layer)])
        assert not np.array_equal(found[0], found[1])


def test_what_is_generated_is_what_pytorch_generates(golden, model):
    for number in (0, 4):  # greedy, and with beams
        settings = json.loads(str(golden.arrays["settings"]))[number]
        found = model.generate(**golden.source, **settings)
        np.testing.assert_array_equal(found, golden.arrays[f"generate/{number}"], str(settings))


def test_a_tied_output_layer_is_scaled(golden, tmp_path):
    weights = {name: w for name, w in golden.weights.items() if name != "lm_head.weight"}
    model = from_pretrained(golden.write(tmp_path, weights=weights, tie_word_embeddings=True))
    assert golden.error(model(**golden.batch).logits, expected="tied_logits") < TOLERANCE
    # Without a tensor for it the output layer is tied, whatever the setting is.
    again = from_pretrained(golden.write(tmp_path, weights=weights))
    assert again.config == model.config
    model.save_pretrained(tmp_path / "out")
    assert read_json(tmp_path / "out" / "config.json")["tie_word_embeddings"] is True


def test_a_folder_is_written_as_it_was_read(golden, model, tmp_path):
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == golden.weights.keys()
    for name, weight in golden.weights.items():
        np.testing.assert_array_equal(written[name], weight, err_msg=name)
    found = read_json(tmp_path / "config.json")
    shared = found.keys() & golden.config.keys()
    assert {key: found[key] for key in shared} == {key: golden.config[key] for key in shared}
    assert found["architectures"] == ["UMT5ForConditionalGeneration"]
    assert from_pretrained(tmp_path).config == model.config


def test_a_looped_stack_has_the_same_weights(golden, model):
    looped = from_pretrained(golden.folder, loop="unroll")
    for tower, layers in [("encoder", 3), ("decoder", 2)]:
        expected = unstack_layers(model.params[tower]["layers"], layers=layers)
        jax.tree.map(np.testing.assert_array_equal, looped.params[tower]["layers"], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'; allowed: 'relu'"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05; allowed: 1e-06"),
        ({"tie_word_embeddings": True}, r"lm_head\.weight differs from shared\.weight"),
        ({"relative_attention_max_distance": 9}, "allowed: above half of relative_attention_num"),
    ],
)
def test_what_is_not_supported_is_refused(change, message, golden, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(golden.write(tmp_path, **change))


def test_a_tied_output_layer_without_a_scale_is_not_written(golden, tmp_path):
    model = from_pretrained(golden.folder, tied_head=False)
    model.config |= {"tied_head": True, "scale_tied_logits": False}
    with pytest.raises(ValueError, match=r"model\.scale_tied_logits=False: .* scales the logits"):
        model.save_pretrained(tmp_path)


def kernels(golden, name, layers, heads=None):
    """A matrix of all layers as T5X stacks them, on the second axis; heads are an axis."""
    found = [golden.weights[name.format(n)].T for n in range(layers)]
    if heads == "in":
        found = [x.reshape(-1, 8, x.shape[1]) for x in found]
    elif heads == "out":
        found = [x.reshape(len(x), -1, 8) for x in found]
    return np.stack(found, axis=1)


def t5x_arrays(golden):
    """The golden's weights in the layout of T5X's scalable_t5."""
    arrays = {
        "token_embedder/embedding": golden.weights["shared.weight"],
        "decoder/logits_dense/kernel": golden.weights["lm_head.weight"].T,
    }
    towers = {
        "encoder": (3, [("attention", "SelfAttention", "attention")]),
        "decoder": (
            2,
            [
                ("self_attention", "SelfAttention", "self_attention"),
                ("encoder_decoder_attention", "EncDecAttention", "cross_attention"),
            ],
        ),
    }
    for tower, (layers, attentions) in towers.items():
        there, block = f"{tower}/{tower}", f"{tower}.block.{{}}.layer"
        arrays[f"{tower}/{tower}_norm/scale"] = golden.weights[f"{tower}.final_layer_norm.weight"]
        bias = f"{block}.0.SelfAttention.relative_attention_bias.weight"
        arrays[f"{there}/relpos_bias/rel_embedding"] = kernels(golden, bias, layers)
        for n, (name, theirs, norm) in enumerate(attentions):
            one = f"{block}.{n}.{theirs}"
            for kernel in ("query", "key", "value"):
                arrays[f"{there}/{name}/{kernel}/kernel"] = kernels(
                    golden, f"{one}.{kernel[0]}.weight", layers, heads="out"
                )
            arrays[f"{there}/{name}/out/kernel"] = kernels(
                golden, f"{one}.o.weight", layers, heads="in"
            )
            arrays[f"{there}/pre_{norm}_layer_norm/scale"] = kernels(
                golden, f"{block}.{n}.layer_norm.weight", layers
            )
        last = f"{block}.{len(attentions)}"
        arrays[f"{there}/pre_mlp_layer_norm/scale"] = kernels(
            golden, f"{last}.layer_norm.weight", layers
        )
        for kernel in ("wi_0", "wi_1", "wo"):
            arrays[f"{there}/mlp/{kernel}/kernel"] = kernels(
                golden, f"{last}.DenseReluDense.{kernel}.weight", layers
            )
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def write_t5x(folder, arrays):
    folder.mkdir(parents=True)
    target = flax.traverse_util.unflatten_dict(arrays, sep="/")
    tree = {"version": 3, "optimizer": {"target": target, "state": {"step": np.int32(7)}}}
    (folder / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(tree))
    return folder


def test_t5x_s_stacked_layers_are_read_and_written(golden, model, tmp_path):
    folder = write_t5x(tmp_path / "t5x", t5x_arrays(golden))
    found = from_pretrained(folder)
    assert (found.system, found.config) == ("umt5", model.config | {"dropout": 0.0})
    jax.tree.map(np.testing.assert_array_equal, found.params, model.params)
    looped = from_pretrained(folder, loop="unroll").params
    for tower, layers in [("encoder", 3), ("decoder", 2)]:
        expected = unstack_layers(model.params[tower]["layers"], layers=layers)
        jax.tree.map(np.testing.assert_array_equal, looped[tower]["layers"], expected)
    convert.main([f"--from={golden.folder}", f"--to={tmp_path / 'out'}", "--format=t5x"])
    again = from_pretrained(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


def test_stacked_layers_may_have_a_tied_output_layer_and_no_gate(golden, model, tmp_path):
    arrays = t5x_arrays(golden)
    del arrays["decoder/logits_dense/kernel"]
    for tower in ("encoder", "decoder"):
        there = f"{tower}/{tower}/mlp"
        arrays[f"{there}/wi/kernel"] = arrays.pop(f"{there}/wi_0/kernel")
        del arrays[f"{there}/wi_1/kernel"]
    found = from_pretrained(write_t5x(tmp_path / "t5x", arrays))
    kind = {"tied_head": True, "feed_forward": "relu", "dropout": 0.1}
    assert (found.system, found.config) == ("umt5", model.config | kind)
    for tower in ("encoder", "decoder"):
        here = (one.params[tower]["layers"]["block"]["feed_forward"] for one in (found, model))
        ungated, gated = here
        np.testing.assert_array_equal(ungated["wi"]["kernel"], gated["wi_0"]["kernel"])


def test_a_stacked_array_that_is_missing_or_of_another_shape_is_named(golden, tmp_path):
    arrays = t5x_arrays(golden)
    short = arrays | {"decoder/decoder/mlp/wo/kernel": arrays["encoder/encoder/mlp/wo/kernel"]}
    with pytest.raises(ValueError, match=r"wo/kernel has shape \[28, 3, 20\]; the others imply"):
        from_pretrained(write_t5x(tmp_path / "short", short))
    del arrays["encoder/encoder/relpos_bias/rel_embedding"]
    with pytest.raises(ValueError, match="lacks the parameter encoder/encoder/relpos_bias"):
        from_pretrained(write_t5x(tmp_path / "lacking", arrays))
