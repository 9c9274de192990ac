"""Freezes adapters as PEFT writes them, and what its models with them compute: lora.npz.

python tests/golden/make_lora.py      (made with torch 2.13.0, transformers 5.24.0, peft 0.21.2)

The weights of the models and of the adapters are drawn from their names by `drawn_weights`, so that
only the names and shapes are stored. `gpt2_blocks` is an adapter whose matrices for `c_attn` have a
block for each of query, key and value, as a run here writes them; PEFT reads it from its files.
"""

import json
import tempfile
from pathlib import Path

import drawn_weights
import numpy as np
import peft
import torch
import transformers
from safetensors.numpy import load_file, save_file

RANK, ALPHA = 3, 2
VOCABULARY = {"vocab_size": drawn_weights.VOCABULARY}
GPT2 = transformers.GPT2Config(
    **VOCABULARY, n_positions=16, n_embd=24, n_layer=2, n_head=3, bos_token_id=1, eos_token_id=1
)
# Name: the model's class, its settings, what `drawn_weights.inputs` makes, the adapter's settings.
MODELS = {
    "bert": (
        transformers.BertForSequenceClassification,
        transformers.BertConfig(
            **VOCABULARY,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=28,
            max_position_embeddings=16,
            num_labels=4,
        ),
        "segments",
        {"task_type": "SEQ_CLS", "target_modules": ["query", "value"]},
    ),
    "t5": (
        transformers.T5ForConditionalGeneration,
        transformers.T5Config(
            **VOCABULARY,
            d_model=24,
            d_kv=7,
            d_ff=28,
            num_layers=2,
            num_heads=3,
            relative_attention_num_buckets=4,
            relative_attention_max_distance=8,
            decoder_start_token_id=0,
        ),
        "both",
        {
            "task_type": "SEQ_2_SEQ_LM",
            "target_modules": ["q", "v", "o", "wi", "wo"],
            "use_rslora": True,
        },
    ),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        GPT2,
        "decoder",
        {
            "task_type": "CAUSAL_LM",
            "target_modules": ["c_attn", "c_proj"],
            "fan_in_fan_out": True,
        },
    ),
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **VOCABULARY,
            hidden_size=24,
            intermediate_size=28,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=1,
            max_position_embeddings=16,
        ),
        "decoder",
        {
            "task_type": "CAUSAL_LM",
            "target_modules": "all-linear",
            "rank_pattern": {"q_proj": 5},
            "alpha_pattern": {"down_proj": 4},
        },
    ),
}


def draw(model: torch.nn.Module) -> None:
    for name, weight in model.named_parameters():
        weight.data = torch.tensor(drawn_weights.draw(name, tuple(weight.shape)))
    model.tie_weights()


def base(name: str, folder: Path) -> torch.nn.Module:
    """The model of a name, read from the folder that it was saved to."""
    made, config, _, _ = MODELS[name]
    model = made(config)
    draw(model)
    model.save_pretrained(folder)
    return made.from_pretrained(folder).eval()


def logits(model: torch.nn.Module, batch: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return model(
            **{k: torch.tensor(x, dtype=torch.long) for k, x in batch.items()}
        ).logits.numpy()


def redrawn(folder: Path) -> dict[str, np.ndarray]:
    """Draws the tensors of an adapter's file anew, and returns them."""
    file = folder / "adapter_model.safetensors"
    tensors = {k: drawn_weights.draw(k, x.shape) for k, x in load_file(file).items()}
    save_file(tensors, file)
    return tensors


def frozen(name: str, folder: Path) -> dict[str, np.ndarray]:
    model = base(name, folder / "base")
    config = json.loads((folder / "base" / "config.json").read_text())
    tensors = load_file(folder / "base" / "model.safetensors")
    batch = drawn_weights.inputs(config, sides=MODELS[name][2], base=config)
    before = logits(model, batch)
    settings = {"r": RANK, "lora_alpha": ALPHA, **MODELS[name][3]}
    made = peft.get_peft_model(model, peft.LoraConfig(**settings))
    made.save_pretrained(folder / "adapter")
    adapter = redrawn(folder / "adapter")
    adapted = peft.PeftModel.from_pretrained(base(name, folder / "base"), folder / "adapter").eval()
    found = {
        "config.json": (folder / "base" / "config.json").read_text(),
        "tensors.json": json.dumps({k: x.shape for k, x in tensors.items()}),
        "adapter_config.json": (folder / "adapter" / "adapter_config.json").read_text(),
        "adapter.json": json.dumps({k: x.shape for k, x in adapter.items()}),
        "logits": logits(adapted, batch),
        **{f"inputs/{k}": x for k, x in batch.items()},
    }
    merged = logits(adapted.merge_and_unload(), batch)
    assert np.abs(merged - found["logits"]).max() < 1e-4, name
    assert np.abs(before - found["logits"]).max() > 0.1, name
    return found


def blocks(folder: Path) -> dict[str, np.ndarray]:
    """GPT-2 with separate matrices for query, key and value, drawn by the names of our layers."""
    width = GPT2.n_embd
    model = base("gpt2", folder / "base")
    tensors, modules = {}, []
    for layer in range(GPT2.n_layer):
        module = f"transformer.h.{layer}.attn.c_attn"
        a, b = np.zeros((3 * RANK, width)), np.zeros((3 * width, 3 * RANK))
        for n, name in enumerate(("query", "key", "value")):
            block = slice(n * RANK, (n + 1) * RANK)
            a[block] = drawn_weights.draw(f"{layer}/{name}/a", (RANK, width))
            b[n * width : (n + 1) * width, block] = drawn_weights.draw(
                f"{layer}/{name}/b", (width, RANK)
            )
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(np.float32)
        modules.append(module)
    settings = peft.LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        rank_pattern=dict.fromkeys(modules, 3 * RANK),
        alpha_pattern=dict.fromkeys(modules, 3 * ALPHA),
        target_modules=modules,
        fan_in_fan_out=True,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    settings.save_pretrained(folder / "adapter")
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    config = json.loads((folder / "base" / "config.json").read_text())
    batch = drawn_weights.inputs(config, sides="decoder", base=config)
    adapted = peft.PeftModel.from_pretrained(model, folder / "adapter").eval()
    return {
        "adapter_config.json": (folder / "adapter" / "adapter_config.json").read_text(),
        "logits": logits(adapted, batch),
        **{f"inputs/{k}": x for k, x in batch.items()},
    }


def main() -> None:
    arrays = {}
    for name in (*MODELS, "gpt2_blocks"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            found = blocks(path) if name == "gpt2_blocks" else frozen(name, path)
        arrays |= {f"{name}/{key}": value for key, value in found.items()}
    np.savez_compressed(Path(__file__).with_name("lora.npz"), **arrays)


if __name__ == "__main__":
    main()
