"""Switch Transformers in Hugging Face's form: what they compute and generate, and the way back."""

import functools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from t5x_like.hf.folder import read_json
from t5x_like.nn.moe import collect
from t5x_like.pretrained import from_pretrained
from t5x_like.systems.switch import HUGGING_FACE, SIZES
from tests.hf.conftest import Golden

# The float32 logits are 2e-6 off the same network in float64, and PyTorch's and XLA's sums differ
# in order. The second expert of a token is at least 3e-4 behind the first, so none changes places;
# a token at another expert, or without one, moves logits by 0.1.
TOLERANCE = 1e-4


@functools.cache
def made(name, folder):
    golden = Golden(name, folder / name)
    return golden, from_pretrained(golden.folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("switch")


@pytest.fixture(params=["switch", "switch_all"])
def both(request, folder):
    return made(request.param, folder)


@pytest.fixture
def switch(folder):
    return made("switch", folder)


def test_the_logits_are_those_of_pytorch(both):
    golden, model = both
    assert golden.error(model(**golden.batch).logits) < TOLERANCE


def test_padding_on_the_left_takes_slots_as_it_does_in_pytorch(switch):
    golden, model = switch
    first = golden.source["attention_mask"][:, 0]
    assert first.tolist() == [1, 1, 1, 0]
    logits = np.asarray(model(**golden.batch).logits)[3]
    # As without its padding, if there were slots for all.
    kept = golden.source["attention_mask"][3] == 1
    alone = {k: v[3:] if "decoder" in k else v[3:][:, kept] for k, v in golden.batch.items()}
    assert np.abs(np.asarray(model(**alone).logits)[0] - logits).max() > 0.1


def test_the_routers_drop_tokens_and_have_the_losses_that_they_have_in_pytorch(switch):
    golden, model = switch
    ids = golden.source["input_ids"]
    batch = {
        "encoder_input_tokens": ids,
        "encoder_segment_ids": golden.source["attention_mask"],
        "decoder_input_tokens": np.pad(ids[:, :-1], ((0, 0), (1, 0))),
    }
    apply = jax.jit(functools.partial(model.module.apply, mutable=["routing"]))
    routing = collect(apply({"params": model.params}, batch)[1]["routing"])
    # make_switch.py prints how many tokens of each row have no slot.
    dropped = np.array([[14, 24, 17, 15], [8, 24, 19, 17]]).sum(axis=1) / ids.size
    np.testing.assert_allclose(routing["dropped"][:2], dropped, rtol=1e-6)
    # Those of Hugging Face are of one side, whose sparse layers it takes for one; here it has one.
    np.testing.assert_allclose(routing["balance"][2], golden.arrays["balance"], rtol=1e-5)
    np.testing.assert_allclose(routing["z"][2], golden.arrays["z"], rtol=1e-5)


def generated(golden, model, number):
    settings = json.loads(str(golden.arrays["settings"]))[number]
    return model.generate(**golden.source, **settings), golden.arrays[f"generate/{number}"]


def test_greedy_decoding_generates_what_pytorch_does(both):
    np.testing.assert_array_equal(*generated(*both, 0))


def test_beams_generate_what_pytorch_does(switch):
    np.testing.assert_array_equal(*generated(*switch, 1))


def test_a_looped_stack_has_the_same_weights(switch):
    golden, model = switch
    looped = from_pretrained(golden.folder, loop="unroll")
    for tower, groups in [("encoder", 2), ("decoder", 1)]:
        scanned = model.params[tower]["layers"]["block"]
        for n in range(groups):
            jax.tree.map(
                np.testing.assert_array_equal,
                looped.params[tower]["layers"][f"layer_{n}"],
                jax.tree.map(lambda x, n=n: x[n], scanned),
            )


def test_what_is_saved_is_bitwise_what_was_read(both, tmp_path):
    golden, model = both
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == golden.weights.keys()
    for name, weight in golden.weights.items():
        np.testing.assert_array_equal(written[name], weight, err_msg=name)


def test_the_settings_that_are_saved_are_those_that_were_read(both, tmp_path):
    golden, model = both
    model.save_pretrained(tmp_path)
    written = read_json(tmp_path / "config.json")
    assert written == {k: v for k, v in golden.config.items() if k in written}
    # Theirs alone: what follows from others, of training, or what is not built here.
    assert golden.config.keys() - written.keys() == {
        "add_cross_attention",
        "add_router_probs",
        "bos_token_id",
        "decoder_sparse_step",
        "encoder_sparse_step",
        "initializer_factor",
        "is_decoder",
        "router_aux_loss_coef",
        "router_z_loss_coef",
        "transformers_version",
        "use_cache",
    }
    assert from_pretrained(tmp_path).config == model.config


def test_an_output_layer_of_its_own_is_read_and_not_written(switch, folder, tmp_path):
    golden, model = switch
    # As wide as the tied one and its scale make it, twice.
    own = {"lm_head.weight": 2 * 20**-0.5 * golden.weights["shared.weight"]}
    weights = golden.weights | {name: x.astype(np.float32) for name, x in own.items()}
    untied = from_pretrained(golden.write(tmp_path, weights=weights, tie_word_embeddings=False))
    expected = 2 * np.asarray(model(**golden.batch).logits)
    np.testing.assert_allclose(untied(**golden.batch).logits, expected, atol=TOLERANCE)
    with pytest.raises(ValueError, match=r"model\.tied_head=False: Hugging Face's Switch"):
        untied.save_pretrained(tmp_path / "back")


@pytest.mark.parametrize("change", [{"dispatch": "dropless"}, {"expert_capacity": 0}])
def test_without_a_number_of_slots_the_folder_has_slots_for_all(switch, tmp_path, change):
    model = from_pretrained(switch[0].folder)
    model.config = model.config | change
    model.save_pretrained(tmp_path)
    written = read_json(tmp_path / "config.json")
    assert written["expert_capacity"] == 2**20
    again = HUGGING_FACE.from_config(written, names=())
    assert (again["dispatch"], again["expert_capacity"]) == ("dropless", 0)


def test_the_settings_of_a_released_folder_are_those_of_its_size():
    released = {  # of google/switch-base-64, but for what is no setting of the network
        "d_ff": 3072,
        "d_kv": 64,
        "d_model": 768,
        "decoder_sparse_step": 2,
        "dense_act_fn": "relu",
        "dropout_rate": 0.1,
        "encoder_sparse_step": 2,
        "expert_capacity": 64,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": True,
        "is_gated_act": False,
        "layer_norm_epsilon": 1e-06,
        "model_type": "switch_transformers",
        "num_decoder_layers": 12,
        "num_experts": 64,
        "num_heads": 12,
        "num_layers": 12,
        "num_selected_experts": 1,
        "num_sparse_decoder_layers": 6,
        "num_sparse_encoder_layers": 6,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "router_bias": False,
        "router_dtype": "float32",
        "router_ignore_padding_tokens": False,
        "router_jitter_noise": 0.01,
        "vocab_size": 32128,
    }
    theirs = {"expert_capacity": 64, "group_size": 0, "dropout": 0.1, "expert_dropout": 0.1}
    assert HUGGING_FACE.from_config(released, names=()) == SIZES["base_64"] | theirs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense_act_fn": "gelu"}, "dense_act_fn='gelu'; allowed: 'relu'"),
        ({"feed_forward_proj": "gated-gelu"}, "feed_forward_proj='gated-gelu'; allowed: 'relu'"),
        ({"router_bias": True}, "router_bias=True; allowed: False"),
        ({"num_experts": None}, r"config\.json has no num_experts"),
        ({"num_sparse_encoder_layers": 4}, "num_sparse_encoder_layers=4, .*the same on both"),
        ({"num_sparse_encoder_layers": 1, "num_layers": 3}, "or every second one"),
        ({"num_sparse_encoder_layers": 0}, "all layers must be sparse"),
    ],
)
def test_settings_that_are_not_built_here_are_named(switch, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        from_pretrained(switch[0].write(tmp_path, **change))
