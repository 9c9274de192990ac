"""A model is called and generates as Hugging Face's; what it cannot do is an error."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import t5x_like
from t5x_like import systems
from t5x_like.partitioning import make_mesh
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.pretrained.loading import parameter_shapes
from t5x_like.systems import t5

# Every setting compiles a decoder, so only some of them run at each change.
QUICK = {"v1_0": (0, 6), "v1_1": (2, 5)}
GENERATIONS = [
    pytest.param(version, n, marks=[] if n in QUICK[version] else pytest.mark.slow)
    for version in QUICK
    for n in range(7)
]


@pytest.mark.parametrize(("version", "number"), GENERATIONS)
def test_what_is_generated_is_token_for_token_that_of_pytorch(request, models, version, number):
    golden = request.getfixturevalue(version)
    settings = json.loads(str(golden.arrays["settings"]))[number]
    tokens = models[golden].generate(**golden.source, **settings)
    np.testing.assert_array_equal(tokens, golden.arrays[f"generate/{number}"])


def test_without_a_mask_generating_takes_padding_for_padding(v1_0, models):
    settings = {"max_new_tokens": 14}
    tokens = models[v1_0].generate(v1_0.arrays["input_ids"], **settings)
    np.testing.assert_array_equal(tokens, v1_0.arrays["generate/0"])


def test_equal_shapes_compile_once(v1_0, models):
    model, settings = models[v1_0], {"max_new_tokens": 14}
    model(**v1_0.batch), model.generate(**v1_0.source, **settings)
    with jax.no_tracing():
        model(**v1_0.batch), model.generate(**v1_0.source, **settings)


def test_samples_repeat_with_the_seed_and_stay_within_the_top(v1_0, models):
    model, inputs = models[v1_0], v1_0.arrays["input_ids"][:1]
    settings = {"do_sample": True, "num_return_sequences": 8, "max_new_tokens": 4}
    first, again, other = (
        model.generate(inputs, **settings, temperature=3.0, seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert first.shape == other.shape == (8, 5)
    assert len(np.unique(first, axis=0)) > 1
    assert (first != other).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_id": [[1]]}, "no argument 'input_id'. Did you mean 'input_ids'"),
        ({"decoder_input_ids": None}, "decoder_input_ids or labels must be set"),
        ({"decoder_input_ids": [[74]]}, "decoder_input_ids contains the id 74; .* 0 to 73"),
        (
            {"decoder_input_ids": [1, 2]},
            r"must be integers of shape \[rows, length\], not int64 of shape \[2\]",
        ),
        ({"decoder_input_ids": [[1, 2], [1]]}, "rows of unequal lengths"),
        (
            {"attention_mask": [[1]]},
            r"attention_mask has shape \[1, 1\]; its tokens have \[4, 37\]",
        ),
        ({"labels": [[-1]]}, "labels contains the id -1"),
        ({"labels": [[-100]]}, r"labels has shape \[1, 1\]; the decoder's inputs have \[4, 21\]"),
    ],
)
def test_a_wrong_argument_of_a_call_is_named(v1_0, models, arguments, message):
    with pytest.raises(ValueError, match=message):
        models[v1_0](**{**v1_0.batch, **arguments})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beam": 4}, "no argument 'num_beam'. Did you mean 'num_beams'"),
        ({"temperature": 0.5}, "temperature=0.5 has no effect without do_sample=True"),
        ({"length_penalty": 2.0}, "length_penalty=2.0 has no effect without num_beams"),
        ({"length_penalty_kind": "google_nmt"}, "length_penalty_kind='google_nmt' has no effect"),
        ({"num_beams": 2, "length_penalty_kind": "nmt"}, "length_penalty_kind='nmt' does not exi"),
        ({"do_sample": True, "num_beams": 2}, "set either do_sample=False or num_beams=1"),
        ({"num_return_sequences": 2}, "num_return_sequences=2 is more than num_beams=1"),
        ({"max_length": 1}, "max_length=1: nothing is left to generate after a prompt of 1"),
    ],
)
def test_a_wrong_setting_of_generate_is_named(v1_0, models, settings, message):
    with pytest.raises(ValueError, match=message):
        models[v1_0].generate(v1_0.arrays["input_ids"], **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"atention": "dense"}, "Did you mean 'attention'"),
        ({"dtype": "float16"}, "dtype='float16': 'float32' or 'bfloat16' allowed"),
        ({"param_dtype": "int4"}, "param_dtype='int4': 'float32' or 'bfloat16' or 'int8' allowed"),
    ],
)
def test_a_wrong_setting_of_the_model_is_named(v1_0, settings, message):
    with pytest.raises(ValueError, match=message):
        from_pretrained(v1_0.folder, **settings)


def test_the_folders_settings_are_the_defaults_of_generate(v1_0, tmp_path):
    folder = v1_0.write(tmp_path)
    stored = {"max_length": 9, "num_beams": 3, "top_k": None, "repetition_penalty": 1.0}
    (folder / "generation_config.json").write_text(json.dumps(stored))
    settings = from_pretrained(folder).generation
    assert (settings.num_beams, settings.top_k, settings.eos_token_id) == (3, 50, 38)
    assert settings.new_tokens(prompt=1) == (0, 8)
    assert settings.override({"max_new_tokens": 5, "num_beams": None}).new_tokens(prompt=1) == (
        0,
        5,
    )
    assert settings.override({"eos_token_id": None}).eos_token_id is None


def test_settings_without_a_counterpart_are_reported_once(v1_0, tmp_path, caplog):
    folder = v1_0.write(tmp_path)
    stored = {"repetition_penalty": 1.2, "guidance_scale": 1.5, "suppress_tokens": None}
    (folder / "generation_config.json").write_text(json.dumps(stored))
    from_pretrained(folder)
    (record,) = caplog.records
    assert (
        "generation_config.json: guidance_scale=1.5, repetition_penalty=1.2" in record.getMessage()
    )


def test_older_folders_have_these_settings_in_config_json(v1_0, tmp_path):
    folder = v1_0.write(tmp_path, num_beams=4, decoder_start_token_id=None)
    (folder / "generation_config.json").unlink()
    settings = from_pretrained(folder).generation
    assert (settings.num_beams, settings.eos_token_id, settings.decoder_start_token_id) == (
        4,
        38,
        0,
    )


def test_changed_settings_are_saved_and_read_again(v1_0, models, tmp_path):
    model = models[v1_0]
    wanted = dataclasses.replace(
        model.generation, num_beams=4, length_penalty=2.0, eos_token_id=None
    )
    changed = Pretrained(
        model.module, model.params, system="t5", config=model.config, generation=wanted
    )
    changed.save_pretrained(tmp_path)
    assert from_pretrained(tmp_path).generation == wanted


def test_parameters_spread_over_a_mesh_give_the_same_logits(v1_1, models):
    spread = from_pretrained(v1_1.folder, mesh=make_mesh({"data": 2, "fsdp": 4}))
    kernel = spread.params["lm_head"]["kernel"]
    assert kernel.addressable_shards[0].data.shape == (20 // 4, 74)
    # float32 sums cut into four parts
    np.testing.assert_allclose(
        spread(**v1_1.batch).logits, models[v1_1](**v1_1.batch).logits, atol=1e-5
    )


def test_a_mesh_that_does_not_divide_the_model_is_refused(v1_1):
    with pytest.raises(ValueError, match=r"mesh\.model=2 does not divide \w*heads=3"):
        from_pretrained(v1_1.folder, mesh=make_mesh({"data": 4, "model": 2}))


def test_saving_spares_a_folder_of_something_else(v1_0, models, tmp_path):
    (tmp_path / "config.json").write_text('{"system": "t5"}')
    with pytest.raises(ValueError, match=r"a config\.json that Hugging Face did not write"):
        models[v1_0].save_pretrained(tmp_path)


def language_model():
    """A tiny decoder with random weights."""
    tiny = {"vocab_size": 30, "d_model": 8, "d_ff": 12, "heads": 2, "d_kv": 6, "decoder_layers": 2}
    config = t5.SIZES["small"] | tiny | {"architecture": "decoder"}
    module = systems.build("t5", config)
    shapes = parameter_shapes(module, dtype=np.float32, mesh=None)
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda x: random.normal(size=x.shape).astype(x.dtype), shapes)
    return Pretrained(module, params, system="t5", config=config)


def test_a_language_model_goes_on_from_its_prompt_whatever_padding_precedes_it():
    model = language_model()
    prompts = np.array([[7, 8, 9, 10], [3, 4, 5, 6]])
    mask = np.array([[1, 1, 1, 1], [0, 0, 1, 1]])
    tokens = model.generate(prompts, mask, max_new_tokens=3, eos_token_id=None)
    np.testing.assert_array_equal(tokens[:, :4], prompts)
    logits = model(tokens, np.pad(mask, ((0, 0), (0, 3)), constant_values=1)).logits
    np.testing.assert_array_equal(np.argmax(logits, axis=-1)[:, 3:-1], tokens[:, 4:])


def test_the_loss_of_a_language_model_is_of_the_next_token():
    model = language_model()
    tokens, labels = np.array([[3, 4, 5]]), np.array([[3, 4, -100]])
    output = model(tokens, labels=labels)
    np.testing.assert_allclose(output.loss, -jax.nn.log_softmax(output.logits)[0, 0, 4], rtol=1e-5)


def test_what_a_language_model_cannot_do_is_an_error(tmp_path):
    model = language_model()
    with pytest.raises(ValueError, match="padded on the right"):
        model.generate([[3, 4, 0]])
    with pytest.raises(ValueError, match="no argument 'decoder_input_ids'"):
        model([[3]], decoder_input_ids=[[3]])
    with pytest.raises(ValueError, match="'decoder': Hugging Face's T5 supports only"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_package_offers_it_at_the_top():
    assert t5x_like.from_pretrained is from_pretrained
    assert t5x_like.Pretrained is Pretrained
    with pytest.raises(AttributeError, match="from_pretraind"):
        _ = t5x_like.from_pretraind
