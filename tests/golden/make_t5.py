"""Freezes what Hugging Face's T5 and umT5 compute: t5_v1_0.npz, t5_v1_1.npz and umt5.npz.

python tests/golden/make_t5.py     (made with torch 2.13.0 and transformers 5.23.0)

No dimension equals another, so that no transposed weight can pass for its transpose, and every
weight is random, gains too, so that none has the value that a forgotten one would have.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

PAD, START, VOCABULARY, SOURCE, TARGET, NEW_TOKENS = 0, 0, 74, 37, 21, 14
SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 20,
    "d_kv": 8,
    "d_ff": 28,
    "num_layers": 3,  # with more in the decoder, generate of transformers 5.23 fails
    "num_decoder_layers": 2,
    "num_heads": 3,
    "decoder_start_token_id": START,
}
VERSIONS = {
    "t5_v1_0": {},
    "t5_v1_1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "umt5": {"feed_forward_proj": "gated-gelu"},
}
BEAMS = {"num_beams": 4, "max_new_tokens": NEW_TOKENS}
GENERATIONS = [
    {"max_new_tokens": NEW_TOKENS},
    {"max_new_tokens": NEW_TOKENS, "min_new_tokens": 9},
    {"max_new_tokens": NEW_TOKENS, "eos_token_id": None},
    {},
    BEAMS,
    {**BEAMS, "length_penalty": 2.0, "early_stopping": True, "num_return_sequences": 3},
    {**BEAMS, "length_penalty": 0.6, "eos_token_id": None},
]


def draw(model: T5ForConditionalGeneration, random: torch.Generator) -> None:
    """Draws every weight, of a size at which activations and logits stay near 1."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if "norm" in name:
            weight.data = 1 + 0.3 * noise
        elif "shared" in name or "relative" in name:
            weight.data = noise
        else:  # attention far from uniform, and sublayers that outweigh the token's own embedding
            scale = 0.6 if ".q." in name else 3.0 if "o.weight" in name else 1.0
            weight.data = scale * noise * weight.shape[1] ** -0.5


def inputs(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Sources padded on the right and on the left, targets padded on the right."""
    source = random.integers(2, VOCABULARY, (4, SOURCE))
    target = random.integers(2, VOCABULARY, (4, TARGET))
    target[:, 0] = START
    source_mask, target_mask = np.ones_like(source), np.ones_like(target)
    source_mask[1, 22:], source_mask[2, 5:], source_mask[3, :9] = 0, 0, 0
    target_mask[1, 4:], target_mask[2, 15:] = 0, 0
    return {
        "input_ids": source * source_mask,
        "attention_mask": source_mask,
        "decoder_input_ids": target * target_mask,
        "decoder_attention_mask": target_mask,
    }


def choose_end(model: T5ForConditionalGeneration, batch: dict[str, torch.Tensor]) -> int:
    """An end token that greedy decoding finds early, late and never in the four rows."""
    free = model.generate(**source_of(batch), max_new_tokens=NEW_TOKENS, eos_token_id=None)[:, 1:]
    steps = {
        token: {row.index(token) if token in row else NEW_TOKENS for row in free.tolist()}
        for token in range(2, VOCABULARY)
    }
    return max(steps, key=lambda token: (len(steps[token]), -token))


def source_of(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What generate is given."""
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def make(name: str, *, seed: int) -> None:
    """Writes one file."""
    if name == "umt5":
        model = UMT5ForConditionalGeneration(UMT5Config(**SIZES, **VERSIONS[name])).eval()
        model.config.tie_word_embeddings = False  # as in the released folders; always true when new
    else:
        model = T5ForConditionalGeneration(T5Config(**SIZES, **VERSIONS[name])).eval()
    if VERSIONS[name]:  # transformers 5 ties them in every new model
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, SIZES["d_model"]))
    draw(model, torch.Generator().manual_seed(seed))
    arrays = inputs(np.random.default_rng(seed))
    batch = {key: torch.tensor(value) for key, value in arrays.items()}
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = model.generation_config.eos_token_id = choose_end(model, batch)
    labels = (
        batch["decoder_input_ids"]
        .roll(-1, 1)
        .masked_fill(batch["decoder_attention_mask"] == 0, -100)
    )
    labels[:, 3] = -100
    out = model(**source_of(batch), labels=labels)
    arrays |= {
        "logits": model(**batch).logits.numpy(),
        "labels": labels.numpy(),
        "loss": out.loss.numpy(),
    }
    for n, settings in enumerate(GENERATIONS):
        arrays[f"generate/{n}"] = generate(model, batch, settings)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        weights = load_file(Path(folder, "model.safetensors"))
        for file in ("config.json", "generation_config.json"):
            arrays[file] = np.array(Path(folder, file).read_text())
    arrays |= {f"weights/{key}": value for key, value in weights.items()}
    arrays["settings"] = np.array(json.dumps(GENERATIONS))
    if VERSIONS[name]:  # what a new one of transformers 5 computes: tied, and v1.1 yet not scaled
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.shared.weight
        arrays["tied_logits"] = model(**batch).logits.numpy()
    report(name, model, batch, arrays)
    np.savez_compressed(Path(__file__).parent / f"{name}.npz", **arrays)


def generate(
    model: T5ForConditionalGeneration, batch: dict[str, torch.Tensor], settings: dict
) -> np.ndarray:
    """What generate returns. An end token of None only counts in the model's own settings."""
    own = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = settings.get("eos_token_id", own)
    settings = {key: value for key, value in settings.items() if key != "eos_token_id"}
    tokens = model.generate(**source_of(batch), do_sample=False, **settings).numpy()
    end, model.generation_config.eos_token_id = model.generation_config.eos_token_id, own
    # Beam search of transformers 5.23 fills up with the end token where padding is token 0.
    ended = np.cumsum(tokens == end, axis=1) - (tokens == end) > 0
    return np.where(ended, PAD, tokens)


def report(name: str, model: T5ForConditionalGeneration, batch: dict, arrays: dict) -> None:
    """Prints what shows that the file tests something."""
    key = "tied_logits" if "tied_logits" in arrays else "logits"
    exact = model.double()(**batch).logits.numpy()
    real = arrays["decoder_attention_mask"] == 1
    error = np.abs(exact - arrays[key])[real].max()
    lines = [f"{name}: logits of size {arrays[key].std():.2f}, {error:.1e} off float64"]
    for n, settings in enumerate(GENERATIONS):
        lines += [f"  {settings}", *(f"    {row}" for row in arrays[f"generate/{n}"])]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    make("t5_v1_0", seed=5)
    make("t5_v1_1", seed=6)
    make("umt5", seed=16)
