"""T5X's checkpoints of T5: each way in which they hold arrays, the way back, and damaged files."""

import re
import shutil

import flax.linen as nn
import flax.serialization
import flax.traverse_util
import jax
import ml_dtypes
import numpy as np
import pytest
import tensorstore

from t5x_like import convert, systems
from t5x_like.pretrained import from_pretrained, t5x
from t5x_like.pretrained.t5x_files import StoredArrays

TOLERANCE = 1e-4  # as for Hugging Face's folders, with the same weights
ATTENTIONS = {
    "encoder": {"SelfAttention": "attention"},
    "decoder": {"SelfAttention": "self_attention", "EncDecAttention": "encoder_decoder_attention"},
}
NORMS = {
    "encoder": ("pre_attention_layer_norm", "pre_mlp_layer_norm"),
    "decoder": (
        "pre_self_attention_layer_norm",
        "pre_cross_attention_layer_norm",
        "pre_mlp_layer_norm",
    ),
}


def t5x_name(name):
    """The name of one of Hugging Face's tensors in T5X's examples/t5."""
    if name == "shared.weight":
        return "token_embedder/embedding"
    if name == "lm_head.weight":
        return "decoder/logits_dense/kernel"
    tower, _, rest = name.partition(".")
    if rest == "final_layer_norm.weight":
        return f"{tower}/{tower}_norm/scale"
    if rest.endswith("relative_attention_bias.weight"):
        return f"{tower}/relpos_bias/rel_embedding"
    layer, sublayer, what = re.fullmatch(r"block\.(\d+)\.layer\.(\d+)\.(.+)\.weight", rest).groups()
    here = f"{tower}/layers_{layer}"
    if what == "layer_norm":
        return f"{here}/{NORMS[tower][int(sublayer)]}/scale"
    module, kernel = what.split(".")
    if module == "DenseReluDense":
        return f"{here}/mlp/{kernel}/kernel"
    kernels = {"q": "query", "k": "key", "v": "value", "o": "out"}
    return f"{here}/{ATTENTIONS[tower][module]}/{kernels[kernel]}/kernel"


def arrays_of(golden):
    """A golden's weights as T5X has them: matrices of the other layout, but for the embedding."""
    return {
        t5x_name(name): np.ascontiguousarray(weight if name == "shared.weight" else weight.T)
        for name, weight in golden.weights.items()
    }


def write_tree(folder, leaves, *, of_orbax=False):
    folder.mkdir(parents=True, exist_ok=True)
    target = flax.traverse_util.unflatten_dict(leaves, sep="/")
    state = {"step": np.int32(7), "param_states": {}}
    tree = {"target": target, "state": state} if of_orbax else {"optimizer": {"target": target}}
    tree = {"version": 3, **tree}
    (folder / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(tree))
    return folder


