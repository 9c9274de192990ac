"""Freezes what lm-eval's class for Hugging Face's models answers, with random weights: harness.npz.

python tests/golden/make_harness.py    (with lm-eval 0.4.13, torch 2.13.0, transformers 5.23.0)

Of a GPT-2, whose tokenizer adds no special token, a LLaMA, whose tokenizer adds one before a text,
and a T5, whose tokenizer adds one after. T5 reads bytes; the others bytes too, as byte-level BPE
without merges.
"""

import json
import tempfile
import types
from pathlib import Path

import drawn_weights
import harness_folders
import numpy as np
import torch
import transformers
from lm_eval.models.huggingface import HFLM

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "t5": "T5ForConditionalGeneration",
}


def model_of(kind: str, folder: Path) -> HFLM:
    """The harness's model of a folder with random weights, which it also writes."""
    config = harness_folders.CONFIGS[kind]
    made = getattr(transformers, CLASSES[kind])(
        getattr(transformers, CLASSES[kind]).config_class(**config)
    )
    with torch.no_grad():
        for name, tensor in made.named_parameters():
            tensor.copy_(torch.tensor(drawn_weights.draw(name, tuple(tensor.shape))))
    if kind == "t5":
        tokenizer = transformers.ByT5Tokenizer(extra_ids=0)
    else:
        (folder / "tokenizer.json").write_text(harness_folders.tokenizer(kind).to_str())
        names = {"eos_token": harness_folders.ENDS[kind]}
        if kind == "llama":
            names["bos_token"] = harness_folders.BEGINS
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), **names
        )
    return HFLM(
        pretrained=made.eval(),
        tokenizer=tokenizer,
        backend="seq2seq" if kind == "t5" else "causal",
        max_length=harness_folders.LENGTH,
        batch_size=2,
        device="cpu",
    )


def requests(arguments: list) -> list:
    return [types.SimpleNamespace(args=tuple(one)) for one in arguments]


def main() -> None:
    torch.manual_seed(0)
    arrays: dict[str, np.ndarray] = {}
    for kind in CLASSES:
        with tempfile.TemporaryDirectory() as folder:
            model = model_of(kind, Path(folder))
            scored = model.loglikelihood(requests(harness_folders.PAIRS))
            rolling = model.loglikelihood_rolling(requests([[x] for x in harness_folders.TEXTS]))
            generated = []
            for text, settings in harness_folders.PROMPTS:
                own = dict(settings)
                if kind == "t5":  # else the padded prompt's length is added to the most
                    own["max_length"] = own["max_gen_toks"] + 1
                generated += model.generate_until(requests([[text, own]]))
        shapes = {name: list(own.shape) for name, own in model.model.named_parameters()}
        arrays[f"{kind}/tensors"] = np.array(json.dumps(shapes))
        arrays[f"{kind}/scores"] = np.array([one[0] for one in scored])
        arrays[f"{kind}/greedy"] = np.array([one[1] for one in scored])
        arrays[f"{kind}/rolling"] = np.array(rolling)
        arrays[f"{kind}/generated"] = np.array(json.dumps(generated))
        print(kind, scored[:3], rolling, generated)
    np.savez_compressed(Path(__file__).with_name("harness.npz"), **arrays)


if __name__ == "__main__":
    main()
