"""The folders whose settings `make_mutations.py` changes: their classes and tiny settings."""

from typing import Any

import drawn_weights

BERT = {
    "vocab_size": drawn_weights.VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 28,
    "max_position_embeddings": 16,
    "num_labels": 3,
}
ROBERTA = {**BERT, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
ALBERT = {**BERT, "embedding_size": 14, "num_hidden_layers": 4, "num_hidden_groups": 2}
T5 = {
    "vocab_size": drawn_weights.VOCABULARY,
    "d_model": 24,
    "d_kv": 10,
    "d_ff": 28,
    "num_heads": 3,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
GATED = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
LONG_T5 = {**GATED, "local_radius": 2, "global_block_size": 2}
BART = {
    "vocab_size": drawn_weights.VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 28,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 16,
}
PEGASUS = {**BART, "scale_embedding": True, "activation_function": "relu"}
MARIAN_IDS = {"pad_token_id": 40, "decoder_start_token_id": 40, "eos_token_id": 0}
MARIAN = {**PEGASUS, **MARIAN_IDS, "activation_function": "swish", "forced_eos_token_id": 0}
MBART = {**BART, "scale_embedding": True, "decoder_ffn_dim": 20, "decoder_attention_heads": 4}
GPT = {
    "vocab_size": drawn_weights.VOCABULARY,
    "n_positions": 16,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
LLAMA = {
    "vocab_size": drawn_weights.VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
OPT = {
    "vocab_size": drawn_weights.VOCABULARY,
    "hidden_size": 24,
    "ffn_dim": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 16,
}
GPT_NEOX = {
    "vocab_size": drawn_weights.VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 16,
}
DEBERTA = {
    **BERT,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 7,
}
DEBERTA_V2 = {**DEBERTA, "max_relative_positions": 11, "conv_kernel_size": 3, "conv_act": "gelu"}
DEBERTA_V3 = {
    **DEBERTA,
    "max_relative_positions": 18,
    "share_att_key": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
}
BIG_BIRD = {
    **BERT,
    "max_position_embeddings": 24,
    "block_size": 2,
    "num_random_blocks": 1,
    "sep_token_id": 4,
}
XLNET = {
    "vocab_size": drawn_weights.VOCABULARY,
    "d_model": 24,
    "n_layer": 2,
    "n_head": 3,
    "d_inner": 28,
    "mem_len": 7,
    "num_labels": 3,
}
SWITCH = {
    **T5,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
    "num_experts": 4,
    "expert_capacity": 18,
}
# Name: the class, the settings of its configuration, the sides of its batch.
FOLDERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertForMaskedLM", BERT, "segments"),
    "bert_pretraining": ("BertForPreTraining", BERT, "segments"),
    "bert_classification": ("BertForSequenceClassification", BERT, "segments"),
    "bert_regression": ("BertForSequenceClassification", {**BERT, "num_labels": 1}, "segments"),
    "bert_tagging": ("BertForTokenClassification", BERT, "segments"),
    "bert_answers": ("BertForQuestionAnswering", {**BERT, "num_labels": 2}, "segments"),
    "bert_choices": ("BertForMultipleChoice", BERT, "segments"),
    "bert_features": ("BertModel", BERT, "segments"),
    "roberta": ("RobertaForMaskedLM", ROBERTA, "encoder"),
    "roberta_classification": ("RobertaForSequenceClassification", ROBERTA, "encoder"),
    "roberta_choices": ("RobertaForMultipleChoice", ROBERTA, "encoder"),
    "xlm_roberta": ("XLMRobertaForMaskedLM", ROBERTA, "encoder"),
    "albert": ("AlbertForMaskedLM", ALBERT, "segments"),
    "albert_classification": ("AlbertForSequenceClassification", ALBERT, "segments"),
    "albert_choices": ("AlbertForMultipleChoice", ALBERT, "segments"),
    "electra": ("ElectraForPreTraining", {**BERT, "embedding_size": 14}, "segments"),
    "electra_masked_lm": ("ElectraForMaskedLM", {**BERT, "embedding_size": 14}, "segments"),
    "electra_classification": ("ElectraForSequenceClassification", BERT, "segments"),
    "electra_choices": ("ElectraForMultipleChoice", {**BERT, "embedding_size": 14}, "segments"),
    "distilbert": ("DistilBertForMaskedLM", {**BERT, "hidden_dim": 28}, "encoder"),
    "distilbert_classification": (
        "DistilBertForSequenceClassification",
        {**BERT, "hidden_dim": 28},
        "encoder",
    ),
    "distilbert_choices": ("DistilBertForMultipleChoice", {**BERT, "hidden_dim": 28}, "encoder"),
    "deberta": ("DebertaForMaskedLM", DEBERTA, "encoder"),
    "deberta_classification": ("DebertaForSequenceClassification", DEBERTA, "encoder"),
    "deberta_v2": ("DebertaV2ForMaskedLM", DEBERTA_V2, "encoder"),
    "deberta_v3": ("DebertaV2ForMaskedLM", DEBERTA_V3, "encoder"),
    "deberta_v3_classification": ("DebertaV2ForSequenceClassification", DEBERTA_V3, "encoder"),
    "bigbird": ("BigBirdForMaskedLM", BIG_BIRD, "segments"),
    "bigbird_classification": ("BigBirdForSequenceClassification", BIG_BIRD, "segments"),
    "xlnet": ("XLNetLMHeadModel", XLNET, "segments"),
    "xlnet_classification": ("XLNetForSequenceClassification", XLNET, "segments"),
    "t5": ("T5ForConditionalGeneration", T5, "both"),
    "t5_gated": ("T5ForConditionalGeneration", GATED, "both"),
    "t5_encoder": ("T5EncoderModel", T5, "encoder"),
    "mt5": ("MT5ForConditionalGeneration", GATED, "both"),
    "umt5": ("UMT5ForConditionalGeneration", T5, "both"),
    "longt5": ("LongT5ForConditionalGeneration", LONG_T5, "both"),
    "longt5_tglobal": (
        "LongT5ForConditionalGeneration",
        {**LONG_T5, "encoder_attention_type": "transient-global"},
        "both",
    ),
    "bart": ("BartForConditionalGeneration", BART, "both"),
    "bart_unequal": (
        "BartForConditionalGeneration",
        {**BART, "decoder_ffn_dim": 20, "decoder_attention_heads": 4},
        "both",
    ),
    "pegasus": ("PegasusForConditionalGeneration", PEGASUS, "both"),
    "marian": ("MarianMTModel", MARIAN, "both"),
    "mbart": ("MBartForConditionalGeneration", MBART, "both"),
    "bart_classification": ("BartForSequenceClassification", BART, "encoder"),
    "gpt": ("OpenAIGPTLMHeadModel", GPT, "decoder"),
    "gpt2": ("GPT2LMHeadModel", GPT, "decoder"),
    "llama": ("LlamaForCausalLM", LLAMA, "decoder"),
    "llama_tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True}, "decoder"),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}, "decoder"),
    "mixtral": ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 5}, "decoder"),
    "gptj": (
        "GPTJForCausalLM",
        {**GPT, "rotary_dim": 4},
        "decoder",
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", GPT_NEOX, "decoder"),
    "opt": ("OPTForCausalLM", OPT, "decoder"),
    "opt_350m": (
        "OPTForCausalLM",
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 18},
        "decoder",
    ),
    "switch": ("SwitchTransformersForConditionalGeneration", SWITCH, "both"),
}
