"""The ids that a folder generates with: those of its files, as transformers 5.24 takes them.

The expected values are what `_prepare_generation_config` and `_prepare_special_tokens` of
transformers 5.24 make of the same files, for tiny models of random weights.
"""

import json

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.decoding.settings import GenerationSettings, decoding_request
from t5x_like.experiment.run import of_config
from t5x_like.hf.generation_config import read_generation
from t5x_like.inference import text_model
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.pretrained.model import infer_mask
from t5x_like.systems import llama
from tests.preprocessing.test_tokenizer_folders import change, write

GPT2, LLAMA, T5 = ({"model_type": name} for name in ("gpt2", "llama", "t5"))
T5["is_encoder_decoder"] = True


@pytest.mark.parametrize(
    ("config", "stored", "ends", "padding"),
    [
        (GPT2 | {"eos_token_id": 35, "bos_token_id": 3}, None, (35,), 35),
        (LLAMA | {"eos_token_id": 2}, {"eos_token_id": [5, 6]}, (5, 6), 5),
        (LLAMA | {"eos_token_id": 2}, {"eos_token_id": None}, (), 0),
        (LLAMA | {"eos_token_id": 2, "pad_token_id": 7}, None, (2,), 7),
        (GPT2, None, (), 0),
        (GPT2 | {"eos_token_id": None}, None, (), 0),
        # Here transformers pads with -1, which is no token.
        (LLAMA | {"eos_token_id": 2, "pad_token_id": -1}, None, (2,), 2),
        (LLAMA | {"eos_token_id": 2}, {"eos_token_id": [5, 6], "pad_token_id": -1}, (5, 6), 5),
    ],
)
def test_a_folder_without_an_id_has_none(config, stored, ends, padding, tmp_path):
    if stored is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(stored))
    found = read_generation(tmp_path, config)
    assert (found.ends, found.padding) == (ends, padding)
    request = decoding_request(found, least=0, most=4)
    assert (request["eos_ids"], request["pad_id"]) == (ends, padding)


def test_a_decoder_without_a_start_begins_with_bos_and_t5_s_with_padding(tmp_path):
    assert read_generation(tmp_path, T5 | {"bos_token_id": 9}).decoder_start_token_id == 9
    assert read_generation(tmp_path, T5 | {"pad_token_id": 3}).decoder_start_token_id == 3


def test_no_token_of_a_prompt_is_padding_without_a_padding_token():
    tokens = np.array([[0, 7, 5, 0]])
    for settings in (
        GenerationSettings(eos_token_id=5, pad_token_id=None),
        GenerationSettings(eos_token_id=None, pad_token_id=None),
        GenerationSettings(eos_token_id=(5, 0), pad_token_id=0),
    ):
        np.testing.assert_array_equal(infer_mask(tokens, settings), np.ones_like(tokens))
    padded = GenerationSettings(eos_token_id=5, pad_token_id=0)
    np.testing.assert_array_equal(infer_mask(tokens, padded), [[0, 1, 1, 0]])


def model_of(path, *, system, size, converter, lengths, **changes):
    """The text model of a folder, without parameters."""
    config = {**systems.find(system).sizes[size], "vocab_size": 1000, **changes}
    stored = json.loads((path / "config.json").read_text())
    pretrained = Pretrained(
        systems.build(system, config),
        {},
        system=system,
        config=config,
        generation=read_generation(path, stored),
        from_folder=True,
    )
    settings = text_model_config(path, system, config, converter, lengths)
    return text_model.build(pretrained, of_config(settings).parts[0])


def text_model_config(path, system, model, converter, lengths):
    from t5x_like.config import defaults

    config = defaults()
    config.system, config.data.vocabulary = system, str(path)
    config.model = dict(model)
    config.data.converter, config.data.lengths = converter, lengths
    config.data.objective = "text_to_text" if "inputs" in lengths else "language_modeling"
    config.data.batch_size, config.decode = 2, {"max_new_tokens": 4}
    return config


PAIRS = {"converter": "encoder_decoder", "lengths": {"inputs": 32, "targets": 32}}
TEXTS = {"converter": "decoder", "lengths": {"targets": 32}}