def write_array(store, array):
    spec = {
        "driver": "zarr",
        "kvstore": store,
        "dtype": array.dtype.name,
        "metadata": {
            "shape": array.shape,
            "chunks": [-(-n // 2) for n in array.shape],
            "compressor": {"id": "gzip"},
        },
    }
    tensorstore.open(spec, create=True).result().write(array).result()


def in_the_file(folder, arrays):
    return write_tree(folder, arrays)


def in_folders(folder, arrays):
    leaves = dict(arrays)
    for name in (name for name, array in arrays.items() if array.ndim > 1):
        place = f"target.{name.replace('/', '.')}"
        write_array({"driver": "file", "path": str(folder / place)}, arrays[name])
        leaves[name] = {
            "driver": "zarr",
            "kvstore": {"driver": "gfile", "path": place},
            "metadata": {"shape": list(arrays[name].shape)},
        }
    return write_tree(folder, leaves)


def in_folders_of_orbax(folder, arrays):
    leaves = {}
    for name, array in arrays.items():
        place = f"target.{name.replace('/', '.')}"
        write_array({"driver": "file", "path": str(folder / place)}, array)
        leaves[name] = f"PLACEHOLDER://{place}"
    return write_tree(folder, leaves, of_orbax=True)


def in_a_database_of_orbax(folder, arrays):
    leaves = {}
    for name, array in arrays.items():
        place = f"target.{name.replace('/', '.')}"
        store = {"driver": "ocdbt", "base": f"file://{folder}", "path": place}
        write_array(store, array)
        leaves[name] = f"PLACEHOLDER://{place}"
    return write_tree(folder, leaves, of_orbax=True)


WAYS = [in_the_file, in_folders, in_folders_of_orbax, in_a_database_of_orbax]


@pytest.mark.parametrize("write", WAYS)
def test_the_parameters_are_those_of_hugging_faces_folder(v1_1, models, tmp_path, write):
    model = from_pretrained(write(tmp_path / "t5x", arrays_of(v1_1)))
    jax.tree.map(np.testing.assert_array_equal, model.params, models[v1_1].params)
    expected = models[v1_1].config
    assert model.config == expected | {"dropout": 0.0}  # pretrained without, which no file holds
    ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    assert all(getattr(model.generation, name) == n for name, n in zip(ids, (0, 1, 0), strict=True))


def test_v1_0_has_a_tied_head_and_relu(v1_0, models, tmp_path):
    model = from_pretrained(f"t5x:{in_folders(tmp_path, arrays_of(v1_0))}")
    assert model.config == models[v1_0].config
    assert v1_0.error(model(**v1_0.batch).logits) < TOLERANCE


def test_the_newest_checkpoint_of_a_folder_is_read(v1_1, models, tmp_path):
    arrays = arrays_of(v1_1)
    in_the_file(tmp_path / "checkpoint_900", {name: 0 * array for name, array in arrays.items()})
    in_folders(tmp_path / "checkpoint_1000", arrays)
    model = from_pretrained(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, model.params, models[v1_1].params)


def test_the_file_of_a_checkpoint_is_the_checkpoint(v1_1, models, tmp_path):
    # T5X's checkpoints.load_t5x_checkpoint joins "checkpoint" to a path only if it is a folder.
    folder = in_folders(tmp_path / "checkpoint_1000", arrays_of(v1_1))
    for path in (folder / "checkpoint", f"t5x:{folder}/checkpoint"):
        model = from_pretrained(path)
        jax.tree.map(np.testing.assert_array_equal, model.params, models[v1_1].params)


def test_a_folder_may_be_moved(v1_1, models, tmp_path):
    shutil.move(in_folders(tmp_path / "here", arrays_of(v1_1)), tmp_path / "there")
    model = from_pretrained(tmp_path / "there")
    jax.tree.map(np.testing.assert_array_equal, model.params, models[v1_1].params)


def test_what_is_written_is_t5xs_again(golden, models, tmp_path):
    convert.main([f"--from={golden.folder}", f"--to={tmp_path / 'out'}", "--format=t5x"])
    folder = tmp_path / "out" / "checkpoint_0"
    tree = flax.serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    found = flax.traverse_util.flatten_dict(
        tree["optimizer"]["target"], sep="/", is_leaf=lambda _, node: "driver" in node
    )
    expected = arrays_of(golden)
    assert found.keys() == expected.keys()
    assert (tree["version"], tree["optimizer"]["state"]["step"]) == (3, 0)
    for name, leaf in found.items():
        if isinstance(leaf, dict):
            path = str(folder / leaf["kvstore"]["path"])
            spec = {"driver": leaf["driver"], "kvstore": {"driver": "file", "path": path}}
            leaf = tensorstore.open(spec, open=True).result().read().result()
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)
    again = from_pretrained(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again.params, models[golden].params)


def test_a_gin_file_adds_the_dropout_and_must_agree(v1_1, models, tmp_path, capsys):
    ours = models[v1_1].config
    sizes = {
        "vocab_size": ours["vocab_size"],
        "emb_dim": ours["d_model"],
        "num_heads": ours["heads"],
        "num_encoder_layers": ours["encoder_layers"],
        "num_decoder_layers": ours["decoder_layers"],
        "head_dim": ours["d_kv"],
        "mlp_dim": ours["d_ff"],
        "mlp_activations": ("gelu", "linear"),
    }
    (tmp_path / "network.gin").write_text(
        "from t5x import models\nfrom t5x.examples.t5 import network\n"
        "MODEL = @models.EncoderDecoderModel()\n"
        "models.EncoderDecoderModel.module = @network.Transformer()\n"
        "network.Transformer.config = @network.T5Config()\n"
        "network.T5Config.dropout_rate = %gin.REQUIRED\n"
        + "".join(f"network.T5Config.{name} = {value!r}\n" for name, value in sizes.items())
    )
    source = f"--from=t5x:{in_the_file(tmp_path / 't5x', arrays_of(v1_1))}"
    flags = [source, f"--gin={tmp_path / 'network.gin'}"]
    convert.main([*flags, f"--to={tmp_path / 'hf'}", "--gin.T5Config.dropout_rate=0.25"])
    assert from_pretrained(tmp_path / "hf").config == ours | {"dropout": 0.25}
    for change, message in {
        "dropout_rate=%gin.REQUIRED": "T5Config.dropout_rate has to be set",
        "num_heads=7": f"has heads={ours['heads']}, and the gin files 7",
    }.items():
        given = ["--gin.T5Config.dropout_rate=0.25", f"--gin.T5Config.{change}"]
        with pytest.raises(SystemExit) as error:
            convert.main([*flags, *given, f"--to={tmp_path / 'other'}"])
        assert error.value.code == 2
        assert message in capsys.readouterr().err


def test_bfloat16_stays_exact(v1_1, tmp_path):
    arrays = {name: x.astype(ml_dtypes.bfloat16) for name, x in arrays_of(v1_1).items()}
    model = from_pretrained(in_folders(tmp_path, arrays))
    embedding = model.params["token_embedder"]["embedding"]
    np.testing.assert_array_equal(embedding, arrays["token_embedder/embedding"].astype(np.float32))


def test_one_model_is_not_averaged_nor_read_as_another_system(v1_1, tmp_path):
    folder = in_the_file(tmp_path, arrays_of(v1_1))
    with pytest.raises(ValueError, match=r"average=2: .* contains one model"):
        from_pretrained(folder, average=2)
    with pytest.raises(ValueError, match=r"system='bart': .* has a model of system 't5'"):
        from_pretrained(folder, system="bart")


def drop(name):
    return lambda arrays: {k: x for k, x in arrays.items() if k != name}


def rename(old, new):
    return lambda arrays: {re.sub(old, new, name): x for name, x in arrays.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("decoder/decoder_norm/scale"), "lacks decoder/decoder_norm/scale"),
        (drop("encoder/relpos_bias/rel_embedding"), "lacks the parameter encoder/relpos_bias"),
        (lambda arrays: {**arrays, "decoder/extra": np.ones(3)}, "decoder/extra"),
        (
            lambda arrays: {**arrays, "encoder/encoder_norm/scale": np.ones(3)},
            r"encoder/encoder_norm/scale has shape \[3\]",
        ),
        (rename("layers_0/attention", "layers_0/mlp/expert"), "sparse"),
        (rename(r"^encoder/.*", "decoder/other"), "no encoder"),
        (rename(r"/layers_\d+/", "/block/"), "named otherwise"),
        (rename(r"^encoder/layers_(\d+)/", r"encoder/encoder/layers_\1/"), "named otherwise"),
    ],
)
def test_another_network_is_refused_in_a_line(v1_1, tmp_path, change, message):
    folder = in_the_file(tmp_path, change(arrays_of(v1_1)))
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_damaged_files_are_named(v1_1, tmp_path):
    folder = in_folders(tmp_path / "t5x", arrays_of(v1_1))
    place = folder / "target.encoder.layers_0.mlp.wo.kernel"
    chunk = place / "0.0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"encoder/layers_0/mlp/wo/kernel cannot be read"):
        from_pretrained(folder)
    chunk.unlink()  # else zeros
    with pytest.raises(ValueError, match=r"encoder/layers_0/mlp/wo/kernel cannot be read"):
        from_pretrained(folder)
    shutil.rmtree(place)
    with pytest.raises(ValueError, match=r"encoder/layers_0/mlp/wo/kernel cannot be read"):
        from_pretrained(folder)
    file = folder / "checkpoint"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged or incomplete"):
        from_pretrained(folder)
    file.write_text('model_checkpoint_path: "model.ckpt-1000"\n')
    with pytest.raises(ValueError, match="TensorFlow"):
        from_pretrained(folder)
    with pytest.raises(ValueError, match="has neither a file `checkpoint` nor"):
        from_pretrained(f"t5x:{v1_1.folder}")


