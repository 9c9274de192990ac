"""Freezes what Hugging Face's Transformer-XL computes over three batches, with random weights.

python tests/golden/make_transformer_xl.py      (made with torch 2.4.1, transformers 4.36.2)

transformers 5 has no Transformer-XL. There are two networks with one table of embeddings: the
biases u and v are shared by all layers and every token attends to the whole memory (`shared/`), or
each layer has its own, each token attends to as many tokens, and distances have a limit
(`untied/`). Two have adaptive embeddings and an adaptive softmax over three clusters, whose vectors
are narrower for rarer words (`narrower/`) or not (`as_wide/`). Hugging Face's first memory is
zeros, to which tokens attend.
"""

from pathlib import Path

import numpy as np
import torch
from transformers.models.deprecated.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel

VOCABULARY, LENGTH, ROWS, BATCHES, MEMORY = 61, 6, 3, 3, 9
CONFIG = {
    "vocab_size": VOCABULARY,
    "cutoffs": [],
    "div_val": 1,
    "d_model": 24,
    "d_embed": 24,
    "n_layer": 3,
    "n_head": 3,
    "d_head": 10,
    "d_inner": 28,
    "mem_len": MEMORY,
    "adaptive": False,
    "proj_share_all_but_first": False,
}
ADAPTIVE = {
    "untie_r": False,
    "same_length": False,
    "clamp_len": -1,
    "cutoffs": [20, 33],
    "adaptive": True,
    "proj_share_all_but_first": True,
}
NETWORKS = {
    "shared": {"untie_r": False, "same_length": False, "clamp_len": -1},
    "untied": {"untie_r": True, "same_length": True, "clamp_len": 7},
    "narrower": {**ADAPTIVE, "div_val": 2},
    "as_wide": {**ADAPTIVE, "div_val": 1},
}


def build(settings: dict[str, object]) -> torch.nn.Module:
    """Return the network with every weight drawn by its name."""
    model = TransfoXLLMHeadModel(TransfoXLConfig(**CONFIG | settings)).eval()
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
def freeze() -> dict[str, np.ndarray]:
    """Return all arrays."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (BATCHES, ROWS, LENGTH))
    arrays = {"tokens": tokens.astype(np.int32)}
    for name, settings in NETWORKS.items():
        model, mems = build(settings), None
        for key, weight in model.named_parameters():
            arrays[f"{name}/weights/{key}"] = weight.numpy()
        for n, batch in enumerate(torch.tensor(tokens)):
            out = model(batch, mems=mems)
            mems = out.mems
            # Without labels the scores are log probabilities.
            arrays[f"{name}/{n}/log_probabilities"] = out.prediction_scores.numpy()
            arrays[f"{name}/{n}/memory"] = np.stack([one.numpy() for one in mems], 1).transpose(
                2, 1, 0, 3
            )
    return arrays


frozen = freeze()
np.savez_compressed(Path(__file__).with_name("transformer_xl.npz"), **frozen)
print(len(frozen), sum(array.nbytes for array in frozen.values()))
