"""Freezes what Pegasus, Marian and mBART compute and generate: pegasus.npz, marian.npz, mbart.npz.

python tests/golden/make_pegasus.py     (made with torch 2.13.0 and transformers 5.23.0)

No dimension equals another, and every weight is random, gains, biases and the bias of the logits
too, but for the tables of sines and cosines.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

VOCABULARY, SOURCE, TARGET, NEW_TOKENS = 74, 31, 21, 14
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
    "scale_embedding": True,
    "forced_eos_token_id": None,  # here an argument of generate
}
# Each family with the ids of padding, the end and the decoder's start.
FAMILIES = {
    "pegasus": (
        "PegasusForConditionalGeneration",
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        {"activation_function": "relu"},
    ),
    "marian": (
        "MarianMTModel",
        {"pad_token_id": 73, "eos_token_id": 0, "decoder_start_token_id": 73},
        {"activation_function": "swish"},
    ),
    "mbart": (
        "MBartForConditionalGeneration",
        {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 70},
        {"decoder_ffn_dim": 20, "decoder_attention_heads": 4},
    ),
}
SEEDS = {"pegasus": 5, "marian": 8, "mbart": 2}  # with which outputs vary


def generations(ids: dict[str, int]) -> list[dict]:
    """The settings of generation: greedy and beams, with forced, banned and unrepeated tokens."""
    padding = {"bad_words_ids": [[ids["pad_token_id"]]]}
    many = {"bad_words_ids": [[n] for n in (*range(30, 60), ids["pad_token_id"])]}
    end = {"forced_eos_token_id": ids["eos_token_id"]}
    greedy = {"max_new_tokens": NEW_TOKENS}
    return [
        greedy,
        {**greedy, "forced_bos_token_id": 71, "no_repeat_ngram_size": 1, **end},
        {**greedy, "num_beams": 4, "no_repeat_ngram_size": 2, **padding, **end},
        {**greedy, "no_repeat_ngram_size": 1, **many},
    ]


def draw(model: torch.nn.Module, random: torch.Generator) -> None:
    """Draws the weights, sublayers so large that the last token does not decide the next alone."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if not weight.requires_grad:
            continue  # sines and cosines
        if "norm" in name and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif "shared" in name:  # scaled by the root of the width
            weight.data = 0.2 * noise
        elif weight.ndim == 1 or "embed" in name:
            weight.data = (0.1 if weight.ndim == 1 else 0.5) * noise
        else:  # attention not so sharp that float32 is not enough
            scale = 1 if "q_proj" in name or "k_proj" in name else 3
            weight.data = scale * noise * weight.shape[1] ** -0.5
    model.final_logits_bias = 0.1 * torch.randn(1, VOCABULARY, generator=random)


def batch(ids: dict[str, int]) -> dict[str, np.ndarray]:
    """Sources padded on the right and on the left, and targets."""
    random = np.random.default_rng(3)
    source = random.integers(3, VOCABULARY - 4, (4, SOURCE))
    target = random.integers(3, VOCABULARY - 4, (4, TARGET))
    target[:, 0] = ids["decoder_start_token_id"]
    source_mask, target_mask = np.ones_like(source), np.ones_like(target)
    source_mask[1, 22:], source_mask[2, 5:], source_mask[3, :9] = 0, 0, 0
    target_mask[1, 4:], target_mask[2, 15:] = 0, 0
    for row, mask in zip(source, source_mask, strict=True):
        row[np.flatnonzero(mask)[-1]] = ids["eos_token_id"]
    return {
        "input_ids": np.where(source_mask == 1, source, ids["pad_token_id"]),
        "attention_mask": source_mask,
        "decoder_input_ids": np.where(target_mask == 1, target, ids["pad_token_id"]),
        "decoder_attention_mask": target_mask,
    }


def prefer_the_end(model: torch.nn.Module, source: dict[str, torch.Tensor], end: int) -> None:
    """Gives the end token a bias with which greedy decoding ends early, late and never."""

    def ends(bias: float) -> set[int]:
        model.final_logits_bias[0, end] = bias
        tokens = model.generate(**source, max_new_tokens=NEW_TOKENS)[:, 1:]
        return {row.index(end) if end in row else NEW_TOKENS for row in tokens.tolist()}

    biases = np.linspace(0, 6, 61)
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


def generate(model: torch.nn.Module, source: dict, settings: dict, ids: dict) -> np.ndarray:
    """What generate returns, with padding after the end of a row."""
    tokens = model.generate(**source, **settings).numpy()
    # Beam search of transformers 5.23 fills up with the end token where padding is token 0.
    is_end = tokens == ids["eos_token_id"]
    return np.where(np.cumsum(is_end, axis=1) - is_end > 0, ids["pad_token_id"], tokens)


@torch.no_grad()
def make(name: str) -> None:
    """Writes one file."""
    class_name, ids, own = FAMILIES[name]
    kind = getattr(transformers, class_name)
    model = kind(kind.config_class(**{**SIZES, **ids, **own})).eval()
    draw(model, torch.Generator().manual_seed(SEEDS[name]))
    arrays = batch(ids)
    inputs = {key: torch.tensor(array) for key, array in arrays.items()}
    source = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    prefer_the_end(model, source, ids["eos_token_id"])
    arrays |= folder_of(model)
    arrays["logits"] = model(**inputs).logits.numpy()
    exact = model.double()(**inputs).logits.numpy()
    real = arrays["decoder_attention_mask"] == 1
    error = np.abs(exact - arrays["logits"])[real].max()
    sys.stdout.write(f"{name}: size {exact.std():.2f}, {error:.1e} off float64\n")
    model.float()
    arrays["settings"] = np.array(json.dumps(generations(ids)))
    for number, settings in enumerate(generations(ids)):
        arrays[f"generate/{number}"] = generate(model, source, settings, ids)
        sys.stdout.write(f"{settings}\n{arrays[f'generate/{number}']}\n")
    np.savez_compressed(Path(__file__).with_name(f"{name}.npz"), **arrays)


torch.set_num_threads(1)
for family in FAMILIES:
    make(family)