DECODER = systems.find("t5").sizes["v1_0_small"] | {
    "architecture": "decoder",
    "vocab_size": 30,
    "d_model": 12,
    "d_ff": 20,
    "heads": 2,
    "d_kv": 4,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "feed_forward": "gated_gelu",
}


@pytest.fixture(scope="module")
def decoder():
    """A T5 without an encoder, with random parameters; its layers are apart."""
    module = systems.build("t5", DECODER | {"loop": "unroll"})
    variables = jax.jit(module.init)(jax.random.key(0), module.example_batch())
    params = nn.unbox(variables)["params"]
    return module, flax.traverse_util.flatten_dict(params, sep="/")


def decoder_arrays(params):
    """Arrays of T5X's examples/decoder_only: heads are joined, the biases transposed."""
    renamed = {
        "relative_position_bias/embedding": "relpos_bias/rel_embedding",
        "final_norm": "decoder_norm",
        "layers/layer_": "layers_",
        "self_attention_norm": "pre_self_attention_layer_norm",
        "feed_forward_norm": "pre_mlp_layer_norm",
        "/feed_forward/": "/mlp/",
        "token_embedder/": "decoder/token_embedder/",
        "lm_head/": "decoder/logits_dense/",
    }
    arrays = {}
    for name, array in params.items():
        if "/out/" in name:
            array = array.reshape(-1, array.shape[-1])
        elif array.ndim == 3:
            array = array.reshape(len(array), -1)
        elif "relative_position_bias" in name:
            array = array.T
        for ours, theirs in renamed.items():
            name = name.replace(ours, theirs)
        arrays[name] = np.array(array)
    return arrays


