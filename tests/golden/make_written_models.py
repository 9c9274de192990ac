"""Freezes what AutoTokenizer and AutoModel of transformers make of folders: written_models.json.

python -m tests.programs.written_models FOLDER        (in the environment of this package)
python tests/golden/make_written_models.py FOLDER     (torch 2.13.0, transformers 5.24.0)
"""

import json
import sys
from pathlib import Path

import torch
import transformers

TEXTS = {"bert": "the cat sat on a [MASK].", "gpt2": "naïve cat", "t5": "a naïve <extra_id_0>."}
CLASSES = {"bert": "PreTraining", "gpt2": "CausalLM", "t5": "Seq2SeqLM"}
STEP = 41  # every so many logits are kept


def main() -> None:
    frozen = {}
    for system, kind in CLASSES.items():
        folder = Path(sys.argv[1], system)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        network = getattr(transformers, f"AutoModelFor{kind}")
        model, report = network.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()), report
        batch = tokenizer(TEXTS[system], return_tensors="pt")
        if system == "t5":
            batch["decoder_input_ids"] = torch.tensor([[0, 5, 7]])
        with torch.no_grad():
            outputs = model.eval()(**batch)
        logits = outputs.prediction_logits if system == "bert" else outputs.logits
        frozen[system] = {
            "text": TEXTS[system],
            "class": type(model).__name__,
            "ids": batch["input_ids"][0].tolist(),
            "logits": logits.flatten()[::STEP].tolist(),
        }
    path = Path(__file__).with_name("written_models.json")
    path.write_text(json.dumps(frozen, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
