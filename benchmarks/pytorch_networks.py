"""The networks of benchmarks/gpu_training.py in PyTorch, and their compiled training step."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers


def t5(size: Mapping[str, Any]) -> Any:
    """Make Hugging Face's T5 v1.1 with these sizes, without dropout."""
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=size["vocab_size"],
            d_model=size["d_model"],
            d_ff=size["d_ff"],
            d_kv=size["d_kv"],
            num_heads=size["heads"],
            num_layers=size["encoder_layers"],
            num_decoder_layers=size["decoder_layers"],
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            dropout_rate=0.0,
            use_cache=False,
        )
    )


def llama(size: Mapping[str, Any]) -> Any:
    """Make Hugging Face's LLaMA with these sizes."""
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=size["vocab_size"],
            hidden_size=size["d_model"],
            intermediate_size=size["d_ff"],
            num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"],
            num_key_value_heads=size["kv_heads"],
            head_dim=size["head_width"],
            tie_word_embeddings=size["tied_head"],
            use_cache=False,
        )
    )


def bert(size: Mapping[str, Any]) -> Any:
    """Make Hugging Face's BERT for masked tokens with these sizes, without dropout."""
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=size["vocab_size"],
            hidden_size=size["d_model"],
            intermediate_size=size["d_ff"],
            num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"],
            max_position_embeddings=size["positions"],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


# Compiled one by one, layers of the same kind share a program (PyTorch's "regional compilation").
# The whole network as one program takes minutes to compile: more than four for T5 1.1 large.
_LAYERS = ("T5Block", "LlamaDecoderLayer", "BertLayer")


def training_step(
    size: Mapping[str, Any], batch: Mapping[str, np.ndarray], *, compiled: bool
) -> Callable[[], float]:
    """Return a function that takes a step of AdamW with bfloat16 autocast, and returns its loss.

    Args:
        size: the model's settings.
        batch: the batch of every step.
        compiled: whether `torch.compile` compiles each layer.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def on_device(name: str) -> Any:
        return torch.tensor(batch[name], dtype=torch.long, device=device)

    if "encoder_layers" in size:
        network, names = t5(size), ("encoder_input_tokens", "decoder_input_tokens")
    elif "token_types" in size:
        network, names = bert(size), ("encoder_input_tokens",)
    else:
        network, names = llama(size), ("decoder_input_tokens",)
    network = network.to(device).train()
    if compiled:
        for module in network.modules():
            if type(module).__name__ in _LAYERS:
                module.compile()
    adamw = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    inputs = dict(zip(("input_ids", "decoder_input_ids"), map(on_device, names), strict=False))
    last = names[-1].split("_")[0]
    targets = on_device(f"{last}_target_tokens")
    targets = targets.masked_fill(on_device(f"{last}_loss_weights") == 0, -100).flatten()

    def take() -> float:
        adamw.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = network(**inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets)
        loss.backward()
        adamw.step()
        return float(loss.detach())

    return take


def limit_memory(share: float) -> None:
    """Limit this process to a share of the device's memory."""
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def memory_and_device() -> tuple[int | None, str]:
    """Return the maximum bytes of the device in use, None on a CPU, and the device's name."""
    if not torch.cuda.is_available():
        return None, "cpu"
    return torch.cuda.max_memory_allocated(), torch.cuda.get_device_name()
