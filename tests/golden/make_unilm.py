"""Freezes what PyTorch computes under the four masks of UniLM, with random weights: unilm.npz.

python tests/golden/make_unilm.py      (made with torch 2.13.0, transformers 5.23.0)

Hugging Face has no UniLM, but its BERT takes a mask of pairs of positions. The masks are written
out here, place by place, from section 2.3 of the paper; greedy decoding reads the whole row anew
for each token, without a cache.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

VOCABULARY, MASK, SEP = 41, 4, 3
KINDS = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
SEGMENTS = {"bidirectional": (0, 1), "sequence_to_sequence": (4, 5)}
SEGMENTS |= {"left_to_right": (2, 2), "right_to_left": (3, 3)}


def sees(kind: str, query: int, key: int, second: np.ndarray) -> bool:
    """Whether one place sees another."""
    if kind == "bidirectional":
        return True
    if kind == "left_to_right":
        return key <= query
    if kind == "right_to_left":
        return key >= query
    return not second[key] or (bool(second[query]) and key <= query)


def read(model, kind, tokens, second, real):
    """The logits of each token of some rows, and of their pairs."""
    rows, length = tokens.shape
    mask = np.zeros((rows, 1, length, length), bool)
    for row in range(rows):
        for query in range(length):
            for key in range(length):
                mask[row, 0, query, key] = real[row, key] and sees(kind, query, key, second[row])
    # A mask of pairs is passed on as it is, and added to the scores.
    scores = torch.tensor(np.where(mask, 0, np.finfo(np.float32).min).astype(np.float32))
    # To what a row has before its text, positions do not count: Hugging Face is given them.
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0)
    types = np.where(second, SEGMENTS[kind][1], SEGMENTS[kind][0])
    out = model(
        input_ids=torch.tensor(tokens),
        attention_mask=scores,
        token_type_ids=torch.tensor(types),
        position_ids=torch.tensor(positions),
    )
    return out.prediction_logits.numpy(), out.seq_relationship_logits.numpy()


def write(model, sources, real, count):
    """The most likely tokens after sources, one at a time."""
    tokens, width = sources, sources.shape[1]
    for _ in range(count):
        row = np.concatenate([tokens, np.full((len(tokens), 1), MASK)], axis=1)
        second = np.broadcast_to(np.arange(row.shape[1]) >= width, row.shape)
        there = np.pad(real, ((0, 0), (0, row.shape[1] - width)), constant_values=1)
        logits, _ = read(model, "sequence_to_sequence", row, second, there)
        tokens = np.concatenate([tokens, logits[:, -1:].argmax(-1)], axis=1)
    return tokens[:, width:]


@torch.no_grad()
def main() -> None:
    """Writes the file."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=28,
        max_position_embeddings=30,
        type_vocab_size=6,
        attn_implementation="eager",
        initializer_range=0.4,
    )
    torch.manual_seed(7)
    model = transformers.BertForPreTraining(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data = 0.3 * torch.randn(weight.shape)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        weights = load_file(Path(folder) / "model.safetensors")
        stored = json.loads((Path(folder) / "config.json").read_text())
    random = np.random.default_rng(3)
    tokens = random.integers(5, VOCABULARY, (3, 11))
    real, second = np.ones_like(tokens), np.zeros_like(tokens)
    second[0, 6:], second[1, 4:], real[1, 9:], second[2, 10:] = 1, 1, 0, 1
    arrays = {"tokens": tokens, "real": real, "second": second * real}
    for kind in KINDS:
        logits, pairs = read(model, kind, tokens, second, real)
        arrays |= {f"{kind}/logits": logits, f"{kind}/row_logits": pairs}
    sources, there = random.integers(5, VOCABULARY, (3, 7)), np.ones((3, 7), int)
    there[1, :3], there[2, :1] = 0, 0
    arrays |= {"sources": sources * there, "sources_real": there}
    arrays["written"] = write(model, sources * there, there, 8)
    arrays = {k: v.astype(np.int32 if v.dtype == int else v.dtype) for k, v in arrays.items()}
    arrays |= {f"weights/{name}": weight for name, weight in weights.items()}
    arrays["config.json"] = np.array(json.dumps(stored))
    np.savez_compressed(Path(__file__).with_name("unilm.npz"), **arrays)
    print(arrays["written"], sum(array.nbytes for array in arrays.values()))


main()
