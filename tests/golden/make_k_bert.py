"""Freezes what Hugging Face's BertModel computes of trees, given their mask and positions.

python tests/golden/make_k_bert.py      (made with torch 2.13.0, transformers 5.23.0)

The folder has the form of make_encoders.py. The trees are written by hand as items of the trunk,
each some tokens with their branches; mask [B, L, L] and positions follow from them token by token.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

LENGTH = 17
CONFIG = {
    "vocab_size": 74,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 28,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
}
# Rows of (tokens of the trunk, their branches): two branches, none, an entity of two tokens, one at
# the end, entities beside each other.
TREES = [
    [([2], []), ([20, 21], [[30, 31]]), ([11], []), ([22], [[32], [33, 34, 35]]), ([12, 3], [])],
    [([2, 11, 12, 13, 14, 15, 16, 17, 18, 19, 3], [])],
    [([2], []), ([23], [[36, 37]]), ([24], [[38, 39], [40]]), ([12, 3, 15], []), ([22], [[32]])],
]


def flatten(tree):
    """Tokens, positions, branches, entities, and which tokens each one sees."""
    tokens, positions, branches, entities = [], [], [], []
    place, branch_number, entity_number = 0, 0, 0
    trunk, groups = [], []
    for words, own in tree:
        entity_number += bool(own)
        here = list(range(len(tokens), len(tokens) + len(words)))
        trunk += here
        tokens += words
        positions += range(place, place + len(words))
        branches += [0] * len(words)
        entities += [entity_number if own else 0] * len(words)
        place += len(words)
        for branch in own:
            branch_number += 1
            there = list(range(len(tokens), len(tokens) + len(branch)))
            groups.append((here, there))
            tokens += branch
            positions += range(place, place + len(branch))
            branches += [branch_number] * len(branch)
            entities += [entity_number] * len(branch)
    sees = np.zeros((LENGTH, LENGTH), bool)
    sees[np.ix_(trunk, trunk)] = True
    for here, there in groups:
        sees[np.ix_(there, there)] = True
        sees[np.ix_(there, here)] = True
        sees[np.ix_(here, there)] = True
    sees[len(tokens) :, 0] = True  # padding, which must see something
    return tokens, positions, branches, entities, sees


def build() -> torch.nn.Module:
    """The model, every weight random."""
    config = transformers.BertConfig(**CONFIG, attn_implementation="eager")
    model = transformers.BertModel(config).eval()
    random = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if "LayerNorm.weight" in name:
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "embeddings" in name:
            weight.data = 0.5 * noise
        else:
            weight.data = 1.5 * noise * weight.shape[1] ** -0.5
    return model


@torch.no_grad()
def freeze() -> dict[str, np.ndarray]:
    """All arrays."""
    rows = [flatten(tree) for tree in TREES]
    names = ("tokens", "positions", "branches", "entities")
    arrays = {name: np.zeros((len(rows), LENGTH), np.int32) for name in names}
    arrays["segments"] = np.zeros((len(rows), LENGTH), np.int32)
    for number, row in enumerate(rows):
        for name, values in zip(names, row, strict=False):
            arrays[name][number, : len(values)] = values
        arrays["segments"][number, : len(row[0])] = 1
    arrays["token_types"] = ((arrays["positions"] > 5) & (arrays["segments"] > 0)).astype(np.int32)
    arrays["mask"] = np.stack([row[-1] for row in rows])
    model = build()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        arrays["config.json"] = np.array((Path(folder) / "config.json").read_text())
        weights = load_file(Path(folder) / "model.safetensors")
        arrays |= {f"weights/{name}": weight for name, weight in weights.items()}
    additive = torch.where(torch.tensor(arrays["mask"]), 0.0, -1e9)[:, None]
    out = model(
        input_ids=torch.tensor(arrays["tokens"]).long(),
        attention_mask=additive,
        token_type_ids=torch.tensor(arrays["token_types"]).long(),
        position_ids=torch.tensor(arrays["positions"]).long(),
    )
    return arrays | {"hidden": out.last_hidden_state.numpy(), "summary": out.pooler_output.numpy()}


frozen = freeze()
np.savez_compressed(Path(__file__).with_name("k_bert.npz"), **frozen)
print(len(frozen), sum(array.nbytes for array in frozen.values()))