def test_a_decoder_alone_has_the_logits_of_the_run_that_it_is_from(decoder, tmp_path):
    module, params = decoder
    arrays = decoder_arrays(params)
    # Of T5X's class DecoderWrapper, everything is within `decoder`.
    assert all(name.startswith("decoder/") for name in arrays)
    model = from_pretrained(in_folders(tmp_path / "t5x", arrays))
    assert (model.system, model.config) == ("t5", DECODER | {"dropout": 0.1})
    tokens = np.arange(2, 16).reshape(2, 7)
    expected = module.apply(
        {"params": flax.traverse_util.unflatten_dict(params, sep="/")},
        {"decoder_input_tokens": tokens},
    )
    np.testing.assert_allclose(model(tokens).logits, expected, atol=TOLERANCE)
    assert np.abs(expected).max() > 100 * TOLERANCE
    t5x.save(model.params, tmp_path / "out", system="t5", config=model.config)
    again = StoredArrays(tmp_path / "out" / "checkpoint_0")
    assert set(again.names) == set(arrays)
    for name, array in arrays.items():
        whole = tuple(slice(0, n) for n in array.shape)
        np.testing.assert_array_equal(again.read(name, whole), array, err_msg=name)
    prefix = from_pretrained(tmp_path / "out", architecture="prefix_decoder")
    jax.tree.map(np.testing.assert_array_equal, prefix.params, model.params)


def test_a_decoder_that_lacks_a_part_is_named(decoder, tmp_path):
    arrays = decoder_arrays(decoder[1])
    lacking = drop("decoder/layers_1/mlp/wo/kernel")(arrays)
    with pytest.raises(ValueError, match="lacks decoder/layers_1/mlp/wo/kernel"):
        from_pretrained(in_the_file(tmp_path / "lacking", lacking))
    extra = {**arrays, "decoder/layers_0/encoder_decoder_attention/out/kernel": np.ones((8, 12))}
    with pytest.raises(ValueError, match="encoder_decoder_attention/out/kernel that the model"):
        from_pretrained(in_the_file(tmp_path / "extra", extra))


@pytest.mark.parametrize("stack", ["decoder", "layers"])
def test_a_decoder_with_stacked_layers_is_refused_in_a_line(decoder, tmp_path, stack):
    layer = re.compile(r"decoder/layers_\d+/(.*)")
    arrays = {}
    for name, array in decoder_arrays(decoder[1]).items():
        if found := layer.fullmatch(name):
            name, array = f"decoder/{stack}/{found[1]}", np.stack([array] * 3, axis=1)
        arrays[name.replace("decoder/relpos_bias", f"decoder/{stack}/relpos_bias")] = array
    folder = in_the_file(tmp_path, arrays)
    with pytest.raises(ValueError, match="a decoder alone with stacked layers, as no network"):
        from_pretrained(folder)


def test_other_networks_are_not_written(v1_0, tmp_path):
    model = from_pretrained(v1_0.folder)
    model.config["scale_tied_logits"] = False
    with pytest.raises(ValueError, match="scale_tied_logits=False"):
        t5x.save(model.params, tmp_path, system=model.system, config=model.config)
    with pytest.raises(
        ValueError, match="are for systems 't5', 'umt5' and 'switch', and this is 'bart'"
    ):
        t5x.save(model.params, tmp_path, system="bart", config=model.config)
