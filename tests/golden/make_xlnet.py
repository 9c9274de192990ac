"""Freezes what Hugging Face's XLNet computes with random weights: under every head, and in order.

python tests/golden/make_xlnet.py      (made with torch 2.13.0, transformers 5.23.0)

The folders and outputs of all heads have the form of make_encoders.py. Rows are padded on the left
alone, since Hugging Face reads a class at the last place, whether it is padding or not. Under
`ordered/`, three batches without padding follow each other with a memory, each with an order of
prediction; under `clamped/` distances have a limit; under `backward/` half of the rows of one,
with padding, have their positions the other way round.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

VOCABULARY, LENGTH, LABELS, ROWS, PLACES, MEMORY, REUSED = 74, 19, 3, 4, 5, 7, 6
CLAMPED = 4  # distances above are this one, in one of the batches
CONFIG = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "n_layer": 2,
    "n_head": 3,
    "d_inner": 28,
    "mem_len": MEMORY,
}
OUTPUTS = {"logits": "logits", "last_hidden_state": "hidden"}
HEADS = {
    "language_modeling": "LMHeadModel",
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "multiple_choice": "ForMultipleChoice",
    "features": "Model",
}


def build(head: str) -> torch.nn.Module:
    """The model of a head, every weight drawn by its name, so that it is the same in all."""
    labels = 1 if head == "regression" else LABELS
    config = transformers.XLNetConfig(**CONFIG, num_labels=labels)
    model = getattr(transformers, "XLNet" + HEADS[head])(config).eval()
    for name, weight in model.named_parameters():
        part = name.removeprefix("transformer.")
        random = torch.Generator().manual_seed(sum(map(ord, part)) * 1000 + len(part))
        noise = torch.randn(weight.shape, generator=random)
        if "norm" in name and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "bias" in name or "emb" in name:
            weight.data = 0.5 * noise
        else:  # kernels of attention have their inputs first, except that of the output
            weight.data = 1.5 * noise * weight[0].numel() ** -0.5
    return model


def rows(seed: int, *, padded: bool) -> dict[str, np.ndarray]:
    """Rows of two segments and a last token of a third, half of them padded on the left."""
    random = np.random.default_rng(seed)
    mask = np.ones((ROWS, LENGTH), int)
    if padded:
        mask[1, :3], mask[3, :8] = 0, 0
    tokens = random.integers(9, VOCABULARY, mask.shape)
    types = np.repeat([[0, 1, 2]], [11, LENGTH - 12, 1], axis=1) * mask
    return {
        "input_ids": np.where(mask == 1, tokens, 5),
        "attention_mask": mask,
        "token_type_ids": types,
    }


def ordered(batch: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """An order in which the places to predict come last, of them and of the others: ranks."""
    random = np.random.default_rng(seed)
    order = np.zeros((ROWS, LENGTH), int)
    places = np.stack([random.permutation(np.arange(8, LENGTH))[:PLACES] for _ in range(ROWS)])
    for row in range(ROWS):
        order[row, places[row]] = 1 + random.permutation(PLACES)
    return {**batch, "order": order, "places": places}


def run(model, batch, mems):
    """The logits of the places to predict, written out as Hugging Face's masks, and the memory."""
    order, places = batch["order"], batch["places"]
    rank, ranks = order[:, :, None], order[:, None, :]
    # Nothing of a later rank, and of one's own only what comes together, at rank 0.
    hidden = (ranks > rank) | ((ranks == rank) & (rank > 0))
    mapping = np.eye(LENGTH)[places]
    out = model(
        **{k: torch.tensor(v) for k, v in batch.items() if k not in ("order", "places")},
        perm_mask=torch.tensor(hidden, dtype=torch.float32),
        target_mapping=torch.tensor(mapping, dtype=torch.float32),
        mems=mems,
        use_mems=True,
    )
    return out.logits.numpy(), out.mems


@torch.no_grad()
def freeze() -> dict[str, np.ndarray]:
    """All arrays."""
    batch = rows(0, padded=True)
    arrays = {f"batch/{name}": value.astype(np.int32) for name, value in batch.items()}
    for head in HEADS:
        model = build(head)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            weights = load_file(Path(folder) / "model.safetensors")
            stored = json.loads((Path(folder) / "config.json").read_text())
        arrays[f"{head}/config.json"] = np.array(json.dumps(stored))
        arrays[f"{head}/names"] = np.array(list(weights))
        arrays[f"{head}/keys"] = np.array([key(head, name) for name in weights])
        for one, (name, weight) in zip(arrays[f"{head}/keys"], weights.items(), strict=True):
            same = arrays.setdefault(f"weights/{one}", weight)
            assert np.array_equal(same, weight), name
        inputs = {name: torch.tensor(value) for name, value in batch.items()}
        if head == "multiple_choice":  # of one example
            inputs = {name: value[None] for name, value in inputs.items()}
        found = model(**inputs)
        for name, ours in OUTPUTS.items():
            if name in found:
                arrays[f"{head}/{ours}"] = found[name].numpy()

    return arrays | in_order()


@torch.no_grad()
def in_order() -> dict[str, np.ndarray]:
    """The arrays of batches with an order."""
    arrays: dict[str, np.ndarray] = {}
    model, mems = build("language_modeling"), None
    model.transformer.reuse_len = REUSED
    for step in range(3):
        batch = ordered(rows(1 + step, padded=False), step)
        logits, mems = run(model, batch, mems)
        arrays |= {f"ordered/{step}/{k}": v.astype(np.int32) for k, v in batch.items()}
        arrays[f"ordered/{step}/logits"] = logits
        # Ours has the rows first, then the layers.
        arrays[f"ordered/{step}/memory"] = np.stack([one.numpy() for one in mems]).transpose(
            2, 0, 1, 3
        )
    model.transformer.clamp_len = CLAMPED
    batch = ordered(rows(5, padded=True), 4)
    arrays |= {f"clamped/{k}": v.astype(np.int32) for k, v in batch.items()}
    arrays["clamped/logits"], _ = run(model, batch, None)
    model.transformer.clamp_len = -1
    model.transformer.bi_data = True
    batch = ordered(rows(4, padded=True), 3)
    arrays |= {f"backward/{k}": v.astype(np.int32) for k, v in batch.items()}
    arrays["backward/logits"], _ = run(model, batch, None)
    return arrays


def key(head: str, name: str) -> str:
    """What a tensor is kept under: once for all heads that have it."""
    if name.startswith(("classifier", "logits_proj")):  # of other outputs under each head
        return f"{head}.{name}"
    return f"transformer.{name}" if head == "features" else name


frozen = freeze()
np.savez_compressed(Path(__file__).with_name("xlnet.npz"), **frozen)
print(len(frozen), sum(array.nbytes for array in frozen.values()))
