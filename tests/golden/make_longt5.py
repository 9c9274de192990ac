"""Freezes what Hugging Face's LongT5 computes: longt5_local.npz and longt5_tglobal.npz.

python tests/golden/make_longt5.py     (made with torch 2.13.0 and transformers 5.23.0)

Sources are no multiples of the 5 tokens of a local block, nor of the 4 of a global token, and one
is shorter than either. They are padded on the right, since Hugging Face's blocks of global tokens
begin at slot 0, also in padding; a row of the local model is padded on the left too. The weights
are drawn as T5's (make_t5.py).
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from make_t5 import BEAMS, NEW_TOKENS, PAD, SIZES, START, VOCABULARY, choose_end, draw, source_of
from safetensors.numpy import load_file
from transformers import LongT5Config, LongT5ForConditionalGeneration, LongT5Model

SOURCE, TARGET = 37, 21
TYPES = {"longt5_local": "local", "longt5_tglobal": "transient-global"}
GENERATIONS = [{"max_new_tokens": NEW_TOKENS}, {**BEAMS, "length_penalty": 0.6}]


def inputs(random: np.random.Generator, *, left: int) -> dict[str, np.ndarray]:
    """Sources of 37, 22, 3 and 18 tokens, padded on the right, and on the left by `left` tokens."""
    source = random.integers(2, VOCABULARY, (4, SOURCE))
    target = random.integers(2, VOCABULARY, (4, TARGET))
    target[:, 0] = START
    source_mask, target_mask = np.ones_like(source), np.ones_like(target)
    source_mask[1, 22:], source_mask[2, 3:], source_mask[3, left + 18 :] = 0, 0, 0
    source_mask[3, :left] = 0
    target_mask[1, 4:], target_mask[2, 15:] = 0, 0
    return {
        "input_ids": source * source_mask,
        "attention_mask": source_mask,
        "decoder_input_ids": target * target_mask,
        "decoder_attention_mask": target_mask,
    }


def generate(
    model: LongT5ForConditionalGeneration, batch: dict[str, torch.Tensor], settings: dict
) -> np.ndarray:
    """What generate returns, with padding after the end."""
    tokens = model.generate(**source_of(batch), do_sample=False, **settings).numpy()
    end = model.generation_config.eos_token_id
    # Beam search of transformers 5.23 fills up with the end token where padding is token 0.
    ended = np.cumsum(tokens == end, axis=1) - (tokens == end) > 0
    return np.where(ended, PAD, tokens)


@torch.no_grad()
def make(name: str, *, seed: int) -> None:
    """Writes one file."""
    config = LongT5Config(
        **SIZES,
        feed_forward_proj="gated-gelu",
        encoder_attention_type=TYPES[name],
        local_radius=4,
        global_block_size=4,
        tie_word_embeddings=False,
    )
    model = LongT5ForConditionalGeneration(config).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, SIZES["d_model"]))
    draw(model, torch.Generator().manual_seed(seed))
    arrays = inputs(np.random.default_rng(seed), left=9 if name == "longt5_local" else 0)
    batch = {key: torch.tensor(value) for key, value in arrays.items()}
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = model.generation_config.eos_token_id = choose_end(model, batch)
    arrays["logits"] = model(**batch).logits.numpy()
    for n, settings in enumerate(GENERATIONS):
        arrays[f"generate/{n}"] = generate(model, batch, settings)
    base = LongT5Model(model.config).eval()
    base.load_state_dict(model.state_dict(), strict=False)
    arrays["states"] = base(**batch).last_hidden_state.numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.config.tie_word_embeddings = False  # as in the released folders; true when new
        model.save_pretrained(folder)
        weights = load_file(Path(folder, "model.safetensors"))
        for file in ("config.json", "generation_config.json"):
            arrays[file] = np.array(Path(folder, file).read_text())
    arrays |= {f"weights/{key}": value for key, value in weights.items()}
    arrays["settings"] = np.array(json.dumps(GENERATIONS))
    model.lm_head.weight = model.shared.weight
    model.config.scale_decoder_outputs = True
    arrays["tied_logits"] = model(**batch).logits.numpy()
    report(name, model, batch, arrays)
    np.savez_compressed(Path(__file__).parent / f"{name}.npz", **arrays)


def report(name: str, model: torch.nn.Module, batch: dict, arrays: dict) -> None:
    """Prints what shows that the file tests something."""
    exact = model.double()(**batch).logits.numpy()
    real = arrays["decoder_attention_mask"] == 1
    error = np.abs(exact - arrays["tied_logits"])[real].max()
    lines = [f"{name}: logits of size {arrays['logits'].std():.2f}, {error:.1e} off float64"]
    for n, settings in enumerate(GENERATIONS):
        lines += [f"  {settings}", *(f"    {row}" for row in arrays[f"generate/{n}"])]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, name in enumerate(TYPES, start=21):
        make(name, seed=seed)
