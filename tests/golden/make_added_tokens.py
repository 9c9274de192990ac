"""Freezes how transformers reads folders with added tokens: added_tokens.json.

python -m tests.programs.added_tokens FOLDER > LIST    (in the environment of this package)
python tests/golden/make_added_tokens.py FOLDER LIST   (torch 2.13.0, transformers 5.23.0)

LIST has the name and the folder of each. transformers also adds the tokens to the folders as they
were before, with the same ids.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKENS = ("<to-fr>", "<summarize>")
TEXTS = (
    "how are you <to-fr>",
    "a long text<summarize>",
    "x<to-fr>y <summarize> <to-fr><to-fr>",
    "<to-FR> to-fr> < to-fr>",
    "naïve cat, 12\n the  word",
)
STEP = 7  # every so many logits are kept
MODEL = "gpt2"


def main() -> None:
    """Writes added_tokens.json beside this file."""
    frozen = {}
    for line in Path(sys.argv[2]).read_text().splitlines():
        name, folder = line.split()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
        frozen[name] = {"ids": ids, "size": len(tokenizer)}
        if name != MODEL:
            other = AutoTokenizer.from_pretrained(
                Path(sys.argv[1], "before", name.replace("/", "-"))
            )
            assert other.add_tokens(list(TOKENS), special_tokens=True) == len(TOKENS)
            assert [other.encode(text, add_special_tokens=False) for text in TEXTS] == ids, name
        else:
            model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
            assert not any(report.values()), report
            with torch.no_grad():
                logits = model.eval()(torch.tensor(ids[:1])).logits
            frozen[name]["logits"] = logits.flatten()[::STEP].tolist()
    path = Path(__file__).with_name("added_tokens.json")
    content = {"texts": TEXTS, "folders": frozen}
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path.stat().st_size)


main()
