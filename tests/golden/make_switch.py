"""Freezes what Hugging Face's Switch Transformer computes with random weights: two .npz files.

python tests/golden/make_switch.py     (made with torch 2.13.0 and transformers 5.23.0)

In switch.npz every second layer has experts, with so few slots that tokens are dropped, also
behind padding on the left, which takes slots too. In switch_all.npz every layer has experts, with
slots for all. No dimension equals another, and every weight is
drawn, as in make_t5.py.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from make_t5 import (
    BEAMS,
    NEW_TOKENS,
    START,
    VOCABULARY,
    choose_end,
    draw,
    generate,
    inputs,
    source_of,
)
from safetensors.numpy import load_file
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 20,
    "d_kv": 8,
    "d_ff": 28,
    "num_layers": 4,  # with more in the decoder, generate of transformers 5.23 fails
    "num_decoder_layers": 2,
    "num_heads": 3,
    "num_experts": 5,
    "decoder_start_token_id": START,
}
VERSIONS = {
    "switch": {
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 1,
        "expert_capacity": 6,
    },
    "switch_all": {
        "num_sparse_encoder_layers": 4,
        "num_sparse_decoder_layers": 2,
        "expert_capacity": 64,
    },
}
GENERATIONS = [{"max_new_tokens": NEW_TOKENS}, BEAMS]


class Routed:
    """What the routers of a model chose, to report on: probabilities and who found a slot."""

    def __init__(self, model: SwitchTransformersForConditionalGeneration):
        self.closest, self.dropped = 1.0, []
        for name, module in model.named_modules():
            if name.endswith("router"):
                module.register_forward_hook(self.note)

    def note(self, router: torch.nn.Module, inputs: tuple, outputs: tuple) -> None:
        """Notes how close the second expert came to the first, and the tokens without a slot."""
        kept, _, logits = outputs
        best = logits.softmax(-1).topk(2).values
        self.closest = min(self.closest, float((best[..., 0] - best[..., 1]).min()))
        self.dropped.append((kept.sum(-1) == 0).sum(1).tolist())


@torch.no_grad()
def make(name: str, *, seed: int) -> None:
    """Writes one file."""
    config = SwitchTransformersConfig(**SIZES, **VERSIONS[name])
    model = SwitchTransformersForConditionalGeneration(config).eval()
    draw(model, torch.Generator().manual_seed(seed))
    arrays = inputs(np.random.default_rng(seed))
    batch = {key: torch.tensor(value) for key, value in arrays.items()}
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = model.generation_config.eos_token_id = choose_end(model, batch)
    routed = Routed(model)
    arrays["logits"] = model(**batch).logits.numpy()
    report = [f"{name}: logits of size {arrays['logits'].std():.2f}"]
    report += [f"  dropped, by layer and row: {routed.dropped}"]
    if model.decoder.config.decoder_sparse_step > 1:  # otherwise both losses are left out
        out = model(**source_of(batch), labels=batch["input_ids"], output_router_logits=True)
        arrays |= {"balance": out.decoder_aux_loss.numpy(), "z": out.decoder_z_loss.numpy()}
    for n, settings in enumerate(GENERATIONS):
        arrays[f"generate/{n}"] = generate(model, batch, settings)
        report += [f"  {settings}", *(f"    {row}" for row in arrays[f"generate/{n}"])]
    report += [f"  the second expert came as near as {routed.closest:.1e}"]
    arrays |= folder(model)
    arrays["settings"] = np.array(json.dumps(GENERATIONS))
    error = np.abs(model.double()(**batch).logits.numpy() - arrays["logits"])
    report += [f"  {error[arrays['decoder_attention_mask'] == 1].max():.1e} off float64"]
    sys.stdout.write("\n".join([*report, ""]))
    np.savez_compressed(Path(__file__).parent / f"{name}.npz", **arrays)


def folder(model: SwitchTransformersForConditionalGeneration) -> dict[str, np.ndarray]:
    """The folder that save_pretrained writes, as arrays."""
    with tempfile.TemporaryDirectory() as path:
        model.save_pretrained(path)
        weights = load_file(Path(path, "model.safetensors"))
        files = ("config.json", "generation_config.json")
        texts = {file: np.array(Path(path, file).read_text()) for file in files}
    return texts | {f"weights/{key}": value for key, value in weights.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    make("switch", seed=7)
    make("switch_all", seed=15)
