"""Settings of a folder without an effect are named once; values that folders have are read."""

import json

import pytest

from t5x_like import systems
from t5x_like.hf import generation_config
from t5x_like.hf.generation_config import read_generation, write_generation
from t5x_like.pretrained import from_pretrained

# config.json of facebook/bart-large-cnn and of Helsinki-NLP/opus-mt-en-de, as they were published
# with the first transformers that had these classes; long labels are left out.
BART = json.loads(
    """{"_num_labels": 3, "activation_dropout": 0.0, "activation_function": "gelu",
    "add_bias_logits": false, "add_final_layer_norm": false, "attention_dropout": 0.0,
    "architectures": ["BartForConditionalGeneration"], "bos_token_id": 0, "classif_dropout": 0.0,
    "d_model": 1024, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layers": 12,
    "decoder_layerdrop": 0.0, "decoder_start_token_id": 2, "dropout": 0.1, "early_stopping": true,
    "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0,
    "encoder_layers": 12, "eos_token_id": 2, "extra_pos_embeddings": 2,
    "force_bos_token_to_be_generated": true, "forced_eos_token_id": 2, "init_std": 0.02,
    "is_encoder_decoder": true, "length_penalty": 2.0, "max_length": 142, "min_length": 56,
    "max_position_embeddings": 1024, "model_type": "bart", "no_repeat_ngram_size": 3,
    "normalize_before": false, "normalize_embedding": true, "num_beams": 4,
    "num_hidden_layers": 12, "output_past": true, "pad_token_id": 1, "prefix": " ",
    "scale_embedding": false, "static_position_embeddings": false, "vocab_size": 50264,
    "task_specific_params": {"summarization": {"num_beams": 4}}}"""
)
MARIAN = json.loads(
    """{"_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish",
    "add_bias_logits": false, "add_final_layer_norm": false, "attention_dropout": 0.0,
    "architectures": ["MarianMTModel"], "bad_words_ids": [[58100]], "bos_token_id": 0,
    "classif_dropout": 0.0, "d_model": 512, "decoder_attention_heads": 8, "dropout": 0.1,
    "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0, "decoder_layers": 6, "eos_token_id": 0,
    "decoder_start_token_id": 58100, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0, "encoder_layers": 6, "init_std": 0.02, "is_encoder_decoder": true,
    "max_length": 512, "max_position_embeddings": 512, "model_type": "marian",
    "normalize_before": false, "normalize_embedding": false, "num_beams": 6,
    "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": true,
    "static_position_embeddings": true, "vocab_size": 58101}"""
)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records]


def test_settings_without_an_effect_are_one_line_once(v1_0, tmp_path, caplog):
    changes = {"sparse_layers": 2, "dropuot_rate": 0.5, "num_beams": 3, "_name_or_path": "x/y"}
    folder = v1_0.write(tmp_path / "one", **changes)
    stored = {"repetition_penalty": 1.2, "stop_strings": ["a"], "num_beam": 4, "top_h": None}
    (folder / "generation_config.json").write_text(json.dumps(stored | {"use_cache": True}))
    for _ in range(2):
        from_pretrained(folder)
    [line] = warnings(caplog)
    assert line == (
        f"{folder} has settings without an effect here: config.json: dropuot_rate=0.5 (did you "
        "mean 'dropout_rate'?), num_beams=3, sparse_layers=2; generation_config.json: num_beam=4 "
        "(did you mean 'num_beams'?), repetition_penalty=1.2, stop_strings=['a']"
    )


def test_a_folder_as_transformers_writes_it_has_none(v1_0, v1_1, tmp_path, caplog):
    for number, golden in enumerate((v1_0, v1_1)):
        folder = golden.write(tmp_path / str(number))
        stored = {"output_attentions": False, "bos_token_id": 0, "repetition_penalty": 1.0}
        (folder / "generation_config.json").write_text(json.dumps(stored))
        from_pretrained(folder)
    assert warnings(caplog) == []


@pytest.mark.parametrize("config", [BART, MARIAN], ids=["bart", "marian"])
def test_old_folders_have_none(config, tmp_path):
    record = systems.hugging_face_format(config["model_type"])
    unread = record.without_effect(config, names=[])
    assert generation_config.without_effect(tmp_path, config, unread) == ({}, {})


def test_the_first_folders_of_bart_force_their_first_token(tmp_path):
    """As `from_model_config` of transformers; a generation_config.json goes first."""
    assert read_generation(tmp_path, BART).forced_bos_token_id == 0
    (tmp_path / "generation_config.json").write_text("{}")
    assert read_generation(tmp_path, BART).forced_bos_token_id is None


@pytest.mark.parametrize("stored", [{"temperature": 0}, {"top_k": -1}, {"top_k": 0}, {"top_p": 0}])
def test_values_of_folders_that_do_not_sample_are_kept(stored, v1_0, models, tmp_path):
    settings = read_generation(tmp_path, stored | {"eos_token_id": 1})
    write_generation(tmp_path, settings)
    written = json.loads((tmp_path / "generation_config.json").read_text())
    assert written.items() >= stored.items()
    model = models[v1_0]
    own = {**settings.__dict__, "eos_token_id": None, "max_new_tokens": 3}
    request = {name: own[name] for name in ("eos_token_id", "max_new_tokens")}
    greedy = model.generate(v1_0.source["input_ids"], **request)
    # temperature=0 asks for the likeliest tokens, top_p=0 leaves only them.
    if "temperature" in stored:
        found = model.generate(v1_0.source["input_ids"], temperature=0, **request)
        assert found.tolist() == greedy.tolist()
    if "top_p" in stored:
        found = model.generate(v1_0.source["input_ids"], do_sample=True, top_p=0, **request)
        assert found.tolist() == greedy.tolist()


def test_temperature_0_does_not_sample(v1_0, models):
    with pytest.raises(ValueError, match="temperature=0 must be above 0 where do_sample=True"):
        models[v1_0].generate(v1_0.source["input_ids"], do_sample=True, temperature=0)


def test_minus_one_of_top_k_is_all(v1_0, models):
    request = {"do_sample": True, "max_new_tokens": 4, "seed": 3}
    found = [models[v1_0].generate(v1_0.source["input_ids"], top_k=k, **request) for k in (-1, 0)]
    assert found[0].tolist() == found[1].tolist()


def test_advice_to_write_a_folder_anew_keeps_its_head(v1_0, tmp_path):
    folder = v1_0.write(tmp_path / "keras", architectures=["T5ForConditionalGeneration"])
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(ValueError, match=r"transformers' T5ForConditionalGeneration .* new folder"):
        from_pretrained(folder)
