"""Freezes what Hugging Face's BigBird-Pegasus computes and generates: bigbird_pegasus.npz.

python tests/golden/make_bigbird_pegasus.py     (made with torch 2.13.0 and transformers 5.23.0)

No dimension equals another, and every weight is random, gains and biases and the bias of the logits
too. The same weights are run with block-sparse attention, of 16 blocks the last of which is not
full, and with dense attention; and once with biases in attention.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import BigBirdPegasusConfig, BigBirdPegasusForConditionalGeneration

PAD, END, START, VOCABULARY, SOURCE, TARGET, NEW_TOKENS = 0, 1, 2, 74, 31, 21, 14
SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 28,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 40,
    "block_size": 2,
    "num_random_blocks": 2,
}
KINDS = ("block_sparse", "original_full")
GENERATIONS = [
    {"max_new_tokens": NEW_TOKENS},
    {"max_new_tokens": NEW_TOKENS, "num_beams": 4, "length_penalty": 0.8},
]


def draw(model: torch.nn.Module) -> None:
    """Draws every weight, sublayers so large that the last token does not decide the next alone."""
    random = torch.Generator().manual_seed(11)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if "norm" in name and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1:
            weight.data = 0.1 * noise
        elif "embed_positions" in name:
            weight.data = noise
        elif "shared" in name:  # scaled by the root of the width
            weight.data = 0.1 * noise
        else:  # attention not so sharp that float32 is not enough
            is_score = any(part in name for part in ("q_proj", "k_proj", "self.query", "self.key"))
            weight.data = (1 if is_score else 4) * noise * weight.shape[1] ** -0.5
    model.final_logits_bias = 0.1 * torch.randn(1, VOCABULARY, generator=random)


def batch() -> dict[str, np.ndarray]:
    """Sources padded on the right and on the left, and targets."""
    random = np.random.default_rng(3)
    source = random.integers(3, VOCABULARY, (4, SOURCE))
    target = random.integers(3, VOCABULARY, (4, TARGET))
    target[:, 0] = START
    source_mask, target_mask = np.ones_like(source), np.ones_like(target)
    source_mask[1, 22:], source_mask[2, 5:], source_mask[3, :9] = 0, 0, 0
    target_mask[1, 4:], target_mask[2, 15:] = 0, 0
    for row, mask in zip(source, source_mask, strict=True):
        row[np.flatnonzero(mask)[-1]] = END
    return {
        "input_ids": np.where(source_mask == 1, source, PAD),
        "attention_mask": source_mask,
        "decoder_input_ids": np.where(target_mask == 1, target, PAD),
        "decoder_attention_mask": target_mask,
    }


def prefer_the_end(model: torch.nn.Module, source: dict[str, torch.Tensor]) -> None:
    """Gives the end token a bias with which greedy decoding ends early, late and never."""

    def ends(bias: float) -> set[int]:
        model.final_logits_bias[0, END] = bias
        tokens = model.generate(**source, max_new_tokens=NEW_TOKENS)[:, 1:]
        return {row.index(END) if END in row else NEW_TOKENS for row in tokens.tolist()}

    biases = np.linspace(0, 3, 41)
    ends(float(max(biases, key=lambda bias: len(ends(float(bias))))))


def folder_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """The files that Hugging Face writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        arrays = {f"weights/{key}": weight for key, weight in weights.items()}
        for file in folder.glob("*.json"):
            arrays[file.name] = np.array(file.read_text())
    return arrays


def make(kind: str, **changes: object) -> torch.nn.Module:
    """A model in evaluation with the drawn weights."""
    config = BigBirdPegasusConfig(**SIZES, attention_type=kind, **changes)
    model = BigBirdPegasusForConditionalGeneration(config).eval()
    draw(model)
    return model


@torch.no_grad()
def main() -> None:
    """Writes the file."""
    arrays = batch()
    inputs = {name: torch.tensor(array) for name, array in arrays.items()}
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    model = make(KINDS[0])
    prefer_the_end(model, source)
    labels = inputs["decoder_input_ids"].roll(-1, 1)
    labels = labels.masked_fill(inputs["decoder_attention_mask"] == 0, -100)
    arrays |= folder_of(model) | {"settings": np.array(json.dumps(GENERATIONS))}
    arrays |= {"labels": labels.numpy(), "loss": model(**source, labels=labels).loss.numpy()}
    state = model.state_dict()
    for kind in KINDS:
        model = make(kind)
        model.load_state_dict(state)
        logits = arrays[f"{kind}/logits"] = model(**inputs).logits.numpy()
        for number, settings in enumerate(GENERATIONS):
            arrays[f"{kind}/generate/{number}"] = model.generate(**source, **settings).numpy()
            sys.stdout.write(f"{settings}\n{arrays[f'{kind}/generate/{number}']}\n")
        exact = model.double()(**inputs).logits.numpy()
        real = arrays["decoder_attention_mask"] == 1
        error = np.abs(exact - logits)[real].max()
        sys.stdout.write(f"{kind}: size {exact.std():.2f}, {error:.1e} off float64\n")
    biased = make(KINDS[0], use_bias=True)
    new = {k: v for k, v in folder_of(biased).items() if k.startswith("weights/")}
    arrays |= {f"biased/{name}": weight for name, weight in new.items()}
    arrays["biased/logits"] = biased(**inputs).logits.numpy()
    np.savez_compressed(Path(__file__).with_name("bigbird_pegasus.npz"), **arrays)


main()
