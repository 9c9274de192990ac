"""The classes of transformers whose tokenizers are WordPiece or BPE: BERT's, GPT-2's, LLaMA's, ...

Each gives the same tokenizer as the class of the same name in transformers 5, which makes it from
the pieces, even if a tokenizer.json has another normalizer.
"""

from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from t5x_like.vocabularies.hugging_face.tokenizer_recipe import (
    Pieces,
    Recipe,
    Settings,
    around,
    text,
)
from t5x_like.vocabularies.rust_errors import as_value_errors

_JSON = ("vocab.json", "merges.txt")
_BLANK = "\u2581"
_END_OF_TEXT = "<|endoftext|>"
_BERT = dict.fromkeys(("bos_token", "eos_token"), None) | {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_GPT_2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT)
# Qwen2's pattern of words, with single digits; the library `tokenizers` contains GPT-2's.
_QWEN_2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _bert(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    unknown = text(settings, "unk_token", "[UNK]")
    if unknown not in pieces.ids:
        raise ValueError(f"lacks the piece {unknown!r} for what it does not know.")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(pieces.ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _bpe(pieces: Pieces, **settings: Any) -> tokenizers.Tokenizer:
    with as_value_errors("has merges that do not fit"):
        return tokenizers.Tokenizer(models.BPE(pieces.ids, list(pieces.merges), **settings))


def _byte_level(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    """Make the tokenizer of GPT-2, RoBERTa and DeBERTa."""
    tokenizer = _bpe(pieces, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    blank = bool(settings.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=blank)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt_neox(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _byte_level(pieces, settings)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _qwen_2(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _gpt_neox(pieces, settings)
    blank = bool(settings.get("add_prefix_space"))
    words = pre_tokenizers.Split(tokenizers.Regex(_QWEN_2_WORDS), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=blank, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    return tokenizer


def _gpt(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _bpe(
        pieces,
        continuing_subword_prefix="",
        end_of_word_suffix="</w>",
        fuse_unk=False,
        unk_token=text(settings, "unk_token", "<unk>"),
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return tokenizer


def _llama(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _bpe(pieces, fuse_unk=True, byte_fallback=True)
    blank = settings.get("add_prefix_space")
    scheme = "always" if settings.get("legacy") else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_BLANK,
        prepend_scheme=scheme if blank or blank is None else "never",
        split=False,
    )
    parts = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if blank or blank is None:
        parts.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _gemma(pieces: Pieces, settings: Settings) -> tokenizers.Tokenizer:
    unknown = text(settings, "unk_token", "<unk>")
    tokenizer = _bpe(pieces, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    tokenizer.normalizer = normalizers.Replace(" ", _BLANK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


_WORDPIECE = Recipe(
    "WordPiece", ("vocab.txt",), _BERT, _bert, template=around("cls_token", "sep_token")
)
_OF_ROBERTA = Recipe("BPE", _JSON, _ROBERTA, _byte_level, around("cls_token", "sep_token"))
RECIPES = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra", "MobileBert"), _WORDPIECE),
    **dict.fromkeys(("Roberta", "Bart", "Longformer", "LED"), _OF_ROBERTA),
    "GPT2": Recipe("BPE", _JSON, _GPT_2, _byte_level),
    "GPTNeoX": Recipe("BPE", _JSON, _GPT_2 | {"pad_token": "<|padding|>"}, _gpt_neox),
    "Qwen2": Recipe(
        "BPE",
        _JSON,
        dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END_OF_TEXT),
        _qwen_2,
    ),
    "OpenAIGPT": Recipe("BPE", _JSON, {"unk_token": "<unk>"}, _gpt, end="\n</w>"),
    "Deberta": Recipe(
        "BPE",
        _JSON,
        _BERT | {"bos_token": "[CLS]", "eos_token": "[SEP]"},
        _byte_level,
        around("cls_token", "sep_token"),
    ),
    "Llama": Recipe(
        "BPE",
        ("tokenizer.model",),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        _llama,
    ),
    "Gemma": Recipe(
        "BPE",
        ("tokenizer.model",),
        {
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        _gemma,
    ),
}
