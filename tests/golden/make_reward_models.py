"""Freezes the rewards of Hugging Face's classifiers with one label, random: reward_<system>.npz.

python tests/golden/make_reward_models.py   (made with torch 2.13.0, transformers 5.23.0)

As in make_decoders.py no dimension equals another, and every weight is random. Rows are padded on
the right, with a token that occurs nowhere else.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

VOCABULARY, LENGTH, PADDING = 74, 13, 0
FAMILIES = {
    "gpt2": (
        "GPT2ForSequenceClassification",
        {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 28, "n_positions": 40},
    ),
    "llama": (
        "LlamaForSequenceClassification",
        {
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "intermediate_size": 28,
            "num_attention_heads": 3,
            "max_position_embeddings": 40,
        },
    ),
}


def draw(model: torch.nn.Module) -> None:
    """Draws every weight, so that attention matters and no bias or gain has its usual value."""
    random = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if ("norm" in name or "ln_" in name) and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "emb" in name or "wte" in name or "wpe" in name:
            weight.data = (0.1 if weight.ndim == 1 else 0.5) * noise
        else:
            weight.data = 4 * noise * max(weight.shape) ** -0.5


@torch.no_grad()
def freeze(system: str) -> dict[str, np.ndarray]:
    """The folder, a batch and its rewards."""
    name, settings = FAMILIES[system]
    made = getattr(transformers, name)
    ids = {"pad_token_id": PADDING, "eos_token_id": 1, "bos_token_id": 1, "num_labels": 1}
    model = made(made.config_class(vocab_size=VOCABULARY, **settings, **ids)).eval()
    draw(model)
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for tensor, weight in load_file(Path(folder) / "model.safetensors").items():
            arrays[f"weights/{tensor}"] = weight
        arrays["config.json"] = np.array((Path(folder) / "config.json").read_text())
    tokens = np.random.default_rng(5).integers(2, VOCABULARY, (4, LENGTH))
    mask = np.ones_like(tokens)
    for row, padding in enumerate((0, 4, 9, 1)):
        mask[row, LENGTH - padding :] = 0
    batch = {"input_ids": np.where(mask == 1, tokens, PADDING), "attention_mask": mask}
    arrays |= {key: value.astype(np.int32) for key, value in batch.items()}
    logits = model(**{key: torch.tensor(value) for key, value in batch.items()}).logits
    return arrays | {"rewards": logits[:, 0].numpy()}


for system in FAMILIES:
    frozen = freeze(system)
    np.savez_compressed(Path(__file__).with_name(f"reward_{system}.npz"), **frozen)
    print(system, sorted(frozen), frozen["rewards"], frozen["config.json"])