@pytest.mark.parametrize("layout", ["slow", "saved"])
def test_t5_reads_and_begins_as_its_folder_has_it(layout, tmp_path):
    expected = write(f"t5/{layout}", tmp_path)
    change(tmp_path, "config.json", decoder_start_token_id=7)
    model = model_of(tmp_path, system="t5", size="small", **PAIRS)
    assert model.prompt("one two") == expected["whole"]
    assert (model.prompt_format.start, model.decode["decoder_start_token_id"]) == (7, 7)
    assert model.ends == [1]
    assert model.vocabulary.sentinels == 100
    names = [f"<extra_id_{number}>" for number in (0, 1, 99)]
    first = model.vocabulary.first_sentinel
    found = [one for one in model.vocabulary.encode(" ".join(names)) if one > first - 100]
    assert found == [first, first - 1, first - 99]


def test_mbart_s_encoder_reads_its_language(tmp_path):
    for layout in ("mbart/both", "mbart_50/both"):
        path = tmp_path / layout.partition("/")[0]
        path.mkdir()
        expected = write(layout, path)
        model = model_of(path, system="mbart", size="large", **PAIRS)
        assert model.prompt("one two") == expected["whole"]
        (tokens,), _ = model.lay_out([model.prompt("one two " * 40)])
        ends = len(model.vocabulary.suffix_ids)
        assert (len(tokens), tokens[-ends:].tolist()) == (32, expected["whole"][-ends:])
        assert model.prompt_format.begin == ()


def test_gemma_reads_its_begin_and_a_model_beside_tokenizer_json_is_not_asked(tmp_path):
    expected = write("gemma/both", tmp_path)
    assert {"tokenizer.json", "tokenizer.model"} <= set(expected["files"])
    model = model_of(tmp_path, system="gemma", size="2b", **TEXTS)
    (tokens,), (mask,) = model.lay_out([model.prompt("one two")])
    assert tokens[mask == 1].tolist() == expected["whole"]
    assert expected["whole"][0] == expected["named"]["bos"] == 2


@pytest.mark.parametrize("ends", [331, [331, 330]])
def test_a_chat_model_ends_where_its_folder_says(ends, tmp_path):
    write("qwen2/saved", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    model = model_of(tmp_path, system="qwen2", size="0_5b", **TEXTS)
    wanted = ends if isinstance(ends, list) else [ends]
    assert (model.ends, model.until_end([4, *wanted, 5])) == (wanted, [4])
    assert model.pretrained.generation.override(model.decode).ends == tuple(wanted)


def test_a_run_ends_as_it_was_trained(tmp_path):
    write("gpt2/slow", tmp_path)
    size = {**systems.find("gpt2").sizes["small"], "vocab_size": 1000}
    config = text_model_config(tmp_path, "gpt2", size, **TEXTS)
    pretrained = Pretrained(
        systems.build("gpt2", size), {}, system="gpt2", config=size, generation=GenerationSettings()
    )
    model = text_model.build(pretrained, of_config(config).parts[0])
    assert model.ends == [model.vocabulary.eos_id]


@pytest.mark.parametrize("system", ["llama", "mixtral", "gpt_neox", "gpt_j", "opt"])
@pytest.mark.parametrize("ends", [[5, 6], None], ids=["several", "none"])
def test_a_folder_with_several_end_tokens_or_none_is_read(system, ends, tmp_path):
    # config.json of LLaMA 3 Instruct has three, of a default `Qwen2Config` none.
    tiny = {"vocab_size": 40, "layers": 1, "d_model": 32, "d_ff": 24, "heads": 2}
    tiny |= {"llama": {"kv_heads": 1}, "mixtral": {"kv_heads": 1}}.get(system, {})
    tiny |= {"gpt_j": {"rotary_width": 8}, "opt": {"d_embedding": 32}}.get(system, {})
    size = next(iter(systems.find(system).sizes.values()))
    config = {name: tiny.get(name, value) for name, value in size.items()}
    module = systems.build(system, config)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch()))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), nn.unbox(shapes["params"]))
    Pretrained(module, params, system=system, config=config).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | {"eos_token_id": ends}))
    model = from_pretrained(tmp_path)
    assert model.generation.ends == tuple(ends or ())
    assert model.config["eos_id"] == ends
    model.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["eos_token_id"] == ends


@pytest.mark.parametrize("ends", [[5, -1], [5, "6"], 1.5])
def test_other_end_tokens_are_refused(ends):
    with pytest.raises(ValueError, match=r"model\.eos_id="):
        systems.settings("llama", llama.SIZES["7b"] | {"eos_id": ends})
