"""The tokenizers of published folders, as config.json and tokenizer_config.json have them.

`make_tokenizer_folders.py` writes the folders.
"""


def token(content: str, **flags: bool) -> dict:
    """An added token as JSON has it."""
    names = ("lstrip", "rstrip", "single_word", "normalized")
    return {"content": content, **{name: flags.get(name, False) for name in names}} | (
        {"special": flags["special"]} if "special" in flags else {}
    )


# The family: the files of its vocabulary, its config.json, its tokenizer_config.json.
START = {"is_encoder_decoder": True}
T5 = {**START, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
_BART = {
    **START,
    "decoder_start_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
LLAMA = {"bos_token_id": 1, "eos_token_id": 2}
_END = "<|endoftext|>"
FAMILIES = {
    "t5": (
        "t5",
        "spiece.model",
        {"model_type": "t5", **T5},
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    ),
    "mt5": (
        "t5",
        "spiece.model",
        {"model_type": "mt5", **T5, "tokenizer_class": "T5Tokenizer"},
        {"extra_ids": 0},
    ),
    "longt5": (
        "t5",
        "spiece.model",
        {"model_type": "longt5", **T5},
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 20},
    ),
    "switch": (
        "t5",
        "spiece.model",
        {"model_type": "switch_transformers", **T5},
        {"tokenizer_class": "T5Tokenizer"},
    ),
    "albert": ("albert", "spiece.model", {"model_type": "albert"}, {}),
    "albert_cased": (
        "albert",
        "spiece.model",
        {"model_type": "albert"},
        {
            "do_lower_case": False,
            "keep_accents": True,
            "mask_token": {"__type": "AddedToken", **token("[MASK]", lstrip=True, normalized=True)},
        },
    ),
    "xlnet": ("xlnet", "spiece.model", {"model_type": "xlnet"}, {}),
    "bigbird": ("bigbird", "spiece.model", {"model_type": "big_bird"}, {}),
    "bigbird_pegasus": (
        "pegasus",
        "spiece.model",
        {
            "model_type": "bigbird_pegasus",
            **START,
            "decoder_start_token_id": 2,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
        },
        {
            "tokenizer_class": "PegasusTokenizer",
            "offset": 0,
            "mask_token": "[MASK]",
            "mask_token_sent": None,
        },
    ),
    "deberta_v2": (
        "deberta_v2",
        "spm.model",
        {"model_type": "deberta-v2"},
        {"do_lower_case": False, "vocab_type": "spm"},
    ),
    "deberta_v2_punct": (
        "deberta_v2",
        "spm.model",
        {"model_type": "deberta-v2"},
        {"do_lower_case": True, "split_by_punct": True},
    ),
    "xlm_roberta": ("fairseq", "sentencepiece.bpe.model", {"model_type": "xlm-roberta"}, {}),
    "mbart": (
        "fairseq",
        "sentencepiece.bpe.model",
        {"model_type": "mbart", **_BART, "decoder_start_token_id": 250020},
        {"tokenizer_class": "MBartTokenizer"},
    ),
    "mbart_50": (
        "fairseq",
        "sentencepiece.bpe.model",
        {"model_type": "mbart", **_BART},
        {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE", "tgt_lang": None},
    ),
    "pegasus": (
        "pegasus",
        "spiece.model",
        {"model_type": "pegasus", **T5},
        {"tokenizer_class": "PegasusTokenizer"},
    ),
    "llama": (
        "llama",
        "tokenizer.model",
        {"model_type": "llama", **LLAMA},
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False},
    ),
    "llama_legacy": (
        "llama",
        "tokenizer.model",
        {"model_type": "llama", **LLAMA},
        {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": True,
            "legacy": True,
            "pad_token": None,
        },
    ),
    "mistral": (
        "mistral",
        "tokenizer.model",
        {"model_type": "mistral", **LLAMA},
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": True},
    ),
    "mixtral": (
        "llama",
        "tokenizer.model",
        {"model_type": "mixtral", **LLAMA},
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False},
    ),
    "gemma": (
        "gemma",
        "tokenizer.model",
        {"model_type": "gemma", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
        {
            "tokenizer_class": "GemmaTokenizer",
            "add_bos_token": True,
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        },
    ),
    "bert": ("uncased", "", {"model_type": "bert", "pad_token_id": 0}, None),
    "bert_cased": (
        "cased",
        "",
        {"model_type": "bert", "pad_token_id": 0},
        {"do_lower_case": False},
    ),
    "bert_accents": (
        "cased",
        "",
        {"model_type": "bert"},
        {
            "do_lower_case": True,
            "strip_accents": False,
            "tokenize_chinese_chars": False,
            "clean_up_tokenization_spaces": True,
        },
    ),
    "electra": ("uncased", "", {"model_type": "electra"}, {"tokenizer_class": "ElectraTokenizer"}),
    "distilbert": (
        "uncased",
        "",
        {"model_type": "distilbert"},
        {"tokenizer_class": "DistilBertTokenizer"},
    ),
    "roberta": (
        "roberta",
        "",
        {"model_type": "roberta", "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
        None,
    ),
    "bart": (
        "roberta",
        "",
        {"model_type": "bart", **_BART},
        {
            "tokenizer_class": "BartTokenizer",
            "mask_token": {"__type": "AddedToken", **token("<mask>", lstrip=True, normalized=True)},
        },
    ),
    "deberta": (
        "deberta",
        "",
        {"model_type": "deberta"},
        {"do_lower_case": False, "vocab_type": "gpt2"},
    ),
    "gpt": ("gpt", "", {"model_type": "openai-gpt"}, None),
    "gpt2": ("gpt2", "", {"model_type": "gpt2"}, None),
    "gpt_j": (
        "gpt2",
        "",
        {"model_type": "gptj"},
        {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
    ),
    "opt": (
        "roberta",
        "",
        {"model_type": "opt", "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
        {
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": True,
            "bos_token": {"__type": "AddedToken", **token("</s>", normalized=True)},
            "eos_token": {"__type": "AddedToken", **token("</s>", normalized=True)},
            "pad_token": {"__type": "AddedToken", **token("<pad>", normalized=True)},
            "unk_token": {"__type": "AddedToken", **token("</s>", normalized=True)},
            "errors": "replace",
        },
    ),
    "gpt_neox": (
        "neox",
        "",
        {"model_type": "gpt_neox", "bos_token_id": 0, "eos_token_id": 0},
        {"tokenizer_class": "GPTNeoXTokenizer"},
    ),
    "qwen2": (
        "gpt2",
        "",
        {"model_type": "qwen2", "bos_token_id": 330},
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": _END,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        },
    ),
    "qwen2_misnamed": (
        "gpt2",
        "",
        {"model_type": "qwen2"},
        {"tokenizer_class": "GPT2Tokenizer", "eos_token": _END},
    ),
}
