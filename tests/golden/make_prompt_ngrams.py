"""Freezes what transformers generates without repeated n-grams of the prompt: prompt_ngrams.json.

python tests/golden/make_prompt_ngrams.py     (made with torch 2.13.0 and transformers 5.24.0)

The models are the GPT-2 of gpt2.npz and the T5 of t5_v1_0.npz. Prompts are padded on the left by
token 0, and are a text, GPT-2's continuation of it, and the text's end again: GPT-2 would repeat
the continuation.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import transformers
from safetensors.numpy import save_file
from torch import tensor

HERE = Path(__file__).parent
SETTINGS = [
    {"no_repeat_ngram_size": n, **beams} for beams in ({}, {"num_beams": 3}) for n in (1, 2, 3)
]
NEW_TOKENS = 12


def load(name: str, folder: str) -> transformers.PreTrainedModel:
    """The model of a file of this folder."""
    arrays = np.load(HERE / f"{name}.npz")
    weights = {k.removeprefix("weights/"): arrays[k] for k in arrays if k.startswith("weights/")}
    save_file(weights, Path(folder, "model.safetensors"), metadata={"format": "pt"})
    for file in ("config.json", "generation_config.json"):
        Path(folder, file).write_text(str(arrays[file]))
    kind = json.loads(str(arrays["config.json"]))["architectures"][0]
    return getattr(transformers, kind).from_pretrained(folder)


def main() -> None:
    """Generates with both models, and writes prompts, settings and tokens."""
    rows = [[0, 0, 0, 5, 9, 5, 9, 5], [7, 5, 7, 5, 9, 7, 5, 7], [0, 40, 3, 40, 3, 3, 3, 40]]
    found: dict = {"settings": SETTINGS, "max_new_tokens": NEW_TOKENS}
    for name in ("gpt2", "t5_v1_0"):
        with tempfile.TemporaryDirectory() as folder:
            model = load(name, folder)
            call = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
            call["attention_mask"] = (tensor(rows) != 0).long()
            if name == "gpt2":
                free = model.generate(tensor(rows), **call).tolist()
                rows = [[*one[:14], *own[-3:]] for one, own in zip(free, rows, strict=True)]
                call["attention_mask"] = (tensor(rows) != 0).long()
            found[name] = [model.generate(tensor(rows), **call, **own).tolist() for own in SETTINGS]
    found["prompts"] = rows
    (HERE / "prompt_ngrams.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
