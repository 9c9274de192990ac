"""Freezes likelihoods and best sequences of pytorch-crf's conditional random field.

python tests/golden/make_linear_chain.py      (made with torch 2.13.0, pytorch-crf 0.7.2)
"""

import json
from pathlib import Path

import torch
from torchcrf import CRF

ROWS, LENGTH, TAGS = 5, 7, 4


@torch.no_grad()
def freeze() -> dict[str, object]:
    """The parameters, logits, tags and masks, and what the library computes of them."""
    torch.manual_seed(0)
    field = CRF(TAGS, batch_first=True)
    for parameter in field.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    logits = torch.randn(ROWS, LENGTH, TAGS)
    tags = torch.randint(TAGS, (ROWS, LENGTH))
    mask = torch.arange(LENGTH) < torch.tensor([[7], [4], [1], [6], [3]])
    likelihood = field(logits, tags, mask=mask, reduction="none")
    found = {
        "transitions": field.transitions,
        "first": field.start_transitions,
        "last": field.end_transitions,
        "logits": logits,
        "tags": tags,
        "counts": mask,
        "log_likelihood": likelihood,
    }
    best = field.decode(logits, mask=mask)
    return {**{name: tensor.tolist() for name, tensor in found.items()}, "best": best}


path = Path(__file__).with_name("linear_chain.json")
path.write_text(json.dumps(freeze()) + "\n")
