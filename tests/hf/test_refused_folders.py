"""Folders that cannot be read as Hugging Face reads them are refused in one line."""

import dataclasses
import json
import logging
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import systems
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import generation_config
from t5x_like.hf.weight_map import check_names
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.pretrained.weight_source import open_source

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
INDEX = "model.safetensors.index.json"


def config(system, head=""):
    arrays = np.load(GOLDEN / f"{system}.npz")
    return json.loads(str(arrays[f"{head}/config.json".lstrip("/")]))


CONFIGS = {
    "albert": config("albert", "masked_lm"),
    "bart": config("bart"),
    "bert": config("bert", "masked_lm"),
    "distilbert": config("distilbert", "masked_lm"),
    "electra": config("electra", "masked_lm"),
    "gpt": config("gpt"),
    "gpt2": config("gpt2"),
    "gpt_neox": config("gpt_neox"),
    "gptj": config("gptj"),
    "llama": config("llama"),
    "mistral": config("mistral"),
    "mixtral": config("mixtral"),
    "opt": config("opt"),
    "roberta": config("roberta", "masked_lm"),
    "switch": config("switch"),
    "t5": config("t5_v1_0"),
}


def format_of(config):
    return systems.hugging_face_format(systems.hugging_face_readers(config["model_type"])[0])


def read(config):
    return format_of(config).from_config(config, names=())


def outcome(call, *arguments):
    """What a call returns, or the message of its ValueError."""
    try:
        return call(*arguments)
    except ValueError as error:
        return str(error)


