"""Freezes folders that Hugging Face's Transformer-XL wrote, and the likelihood of a document.

python tests/golden/make_transformer_xl_folders.py      (made with torch 2.4.1, transformers 4.36.2)

transformers 5 has no Transformer-XL. For each network: config.json, the tensors that
`save_pretrained` writes, and the log probabilities of a document's tokens, read in rows of 10
tokens with the memory of the rows before. The first memory has no states. The vocabulary is of
bytes: token 0 begins, 1 ends a document, and byte b is the token b + 3.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from transformers.models.deprecated.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel

DOCUMENT = "Each row also attends to the states of the rows before it."
ROW, LAYERS, WIDTH = 10, 3, 24
SIZES = {
    "vocab_size": 259,
    "d_model": WIDTH,
    "d_embed": WIDTH,
    "n_layer": LAYERS,
    "n_head": 3,
    "d_head": 10,
    "d_inner": 28,
    "mem_len": 17,
}
# The letters of the document are in all three clusters.
CLUSTERS = {"cutoffs": [105, 113], "same_length": True, "clamp_len": 12, "untie_r": True}
NETWORKS = {
    "published": {**CLUSTERS, "div_val": 2},
    "as_wide": {**CLUSTERS, "div_val": 1, "untie_r": False},
    "one_table": {
        "cutoffs": [],
        "div_val": 1,
        "same_length": False,
        "clamp_len": -1,
        "untie_r": False,
        "adaptive": False,
        "proj_share_all_but_first": False,
    },
}


def build(settings: dict[str, object]) -> TransfoXLLMHeadModel:
    """Return the network with every weight drawn by its name."""
    model = TransfoXLLMHeadModel(TransfoXLConfig(**SIZES | settings)).eval()
    for name, weight in model.named_parameters():
        random = torch.Generator().manual_seed(sum(map(ord, name)) * 1000 + len(name))
        noise = torch.randn(weight.shape, generator=random)
        if "layer_norm" in name and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "bias" in name or "emb_layers" in name:
            weight.data = 0.5 * noise
        else:
            weight.data = 1.5 * noise * weight.shape[-1] ** -0.5
    return model


@torch.no_grad()
def likelihoods(model: TransfoXLLMHeadModel) -> np.ndarray:
    """Return the log probability of each token of the document and of its end."""
    tokens = [0, *(byte + 3 for byte in DOCUMENT.encode()), 1]
    mems, found = [torch.zeros(0, 1, WIDTH) for _ in range(LAYERS)], []
    for first in range(0, len(tokens) - 1, ROW):
        row = tokens[first : first + ROW + 1]
        out = model(torch.tensor([row[:-1]]), mems=mems)
        mems = out.mems
        # Without labels the scores are log probabilities.
        found += [out.prediction_scores[0, n, token].item() for n, token in enumerate(row[1:])]
    return np.array(found, np.float32)


def freeze() -> dict[str, np.ndarray]:
    """Return all arrays."""
    arrays: dict[str, np.ndarray] = {"document": np.array(DOCUMENT), "row": np.array(ROW)}
    for name, settings in NETWORKS.items():
        model = build(settings)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            config = json.loads(Path(folder, "config.json").read_text())
            arrays[f"{name}/config"] = np.array(json.dumps(config))
            tensors = safetensors.numpy.load_file(Path(folder, "model.safetensors"))
        arrays |= {f"{name}/tensors/{key}": tensor for key, tensor in tensors.items()}
        arrays[f"{name}/names"] = np.array(list(model.state_dict()))
        arrays[f"{name}/log_probs"] = likelihoods(model)
    return arrays


frozen = freeze()
np.savez_compressed(Path(__file__).with_name("transformer_xl_folders.npz"), **frozen)
print(len(frozen), sum(array.nbytes for array in frozen.values()))
