"""Freezes what Hugging Face's decoders compute and generate with random weights: <system>.npz.

python tests/golden/make_decoders.py [system ...]   (made with torch 2.13.0, transformers 5.23.0)

No dimension equals another, so that no transposed weight can pass for its transpose, and every
weight is random, gains and biases too, so that none has the value that a forgotten one would have.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

VOCABULARY, LENGTH, NEW_TOKENS, PADDING, END = 74, 13, 14, 0, 1
_LLAMA = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 28}
_OPT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "ffn_dim": 28,
    "num_attention_heads": 3,
    "max_position_embeddings": 40,
    "attention_dropout": 0.1,
}
_NEOX = {
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "num_attention_heads": 3,
    "max_position_embeddings": 40,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.6,
    },
}
# System: the class, its settings.
FAMILIES = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 28, "n_positions": 40},
    ),
    "gpt": ("OpenAIGPTLMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}),
    "llama": (
        "LlamaForCausalLM",
        {**_LLAMA, "num_attention_heads": 3, "max_position_embeddings": 40},
    ),
    # Grouped queries, a head width of its own, a tied head, and slow angles within 26 positions.
    "llama_3": (
        "LlamaForCausalLM",
        {
            **_LLAMA,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 10,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    # A window that is shorter than the prompts.
    "mistral": (
        "MistralForCausalLM",
        {**_LLAMA, "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 5},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**_LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "gemma": (
        "GemmaForCausalLM",
        {**_LLAMA, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        {
            **_LLAMA,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 10,
            "num_local_experts": 5,
            "max_position_embeddings": 40,
        },
    ),
    "opt": ("OPTForCausalLM", _OPT),
    # The released 350M's kind: norms after sublayers, and embeddings narrower than the model.
    "opt_350m": (
        "OPTForCausalLM",
        {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 18},
    ),
    # Rotary positions of the first 6 of 10 numbers a head.
    "gpt_neox": ("GPTNeoXForCausalLM", {**_NEOX, "use_parallel_residual": True}),
    "gpt_neox_serial": (
        "GPTNeoXForCausalLM",
        {**_NEOX, "use_parallel_residual": False, "hidden_act": "gelu_fast"},
    ),
    "gptj": (
        "GPTJForCausalLM",
        {
            "n_embd": 30,
            "n_layer": 2,
            "n_head": 3,
            "n_inner": 28,
            "n_positions": 40,
            "rotary_dim": 6,
        },
    ),
}
GENERATIONS = [
    {"max_new_tokens": NEW_TOKENS},
    {"max_new_tokens": NEW_TOKENS, "num_beams": 4},
    {"max_new_tokens": NEW_TOKENS, "num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
]


def draw(model: torch.nn.Module) -> None:
    """Draws every weight, sublayers so large that the last token does not decide the next alone."""
    random = torch.Generator().manual_seed(0)
    gain = 0 if model.config.model_type == "gemma" else 1  # Gemma adds the 1 itself
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if ("norm" in name or "ln_" in name) and name.endswith("weight"):
            weight.data = gain + 0.3 * noise
        elif weight.ndim == 1 or "emb" in name or "wte" in name or "wpe" in name:
            weight.data = (0.1 if weight.ndim == 1 else 0.5) * noise
        else:
            weight.data = 4 * noise * max(weight.shape) ** -0.5


def count_real_tokens(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Positions as GPT-2's class has them in `generate`; GPT's class counts padding, too."""
    del module
    places = kwargs["attention_mask"].cumsum(-1) - 1
    return args, kwargs | {"position_ids": places.clamp(min=0)}


def prompts() -> dict[str, dict[str, np.ndarray]]:
    """Rows padded on the right, for logits, and on the left, for both."""
    random = np.random.default_rng(5)
    tokens = random.integers(2, VOCABULARY, (4, LENGTH))
    right, left = np.ones_like(tokens), np.ones_like(tokens)
    for row, padding in enumerate((0, 4, 9, 1)):
        right[row, LENGTH - padding :] = 0
        left[row, :padding] = 0
    return {
        side: {"input_ids": np.where(mask == 1, tokens, PADDING), "attention_mask": mask}
        for side, mask in {"right": right, "left": left}.items()
    }


@torch.no_grad()
def freeze(system: str) -> dict[str, np.ndarray]:
    """The folder, the logits of both paddings, and what is generated after the left-padded."""
    name, settings = FAMILIES[system]
    model_class = getattr(transformers, name)
    ids = {"pad_token_id": PADDING, "eos_token_id": END, "bos_token_id": END}
    model = model_class(model_class.config_class(vocab_size=VOCABULARY, **settings, **ids)).eval()
    draw(model)
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for tensor, weight in load_file(Path(folder) / "model.safetensors").items():
            arrays[f"weights/{tensor}"] = weight
        for file in ("config.json", "generation_config.json"):
            arrays[file] = np.array((Path(folder) / file).read_text())
    for side, batch in prompts().items():
        arrays |= {f"{side}/{key}": value.astype(np.int32) for key, value in batch.items()}
        batch = {key: torch.tensor(value) for key, value in batch.items()}
        arrays[f"{side}/logits"] = model(**batch).logits.numpy()
    if system == "gpt":
        model.register_forward_pre_hook(count_real_tokens, with_kwargs=True)
    for number, request in enumerate(GENERATIONS):
        found = model.generate(**batch, **request).numpy()
        # Beam search takes the end token for padding where the padding token is 0.
        ended = np.cumsum(found[:, LENGTH:] == END, axis=1) > 1
        found[:, LENGTH:][ended] = PADDING
        arrays[f"generation/{number}"] = found
    arrays["generations.json"] = np.array(json.dumps(GENERATIONS))
    return arrays


for system in sys.argv[1:] or FAMILIES:
    frozen = freeze(system)
    np.savez_compressed(Path(__file__).with_name(f"{system}.npz"), **frozen)
    print(system, len(frozen), sum(array.nbytes for array in frozen.values()))
    print(frozen["generation/0"])
