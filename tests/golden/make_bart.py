"""Freezes what Hugging Face's BART computes and generates with random weights: bart.npz.

python tests/golden/make_bart.py     (made with torch 2.13.0 and transformers 5.23.0)

No dimension equals another, so that no transposed weight can pass for its transpose, and every
weight is random, gains, biases and the bias of the logits too, so that none has the value that a
forgotten one would have.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
)

BEGIN, PAD, END, VOCABULARY, SOURCE, TARGET, NEW_TOKENS = 0, 1, 2, 74, 31, 21, 14
SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 3,  # with more in the decoder, generate of transformers 5.23 fails
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 28,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 40,
    "num_labels": 5,
}
HEADS = {
    "classification": BartForSequenceClassification,
    "question_answering": BartForQuestionAnswering,
    "features": BartModel,
}
BEAMS = {"num_beams": 4, "max_new_tokens": NEW_TOKENS}
FORCED = {"forced_bos_token_id": BEGIN, "forced_eos_token_id": END}
GENERATIONS = [
    {"max_new_tokens": NEW_TOKENS},
    {"max_new_tokens": NEW_TOKENS, "no_repeat_ngram_size": 2, **FORCED},
    BEAMS,
    {**BEAMS, **FORCED, "no_repeat_ngram_size": 2, "early_stopping": True},
    {**BEAMS, **FORCED, "length_penalty": 2.0, "num_return_sequences": 3},
]


def draw(model: torch.nn.Module, random: torch.Generator) -> None:
    """Draws every weight, sublayers so large that the last token does not decide the next alone."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        if "norm" in name and name.endswith("weight"):
            weight.data = 1 + 0.3 * noise
        elif weight.ndim == 1 or "embed" in name or "shared" in name:
            weight.data = (0.1 if weight.ndim == 1 else 0.5) * noise
        else:  # attention not so sharp that float32 is not enough
            scale = 1 if "q_proj" in name or "k_proj" in name else 3
            weight.data = scale * noise * weight.shape[1] ** -0.5


def batch() -> dict[str, np.ndarray]:
    """Sources with their special tokens, padded on the right and on the left, and targets."""
    random = np.random.default_rng(3)
    source = random.integers(3, VOCABULARY, (4, SOURCE))
    target = random.integers(3, VOCABULARY, (4, TARGET))
    target[:, 0] = END
    source_mask, target_mask = np.ones_like(source), np.ones_like(target)
    source_mask[1, 22:], source_mask[2, 5:], source_mask[3, :9] = 0, 0, 0
    target_mask[1, 4:], target_mask[2, 15:] = 0, 0
    for row, mask in zip(source, source_mask, strict=True):
        real = np.flatnonzero(mask)
        row[real[0]], row[real[-1]] = BEGIN, END
    return {
        "input_ids": np.where(source_mask == 1, source, PAD),
        "attention_mask": source_mask,
        "decoder_input_ids": np.where(target_mask == 1, target, PAD),
        "decoder_attention_mask": target_mask,
    }


def source_of(arrays: dict[str, np.ndarray], rows: int = 4) -> dict[str, torch.Tensor]:
    """What generate is given; of three rows those that are padded on the right."""
    names = ("input_ids", "attention_mask")
    return {name: torch.tensor(arrays[name][:rows]) for name in names}


def prefer_the_end(model: BartForConditionalGeneration, arrays: dict[str, np.ndarray]) -> None:
    """Gives the end token a bias with which greedy decoding ends early, late and never."""

    def ends(bias: float) -> set[int]:
        model.final_logits_bias[0, END] = bias
        tokens = model.generate(**source_of(arrays), max_new_tokens=NEW_TOKENS)[:, 1:]
        return {row.index(END) if END in row else NEW_TOKENS for row in tokens.tolist()}

    biases = np.linspace(0, 12, 61)
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


@torch.no_grad()
def main() -> None:
    """Writes the file."""
    random = torch.Generator().manual_seed(11)
    model = BartForConditionalGeneration(BartConfig(**SIZES)).eval()
    # What every BART has in its config; here an argument of generate.
    model.generation_config.forced_eos_token_id = None
    draw(model, random)
    model.final_logits_bias = 0.5 * torch.randn(1, VOCABULARY, generator=random)
    arrays = batch()
    prefer_the_end(model, arrays)
    inputs = {name: torch.tensor(array) for name, array in arrays.items()}
    arrays |= folder_of(model)
    labels = inputs["decoder_input_ids"].roll(-1, 1)
    labels = labels.masked_fill(inputs["decoder_attention_mask"] == 0, -100)
    arrays |= {
        "logits": model(**inputs).logits.numpy(),
        "labels": labels.numpy(),
        "loss": model(**source_of(arrays), labels=labels).loss.numpy(),
        "settings": np.array(json.dumps(GENERATIONS)),
    }
    exact = model.double()(**inputs).logits.numpy()
    real = arrays["decoder_attention_mask"] == 1
    error = np.abs(exact - arrays["logits"])[real].max()
    sys.stdout.write(f"logits of size {exact.std():.2f}, {error:.1e} off float64\n")
    model.float()
    for number, settings in enumerate(GENERATIONS):
        arrays[f"generate/{number}"] = model.generate(**source_of(arrays), **settings).numpy()
        sys.stdout.write(f"{settings}\n{arrays[f'generate/{number}']}\n")
    for head, make in HEADS.items():
        other = make(BartConfig(**SIZES)).eval()
        draw(other, random)
        trunk = other if head == "features" else other.model
        trunk.load_state_dict(model.model.state_dict())
        stored = folder_of(other)
        new = {f"{head}/{k}": v for k, v in stored.items() if "head" in k or "qa_" in k}
        arrays |= new | {f"{head}/config.json": stored["config.json"]}
        out = other(**source_of(arrays, rows=3))
        names = ("logits", "start_logits", "end_logits", "last_hidden_state")
        for name in names:
            if name in out:
                arrays[f"{head}/{name}"] = out[name].numpy()
    np.savez_compressed(Path(__file__).with_name("bart.npz"), **arrays)


main()