def refusal(call):
    """The message of a ValueError, of one line and a readable length."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert 10 < len(message) < 400
    return message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": -5}, "vocab_size=-5; allowed: an integer from 1 to"),
        ({"vocab_size": "131"}, "vocab_size='131'; allowed: an integer"),
        ({"vocab_size": None}, "vocab_size=None; allowed: an integer"),
        ({"d_ff": True}, "d_ff=True; allowed: an integer"),
        ({"num_layers": 2.5}, "num_layers=2.5; allowed: an integer from 1 to 10000"),
        ({"num_layers": 10**9}, "num_layers=1000000000; allowed: an integer from 1 to 10000"),
        ({"num_heads": 0}, "num_heads=0; allowed: an integer from 1"),
        ({"dropout_rate": "high"}, "dropout_rate='high'; allowed: a number from 0 to 1"),
        ({"dropout_rate": float("nan")}, "dropout_rate=nan; allowed: a number from 0 to 1"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no'; allowed: true or false"),
        ({"feed_forward_proj": []}, r"feed_forward_proj=\[\]; allowed: 'relu', 'gated-gelu'"),
        ({"feed_forward_proj": "x" * 10_000}, r"feed_forward_proj='xx.*\.\.\..*; allowed"),
        ({"relative_attention_num_buckets": 3}, "num_buckets=3; allowed: an integer from 4"),
        ({"relative_attention_max_distance": 16}, "max_distance=16; allowed: above half of"),
        ({"is_gated_act": True}, "is_gated_act=True; allowed: False"),
        ({"model_type": ["t5"]}, r"model_type=\['t5'\]; allowed: a string"),
        (
            {"model_type": "layoutlm"},
            "model_type='layoutlm' is not supported; supported are albert",
        ),
        ({"quantization_config": {"bits": 8}}, "quantized weights are not supported"),
    ],
)
def test_a_setting_of_the_wrong_type_or_out_of_range_is_named(v1_0, tmp_path, changes, message):
    v1_0.write(tmp_path)
    changed = json.dumps(v1_0.config | changes)
    (tmp_path / "config.json").write_text(changed)
    with pytest.raises(ValueError, match=message) as caught:
        from_pretrained(tmp_path)
    assert "Did you mean" not in str(caught.value)
    refusal(lambda: from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": [3]}, r"architectures=\[3\]; allowed: a list of the name of one class"),
        ({"architectures": "BertModel"}, "architectures='BertModel'; allowed: a list"),
        ({"num_attention_heads": 5}, "hidden_size=24; allowed: a multiple of num_attention_heads"),
        ({"num_labels": 0}, "num_labels=0; allowed: an integer from 1"),
        ({"id2label": ["A"]}, r"id2label=\['A'\]; allowed: an object"),
        ({"problem_type": 3}, "problem_type=3; allowed: 'regression'"),
        ({"hidden_act": ["gelu"]}, r"hidden_act=\['gelu'\]; allowed: 'gelu'"),
    ],
)
def test_settings_of_encoders_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        read(CONFIGS["bert"] | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": [1]},
        {"rope_parameters": {"rope_type": ["linear"], "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": "2"}},
        {"rope_parameters": {"rope_type": "linear", "factor": -2.0}},
        {"rope_parameters": {"rope_theta": "10000", "rope_type": "default"}},
        {"eos_token_id": []},
        {"eos_token_id": "2"},
    ],
)
def test_settings_of_llama_are_checked(changes):
    refusal(lambda: read(CONFIGS["llama"] | changes))


def values(old):
    """Other values of a setting: of its type, out of any range, and of other types."""
    if isinstance(old, bool):
        return [not old, "yes", None, 7]
    if isinstance(old, int):
        return [old + 1, 2 * old + 2, 0, -5, 10**30, old + 0.5, str(old), None, [], True]
    if isinstance(old, float):
        return [old + 0.25, -1.0, float("nan"), float("inf"), str(old), None, []]
    if isinstance(old, str):
        return [old + "x", 3, None, [], {}]
    return [{}, [], [3], "x", 3, 0.5, None]


# Settings without an effect on the network's outputs, given its weights.
NO_EFFECT = {
    "initializer_factor",
    "initializer_range",
    "init_std",
    "sinusoidal_pos_embds",
    "transformers_version",
    "dtype",
    "use_cache",
    # Of training.
    "attention_dropout",
    "attention_probs_dropout_prob",
    "activation_dropout",
    "attn_pdrop",
    "classifier_dropout",
    "decoder_layerdrop",
    "embd_pdrop",
    "output_router_logits",
    "encoder_layerdrop",
    "qa_dropout",
    "router_aux_loss_coef",
    "router_z_loss_coef",
    "seq_classif_dropout",
    "summary_first_dropout",
    "summary_last_dropout",
    # Of which rows are padding, and of generation.
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
    # Of the names of classes, whose number the tensors show, and of heads that are not supported.
    "id2label",
    "label2id",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    # Overridden by `architectures`, by other settings, or the same with another arithmetic.
    "add_router_probs",
    "is_decoder",
    "pretraining_tp",
    "reorder_and_upcast_attn",
}
NO_EFFECT_IN = {
    "distilbert": {"intermediate_size"},  # whose name there is `hidden_dim`
    # With 0 sparse layers, every `num_decoder_layers`-th is sparse: here the same one.
    "switch": {"num_sparse_decoder_layers"},
    "t5": {"tie_word_embeddings"},  # with `scale_decoder_outputs`
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_change_of_any_single_setting_is_read_or_refused_and_never_ignored(name):
    expected, ignored = read(CONFIGS[name]), set()
    for key, old in CONFIGS[name].items():
        for value in (value for value in values(old) if value != old and key != "model_type"):
            found = outcome(read, CONFIGS[name] | {key: value})
            assert "\n" not in found
            # Null and an empty object stand for the default.
            ignored |= {key} if found == expected and value not in (None, {}) else set()
    assert ignored <= NO_EFFECT | NO_EFFECT_IN.get(name, set())


def test_sinusoidal_positions_are_read_from_the_table_in_the_folder():
    changed = CONFIGS["distilbert"] | {"sinusoidal_pos_embds": True}
    assert read(changed) == read(CONFIGS["distilbert"])


def tensors(name):
    arrays = np.load(GOLDEN / f"{'t5_v1_0' if name == 't5' else name}.npz")
    if "masked_lm/names" in arrays:
        names = zip(arrays["masked_lm/names"], arrays["masked_lm/keys"], strict=True)
        return {str(name): arrays[f"weights/{key}"] for name, key in names}
    prefix = "weights/"
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_change_of_any_size_is_read_or_refused_in_one_line(name, tmp_path):
    save_file(tensors(name), tmp_path / "model.safetensors")
    sizes = {key for key, old in CONFIGS[name].items() if type(old) is int}
    for key in sizes & format_of(CONFIGS[name]).settings.keys():
        for value in {1, CONFIGS[name][key] + 1} - {CONFIGS[name][key]}:
            (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name] | {key: value}))
            found = outcome(from_pretrained, tmp_path)
            assert isinstance(found, Pretrained) or "\n" not in found


def test_a_file_of_brackets_is_not_json(tmp_path):
    (tmp_path / "config.json").write_text("[" * 200_000)
    assert "nested too deeply" in refusal(lambda: from_pretrained(tmp_path))


@pytest.mark.parametrize(
    "name", [3, None, ["a"], "", ".", "..", "../outside.safetensors", "/etc/passwd", "a/b"]
)
def test_a_shard_lies_in_the_folder(v1_0, tmp_path, name):
    folder = v1_0.write(tmp_path / "in")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(v1_0.weights, name)}))
    message = refusal(lambda: from_pretrained(folder))
    assert "allowed: the name of a file in the folder" in message


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.int64, ml_dtypes.float8_e4m3fn])
def test_only_tensors_of_floating_point_numbers_are_read(v1_0, tmp_path, dtype):
    name = "encoder.block.0.layer.0.SelfAttention.q.weight"
    weights = v1_0.weights | {name: v1_0.weights[name].astype(dtype)}
    message = refusal(lambda: from_pretrained(v1_0.write(tmp_path, weights=weights)))
    assert f"{name} has dtype" in message
    assert "allowed: float64, float32, float16, bfloat16" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_warning_names_a_tensor_that_is_not_finite(v1_0, tmp_path, caplog, value):
    name = "decoder.block.0.layer.0.layer_norm.weight"
    weights = v1_0.weights | {name: np.full_like(v1_0.weights[name], value)}
    with caplog.at_level(logging.WARNING):
        from_pretrained(v1_0.write(tmp_path, weights=weights))
    (record,) = caplog.records
    assert f"{name} has NaN or infinite values" in record.getMessage()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": "four"}, "num_beams='four'; allowed: an integer from 1"),
        ({"num_beams": 0}, "num_beams=0; allowed: an integer from 1"),
        ({"temperature": "hot"}, "temperature='hot'; allowed: a number"),
        ({"eos_token_id": ["1"]}, r"eos_token_id=\['1'\]; allowed: an integer"),
        ({"early_stopping": "often"}, "early_stopping='often'; allowed: True, False, 'never'"),
        ({"do_sample": 1}, "do_sample=1; allowed: true or false"),
    ],
)
def test_settings_of_generation_are_checked_when_they_are_read(v1_0, tmp_path, settings, message):
    folder = v1_0.write(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"generation_config.json has {message}"):
        open_source(folder)


def test_every_setting_of_generation_has_allowed_values():
    fields = [field.name for field in dataclasses.fields(GenerationSettings)]
    assert list(generation_config._ALLOWED) == fields


def test_the_hint_for_a_missing_tensor_is_never_one_that_is_used():
    wanted = ["encoder.block.0.weight", "encoder.block.1.weight"]
    with pytest.raises(ValueError, match=r"lacks encoder\.block\.1\.weight") as caught:
        check_names(wanted, wanted[:1], where="here")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "written", "name"),
    [("mt5", "mt5", "MT5ForConditionalGeneration"), ("t5", "t5", "T5ForConditionalGeneration")],
)
def test_a_folder_is_written_under_the_model_type_that_it_had(
    v1_1, tmp_path, model_type, written, name
):
    model = from_pretrained(v1_1.write(tmp_path / "in", model_type=model_type))
    model.save_pretrained(tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (found["model_type"], found["architectures"]) == (written, [name])


def test_xlm_r_is_written_as_xlm_r():
    record = systems.hugging_face_format("roberta")
    settings = record.from_config(CONFIGS["roberta"], names=())
    written = record.to_config(settings, model_type="xlm-roberta")
    assert written["model_type"] == "xlm-roberta"
    assert written["architectures"] == ["XLMRobertaForMaskedLM"]
    assert record.to_config(settings)["architectures"] == ["RobertaForMaskedLM"]


def test_a_mistral_without_a_window_remains_one():
    record = systems.hugging_face_format("llama")
    settings = record.from_config(CONFIGS["mistral"] | {"sliding_window": None}, names=())
    written = record.to_config(settings, model_type="mistral")
    assert written["model_type"] == "mistral"
    assert written["sliding_window"] is None
    assert record.from_config(written, names=()) == settings
