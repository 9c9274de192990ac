"""The tiny models and the requests of make_harness.py."""

from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

LENGTH = 24
BEGINS = "<|begin_of_text|>"
ENDS = {"gpt2": "<|endoftext|>", "llama": "<|end_of_text|>"}

_SIZES = {"vocab_size": 258}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        **_SIZES,
        "n_positions": LENGTH,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 3,
        "bos_token_id": 256,
        "eos_token_id": 256,
    },
    "llama": {
        "model_type": "llama",
        **_SIZES,
        "hidden_size": 24,
        "intermediate_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 257,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    },
    "t5": {
        "model_type": "t5",
        "vocab_size": 259,
        "d_model": 24,
        "d_kv": 10,
        "d_ff": 28,
        "num_heads": 3,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    },
}

# Contexts and continuations: one that fills a row, one that is too long, none, blanks at the end.
PAIRS = (
    ("Is grass green?", " yes"),
    ("Is grass green?", " no"),
    ("a b", " cd"),
    ("The blank belongs to ", "it"),
    ("A context that is longer than what the model reads", " end"),
    ("", "no context"),
    ("twelve bytes", " and twelve"),
)
TEXTS = (
    "Short.",
    "exactly twenty-four byte",
    "A text of more bytes than two windows of a row have.",
)
# One setting at a time in a batch, as a task has it.
PROMPTS = (
    ("Is grass", {"until": ["\n"], "max_gen_toks": 8}),
    ("A prompt that is truncated on the left", {"until": ["\n"], "max_gen_toks": 8}),
    ("ab", {"until": ["e", "q"], "max_gen_toks": 10, "do_sample": False}),
)


def tokenizer(kind: str) -> tokenizers.Tokenizer:
    """A byte-level BPE without merges, with the special tokens of a kind, in its way."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [BEGINS, ENDS["llama"]] if kind == "llama" else [ENDS["gpt2"]]
    made = tokenizers.Tokenizer(models.BPE({one: n for n, one in enumerate(pieces)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special)
    if kind == "llama":
        made.post_processor = processors.TemplateProcessing(
            single=f"{BEGINS} $A", special_tokens=[(BEGINS, len(pieces))]
        )
    return made
